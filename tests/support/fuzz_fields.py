"""Mutate a message by its structure: Protobuf's fields or the JSON tree."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from relaax.rlx import rlx_pb2

_F = FieldDescriptor
_FLOATS = (0.0, -0.0, 1.0, -1.5, math.nan, math.inf, -math.inf, 1e308, 5e-324, 2.0**63, 3.5e38)
NUMBERS: dict[int, tuple[Any, ...]] = {
    _F.CPPTYPE_INT32: (0, 1, -1, 99, 2**31 - 1, -(2**31)),
    _F.CPPTYPE_INT64: (0, 1, -1, 2**31, 2**63 - 1, -(2**63)),
    _F.CPPTYPE_UINT32: (0, 1, 2, 3, 255, 256, 257, 65536, 2**20, 2**31 - 1, 2**31, 2**32 - 1),
    _F.CPPTYPE_UINT64: (0, 1, 2**63, 2**64 - 1),
    _F.CPPTYPE_DOUBLE: _FLOATS,
    _F.CPPTYPE_FLOAT: _FLOATS,
    _F.CPPTYPE_BOOL: (True, False),
    _F.CPPTYPE_ENUM: (0, 1, 2, 3, 4, 11, 12, 13, 99, -1, 2**31 - 1, -(2**31)),
}
TEXTS = ("", "x", "\0", "\n", "../../x", "é" * 100, "\U0001f600", "a" * 129, "a" * 257, "a" * 5000, "\ud7ff", "\u202e")
JSON_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 1.5, 1e308, 2**31, 2**32, 2**63, 2**64, 2**70, 10**400),
    *(
        math.nan,
        math.inf,
        "NaN",
        "Infinity",
        "-Infinity",
        "1",
        "1e400",
        "0x10",
        "",
        "AAAA",
        "AA",
        "_-8=",
        "*",
        "\ud800",
    ),
    *([], {}, [[]], [{}], [None], {"": None}, [0] * 1000, ["AUTORESET_SAME_STEP"], "DTYPE_FLOAT32", "MODE_TRAIN"),
)


def mutate_fields(rng: random.Random, envelope: Message) -> None:
    """Change one field somewhere in the message."""
    node = rng.choice(list(_messages(envelope)))
    field = rng.choice(node.DESCRIPTOR.fields)
    if field.is_repeated:
        _mutate_list(rng, getattr(node, field.name), field)
    elif field.cpp_type == _F.CPPTYPE_MESSAGE:
        _mutate_message(rng, node, field, envelope)
    elif rng.random() < 0.2:
        node.ClearField(field.name)
    else:
        setattr(node, field.name, _value(rng, field))


def _messages(node: Message) -> Iterator[Message]:
    yield node
    for field, value in node.ListFields():
        if field.cpp_type == _F.CPPTYPE_MESSAGE:
            for part in value if field.is_repeated else (value,):
                yield from _messages(part)


def _mutate_list(rng: random.Random, items: Any, field: FieldDescriptor) -> None:
    of_messages = field.cpp_type == _F.CPPTYPE_MESSAGE
    kind = rng.choice(("clear", "drop", "add", "many", "shuffle", "duplicate", "change"))
    if kind == "clear" or not len(items):
        del items[:]
    if kind == "drop" and len(items):
        del items[rng.randrange(len(items))]
    elif kind in ("shuffle", "change", "duplicate") and len(items):
        copies = [copy.deepcopy(item) for item in items]
        if kind == "shuffle":
            rng.shuffle(copies)
        elif kind == "duplicate":
            copies.insert(0, copies[-1])
        elif not of_messages:
            copies[rng.randrange(len(copies))] = _value(rng, field)
        del items[:]
        items.extend(copies)
    elif kind == "add":
        items.add() if of_messages else items.append(_value(rng, field))
    elif kind == "many":
        for _ in range(rng.choice((9, 300))):
            items.add() if of_messages else items.append(_value(rng, field))


def _mutate_message(rng: random.Random, node: Message, field: FieldDescriptor, envelope: Message) -> None:
    part = getattr(node, field.name)
    same = [other for other in _messages(envelope) if type(other) is type(part)]
    kind = rng.choice(("clear", "empty", "copy", "nest"))
    if kind == "clear":
        node.ClearField(field.name)
    elif kind == "copy" and same:
        part.CopyFrom(copy.deepcopy(rng.choice(same)))
    elif kind == "nest" and isinstance(part, rlx_pb2.Space):
        inner = copy.deepcopy(part)
        for _ in range(rng.choice((1, 14, 15, 16, 45, 95))):
            outer = rlx_pb2.Space()
            (outer.tuple.spaces.add() if rng.random() < 0.5 else outer.dict.entries.add().space).CopyFrom(inner)
            inner = outer
        part.CopyFrom(inner)
    else:
        part.SetInParent()


def _value(rng: random.Random, field: FieldDescriptor) -> Any:
    if field.type == _F.TYPE_BYTES:
        return rng.randbytes(rng.choice((0, 1, 3, 4, 8, 16, 17, 1000)))
    if field.type == _F.TYPE_STRING:
        return rng.choice(TEXTS)
    return rng.choice(NUMBERS[field.cpp_type])


def mutate_json(rng: random.Random, tree: dict[str, Any]) -> bytes:
    """Return the text of a tree with one mutation, of a value or of the text."""
    tree = copy.deepcopy(tree)
    places = list(_places(tree))
    if not places:
        return rng.choice((b"{", b"{}", b"{} {}", b'{"hue":1}'))
    holder, key = rng.choice(places)
    kind = rng.choice(("value", "value", "drop", "unknown", "snake", "twice", "deep", "duplicate", "text"))
    marker = "place of the mutation"
    replacement: str | None = None
    if kind == "value":
        holder[key] = rng.choice(JSON_VALUES)
    elif kind == "drop":
        del holder[key]
    elif kind == "duplicate" and isinstance(holder, list):
        holder.extend([holder[key]] * rng.choice((1, 300)))
    elif isinstance(holder, dict) and kind in ("unknown", "snake", "twice"):
        if kind == "unknown":
            holder[rng.choice(("hue", "", "@type", "x" * 3000, "\ud800"))] = rng.choice(JSON_VALUES)
        elif kind == "snake":
            holder["".join("_" + c.lower() if c.isupper() else c for c in key)] = holder.pop(key)
        else:
            replacement = f'"":{json.dumps(holder[key])},{json.dumps(key)}'
            holder[marker] = holder[key]
    elif kind == "deep":
        depth = rng.choice((20, 90, 110, 900, 5000))
        holder[key] = marker
        opening, closing = rng.choice((("[", "]"), ('{"spaces":[', "]}"), ('{"tuple":', "}")))
        text = json.dumps(tree, allow_nan=True)
        return text.replace(json.dumps(marker), opening * depth + "1" + closing * depth).encode()
    text = json.dumps(tree, indent=rng.choice((None, None, 1)), ensure_ascii=rng.random() < 0.8)
    if replacement is not None:
        text = text.replace(json.dumps(marker), replacement)
    if kind == "text":
        text = rng.choice((text + " ", text + "x", " " + text, "\ufeff" + text, text[:-1], text * 2, text + "\0"))
    return text.encode(rng.choice(("utf-8",) * 20 + ("utf-16",)), "surrogatepass")


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], (dict, list)):
            yield from _places(tree[key])
