"""Make transitions of n steps from steps, store them in replay memory, and leave out what cannot be learned from."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.agent import Mask, StepResult
from relaax.algorithm_base.network import history, image_of, input_shape, is_image
from relaax.algorithm_base.normalization import INPUT_LIMIT
from relaax.algorithm_base.observations import FrameStack
from relaax.algorithm_base.values import values_of
from relaax.metrics.rate_limited_log import RateLimitedLog
from relaax.parameters.interfaces import MetricsRecorder
from relaax.replay.interfaces import Insertion, ReplayWriter
from relaax.replay.spec import Field, Frames, TableSpec, inserted_form
from relaax.rlx import Space

Inputs = npt.NDArray[Any]
Stored = npt.NDArray[Any]
Array = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.float64]


class ObservationLayout:
    """What an `ObservationEncoder` makes of a space, as a field of a table.

    A stack of H frames of [h, w, c] is kept as one of frames [h, w * c, 1]: so its bytes are in the encoder's order,
    in which the frames come last. An image with numbers beside it (`image`: as for `ObservationEncoder`) is kept as
    numbers, with each of its stacks.
    """

    def __init__(self, space: Space, history_len: int | None, image: int | None = None) -> None:
        frames = history(history_len, image_of(space, image))
        self.frames = frames if is_image(space) else 0
        self.inputs = input_shape(space, frames, image)
        self.dtype: npt.DTypeLike = np.uint8 if self.frames else np.float32

    @property
    def field(self) -> Field:
        """The field of an observation."""
        if self.frame is None:
            return Field("float32", self.inputs)
        return Field("uint8", (*self.frame[:2], self.frames), frames=self.frames)

    @property
    def frame(self) -> tuple[int, int, int] | None:
        """The shape of a single frame; None if observations are no images."""
        if not self.frames:
            return None
        height, width, channels = self.inputs
        return height, width * channels // self.frames, 1

    def of(self, column: Inputs) -> Inputs:
        """Return the network's inputs [B, *inputs], bit for bit as they were acted on, of what was sampled."""
        return column.reshape(len(column), *self.inputs)

    def memory(self, environments: int) -> KeptFrames | KeptVectors:
        """Return what keeps the observations of so many environments until they are sent."""
        return KeptFrames(environments, self.frames) if self.frames else KeptVectors()


class KeptVectors:
    """Observations float32 [E, D], which are sent with each transition as they are."""

    def push(self, inputs: Inputs, restart: Mask) -> Stored:
        """Return what stands for what is seen next, [E, ...]; `peek`: seen last, where episodes were cut off."""
        copy: Stored = inputs.copy()
        return copy

    peek = push

    def since_first_of(self, *stored: Stored) -> tuple[Frames | None, int]:
        """Return the frames from the first one on that some of these name, and its number; forget those before."""
        return None, 0

    def clear(self) -> None:
        """Forget everything: nothing of it will be named."""


class KeptFrames(KeptVectors):
    """Single frames of E environments, numbered as they come; stacks of them int64 [E, H] stand for observations.

    At an episode's start the stack repeats the first frame, as `FrameStack` does.
    """

    def __init__(self, environments: int, length: int) -> None:
        self._stack = FrameStack(environments, (), np.int64, length)
        self._environments, self._length = environments, length
        self._kept: list[Frames] = []
        self._first = self._following = 0

    def push(self, inputs: Inputs, restart: Mask) -> Stored:
        stack: Stored = self._stack.push(self._keep(inputs), restart).copy()
        return stack

    def peek(self, inputs: Inputs, where: Mask) -> Stored:
        newest = np.zeros(self._environments, np.int64)
        newest[where] = self._keep(inputs[where])
        return self._stack.peek(newest)

    def since_first_of(self, *stored: Stored) -> tuple[Frames | None, int]:
        first = min(int(numbers.min()) for numbers in stored if numbers.size)
        self._kept, self._first = [np.concatenate(self._kept)[first - self._first :]], first
        return self._kept[0], first

    def clear(self) -> None:
        self._kept, self._first = [], self._following

    def _keep(self, inputs: Inputs) -> npt.NDArray[np.int64]:
        """Keep the newest frame of each of n stacks; return their numbers, int64 [n]."""
        self._kept.append(inputs.reshape(*inputs.shape[:2], -1, self._length)[..., -1:].copy())
        numbers = np.arange(self._following, self._following + len(inputs))
        self._following += len(inputs)
        return numbers


_complain = RateLimitedLog(logging.getLogger(__name__))

TARGET_LIMIT = 1e6
"""The largest return, normalised and clipped, that is inserted into replay memory."""
INPUTS_APART, TARGETS_APART = 1e3, 1e6
"""An item is an outlier of its batch if its largest input, or its target, is more than this times the median, or than
this where the median is below 1.
"""


def within_limits(rewards: Inputs, *observations: Inputs) -> Mask:
    """Return which of B transitions may be learned from: bool [B].

    rewards: [B]. observations: [B, ...], before they are normalised; none if they are normalised, or images.
    """
    good: Mask = np.abs(rewards) <= TARGET_LIMIT  # False for NaN
    for each in observations:
        good &= _largest(each) <= INPUT_LIMIT
    return good


def log_left_out(count: int, total: int, client: str) -> None:
    """Log that transitions are not inserted, at most once a minute."""
    _complain(
        "%d of %d transitions of %s are not learned from: the limits are %g for observations and %g for returns; "
        "algorithm.normalize_observations and normalize_rewards bring them into range",
        *(count, total, client or "a client", INPUT_LIMIT, TARGET_LIMIT),
    )


def batch_outliers(targets: Inputs, *observations: Inputs) -> Mask | None:
    """Return which of B items are outliers of their batch, bool [B], and log how many; None without outliers.

    targets: [B]. observations: [B, ...]; none if they are normalised, or images.
    """
    found = ~(np.abs(targets) <= _limit(np.abs(targets), TARGETS_APART))  # True for NaN
    for each in observations:
        largest = _largest(each)
        found |= ~(largest <= _limit(largest, INPUTS_APART))
    if not found.any():
        return None
    _complain("%d of %d items of a batch are outliers, and are not learned from", np.count_nonzero(found), len(targets))
    return found


def _largest(inputs: Inputs) -> Inputs:
    largest: Inputs = np.abs(inputs.reshape(len(inputs), -1)).max(axis=1)
    return largest


def _limit(sizes: Inputs, apart: float) -> float:
    middle = len(sizes) // 2
    return apart * max(1.0, float(np.partition(sizes, middle)[middle]))  # of NaN, which sorts last, at most half


AT_ONCE = 50
"""Transitions that are inserted at once (Horgan et al. 2018, section 4.1)."""
LARGEST_ERROR = 1e30
"""Larger ones have the priority of this one."""


def transition_table(
    layout: ObservationLayout,
    capacity: int,
    priority_exponent: float | None,
    remover: Literal["fifo", "lowest_priority"] = "fifo",
) -> TableSpec:
    """Describe a table of transitions. None for `priority_exponent`: drawn uniformly. `remover`: see `TableSpec`.

    A transition is an observation, the action on it (from 0), the discounted sum of the rewards of up to n steps, and
    the discount of what the observation after them is worth.
    """
    return TableSpec(
        "transitions",
        {
            "observation": layout.field,
            "action": Field("int64"),
            "reward": Field("float32"),
            "discount": Field("float32"),
            "next_observation": layout.field,
        },
        capacity,
        sampler="uniform" if priority_exponent is None else "prioritized",
        alpha=priority_exponent or 0.0,
        remover=remover,
        frame=layout.frame,
    )


def priorities_of(errors: npt.NDArray[np.floating[Any]], offset: float) -> Numbers:
    """Return |error| + offset, float64 [B]. What is beyond all bounds, or no number, is no reason to stop."""
    sizes = np.nan_to_num(np.abs(errors.astype(np.float64)), nan=0.0)
    priorities: Numbers = np.minimum(sizes, LARGEST_ERROR) + offset
    return priorities


@dataclass(slots=True)
class _Completed:
    """Transitions that wait for the observation after them. E environments, n rows: one for each of the last actions.

    where: bool [n, E]; discounts: float64 [n, E]. cut_off: bool [E], where `final` [E, ...], worth `values` float [E],
    is that observation.
    """

    where: Mask
    discounts: Numbers
    cut_off: Mask
    final: Stored | None
    values: npt.NDArray[Any] | None


class WriterTransitions:
    """The transitions of the environments of one writer. `act` and `outcome` take turns.

    What was acted on at t becomes R = r_t + gamma r_{t+1} + ... + gamma^(k-1) r_{t+k-1}, and gamma^k as the discount of
    the observation at t + k. k is n (`steps`), or less at an episode's end:

    - It terminated: the discount is 0, and the observation after it is any.
    - It was truncated: the observation is its final one, with the frames that came before.
    - A void step (`StepResult.first`) is part of none.

    `priority_offset`: each is inserted with the priority |R / unit + discount max_a Q(s_{t+k}, a) - Q(s_t, a_t)| +
    offset, by the values that were acted on (Horgan et al. 2018, Algorithm 1); None for the memory's largest. The unit
    is the newest `reward_unit`.

    A transition that cannot be learned from is left out (see `within_limits`). `bounded`: whether observations are
    learned from within bounds whatever they are. `client`: what the log calls the client. `metrics`: record the share
    that is left out.
    """

    def __init__(
        self,
        writer: ReplayWriter,
        layout: ObservationLayout,
        *,
        steps: int,
        gamma: float,
        priority_offset: float | None = None,
        at_once: int = AT_ONCE,
        bounded: bool = True,
        client: str = "",
        metrics: MetricsRecorder | None = None,
    ) -> None:
        self._check_observations = not bounded and not layout.frames
        self._client, self._metrics = client, metrics
        self._writer, self._environments = writer, writer.environments
        count = len(writer.environments)
        self._kept = layout.memory(count)
        self._steps, self._gamma, self._offset, self._at_once = steps, gamma, priority_offset, at_once
        shape, dtype = inserted_form(layout.field)
        self._observations = np.zeros((steps, count, *shape), dtype)
        self._actions = np.zeros((steps, count), np.int64)
        self._chosen = np.zeros((steps, count), np.float32)  # values of these actions
        self._returns = np.zeros((steps, count), np.float64)
        self._ages = np.zeros(steps, np.int64)  # outcomes since a row was acted on
        self._open = np.zeros((steps, count), np.bool_)
        self._reward_unit = 1.0
        self._row = 0
        self._completed: _Completed | None = None
        self._columns: list[dict[str, npt.NDArray[Any]]] = []  # not inserted yet
        self._priorities: list[Numbers] = []
        self._count = 0

    def clear(self) -> None:
        """All environments start anew: what is complete is inserted, and the rest dropped."""
        self._open[:] = False
        self._completed = None
        if self._count:
            self._insert()
        self._kept.clear()

    def act(self, inputs: Inputs, restart: Mask, actions: npt.NDArray[np.int64], values: Array) -> None:
        """Take what was seen and done, of all N environments of the connection.

        inputs: [N, ...], as they are before normalisation. restart: bool [N], where they start an episode. actions:
        int64 [N], from 0. values: float32 [N, A], of all actions, by which one was chosen.
        """
        at = self._environments
        observations = self._kept.push(inputs[at], restart[at])
        if self._completed:
            self._gather(self._completed, observations, values[at].max(axis=1))
            self._completed = None
        row, self._row = self._row, (self._row + 1) % self._steps
        self._observations[row], self._actions[row] = observations, actions[at]
        self._chosen[row] = values_of(values[at], actions[at])
        self._returns[row], self._ages[row], self._open[row] = 0.0, 0, True
        if self._count >= self._at_once:
            self._insert()

    def outcome(
        self,
        step: StepResult,
        rewards: npt.NDArray[Any],
        final_inputs: Inputs | None,
        final_values: Array | None,
        reward_unit: float = 1.0,
    ) -> None:
        """Take the outcome of the last actions. `rewards` [N] are inserted; learners divide them by `reward_unit`.

        final_inputs: [N, ...] after which truncated episodes would have gone on; None if none was truncated.
        final_values: float32 [N], what these are worth; needed for priorities only.
        """
        at, self._reward_unit = self._environments, reward_unit
        first, terminated = step.first[at], step.terminated[at]
        cut_off = step.truncated[at] & ~terminated
        self._open[:, first] = False
        self._ages += 1
        self._returns += self._gamma ** (self._ages[:, None] - 1) * np.where(first, 0.0, rewards[at])
        where = self._open & (terminated | cut_off | (self._ages[:, None] == self._steps))
        self._open &= ~where
        self._completed = _Completed(
            where,
            np.asarray(self._gamma ** self._ages[:, None] * ~terminated, np.float64),
            cut_off,
            self._kept.peek(final_inputs[at], cut_off) if final_inputs is not None and cut_off.any() else None,
            None if final_values is None else final_values[at],
        )

    def _gather(self, completed: _Completed, observations: Stored, values: npt.NDArray[Any]) -> None:
        """Keep what is complete until enough is there; `observations` come next, worth `values` [E]."""
        rows, places = np.nonzero(completed.where)
        if not len(rows):
            return
        if completed.final is not None:
            cut_off = completed.cut_off.reshape(-1, *[1] * (observations.ndim - 1))
            observations = np.where(cut_off, completed.final, observations)
        returns, discounts = self._returns[rows, places], completed.discounts[rows, places]
        self._columns.append(
            {
                "observation": self._observations[rows, places],
                "action": self._actions[rows, places],
                "reward": returns.astype(np.float32),
                "discount": discounts.astype(np.float32),
                "next_observation": observations[places],
            }
        )
        if self._offset is not None:
            if completed.values is not None:
                values = np.where(completed.cut_off, completed.values, values)
            errors = returns / self._reward_unit + discounts * values[places] - self._chosen[rows, places]
            self._priorities.append(priorities_of(errors, self._offset))
        self._count += len(rows)

    def _insert(self) -> None:
        columns = {name: np.concatenate([part[name] for part in self._columns]) for name in self._columns[0]}
        priorities = np.concatenate(self._priorities) if self._priorities else None
        self._columns, self._priorities, self._count = [], [], 0
        good = self._learnable(columns)
        if not good.all():
            columns = {name: column[good] for name, column in columns.items()}
            priorities = None if priorities is None else priorities[good]
        named = [numbers for numbers in (columns["observation"], self._observations[self._open]) if numbers.size]
        if not named:
            self._kept.clear()
            return
        frames, first = self._kept.since_first_of(*named)
        if good.any():
            self._writer.insert(Insertion(columns, priorities, frames, first))

    def _learnable(self, columns: Mapping[str, npt.NDArray[Any]]) -> Mask:
        """Return which transitions can be learned from, bool [B]. Log and record how many cannot."""
        names = ("observation", "next_observation") if self._check_observations else ()
        good = within_limits(columns["reward"] / self._reward_unit, *(columns[name] for name in names))
        count = int(np.count_nonzero(~good))
        if self._metrics is not None:
            self._metrics.scalar("replay/left_out", count / len(good))
        if count:
            log_left_out(count, len(good), self._client)
        return good


class Transitions:
    """The transitions of all environments of a connection, each of which has one of the `writers`.

    Keywords and methods are those of `WriterTransitions`.
    """

    def __init__(self, writers: Sequence[ReplayWriter], layout: ObservationLayout, **options: Any) -> None:
        self._writers = [WriterTransitions(writer, layout, **options) for writer in writers]

    def clear(self) -> None:
        for writer in self._writers:
            writer.clear()

    def act(self, *seen_and_done: Any) -> None:
        for writer in self._writers:
            writer.act(*seen_and_done)

    def outcome(self, *outcome: Any) -> None:
        for writer in self._writers:
            writer.outcome(*outcome)
