"""A parser of JSON messages to Protobuf objects: Protobuf's JSON mapping with the rules of protocol/RLX.md, section 3.

Protobuf's own parser accepts numbers as Python does ("1_0"), refuses unknown names, which RLX ignores, and takes ten
times as long. This parser stops at the first wrong element of a list.
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

from relaax.rlx.errors import ErrorCode, ProtocolError, too_many_entries

# Levels of objects and lists. The deepest space of a hello needs about 70.
MAX_NESTING = 100
_INT_DIGITS = 40  # longer integers exceed every field, and Python parses thousands of digits slowly
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_OPEN_ENUM = "ErrorCode"  # the only enumeration to which version 1 may add values
_REQUIRED_FIELDS = {"Scalar": "name", "Episode": "length"}  # by type of message; lists of these may be long

Tree = dict[str, Any]


def parse_object(payload: bytes) -> Tree:
    """Return the outermost object of a payload. Raises ProtocolError (MALFORMED) if the payload is not an object."""
    constants: dict[str, _Constant] = {}
    try:
        tree = json.loads(
            payload.decode("utf-8"),
            object_pairs_hook=_to_object,
            parse_int=_to_number,
            parse_constant=lambda name: constants.setdefault(name, _Constant(name)),
        )
        if payload.count(b"{") + payload.count(b"[") > MAX_NESTING:
            _check_nesting(tree)
    except RecursionError:
        raise malformed("nested too deeply") from None
    except ValueError as error:
        raise malformed(str(error)[:200]) from None
    if constants:
        where = _path_to_constant(tree) or f"a frame: {next(iter(constants))}"
        raise ProtocolError(ErrorCode.MALFORMED, f"{where.removeprefix('.')} is no JSON")
    if type(tree) is not dict:
        raise malformed(str(_not_an_object(tree)))
    return tree


def single_message(tree: Tree, envelope: Descriptor) -> tuple[str, Tree] | None:
    """Return the name and the object of the single message in an envelope; None if it has no known message.

    Raises ProtocolError (MALFORMED) if it has several messages, or if the message is not an object.
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
        raise ProtocolError(ErrorCode.MALFORMED, f"{name}: {_not_an_object(value)}")
    return name, value


def select_keys(tree: Tree, *names: str) -> Tree:
    """Return a copy of the object with these keys only."""
    return {name: tree[name] for name in names if name in tree}


def fill(name: str, tree: Tree, target: Message, most: dict[str, tuple[int, ErrorCode]]) -> None:
    """Fill an empty message from an object. Unknown names are ignored.

    `name`: the name of the message in errors. `most`: for each type of message, the maximal length of lists of it and
    the error code for a longer one.
    Raises ProtocolError, which names the field: INVALID_VALUE for an unknown enumerator, the code of `most` for a list
    that is too long, else MALFORMED.
    """
    try:
        _fill(tree, target, _form(target.DESCRIPTOR), most)
    except (ValueError, ProtocolError) as error:
        located = _in_field(name, error)
        raise ProtocolError(located.code, f"{located.path}: {located.reason}") from None


def _not_an_object(value: Any) -> ValueError:
    return ValueError(f"{_format_value(value)} is no object")


def _not_a_number(value: Any) -> ValueError:
    return ValueError(f"{_format_value(value)} is no number")


def malformed(reason: str) -> ProtocolError:
    """Return the error for a payload that is not a message in JSON."""
    return ProtocolError(ErrorCode.MALFORMED, f"a frame is no JSON of a message: {reason}")


class _FieldError(ValueError):
    """An error in the value of a field. `path`: the path from the message to the field, "observation[0].shape"."""

    def __init__(self, code: ErrorCode, path: str, reason: str) -> None:
        self.code, self.path, self.reason = code, path, reason


def _in_field(step: str, error: ValueError | ProtocolError) -> _FieldError:
    """Return the error with `step`, a name or an index in brackets, before its path."""
    if isinstance(error, _FieldError):
        return _FieldError(error.code, step + ("" if error.path.startswith("[") else ".") + error.path, error.reason)
    if isinstance(error, ProtocolError):
        return _FieldError(error.code, step, error.message)
    return _FieldError(ErrorCode.MALFORMED, step, str(error)[:200])


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of a message. `other`: its second name, or None. `read`: its converter; None for a message."""

    name: str
    other: str | None
    repeated: bool
    oneof: str | None
    read: Callable[[Any], Any] | None
    message: Descriptor | None


@dataclass(frozen=True, slots=True)
class _Form:
    """The fields of a message, each by both of its names. `required`: the field that is checked first, or None."""

    fields: dict[str, _Field]
    required: str | None


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
    return _Form(fields, _REQUIRED_FIELDS.get(message.name))


def _fill(tree: Any, target: Any, form: _Form, most: dict[str, tuple[int, ErrorCode]]) -> None:
    if type(tree) is not dict:
        raise _not_an_object(tree)
    fields = form.fields
    if form.required is not None and not tree.get(form.required):
        raise _FieldError(ErrorCode.INVALID_VALUE, form.required, "it is missing")
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
            raise _in_field(key, error) from None


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
        raise ValueError(f"{_format_value(value)} is no list")
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
        raise ProtocolError(code, too_many_entries(len(value), at_most))
    form = _form(field.message)
    _each(lambda one: _fill(one, parts.add(), form, most), value)


def _each(read: Callable[[Any], Any], values: list[Any]) -> None:
    """Call `read` with each value. Errors name the index."""
    at = 0
    try:
        for at, one in enumerate(values):  # noqa: B007 - used by the handler
            read(one)
    except (ValueError, ProtocolError) as error:
        raise _in_field(f"[{at}]", error) from None


def _reader(field: FieldDescriptor) -> Callable[[Any], Any] | None:
    if field.type == FieldDescriptor.TYPE_ENUM:
        assert field.enum_type is not None
        return _enumerator_reader(field.enum_type)
    return _READERS.get(field.type)


def _to_object(pairs: list[tuple[str, Any]]) -> Tree:
    result = dict(pairs)
    if len(result) != len(pairs):
        repeated_key = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise ValueError(f"the key {_format_value(repeated_key)} appears twice in an object")
    return result


def _to_number(digits: str) -> int | float:
    return int(digits) if len(digits) <= _INT_DIGITS else float(digits)


@dataclass(frozen=True, slots=True)
class _Constant:
    """A number that Python's parser accepts and JSON does not have, such as NaN."""

    name: str


def _path_to_constant(node: Any) -> str | None:
    """Return the path and the name of the first `_Constant` in a tree; None if the tree has none."""
    for key, child in node.items() if type(node) is dict else enumerate(node) if type(node) is list else ():
        step = f".{key[:40]}" if type(key) is str else f"[{key}]"
        if type(child) is _Constant:
            return f"{step}: {child.name}"
        if type(child) in (dict, list) and (below := _path_to_constant(child)) is not None:
            return step + below
    return None


def _check_nesting(tree: Any) -> None:
    """Raise RecursionError if a tree is nested too deeply. Not every version of Python raises it while parsing."""
    level = [tree]
    for _ in range(MAX_NESTING):
        inner = (child for node in level for child in (node.values() if isinstance(node, dict) else node))
        level = [child for child in inner if isinstance(child, dict | list)]
        if not level:
            return
    raise RecursionError


def _format_value(value: Any) -> str:
    """Return the start of a string or number as JSON; for other values, their kind."""
    if isinstance(value, str):
        return json.dumps(value[:40])
    return json.dumps(value)[:40] if isinstance(value, int | float | None) else _name_kind(value)


def _name_kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", bool: "true or false", str: "a string", type(None): "null"}
    return kinds.get(type(value), "a number")


def _match_number(text: str) -> re.Match[str]:
    """Return the match of a JSON number: group 2 is its fraction, group 3 its exponent. Raises ValueError."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise _not_a_number(text)
    return found


def _integer_reader(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        number = value
        if type(value) is str:
            found = _match_number(value)
            number = _to_number(value) if found[2] is found[3] is None else float(value)
        if type(number) is float and number.is_integer():
            number = int(number)
        if type(number) is not int or not low <= number <= high:
            raise ValueError(f"{_format_value(value)} is no integer from {low} to {high}")
        return number

    return read


def _read_double(value: Any) -> float:
    if type(value) is str:
        if value in _NOT_FINITE:
            return _NOT_FINITE[value]
        _match_number(value)
    elif type(value) is not float and type(value) is not int:
        raise _not_a_number(value)
    number = float(value)
    if math.isinf(number):
        raise ValueError("the number exceeds the range of a double")
    return number


def _read_bool(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{_format_value(value)} is neither true nor false")
    return value


def _read_text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{_name_kind(value)} is no string")  # the value is not shown: it may be a token
    return value


def _read_bytes(value: Any) -> bytes:
    text = _read_text(value)
    try:
        data = binascii.a2b_base64(text)
        if binascii.b2a_base64(data, newline=False).decode() == text:
            return data  # padding, alphabet, white space and unused bits are right
    except ValueError:  # binascii.Error is a ValueError
        pass
    raise ValueError("a string is no base64 of the standard alphabet with padding")


def _enumerator_reader(kind: EnumDescriptor) -> Callable[[Any], int]:
    numbers = {value.name: value.number for value in kind.values}
    is_open, read_integer = kind.name == _OPEN_ENUM, _integer_reader(-(2**31), 2**31 - 1)

    def read(value: Any) -> int:
        if type(value) is not str:
            return read_integer(value)
        number = numbers.get(value)
        if number is None and not is_open:
            raise ProtocolError(
                ErrorCode.INVALID_VALUE, f"{_format_value(value)} is not one of {', '.join(list(numbers)[1:])}"
            )
        return number or 0

    return read


_READERS: dict[int, Callable[[Any], Any]] = {
    FieldDescriptor.TYPE_BOOL: _read_bool,
    FieldDescriptor.TYPE_BYTES: _read_bytes,
    FieldDescriptor.TYPE_DOUBLE: _read_double,
    FieldDescriptor.TYPE_INT64: _integer_reader(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_STRING: _read_text,
    FieldDescriptor.TYPE_UINT32: _integer_reader(0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: _integer_reader(0, 2**64 - 1),
}
