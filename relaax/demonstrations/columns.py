"""The columns of recorded episodes in Parquet, and their conversion from and to leaves.

A row is a step. An element with shape () is a column of numbers. An element with a larger shape is a column of lists,
in C order. The description of the recording, as JSON, is in the metadata of each file under `relaax`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from relaax.rlx import ElementarySpace, Leaves, Space, space_from_dict, space_to_dict

FORMAT = 1
METADATA = b"relaax"
OBSERVATION, ACTION, FINAL = "observation", "action", "final_observation"
Array = npt.NDArray[Any]


class RecordingError(ValueError):
    """A recording is not usable. The message names the file, and the row if there is one."""


@dataclass(frozen=True, slots=True)
class StepColumns:
    """The steps of a whole episode of T steps, or of several episodes one after another.

    observations, actions: leaves [T, ...]. chosen: bool [T], where the client chose the action. rewards: float64 [T].
    terminated, truncated: true in the last step only; one of them is. final: leaves [1, ...], the observation after
    the last step of a truncated episode; else None.
    """

    observations: Leaves
    actions: Leaves
    chosen: npt.NDArray[np.bool_]
    rewards: npt.NDArray[np.float64]
    terminated: bool
    truncated: bool
    final: Leaves | None = None

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def episode_return(self) -> float:
        """The sum of the rewards."""
        return float(self.rewards.sum())


@dataclass(frozen=True)
class RecordedSpaces:
    """The spaces of a recorded environment, its name, and its number of frames per step."""

    observation_space: Space
    action_space: Space
    environment: str = ""
    frame_skip: int = 1

    @cached_property
    def observation(self) -> Sequence[tuple[str, ElementarySpace]]:
        """Name and element of each column of observations."""
        return _named(OBSERVATION, self.observation_space)

    @cached_property
    def action(self) -> Sequence[tuple[str, ElementarySpace]]:
        """Name and element of each column of actions."""
        return _named(ACTION, self.action_space)

    @cached_property
    def final(self) -> Sequence[tuple[str, ElementarySpace]]:
        """Name and element of each column of final observations."""
        return _named(FINAL, self.observation_space)

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the files."""
        fields = [pa.field("episode", pa.string(), False), pa.field("step", pa.int64(), False)]
        fields += [_field(name, element) for name, element in self.observation]
        fields += [_field(name, element) for name, element in self.action]
        fields += [
            pa.field("chosen", pa.bool_(), False),
            pa.field("reward", pa.float64(), False),
            pa.field("terminated", pa.bool_(), False),
            pa.field("truncated", pa.bool_(), False),
        ]
        fields += [pa.field(name, _list_type(element), True, _shape(element)) for name, element in self.final]
        return pa.schema(fields, {METADATA: json.dumps(self.as_json()).encode()})

    def as_json(self) -> dict[str, Any]:
        """Return the description for a file."""
        return {
            "format": FORMAT,
            "environment": self.environment,
            "frame_skip": self.frame_skip,
            "observation_space": space_to_dict(self.observation_space),
            "action_space": space_to_dict(self.action_space),
        }

    @classmethod
    def of(cls, schema: pa.Schema) -> RecordedSpaces:
        """Return the description in a file's schema. Raises RecordingError."""
        text = (schema.metadata or {}).get(METADATA)
        if text is None:
            raise RecordingError("it was not recorded by RELAAX: its metadata have no entry 'relaax'")
        try:
            found: Mapping[str, Any] = json.loads(text)
            if found["format"] != FORMAT:
                raise RecordingError(f"its format is {found['format']!r}; this version reads {FORMAT}")
            spaces = space_from_dict(found["observation_space"]), space_from_dict(found["action_space"])
            return cls(*spaces, str(found["environment"]), int(found["frame_skip"]))
        except RecordingError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RecordingError(f"its description is not valid: {error!r}") from None

    def table(self, episodes: Sequence[tuple[str, StepColumns]]) -> pa.Table:
        """Return whole episodes, each with its name, as one table."""
        columns: list[Any] = [
            pa.array([name for name, steps in episodes for _ in range(len(steps))], pa.string()),
            pa.array(np.concatenate([np.arange(len(steps)) for _, steps in episodes]), pa.int64()),
        ]
        for named, values in ((self.observation, "observations"), (self.action, "actions")):
            for index, (_, element) in enumerate(named):
                columns.append(
                    _to_column(np.concatenate([getattr(one, values)[index] for _, one in episodes]), element)
                )
        last = np.cumsum([len(steps) for _, steps in episodes]) - 1
        ends = np.zeros((2, last[-1] + 1), np.bool_)
        ends[:, last] = [[steps.terminated for _, steps in episodes], [steps.truncated for _, steps in episodes]]
        columns += [
            np.concatenate([steps.chosen for _, steps in episodes]),
            np.concatenate([steps.rewards for _, steps in episodes]),
            *ends,
        ]
        for index, (_, element) in enumerate(self.final):
            rows = {
                int(row): steps.final[index][0]
                for row, (_, steps) in zip(last, episodes, strict=True)
                if steps.final is not None
            }
            columns.append(_to_sparse_column(rows, int(last[-1]) + 1, element))
        return pa.table(columns, schema=self.schema)


def leaf_of(column: pa.ChunkedArray, element: ElementarySpace) -> Array:
    """Return a column without nulls as a leaf [T, ...]. Raises RecordingError if it has another type or length."""
    if column.null_count:
        raise RecordingError("a row has no value")
    size = int(np.prod(element.shape, dtype=np.int64))
    numbers = column.combine_chunks()
    if element.shape:
        if not (pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type)):
            raise RecordingError(f"its type is {column.type}; lists of {size} x {element.dtype} are expected")
        length = len(numbers)
        numbers = numbers.flatten()
        if len(numbers) != length * size or numbers.null_count:
            raise RecordingError(f"its lists must have {size} elements each")
    expected = pa.from_numpy_dtype(element.dtype)
    if numbers.type != expected:
        raise RecordingError(f"its numbers are of type {numbers.type}; {expected} is expected")
    found: Array = numbers.to_numpy(zero_copy_only=False).reshape(-1, *element.shape)
    return found


def _named(prefix: str, space: Space) -> Sequence[tuple[str, ElementarySpace]]:
    """Return the elements of a space with names such as `observation.camera`, or with their paths where unclear."""
    paths = list(space.paths())
    short = [path.replace("['", ".").replace("[", ".").replace("']", "").replace("]", "") for path in paths]
    names = short if len(set(short)) == len(paths) else paths
    return [(f"{prefix}{name}", element) for name, element in zip(names, space.elements(), strict=True)]


def _shape(element: ElementarySpace) -> dict[str, str]:
    return {"shape": json.dumps(list(element.shape))}


def _list_type(element: ElementarySpace) -> pa.DataType:
    number = pa.from_numpy_dtype(element.dtype)
    return pa.list_(number) if element.shape else number


def _field(name: str, element: ElementarySpace) -> pa.Field:
    number = pa.from_numpy_dtype(element.dtype)
    size = int(np.prod(element.shape, dtype=np.int64))
    return pa.field(name, pa.list_(number, size) if element.shape else number, False, _shape(element))


def _to_column(leaf: Array, element: ElementarySpace) -> pa.Array:
    if not element.shape:
        return pa.array(leaf)
    return pa.FixedSizeListArray.from_arrays(pa.array(leaf.reshape(-1)), leaf[0].size)


def _to_sparse_column(rows: Mapping[int, Array], length: int, element: ElementarySpace) -> pa.Array:
    """Return a column with values in some rows only. Lists of other rows take no memory, unlike fixed-size lists."""
    if not element.shape:
        return pa.array([rows[row].item() if row in rows else None for row in range(length)], _list_type(element))
    flat = np.concatenate([rows[row].reshape(-1) for row in sorted(rows)]) if rows else np.zeros(0, element.dtype)
    present = np.zeros(length, np.bool_)
    present[list(rows)] = True
    size = int(np.prod(element.shape, dtype=np.int64))
    offsets = np.concatenate([[0], np.cumsum(present * size)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat), mask=pa.array(~present))
