from __future__ import annotations

from collections.abc import Callable

import pytest

from relaax.replay import replay_pb2 as pb
from relaax.replay.spec import DEMONSTRATION, Field, TableDeclaration, TableSpec
from relaax.replay.wire import declaration_difference, declaration_from_message, declaration_to_message
from support.replay_servers import numbered, pictured


@pytest.mark.parametrize(
    "declaration",
    [
        numbered(),
        numbered(samples_per_insert=8.0, min_size=100, error_buffer=64.0),
        numbered(samples_per_insert=8.0, min_size=100, error_buffer=64.0, inserts_wait=False),
        pictured(frame_slots=100),
        TableDeclaration(TableSpec("t", {"a": Field("float32", (3, 4))}, 7, remover="lowest_priority")),
        TableDeclaration(TableSpec("t", {DEMONSTRATION: Field("bool")}, 7, "prioritized", demonstration_priority=0.5)),
        TableDeclaration(TableSpec("t", {"a": Field("int8")}, 7, remover="inverse_priority", remover_exponent=-0.25)),
    ],
)
def test_declaration_is_unchanged_by_encoding(declaration: TableDeclaration) -> None:
    message = pb.TableDescription.FromString(declaration_to_message(declaration).SerializeToString())
    assert declaration_from_message(message) == declaration
    assert declaration_difference(declaration, declaration_from_message(message)) is None


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (numbered(2000), "capacity is 1000 there and 2000 here"),
        (numbered(alpha=0.5), "alpha is 1.0 there and 0.5 here"),
        (numbered(min_size=3), "min_size is 1 there and 3 here"),
        (numbered(samples_per_insert=2.0), "samples_per_insert is None there and 2.0 here"),
        (
            TableDeclaration(TableSpec("numbers", {"number": Field("int32")}, 1000, "prioritized", 1.0)),
            "the field 'number' is int64 [] there and int32 [] here",
        ),
        (
            TableDeclaration(TableSpec("numbers", {"other": Field("int64")}, 1000, "prioritized", 1.0)),
            "the field 'number' is int64 [] there and missing here",
        ),
    ],
)
def test_first_difference_of_declarations_is_returned(other: TableDeclaration, says: str) -> None:
    assert declaration_difference(numbered(), other) == says


def _many_fields(message: pb.TableDescription) -> None:
    message.fields.extend(pb.FieldDeclaration(name=f"f{i}", dtype="int8") for i in range(64))


def _deep(message: pb.TableDescription) -> None:
    message.fields[0].shape.extend([1] * 9)


def _twice(message: pb.TableDescription) -> None:
    message.fields.add().CopyFrom(message.fields[0])


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda m: setattr(m, "name", ""), "name of a table must have"),
        (lambda m: setattr(m, "name", "x" * 129), "name of a table must have"),
        (lambda m: setattr(m, "name", "a\nb"), "printable"),
        (_many_fields, "at most 64 fields, not 65"),
        (_twice, "two fields have the name 'number'"),
        (_deep, "at most 8 dimensions, not 9"),
        (lambda m: setattr(m.fields[0], "dtype", "i4,i4"), "not 'i4,i4'"),
        (lambda m: setattr(m.fields[0], "dtype", "object"), "not 'object'"),
        (lambda m: m.fields[0].shape.append(0), "is empty"),
        (lambda m: setattr(m, "capacity", 0), "table capacity must be between 1"),
        (lambda m: setattr(m, "capacity", 2**63), "table capacity must be between 1"),
        (lambda m: setattr(m, "sampler", 0), "sampler must be one of uniform, prioritized, not number 0"),
        (
            lambda m: setattr(m, "remover", 77),
            "remover must be one of fifo, .*, inverse_priority, not number 77",
        ),
        (lambda m: setattr(m, "alpha", float("nan")), "alpha must be between 0 and 1"),
        (lambda m: setattr(m, "min_size", 0), "at least 1, not 0"),
        (lambda m: setattr(m, "min_size", 1001), "is larger than its capacity 1000"),
        (lambda m: setattr(m, "samples_per_insert", float("nan")), "samples_per_insert"),
        (lambda m: (setattr(m, "samples_per_insert", 1.0), setattr(m, "error_buffer", float("inf"))), "error_buffer"),
        (lambda m: m.frame.extend([1] * 9), "a frame must have 3 dimensions, not 9"),
        (lambda m: m.frame.extend([2, 2, 1]), "no field is a stack"),
    ],
)
def test_invalid_declarations_are_rejected(spoil: Callable[[pb.TableDescription], object], says: str) -> None:
    message = declaration_to_message(numbered())
    spoil(message)
    with pytest.raises(ValueError, match=says):
        declaration_from_message(message)


@pytest.mark.parametrize("shards", [1, 3, 4])
def test_shard_gets_its_part_of_the_capacity(shards: int) -> None:
    declaration = numbered(1000, samples_per_insert=8.0, min_size=100, error_buffer=800.0)
    spec = declaration.spec_of_shard(shards)
    assert spec.capacity == -(-1000 // shards)
    limiter = declaration.limiter(shards)
    assert limiter.await_sample(800, 0) is False
    with pytest.raises(ValueError, match="need an error_buffer"):
        limiter.await_sample(801, 0)


def test_default_limits_of_shards_allow_large_requests() -> None:
    declaration = numbered(10**6, samples_per_insert=0.5, min_size=1000)
    for shards in (1, 2, 16):
        assert not declaration.limiter(shards).await_sample(1000, 0)
    small = numbered(100, samples_per_insert=8.0, error_buffer=16.0)
    assert small.limiter(16).await_insert(1, 0), "an insert of one item is always possible"
    with pytest.raises(ValueError, match=r"error_buffer must be a finite number of at least"):
        numbered(100, samples_per_insert=8.0, error_buffer=4.0)
