"""The same message in other bytes: whatever section 3 and Protobuf allow and writers usually do not do."""

from __future__ import annotations

import json
import re
import struct
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from relaax.conformance.wire import framed
from relaax.rlx.varint import varint

_UNKNOWN = (1010 << 3 | 2, b"\x02hi")  # a field of a newer peer
_UNKNOWN_IN_JSON = {"colour": {"red": [1, None]}, "[x.y]": 10**400}
_INTEGERS = {FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_ENUM}


def written_otherwise(message: Message, codec: str) -> bytes:
    """Return a frame with fields in reverse order and lists unpacked; in JSON with .proto names, numbers, nulls."""
    if codec == "protobuf":
        return framed(_reversed(message, unknown=False))
    tree = json_format.MessageToDict(message, preserving_proto_field_name=True, use_integers_for_enums=True)
    return framed(json.dumps(_numbers(tree), indent=1).encode())


def with_unknown_fields(message: Message, codec: str) -> bytes:
    """Return a frame in which every message has one more field than this version knows."""
    if codec == "protobuf":
        return framed(_reversed(message, unknown=True))
    return framed(json.dumps(_more(json_format.MessageToDict(message))).encode())


def _reversed(message: Message, unknown: bool) -> bytes:
    data = b""
    for field, value in reversed(message.ListFields()):
        # A repeated field answers to `extend`; strings, bytes and messages do not.
        for one in value if hasattr(value, "extend") else [value]:
            data += _field(field, one, unknown)
    return data + varint(_UNKNOWN[0]) + _UNKNOWN[1] if unknown else data


def _field(field: FieldDescriptor, value: Any, unknown: bool) -> bytes:
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return varint(field.number << 3 | 1) + struct.pack("<d", value)
    if field.type in _INTEGERS or field.type == FieldDescriptor.TYPE_BOOL:
        return varint(field.number << 3) + varint(int(value) & 2**64 - 1)
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        value = _reversed(value, unknown)
    elif field.type == FieldDescriptor.TYPE_STRING:
        value = value.encode()
    elif field.type != FieldDescriptor.TYPE_BYTES:
        raise AssertionError(f"{field.full_name} has a type that the .proto did not have")
    return varint(field.number << 3 | 2) + varint(len(value)) + bytes(value)


_WRITTEN_AS_STRINGS = ("n", "start", "global_step")


def _numbers(tree: Any, key: str = "") -> Any:
    """64-bit integers as numbers; a null where a field is at its default."""
    if isinstance(tree, dict):
        return {name: _numbers(part, name) for name, part in reversed(tree.items())} | _null(tree)
    if isinstance(tree, list):
        return [_numbers(part, key) for part in tree]
    whole = isinstance(tree, str) and key in (*_WRITTEN_AS_STRINGS, "nvec") and re.fullmatch(r"-?\d+", tree)
    return int(tree) if whole else tree


def _null(tree: dict[str, Any]) -> dict[str, None]:
    """Return a field that every message of its kind may leave out, as null."""
    for mark, name in (("session_id", "server_version"), ("code", "retry_after_seconds"), ("environments", "host")):
        if mark in tree and name not in tree:
            return {name: None}
    return {}


def _more(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _more(part) for name, part in tree.items()} | _UNKNOWN_IN_JSON
    return [_more(part) for part in tree] if isinstance(tree, list) else tree
