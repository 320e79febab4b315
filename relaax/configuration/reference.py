"""The reference of all keys as Markdown tables, generated from their declarations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pydantic

from relaax.configuration.keys import Models, inner_model, key_of
from relaax.configuration.resuming import resume_rules
from relaax.configuration.roles import SECTIONS

_BOUNDS = {
    "exclusiveMinimum": "> {}",
    "minimum": "≥ {}",
    "exclusiveMaximum": "< {}",
    "maximum": "≤ {}",
}
_TYPES = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false", "null": "null"}
_HEAD = ("key", "type", "default", "bounds", "meaning")
_HEAD_WITH_RULES = (*_HEAD[:4], "on resume", _HEAD[4])
_COUNTED = ("integer", "number", "text")


def tables(base: type[pydantic.BaseModel], algorithms: Models) -> str:
    """Return tables of the sections, of `base` (the keys of every algorithm), and of each algorithm's differences."""
    parts = [_table(f"`{name}`", _doc(model), _rows(model, dashes=True)) for name, model in SECTIONS.items()]
    parts.append(_table("`algorithm`", "The keys of every algorithm.", _with_rules(base), _HEAD_WITH_RULES))
    shown = {base: "every algorithm"}
    for name, model in algorithms.items():
        parent = next(ancestor for ancestor in model.__mro__[1:] if ancestor in shown)
        inherited = set(_with_rules(parent))
        whose = f"The keys of {shown[parent]}, with these differences:"
        rows = [row for row in _with_rules(model) if row not in inherited]
        parts.append(_table(f"`algorithm`: {name}", whose, rows, _HEAD_WITH_RULES))
        shown[model] = name
    return "\n".join(parts)


def _doc(model: type[pydantic.BaseModel]) -> str:
    text = " ".join((model.__doc__ or "").split()).partition(": ")[2]
    return f"{text[:1].upper()}{text[1:]}"


def _table(title: str, text: str, rows: Sequence[tuple[str, ...]], columns: Sequence[str] = _HEAD) -> str:
    head = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    body = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([f"### {title}", "", text, "", *head, *body, ""])


def _with_rules(model: type[pydantic.BaseModel]) -> list[tuple[str, ...]]:
    """Return the rows of an algorithm's keys, with their rules on resume."""
    rules = {f"`{'.'.join(path)}`": rule.value for path, rule in resume_rules(model)}
    # The keys of a model in a list follow the list's rule.
    return [(*row[:4], rules.get(row[0]) or rules[f"{row[0].partition('[]')[0]}`"], row[4]) for row in _rows(model)]


def _rows(model: type[pydantic.BaseModel], dashes: bool = False, prefix: str = "") -> list[tuple[str, ...]]:
    """Return key, type, default, bounds and meaning; the keys of a nested model follow its own."""
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
    """Return the members of a union; of any other node, the node itself."""
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
    """Return the bounds of the number, or of each number in the list."""
    members = [choice.get("items", choice) for choice in _choices(node)]
    bounds = [text.format(_number(member[key])) for member in members for key, text in _BOUNDS.items() if key in member]
    return ", ".join(dict.fromkeys(bounds))
