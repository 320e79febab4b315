"""Check what a writer has sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.replay.frame_store import Frames
from relaax.replay.spec import TableSpec, inserted_form


def checked_columns(spec: TableSpec, columns: Mapping[str, npt.ArrayLike]) -> tuple[int, dict[str, npt.NDArray[Any]]]:
    """Return the number of items B and their columns: [B, *shape], for a stack of H frames int64 [B, H].

    Raises ValueError for other fields, dtypes or shapes than the specification's, and for more items than the table
    holds.
    """
    if columns.keys() != spec.fields.keys():
        raise ValueError(f"items of {spec.name!r} have the fields {sorted(spec.fields)}, not {sorted(columns)}")
    checked = {name: np.asarray(column) for name, column in columns.items()}
    counts = {len(column) if column.ndim else -1 for column in checked.values()}
    count = counts.pop()
    for name, field in spec.fields.items():
        shape, dtype = inserted_form(field)
        column = checked[name]
        if counts or column.shape != (count, *shape) or column.dtype != dtype:
            raise ValueError(
                f"{name!r} is {dtype} {['B', *shape]}, with one B for all fields, not {column.dtype} {[*column.shape]}"
            )
    if count > spec.capacity:
        raise ValueError(
            f"{count} items at once are more than the {spec.capacity} that {spec.name!r} holds; send fewer"
        )
    return count, checked


def checked_frames(spec: TableSpec, frames: npt.ArrayLike | None, first_frame: int) -> Frames:
    """Return new frames uint8 [F, h, w, c]; F is 0 for None.

    Raises ValueError for another dtype or shape, for a negative number, and for frames that the table does not keep.
    """
    if frames is None:
        return np.zeros((0, *(spec.frame or ())), np.uint8)
    if spec.frame is None:
        raise ValueError(f"no field of {spec.name!r} is a stack of frames: leave `frames` out")
    new = np.asarray(frames)
    if new.dtype != np.uint8 or new.ndim != 4 or new.shape[1:] != spec.frame:
        raise ValueError(f"frames are uint8 {['F', *spec.frame]}, not {new.dtype} {[*new.shape]}")
    if first_frame < 0:
        raise ValueError(f"frames are numbered from 0 on, not from {first_frame} on")
    return new
