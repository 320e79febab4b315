"""Copies of whole tables, for tests that compare them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.replay.table.table import Table

State = dict[str, npt.NDArray[Any]]


def state_of(table: Table, size: int = 64) -> State:
    """Return the whole state of a table, joined from pieces of about `size` bytes."""
    copy = table.copy()
    pieces = list(copy.pieces(size))
    head = dict(copy.head())
    copy.close()
    names = {name for piece in pieces for name in piece} - {"items", "frames"}
    joined = {name: np.concatenate([piece[name] for piece in pieces if name in piece]) for name in names}
    return head | joined


def restore(table: Table, state: State) -> None:
    """Restore the state of `state_of` into `table`."""
    columns = {name: array for name, array in state.items() if name.startswith("columns/")}
    pieces: list[State] = [{"items": np.array([0, len(state["keys"])]), **columns}] if columns else []
    if "pixels" in state:
        pieces.append({"frames": np.array([0, len(state["pixels"])]), "pixels": state["pixels"]})
    head = {name: array for name, array in state.items() if name not in columns and name != "pixels"}
    table.restore(head, pieces)


def copied(table: Table) -> Table:
    """Return another table with the same content, which draws the same samples."""
    other = Table(table.spec, seed=0)
    restore(other, state_of(table, 1 << 16))
    return other


def largest_priority(table: Table) -> float:
    """Return the priority that an insert without one gets: the largest priority in the table, or 1.0 if it is empty.

    Needs alpha = 1 and priorities with exact sums.
    """
    other = copied(table)
    columns = {name: np.zeros((1, *field.shape), field.dtype) for name, field in table.spec.plain.items()}
    columns |= {name: np.full((1, field.frames), -1) for name, field in table.spec.stacked.items()}
    keys = other.insert("another", 1, columns).keys
    before = other.total_priority
    other.update_priorities(keys, [0.0])
    return before - other.total_priority
