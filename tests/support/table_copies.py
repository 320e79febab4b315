"""Copies of tables, flat and whole, for tests that compare them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.replay.table.table import Table

State = dict[str, npt.NDArray[Any]]


def state_of(table: Table, size: int = 64) -> State:
    """Everything of a table, from pieces of about `size` bytes that are joined."""
    copy = table.copy()
    pieces = list(copy.pieces(size))
    head = dict(copy.head())
    copy.close()
    names = {name for piece in pieces for name in piece} - {"items", "frames"}
    joined = {name: np.concatenate([piece[name] for piece in pieces if name in piece]) for name in names}
    return head | joined


def restore(table: Table, state: State) -> None:
    """Make `table` what `state_of` was told of."""
    columns = {name: array for name, array in state.items() if name.startswith("columns/")}
    pieces: list[State] = [{"items": np.array([0, len(state["keys"])]), **columns}] if columns else []
    if "pixels" in state:
        pieces.append({"frames": np.array([0, len(state["pixels"])]), "pixels": state["pixels"]})
    head = {name: array for name, array in state.items() if name not in columns and name != "pixels"}
    table.restore(head, pieces)


def copied(table: Table) -> Table:
    """Another table with the same content, which draws the same."""
    other = Table(table.spec, seed=0)
    restore(other, state_of(table, 1 << 16))
    return other


def largest_priority(table: Table) -> float:
    """The largest priority of an item that is there, 1.0 if there is none: what an insert without one gets.

    With alpha 1 and priorities whose sums are exact.
    """
    other = copied(table)
    columns = {name: np.zeros((1, *field.shape), field.dtype) for name, field in table.spec.plain.items()}
    columns |= {name: np.full((1, field.frames), -1) for name, field in table.spec.stacked.items()}
    keys = other.insert("another", 1, columns).keys
    before = other.total_priority
    other.update_priorities(keys, [0.0])
    return before - other.total_priority
