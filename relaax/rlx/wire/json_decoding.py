"""Convert JSON text to the Protobuf form: Protobuf's JSON mapping as section 3 of protocol/RLX.md narrows it.

Protobuf's own parser is lenient where Python is ("1_0" for a number), strict where RLX is not (unknown names), and
takes ten times as long. Here the first wrong element of a list ends the reading.
"""

from __future__ import annotations

import binascii
import functools
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from relaax.rlx.errors import ErrorCode, ProtocolError

# Objects and lists within each other: the deepest space of a hello needs about 70.
MAX_NESTING = 100
_INT_DIGITS = 40  # an integer of more is beyond every field, and Python takes long to read one of thousands
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_OPEN = "ErrorCode"  # the only enumeration that may grow within version 1
_NEEDED = {"Scalar": "name", "Episode": "length"}  # of messages that come in lists of any length

Tree = dict[str, Any]


def tree_of(payload: bytes) -> Tree:
    """Return the outermost object of a frame. Raises ProtocolError (MALFORMED) if there is none."""
    constants: dict[str, _Constant] = {}
    try:
        tree = json.loads(
            payload.decode("utf-8"),
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_constant=lambda name: constants.setdefault(name, _Constant(name)),
        )
        if payload.count(b"{") + payload.count(b"[") > MAX_NESTING:
            _refuse_nesting(tree)
    except RecursionError:
        raise malformed("nested too deeply") from None
    except ValueError as error:
        raise malformed(str(error)[:200]) from None
    if constants:
        where = _path_to_constant(tree) or f"a frame: {next(iter(constants))}"
        raise ProtocolError(ErrorCode.MALFORMED, f"{where.removeprefix('.')} is no JSON")
    if type(tree) is not dict:
        raise malformed(f"{_shown(tree)} is no object")
    return tree


def one_of(tree: Tree, envelope: Descriptor) -> tuple[str, Tree] | None:
    """Return the field of the one message in an envelope, and the message; None if no message is known.

    Raises ProtocolError (MALFORMED) if there are several, or one is no object.
    """
    fields = _form(envelope).fields
    known = [(fields[key], value) for key, value in tree.items() if key in fields]
    found = [(field.name, value) for field, value in known if value is not None]
    if len(found) > 1 or len({field.name for field, _ in known}) != len(known):
        raise malformed(f"more than one message: {', '.join(field.name for field, _ in known)}")
    if not found:
        return None
    name, value = found[0]
    if type(value) is not dict:
        raise ProtocolError(ErrorCode.MALFORMED, f"{name}: {_shown(value)} is no object")
    return name, value


def part_of(tree: Tree, *names: str) -> Tree:
    """Return the object with these keys only."""
    return {name: tree[name] for name in names if name in tree}


def fill(name: str, tree: Tree, target: Message, most: dict[str, tuple[int, ErrorCode]]) -> None:
    """Fill an empty message, called `name`, from an object; unknown names are ignored.

    `most`: how many messages of a type a list may have, and the code of the error if there are more.
    Raises ProtocolError, which names the field: INVALID_VALUE for an unknown enumerator, MALFORMED for what else does
    not fit.
    """
    try:
        _fill(tree, target, _form(target.DESCRIPTOR), most)
    except (ValueError, ProtocolError) as error:
        wrong = _within(name, error)
        raise ProtocolError(wrong.code, f"{wrong.path}: {wrong.reason}") from None


def malformed(reason: str) -> ProtocolError:
    """Return the error for JSON that is not a message."""
    return ProtocolError(ErrorCode.MALFORMED, f"a frame is no JSON of a message: {reason}")


class _Wrong(ValueError):
    """A value that does not fit its field. `path`: from a message to the field, such as "observation[0].shape"."""

    def __init__(self, code: ErrorCode, path: str, reason: str) -> None:
        self.code, self.path, self.reason = code, path, reason


def _within(step: str, error: ValueError | ProtocolError) -> _Wrong:
    """Return the error of a field of `step`, or the one of `step` itself: a name, or an index in brackets."""
    if isinstance(error, _Wrong):
        return _Wrong(error.code, step + ("" if error.path.startswith("[") else ".") + error.path, error.reason)
    if isinstance(error, ProtocolError):
        return _Wrong(error.code, step, error.message)
    return _Wrong(ErrorCode.MALFORMED, step, str(error)[:200])


@dataclass(frozen=True, slots=True)
class _Field:
    """`other`: its second name, if it has one. `read` makes its value, if it is no message."""

    name: str
    other: str | None
    repeated: bool
    oneof: str | None
    read: Callable[[Any], Any] | None
    message: Descriptor | None


@dataclass(frozen=True, slots=True)
class _Form:
    """The fields of a message by both of their names. `needed`: a field without which nothing else is read."""

    fields: dict[str, _Field]
    needed: str | None


@functools.cache
def _form(message: Any) -> _Form:
    fields, blank = {}, message._concrete_class()
    for field in message.fields:
        for name, other in ((field.json_name, field.name), (field.name, field.json_name)):
            fields[name] = _Field(
                field.name,
                other if other != name else None,
                hasattr(getattr(blank, field.name), "extend"),
                None if field.containing_oneof is None else field.containing_oneof.name,
                _reader(field),
                field.message_type,
            )
    return _Form(fields, _NEEDED.get(message.name))


def _fill(tree: Any, target: Any, form: _Form, most: dict[str, tuple[int, ErrorCode]]) -> None:
    if type(tree) is not dict:
        raise ValueError(f"{_shown(tree)} is no object")
    fields = form.fields
    if form.needed is not None and not tree.get(form.needed):
        raise _Wrong(ErrorCode.INVALID_VALUE, form.needed, "it is missing")
    for key, value in tree.items():
        field = fields.get(key)
        if field is None:
            continue
        if field.other is not None and field.other in tree:
            raise ValueError(f"{key} and {field.other} are one field")
        if value is None:
            continue
        if field.oneof is not None and target.WhichOneof(field.oneof) is not None:
            raise ValueError(f"{key} beside {target.WhichOneof(field.oneof)}, where one is due")
        try:
            _fill_field(value, target, field, most)
        except (ValueError, ProtocolError) as error:
            raise _within(key, error) from None


def _fill_field(value: Any, target: Any, field: _Field, most: dict[str, tuple[int, ErrorCode]]) -> None:
    if field.repeated:
        _fill_list(value, target, field, most)
    elif field.read is not None:
        setattr(target, field.name, field.read(value))
    else:
        assert field.message is not None
        part = getattr(target, field.name)
        part.SetInParent()
        _fill(value, part, _form(field.message), most)


def _fill_list(value: Any, target: Any, field: _Field, most: dict[str, tuple[int, ErrorCode]]) -> None:
    if type(value) is not list:
        raise ValueError(f"{_shown(value)} is no list")
    parts = getattr(target, field.name)
    if field.read is not None:
        try:
            parts.extend([field.read(one) for one in value])
        except (ValueError, ProtocolError):
            _each(field.read, value)
            raise
        return
    assert field.message is not None
    at_most, code = most.get(field.message.name, (len(value), ErrorCode.LIMIT_EXCEEDED))
    if len(value) > at_most:
        raise ProtocolError(code, f"{len(value)} entries; at most {at_most} is allowed")
    form = _form(field.message)
    _each(lambda one: _fill(one, parts.add(), form, most), value)


def _each(read: Callable[[Any], Any], values: list[Any]) -> None:
    """Call `read` with each value; an error names the index."""
    at = 0
    try:
        for at, one in enumerate(values):  # noqa: B007 - used where it ends
            read(one)
    except (ValueError, ProtocolError) as error:
        raise _within(f"[{at}]", error) from None


def _reader(field: FieldDescriptor) -> Callable[[Any], Any] | None:
    if field.type == FieldDescriptor.TYPE_ENUM:
        assert field.enum_type is not None
        return _enumerator(field.enum_type)
    return _READERS.get(field.type)


def _object(pairs: list[tuple[str, Any]]) -> Tree:
    result = dict(pairs)
    if len(result) != len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise ValueError(f"the key {_shown(twice)} appears twice in an object")
    return result


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _INT_DIGITS else float(digits)


@dataclass(frozen=True, slots=True)
class _Constant:
    """A number that JSON does not have, such as NaN."""

    name: str


def _path_to_constant(node: Any) -> str | None:
    """Return the path to the first `_Constant` in a tree, and its name; None if there is none."""
    for key, child in node.items() if type(node) is dict else enumerate(node) if type(node) is list else ():
        step = f".{key[:40]}" if type(key) is str else f"[{key}]"
        if type(child) is _Constant:
            return f"{step}: {child.name}"
        if type(child) in (dict, list) and (below := _path_to_constant(child)) is not None:
            return step + below
    return None


def _refuse_nesting(tree: Any) -> None:
    """Parse JSON. Raises RecursionError; whether the parser does differs between versions of Python."""
    level = [tree]
    for _ in range(MAX_NESTING):
        inner = (child for node in level for child in (node.values() if isinstance(node, dict) else node))
        level = [child for child in inner if isinstance(child, dict | list)]
        if not level:
            return
    raise RecursionError


def _shown(value: Any) -> str:
    """Return a value as JSON writes it, or its start, or what kind of value it is."""
    if isinstance(value, str):
        return json.dumps(value[:40])
    return json.dumps(value)[:40] if isinstance(value, int | float | None) else _kind(value)


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", bool: "true or false", str: "a string", type(None): "null"}
    return kinds.get(type(value), "a number")


def _number(text: str) -> re.Match[str]:
    """Match a number as JSON writes it: its fraction is group 2, its exponent group 3. Raises ValueError."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise ValueError(f"{_shown(text)} is no number")
    return found


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        number = value
        if type(value) is str:
            found = _number(value)
            number = _integer(value) if found[2] is found[3] is None else float(value)
        if type(number) is float and number.is_integer():
            number = int(number)
        if type(number) is not int or not low <= number <= high:
            raise ValueError(f"{_shown(value)} is no integer from {low} to {high}")
        return number

    return read


def _double(value: Any) -> float:
    if type(value) is str:
        if value in _NOT_FINITE:
            return _NOT_FINITE[value]
        _number(value)
    elif type(value) is not float and type(value) is not int:
        raise ValueError(f"{_shown(value)} is no number")
    number = float(value)
    if math.isinf(number):
        raise ValueError("a number beyond a double")
    return number


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{_shown(value)} is neither true nor false")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{_kind(value)} is no string")  # it may be a token
    return value


def _bytes(value: Any) -> bytes:
    text = _text(value)
    try:
        data = binascii.a2b_base64(text)
        if binascii.b2a_base64(data, newline=False).decode() == text:
            return data  # its padding, alphabet, white space and bits beyond the last byte are right
    except ValueError:  # binascii.Error is one
        pass
    raise ValueError("a string is no base64 of the standard alphabet with padding")


def _enumerator(kind: EnumDescriptor) -> Callable[[Any], int]:
    numbers = {value.name: value.number for value in kind.values}
    is_open, whole = kind.name == _OPEN, _whole(-(2**31), 2**31 - 1)

    def read(value: Any) -> int:
        if type(value) is not str:
            return whole(value)
        number = numbers.get(value)
        if number is None and not is_open:
            raise ProtocolError(
                ErrorCode.INVALID_VALUE, f"{_shown(value)} is not one of {', '.join(list(numbers)[1:])}"
            )
        return number or 0

    return read


_READERS: dict[int, Callable[[Any], Any]] = {
    FieldDescriptor.TYPE_BOOL: _bool,
    FieldDescriptor.TYPE_BYTES: _bytes,
    FieldDescriptor.TYPE_DOUBLE: _double,
    FieldDescriptor.TYPE_INT64: _whole(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_STRING: _text,
    FieldDescriptor.TYPE_UINT32: _whole(0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: _whole(0, 2**64 - 1),
}
