"""A JSON schema of configuration files for editors; it accepts every spelling of keys and of numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pydantic

from relaax.configuration.keys import Models
from relaax.configuration.roles import SECTIONS

DIALECT = "http://json-schema.org/draft-07/schema#"
# RELAAX reads these as numbers, YAML 1.1 as texts.
_NUMBER = {"type": "string", "pattern": r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"}
_COMBINED = ("anyOf", "allOf", "oneOf")
_ANNOTATIONS = ("description", "default")


def schema_of(algorithms: Models, base: type[pydantic.BaseModel]) -> dict[str, Any]:
    """Return the schema of files with one of these algorithms, by name, or with another whose keys extend `base`.

    With a single algorithm, return the schema of files with that one, whatever its path.
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
    properties["algorithm"] = {"description": "`algorithm`: which one, and its own keys.", "allOf": [algorithm]}
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
    """Return a schema that accepts all that RELAAX accepts. `dashes`: suggest keys with dashes, as in the files."""
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
    """Return properties as suggested, and patterns for other spellings: leading dashes, dashes for underscores."""
    patterns = {}
    for name in properties:
        spelt = "[-_]".join(re.escape(part) for part in re.split("[-_]", name))
        patterns[f"^-*{spelt}$"] = {"$ref": f"{place}/properties/{name}"}
    return {"properties": dict(properties), "patternProperties": patterns}


def _required(names: Iterable[str]) -> list[dict[str, Any]]:
    return [{"anyOf": [{"required": [f"{dashes}{name}"]} for dashes in ("", "--")]} for name in names]
