"""References of all keys, generated from their declarations: Markdown tables and a JSON schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pydantic

from relaax.configuration.resuming import resume_rules
from relaax.configuration.roles import SECTIONS
from relaax.configuration.validation import Models, inner_model, key_of

_BOUNDS = {
    "exclusiveMinimum": "> {}",
    "minimum": "≥ {}",
    "exclusiveMaximum": "< {}",
    "maximum": "≤ {}",
}
_TYPES = {"integer": "integer", "number": "number", "string": "text", "boolean": "boolean", "null": "null"}
_HEAD = ("key", "type", "default", "bounds", "meaning")
_HEAD_WITH_RULES = (*_HEAD[:4], "on resume", _HEAD[4])
_COUNTED = ("integer", "number", "text")


def tables(base: type[pydantic.BaseModel], algorithms: Models) -> str:
    """Return tables of the sections, of `base` (the keys of every algorithm), and of the algorithms' own keys.

    Keys that several algorithms inherit from one class are in one table, and each later table has only differences.
    """
    parts = [_table(f"`{name}`", _doc(model), _rows(model, dashes=True)) for name, model in SECTIONS.items()]
    parts.append(_table("`algorithm`", "The keys of every algorithm.", _with_rules(base), _HEAD_WITH_RULES))
    shown = {base: "the table `algorithm`"}
    for title, model in {**_shared(base, algorithms), **algorithms}.items():
        parent = next(ancestor for ancestor in model.__mro__[1:] if ancestor in shown)
        inherited = set(_with_rules(parent))
        rows = [row for row in _with_rules(model) if row not in inherited]
        text = f"The keys of {shown[parent]}{', with these additions and changes:' if rows else '.'}"
        parts.append(_table(f"`algorithm`: {title}", text, rows, _HEAD_WITH_RULES))
        shown[model] = f"the table {title}"
    return "\n".join(parts)


def _shared(base: type[pydantic.BaseModel], algorithms: Models) -> dict[str, type[pydantic.BaseModel]]:
    """Return classes whose keys several algorithms inherit, by these algorithms' names; most algorithms first.

    Of several classes of the same algorithms, return the most derived one.
    """
    found: dict[tuple[str, ...], type[pydantic.BaseModel]] = {}
    for model in algorithms.values():
        for ancestor in model.__mro__[1 : model.__mro__.index(base)]:
            names = tuple(name for name, other in algorithms.items() if issubclass(other, ancestor))
            if len(names) > 1 and ancestor not in algorithms.values():
                found.setdefault(names, ancestor)
    return {", ".join(names): found[names] for names in sorted(found, key=len, reverse=True)}


def _doc(model: type[pydantic.BaseModel]) -> str:
    text = " ".join((model.__doc__ or "").split()).partition(": ")[2]
    return f"{text[:1].upper()}{text[1:]}"


def _table(title: str, text: str, rows: Sequence[tuple[str, ...]], columns: Sequence[str] = _HEAD) -> str:
    head = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"] if rows else []
    body = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([f"### {title}", "", text, "", *head, *body, *([""] if rows else [])])


def _with_rules(model: type[pydantic.BaseModel]) -> list[tuple[str, ...]]:
    """Return the rows of an algorithm's keys, with their resume rules."""
    rules = {f"`{'.'.join(path)}`": rule.value for path, rule in resume_rules(model)}
    # The keys of a model in a list follow the list's rule.
    return [(*row[:4], rules.get(row[0]) or rules[f"{row[0].partition('[]')[0]}`"], row[4]) for row in _rows(model)]


def _rows(model: type[pydantic.BaseModel], dashes: bool = False, prefix: str = "") -> list[tuple[str, ...]]:
    """Return rows of key, type, default, bounds and meaning, including the keys of nested models."""
    rows: list[tuple[str, ...]] = []
    properties = model.model_json_schema()["properties"]
    for name, field in model.model_fields.items():
        key, inner = key_of(name, field), inner_model(field.annotation)
        shown = f"{prefix}{key.replace('_', '-') if dashes else key}"
        node = properties[key]
        if inner is not field.annotation:
            default = "needed" if field.is_required() else f"`{_as_yaml(node.get('default'))}`"
            rows.append((f"`{shown}`", _type(node), default, _bounds(node), field.description or ""))
        if inner is not None:
            rows += _rows(inner, dashes, f"{shown}{'' if inner is field.annotation else '[]'}.")
    return rows


def _as_yaml(value: Any) -> str:
    return value if isinstance(value, str) else _number(value) if isinstance(value, float) else json.dumps(value)


def _number(value: float) -> str:
    return f"{value:g}" if abs(value) < 1e6 else str(value)


def _choices(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the members of a union, or the node itself."""
    if "anyOf" not in node:
        return [node]
    return [choice for member in node["anyOf"] for choice in _choices(member)]


def _type(node: Mapping[str, Any], plural: bool = False) -> str:
    return " or ".join(dict.fromkeys(_name(choice, plural) for choice in _choices(node)))


def _name(node: Mapping[str, Any], plural: bool) -> str:
    if "enum" in node:
        return ", ".join(f"`{choice}`" for choice in node["enum"])
    if "const" in node:
        return f"`{node['const']}`"
    if node.get("type") == "array":
        return f"list of {_type(node['items'], plural=True)}"
    name = _TYPES.get(node.get("type", ""), "keys and values")
    return f"{name}s" if plural and name in _COUNTED else name


def _bounds(node: Mapping[str, Any]) -> str:
    members = [choice.get("items", choice) for choice in _choices(node)]
    bounds = [text.format(_number(member[key])) for member in members for key, text in _BOUNDS.items() if key in member]
    return ", ".join(dict.fromkeys(bounds))


DIALECT = "http://json-schema.org/draft-07/schema#"
# RELAAX reads these texts as numbers; YAML 1.1 does not.
_NUMBER = {"type": "string", "pattern": r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"}
_COMBINED = ("anyOf", "allOf", "oneOf")
_ANNOTATIONS = ("description", "default")


def schema_of(algorithms: Models, base: type[pydantic.BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of files with these algorithms, by name, or with others whose keys extend `base`.

    With a single algorithm, the schema is for that one, with any path.
    """
    definitions: dict[str, Any] = {}
    sections = {name: _defined(model, name, definitions) for name, model in SECTIONS.items()}
    configs = {name: _defined(model, f"algorithm.{name}", definitions) for name, model in algorithms.items()}
    if len(configs) == 1:
        (algorithm,) = configs.values()
    else:
        other = type("Other", (base,), {"model_config": pydantic.ConfigDict(extra="allow"), "__doc__": base.__doc__})
        algorithm = _defined(other, "algorithm", definitions)
        for name, config in reversed(configs.items()):
            at = {"type": "string", "pattern": f"(^|/){re.escape(name)}(\\.py)?/*$"}
            algorithm = {"if": {"required": ["path"], "properties": {"path": at}}, "then": config, "else": algorithm}
    described = {name: " ".join((model.__doc__ or "").split()) for name, model in SECTIONS.items()}
    properties: dict[str, Any] = {
        name: {"description": described[name], "anyOf": [section, {"type": "null"}]}
        for name, section in sections.items()
    }
    properties["algorithm"] = {"description": "`algorithm`: the algorithm's path and keys.", "allOf": [algorithm]}
    return {
        "$schema": DIALECT,
        "title": "RELAAX configuration",
        "type": "object",
        **_any_spelling(properties, "#"),
        "additionalProperties": False,
        "allOf": _required(["algorithm"]),
        "definitions": definitions,
    }


def _defined(model: type[pydantic.BaseModel], name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """Add the schema of a model and its parts to the definitions, and return a reference to it."""
    prefix = f"{name}."
    raw = model.model_json_schema(ref_template=f"#/definitions/{prefix}{{model}}")
    parts = {f"{prefix}{key}": value for key, value in raw.pop("$defs", {}).items()}
    for key, part in {name: raw, **parts}.items():
        definitions[key] = _loosened(part, f"#/definitions/{key}", dashes=name in SECTIONS)
    return {"$ref": f"#/definitions/{name}"}


def _loosened(node: Any, place: str, dashes: bool = False) -> Any:
    """Return a schema that accepts all spellings that RELAAX accepts. `dashes`: suggest keys with dashes."""
    if isinstance(node, list):
        return [_loosened(item, place, dashes) for item in node]
    if not isinstance(node, Mapping):
        return node
    if node.get("type") in ("integer", "number"):
        kept = {key: node[key] for key in _ANNOTATIONS if key in node}
        bounds = {key: value for key, value in node.items() if key not in (*_ANNOTATIONS, "title")}
        return {**kept, "anyOf": [bounds, _NUMBER]}
    result: dict[str, Any] = {}
    for key, value in node.items():
        if key == "properties":
            written = {name.replace("_", "-") if dashes else name: part for name, part in value.items()}
            result |= _any_spelling({name: _loosened(part, place, dashes) for name, part in written.items()}, place)
        elif key == "required":
            result["allOf"] = _required(value)
        elif key != "title":
            result[key] = _loosened(value, place, dashes) if key in (*_COMBINED, "items") else value
    return result


def _any_spelling(properties: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return the properties, and patterns for other spellings: leading dashes, dashes for underscores."""
    patterns = {}
    for name in properties:
        spelt = "[-_]".join(re.escape(part) for part in re.split("[-_]", name))
        patterns[f"^-*{spelt}$"] = {"$ref": f"{place}/properties/{name}"}
    return {"properties": dict(properties), "patternProperties": patterns}


def _required(names: Iterable[str]) -> list[dict[str, Any]]:
    return [{"anyOf": [{"required": [f"{dashes}{name}"]} for dashes in ("", "--")]} for name in names]
