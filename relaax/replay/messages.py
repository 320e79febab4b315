"""Write a declaration as a message, read it, and compare two of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from relaax.replay import replay_pb2 as pb
from relaax.replay.declaration import TableDeclaration
from relaax.replay.spec import Field, TableSpec

MAX_FIELDS = 64
MAX_SIZES = 8
MAX_NAME, MAX_FIELD_NAME = 128, 64

_KINDS = {"int": (8, 16, 32, 64), "uint": (8, 16, 32, 64), "float": (16, 32, 64)}
_DTYPES = frozenset({"bool", *(f"{kind}{bits}" for kind, sizes in _KINDS.items() for bits in sizes)})
_SAMPLERS: dict[str, pb.Sampler] = {"uniform": pb.SAMPLER_UNIFORM, "prioritized": pb.SAMPLER_PRIORITIZED}
_REMOVERS: dict[str, pb.Remover] = {"fifo": pb.REMOVER_FIFO, "lowest_priority": pb.REMOVER_LOWEST_PRIORITY}


def declaration_to_message(declaration: TableDeclaration) -> pb.TableDescription:
    """Return a declaration as a message."""
    spec = declaration.spec
    return pb.TableDescription(
        name=spec.name,
        fields=[
            pb.FieldDeclaration(name=name, dtype=field.dtype, shape=field.shape, frames=field.frames)
            for name, field in sorted(spec.fields.items())
        ],
        capacity=spec.capacity,
        sampler=_SAMPLERS[spec.sampler],
        alpha=spec.alpha,
        remover=_REMOVERS[spec.remover],
        frame=spec.frame or (),
        frame_slots=spec.frame_slots,
        samples_per_insert=declaration.samples_per_insert,
        min_size=declaration.min_size,
        error_buffer=declaration.error_buffer,
    )


def declaration_from_message(message: pb.TableDescription) -> TableDeclaration:
    """Return the declaration of a message. Raises ValueError for what cannot be, and for too much of anything."""
    check_name(message.name, "a table", MAX_NAME)
    if len(message.fields) > MAX_FIELDS:
        raise ValueError(f"a table of {len(message.fields)} fields; {MAX_FIELDS} are the most")
    fields: dict[str, Field] = {}
    for field in message.fields:
        check_name(field.name, "a field", MAX_FIELD_NAME)
        if field.name in fields:
            raise ValueError(f"two fields have the name {field.name!r}; each needs its own")
        if field.dtype not in _DTYPES:
            raise ValueError(
                f"{field.name!r} has the dtype {field.dtype[:MAX_NAME]!r}; one of {sorted(_DTYPES)} is needed"
            )
        if len(field.shape) > MAX_SIZES:
            raise ValueError(f"{field.name!r} has {len(field.shape)} dimensions; {MAX_SIZES} are the most")
        fields[field.name] = Field(field.dtype, tuple(field.shape), field.frames)
    if len(message.frame) > MAX_SIZES:
        raise ValueError(f"a frame has {len(message.frame)} dimensions; 3 are needed")
    optional = ("frame_slots", "samples_per_insert", "error_buffer")
    given: dict[str, Any] = {name: getattr(message, name) if message.HasField(name) else None for name in optional}
    spec = TableSpec(
        name=message.name,
        fields=fields,
        capacity=message.capacity,
        sampler=_name_of(message.sampler, _SAMPLERS, "sampler"),
        alpha=message.alpha,
        remover=_name_of(message.remover, _REMOVERS, "remover"),
        frame=tuple(message.frame) or None,
        frame_slots=given.pop("frame_slots"),
    )
    return TableDeclaration(spec, min_size=message.min_size, **given)


def declared_difference(there: TableDeclaration, asked: TableDeclaration) -> str | None:
    """Return the first difference of two declarations as half a sentence; None if there is none."""
    for (name, one), (_, other) in zip(_parts(there, asked), _parts(asked, there), strict=True):
        if one != other:
            return f"{name} is {one} there and {other} here"
    return None


def check_name(name: str, what: str, longest: int) -> None:
    """Raise ValueError unless a name may be shown and is short."""
    if not name or len(name) > longest or not name.isprintable():
        raise ValueError(f"{what} has a name of 1 to {longest} printable characters, not {name[:longest]!r}")


def _parts(declaration: TableDeclaration, other: TableDeclaration) -> Iterator[tuple[str, object]]:
    spec = declaration.spec
    for name in sorted({*spec.fields, *other.spec.fields}):
        field = spec.fields.get(name)
        kind = "missing" if field is None else f"{field.dtype} {[*field.shape]}"
        yield f"the field {name!r}", kind if field is None or not field.frames else f"{kind}, {field.frames} frames"
    for name in ("capacity", "sampler", "alpha", "remover", "frame", "frame_slots"):
        yield name, getattr(spec, name)
    for name in ("samples_per_insert", "min_size", "error_buffer"):
        yield name, getattr(declaration, name)


def _name_of(number: int, numbers: dict[str, Any], what: str) -> Any:
    for name, one in numbers.items():
        if one == number:
            return name
    raise ValueError(f"{what} {number} is none of {', '.join(numbers)}")
