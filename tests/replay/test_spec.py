from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from relaax.replay.spec import Field, TableSpec
from relaax.replay.table.table import Table

STACK = Field("uint8", (84, 84, 4), frames=4)


def arrays(thing: Any) -> Iterator[np.ndarray]:
    """All arrays that a table's own objects refer to."""
    if isinstance(thing, np.ndarray):
        if thing.base is None:
            yield thing
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from arrays(value)
    elif type(thing).__module__.startswith("relaax.replay") and hasattr(thing, "__dict__"):
        yield from arrays(vars(thing))


@pytest.mark.parametrize("remover", ["fifo", "lowest_priority", "inverse_priority"])
@pytest.mark.parametrize(
    "options",
    [
        {"fields": {"observation": Field("float32", (4,)), "done": Field("bool")}},
        {"fields": {"observation": STACK, "following": STACK, "action": Field("int64")}, "frame": (84, 84, 1)},
    ],
    ids=["vectors", "frames"],
)
def test_memory_matches_the_computed_bytes(options: dict[str, Any], remover: Any) -> None:
    spec = TableSpec("replay", capacity=1000, remover=remover, **options)
    assert spec.bytes() == sum(array.nbytes for array in arrays(Table(spec, seed=0)))


def test_a_million_atari_transitions_need_seven_gigabytes() -> None:
    fields = {"observation": STACK, "following": STACK, "action": Field("int64"), "reward": Field("float32")}
    spec = TableSpec("replay", fields, 1_000_000, sampler="prioritized", frame=(84, 84, 1))
    assert 7.0e9 < spec.bytes() < 7.5e9  # with two full stacks per item it would be 56


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"name": ""}, "needs a name"),
        ({"fields": {}}, "has no fields"),
        ({"capacity": 0}, "between 1 and 2147483646 items, not 0"),
        ({"sampler": "best"}, "'uniform' or 'prioritized', not 'best'"),
        ({"alpha": 1.5}, "alpha must be between 0 and 1, not 1.5"),
        ({"alpha": float("nan")}, "alpha"),
        ({"demonstration_priority": -1.0}, "demonstration_priority must be from 0 to 1e\\+30, not -1.0"),
        ({"demonstration_priority": float("nan")}, "demonstration_priority"),
        ({"demonstration_priority": 1.0}, "it needs a prioritized sampler and a field 'demonstration' of dtype bool"),
        ({"remover": "lifo"}, "'fifo', 'lowest_priority' or 'inverse_priority', not 'lifo'"),
        ({"remover_exponent": 0.4}, "remover_exponent must be between -1 and 0, not 0.4"),
        ({"remover_exponent": float("nan")}, "remover_exponent"),
        ({"frame": (84, 84, 1)}, "no field is a stack"),
        ({"frame_slots": 5}, "set `frame` to the shape of a single frame"),
        ({"fields": {"observation": STACK}}, "set `frame` to the shape of a single frame"),
        ({"fields": {"observation": STACK}, "frame": (84, 84)}, "write \\[h, w\\] as \\[h, w, 1\\]"),
        ({"fields": {"observation": STACK}, "frame": (84, 84, 3)}, "its shape must be \\(84, 84, 12\\)"),
        ({"fields": {"observation": STACK}, "frame": (84, 84, 1), "frame_slots": 0}, "frame_slots must be between 1"),
        ({"fields": {"observation": Field("int8", (84, 84, 4), 4)}, "frame": (84, 84, 1)}, "its dtype uint8"),
    ],
)
def test_invalid_specifications_are_rejected(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        TableSpec(**({"name": "replay", "fields": {"reward": Field("float32")}, "capacity": 10} | options))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("object",), "is unsupported"),
        (("complex64",), "is unsupported"),
        (("f4", (0,)), "empty"),
        (("u1", (), -1), "-1"),
    ],
)
def test_invalid_fields_are_rejected(arguments: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Field(*arguments)
