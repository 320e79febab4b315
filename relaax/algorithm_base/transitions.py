"""n-step transitions: made from steps, checked against limits, and inserted into replay memory."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.agent import Mask, StepResult
from relaax.algorithm_base.network import history, image_of, input_shape, is_image
from relaax.algorithm_base.normalization import INPUT_LIMIT
from relaax.algorithm_base.observations import FrameStack
from relaax.metrics.rate_limited_log import RateLimitedLog
from relaax.parameters.interfaces import MetricsRecorder
from relaax.replay.interfaces import Insertion, ReplayWriter
from relaax.replay.spec import DEMONSTRATION as DEMONSTRATION
from relaax.replay.spec import MAX_DEMONSTRATION_PRIORITY as MAX_DEMONSTRATION_PRIORITY
from relaax.replay.spec import Field as Field
from relaax.replay.spec import Frames, TableSpec, inserted_form
from relaax.replay.spec import Remover as Remover
from relaax.rlx import Space

Inputs = npt.NDArray[Any]
Stored = npt.NDArray[Any]
Array = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.float64]


class ObservationLayout:
    """The stored form of the inputs that an `ObservationEncoder` makes, as a field of a table.

    A stack of H frames [h, w, c] is stored as a stack of frames [h, w * c, 1]. So its bytes are in the encoder's order,
    in which frames are the last axis. If an image is combined with numbers (`image`: as for `ObservationEncoder`), the
    whole stack is stored as numbers in each observation.
    """

    def __init__(self, space: Space, history_len: int | None, image: int | None = None) -> None:
        frames = history(history_len, image_of(space, image))
        self.frames = frames if is_image(space) else 0
        self.inputs = input_shape(space, frames, image)
        self.dtype: npt.DTypeLike = np.uint8 if self.frames else np.float32

    @property
    def field(self) -> Field:
        """The table's field for observations."""
        if self.frame is None:
            return Field("float32", self.inputs)
        return Field("uint8", (*self.frame[:2], self.frames), frames=self.frames)

    @property
    def frame(self) -> tuple[int, int, int] | None:
        """The shape of a single frame; None if observations are not images."""
        if not self.frames:
            return None
        height, width, channels = self.inputs
        return height, width * channels // self.frames, 1

    def to_inputs(self, column: Inputs) -> Inputs:
        """Return the network's inputs [B, *inputs] of a sampled column, bit for bit equal to the inserted ones."""
        return column.reshape(len(column), *self.inputs)

    def buffer(self, environments: int, steps: int) -> FrameBuffer | VectorBuffer:
        """Return a buffer for observations of E environments that are not inserted yet. `steps`: of a transition."""
        if not self.frames:
            return VectorBuffer()
        return FrameBuffer(environments, self.frames, KEPT_FRAMES * environments * (self.frames + steps))


KEPT_FRAMES = 8
"""Frames that are kept for open transitions, as a multiple of the frames that these need in step."""


class VectorBuffer:
    """A buffer for vectors float32 [E, D], which are inserted unchanged with each transition."""

    def push(self, inputs: Inputs, restart: Mask, held: Mask | None = None) -> Stored:
        """Return the stored form [E, ...] of the next inputs. Inputs in held rows (bool [E]) are not new."""
        copy: Stored = inputs.copy()
        return copy

    def peek(self, inputs: Inputs, where: Mask) -> Stored:
        """Return the stored form [E, ...] of final inputs where `where` (bool [E]). Other rows have no meaning."""
        copy: Stored = inputs.copy()
        return copy

    def renew(self, stored: Stored, open_: Mask, held: Mask) -> None:
        """Add old frames again that open transitions of held rows refer to, so that later frames are not kept for them.

        stored: [n, E, ...], changed in place. open_: bool [n, E]. held: bool [E].
        """

    def frames_since(self, *stored: Stored) -> tuple[Frames | None, int]:
        """Return all frames from the oldest that `stored` refers to, and the number of the first. Drop older frames."""
        return None, 0

    def clear(self) -> None:
        """Discard all frames: later calls do not refer to them."""


class FrameBuffer(VectorBuffer):
    """A buffer for numbered single frames of E environments. The stored form is the numbers of a stack, int64 [E, H].

    At an episode's start the stack repeats the first frame, as `FrameStack` does.

    All frames since the oldest one in use are kept. A row that is held for long uses old frames, so these are added
    again from time to time. `most_kept`: the number of frames after which they are.
    """

    def __init__(self, environments: int, length: int, most_kept: int) -> None:
        self._stack = FrameStack(environments, (), np.int64, length)
        self._environments, self._length, self._most_kept = environments, length, most_kept
        self._frames: list[Frames] = []
        self._first = self._next = 0

    def push(self, inputs: Inputs, restart: Mask, held: Mask | None = None) -> Stored:
        numbers = self._add_frames(inputs) if held is None else self._add_frames_of(inputs, ~held)
        stack: Stored = self._stack.push(numbers, restart, held).copy()
        return stack

    def peek(self, inputs: Inputs, where: Mask) -> Stored:
        return self._stack.peek(self._add_frames_of(inputs, where))

    def renew(self, stored: Stored, open_: Mask, held: Mask) -> None:
        used = open_ & held
        if not used.any() or stored[used].min() >= self._next - self._most_kept:
            return
        stacks = self._stack.frames
        numbers, places = np.unique(np.concatenate([stored[used], stacks[held]]), return_inverse=True)
        frames = np.concatenate(self._frames)[numbers - self._first]
        renewed = self._append(frames)[places].reshape(-1, self._length)
        count = np.count_nonzero(used)
        stored[used], stacks[held] = renewed[:count], renewed[count:]

    def frames_since(self, *stored: Stored) -> tuple[Frames | None, int]:
        first = min(int(numbers.min()) for numbers in stored if numbers.size)
        self._frames, self._first = [np.concatenate(self._frames)[first - self._first :]], first
        return self._frames[0], first

    def clear(self) -> None:
        self._frames, self._first = [], self._next

    def _add_frames(self, inputs: Inputs) -> npt.NDArray[np.int64]:
        """Add the newest frame of each of n stacks. Return their numbers, int64 [n]."""
        width = math.prod(inputs.shape[2:]) // self._length
        return self._append(inputs.reshape(*inputs.shape[:2], width, self._length)[..., -1:].copy())

    def _add_frames_of(self, inputs: Inputs, where: Mask) -> npt.NDArray[np.int64]:
        """Add the newest frames of the stacks where `where` (bool [E]). Return their numbers, int64 [E], or 0."""
        numbers = np.zeros(self._environments, np.int64)
        numbers[where] = self._add_frames(inputs[where])
        return numbers

    def _append(self, frames: Frames) -> npt.NDArray[np.int64]:
        self._frames.append(frames)
        numbers = np.arange(self._next, self._next + len(frames))
        self._next += len(frames)
        return numbers


_rate_limited_log = RateLimitedLog(logging.getLogger(__name__))

TARGET_LIMIT = 1e6
"""Largest absolute n-step return, normalised and clipped, that is inserted into replay memory."""
INPUT_OUTLIER_FACTOR, TARGET_OUTLIER_FACTOR = 1e3, 1e6
"""An item is an outlier of its batch if its largest input, or its target, exceeds this factor times the median. A
median below 1 counts as 1.
"""


def within_limits(rewards: Inputs, *observations: Inputs) -> Mask:
    """Return which of B transitions are within the limits, bool [B].

    rewards: [B]. observations: [B, ...], not normalised; omit them if they are normalised or images.
    """
    learnable: Mask = np.abs(rewards) <= TARGET_LIMIT  # False for NaN
    for each in observations:
        learnable &= _largest(each) <= INPUT_LIMIT
    return learnable


def log_not_inserted(count: int, total: int, client: str) -> None:
    """Log that transitions beyond the limits are not inserted, at most once a minute."""
    _rate_limited_log(
        "%d of %d transitions of %s are not inserted: the limits are %g for observations and %g for returns; "
        "set algorithm.normalize_observations or normalize_rewards",
        *(count, total, client or "a client", INPUT_LIMIT, TARGET_LIMIT),
    )


def batch_outliers(targets: Inputs, *observations: Inputs) -> Mask | None:
    """Return which of B items are outliers of their batch, bool [B]; None without outliers. Log their number.

    targets: [B]. observations: [B, ...]; omit them if they are normalised or images.
    """
    found = ~(np.abs(targets) <= _outlier_limit(np.abs(targets), TARGET_OUTLIER_FACTOR))  # True for NaN
    for each in observations:
        largest = _largest(each)
        found |= ~(largest <= _outlier_limit(largest, INPUT_OUTLIER_FACTOR))
    if not found.any():
        return None
    _rate_limited_log("%d of %d items of a batch are outliers and have weight 0", np.count_nonzero(found), len(targets))
    return found


def _largest(inputs: Inputs) -> Inputs:
    largest: Inputs = np.abs(inputs.reshape(len(inputs), -1)).max(axis=1)
    return largest


def _outlier_limit(sizes: Inputs, factor: float) -> float:
    middle = len(sizes) // 2
    # NaN sorts last, so the median is NaN only if at least half are NaN.
    return factor * max(1.0, float(np.partition(sizes, middle)[middle]))


INSERT_SIZE = 50
"""Number of transitions in one insertion (Horgan et al. 2018, section 4.1)."""
LARGEST_INSERT = 100
"""Largest number of transitions in one insertion. More, from many environments, are divided."""
NEXT_VALID = "next_valid"
"""The table's field for the valid actions of the next observation."""
DISCRETE_ACTION = Field("int64")
"""The table's field for actions that are numbers from 0."""
LARGEST_ERROR = 1e30
"""Bound of errors in priorities."""


def transition_table(
    layout: ObservationLayout,
    capacity: int,
    priority_exponent: float | None,
    remover: Remover = "fifo",
    mask_size: int = 0,
    action: Field = DISCRETE_ACTION,
    remover_exponent: float = -0.4,
    demonstrations: bool = False,
    demonstration_priority: float = 0.0,
) -> TableSpec:
    """Return a table of transitions. `priority_exponent`: None for uniform sampling.

    `remover`, `remover_exponent`, `demonstration_priority`: see `TableSpec`.

    A transition has an observation, the action, the discounted sum of the rewards of up to n steps, the next
    observation, and the discount of its value. With a `mask_size`, the number of elements of an action mask, it also
    has the valid actions of the next observation. With `demonstrations`, it has the field `DEMONSTRATION`.
    """
    return TableSpec(
        "transitions",
        {
            "observation": layout.field,
            "action": action,
            "reward": Field("float32"),
            "discount": Field("float32"),
            "next_observation": layout.field,
            **({NEXT_VALID: Field("bool", (mask_size,))} if mask_size else {}),
            **({DEMONSTRATION: Field("bool")} if demonstrations else {}),
        },
        capacity,
        sampler="uniform" if priority_exponent is None else "prioritized",
        alpha=priority_exponent or 0.0,
        remover=remover,
        remover_exponent=remover_exponent,
        frame=layout.frame,
        demonstration_priority=demonstration_priority,
    )


def priorities_of(errors: npt.NDArray[np.floating[Any]], offset: float) -> Numbers:
    """Return |error| + offset, float64 [B]. NaN counts as 0, and larger errors as LARGEST_ERROR."""
    sizes = np.nan_to_num(np.abs(errors.astype(np.float64)), nan=0.0)
    priorities: Numbers = np.minimum(sizes, LARGEST_ERROR) + offset
    return priorities


@dataclass(slots=True)
class _Completed:
    """Transitions that lack only their next observation: n rows (the last n actions) of E environments.

    where: bool [n, E], which rows are complete. discounts: float64 [n, E]. cut_off: bool [E], where the episode was
    truncated. There, the next observation is `final` [E, ...], with the values `values`, float [E], and the valid
    actions `valid`, bool [E, A].
    """

    where: Mask
    discounts: Numbers
    cut_off: Mask
    final: Stored | None
    values: npt.NDArray[Any] | None
    valid: Mask | None


class WriterTransitions:
    """The transitions of the environments of one writer. Call `act` and `outcome` alternately.

    They do not wait for replay memory. `insert` does, so call it after the actions were sent.

    The action at t becomes a transition with the reward R = r_t + gamma r_{t+1} + ... + gamma^(k-1) r_{t+k-1}, the next
    observation at t + k, and the discount gamma^k. k is n (`steps`), or less at an episode's end:

    - If the episode terminated, the discount is 0, and the next observation is arbitrary.
    - If it was truncated, the next observation is its final one, stacked with the frames before it.
    - A void step (`StepResult.first`) is not part of any transition.
    - In a held row (`StepResult.held`) the last action is still in progress, and nothing happens.

    `priority_offset`: insert each transition with the priority |R / unit + discount V(s_{t+k}) - Q(s_t, a_t)| + offset,
    by the values at the time of acting (Horgan et al. 2018, Algorithm 1). V is the value of the best action. The unit
    is the newest `reward_unit`. None: insert it with the largest priority of the memory.

    Transitions that exceed the limits are not inserted (see `within_limits`). `bounded`: whether normalisation bounds
    all observations, so that they are not checked. `client`: the client's name in logs. `metrics`: records the share
    of transitions that are not inserted. `action`: the table's field for actions. `marks_chosen`: whether the table has
    the field `DEMONSTRATION`, which is true if the client chose the action.
    """

    def __init__(
        self,
        writer: ReplayWriter,
        layout: ObservationLayout,
        *,
        steps: int,
        gamma: float,
        priority_offset: float | None = None,
        insert_size: int = INSERT_SIZE,
        bounded: bool = True,
        client: str = "",
        metrics: MetricsRecorder | None = None,
        action: Field = DISCRETE_ACTION,
        marks_chosen: bool = False,
    ) -> None:
        self._marks_chosen = marks_chosen
        self._check_observations = not bounded and not layout.frames
        self._client, self._metrics = client, metrics
        self._writer, self._environments = writer, writer.environments
        count = len(writer.environments)
        self._buffer = layout.buffer(count, steps)
        self._steps, self._gamma, self._offset, self._insert_size = steps, gamma, priority_offset, insert_size
        shape, dtype = inserted_form(layout.field)
        self._observations = np.zeros((steps, count, *shape), dtype)
        self._actions: Stored = np.zeros((steps, count, *action.shape), action.dtype)
        self._action_values = np.zeros((steps, count), np.float32)  # Q(s, a) of these actions
        self._returns = np.zeros((steps, count), np.float64)
        self._ages = np.zeros(steps, np.int64)  # number of outcomes of each row
        self._open = np.zeros((steps, count), np.bool_)
        self._chosen = np.zeros((steps, count), np.bool_)
        self._rows: tuple[Stored, ...] = (
            self._observations,
            self._actions,
            self._action_values,
            self._returns,
            self._open,
            self._chosen,
        )
        self._reward_unit = 1.0
        self._row = 0
        self._completed: _Completed | None = None
        self._columns: list[dict[str, npt.NDArray[Any]]] = []  # not inserted yet
        self._priorities: list[Numbers] = []
        self._count = 0
        self._ready: list[Insertion] = []

    def clear(self) -> None:
        """Start an episode in every environment. The next `insert` inserts the complete transitions only."""
        self._open[:] = False
        self._completed = None
        if self._count:
            self._prepare()
        self._buffer.clear()

    def insert(self) -> None:
        """Insert the transitions if they fill an insertion, or if their episode was cleared (see `ReplayWriter`)."""
        ready, self._ready = self._ready, []
        for insertion in ready:
            self._writer.insert(insertion)

    def close(self) -> None:
        """Insert all complete transitions when the writer is closed."""
        self.clear()
        for insertion in self._ready:
            self._writer.insert_at_end(insertion)

    def act(
        self,
        inputs: Inputs,
        restart: Mask,
        actions: Stored,
        values: tuple[Array, Array] | None = None,
        valid: Mask | None = None,
        held: Mask | None = None,
    ) -> None:
        """Add inputs and actions of all N environments of the connection, except in held rows.

        inputs: [N, ...], not normalised. restart: bool [N], where they start an episode. actions: [N, ...], in the form
        of the table's field. values: of these actions and of the best actions, float32 [N] each; only priorities need
        them. valid: bool [N, A], the valid actions; None without masks. held: bool [N]; None if no row is held.
        """
        at = self._environments
        held = None if held is None else held[at]
        observations = self._buffer.push(inputs[at], restart[at], held)
        if self._completed:
            best = np.zeros(len(observations), np.float32) if values is None else values[1][at]
            self._add_completed(self._completed, observations, best, None if valid is None else valid[at])
            self._completed = None
        row, self._row = self._row, (self._row + 1) % self._steps
        moved = [] if held is None else [np.roll(column[:, held], 1, axis=0) for column in self._rows]
        self._observations[row], self._actions[row] = observations, actions[at]
        if values is not None:
            self._action_values[row] = values[0][at]
        self._returns[row], self._ages[row], self._open[row], self._chosen[row] = 0.0, 0, True, False
        for column, rows in zip(self._rows, moved, strict=False):  # in held rows, the transitions keep their ages
            column[:, held] = rows
        if self._count >= self._insert_size:
            if held is not None:
                self._buffer.renew(self._observations, self._open, held)
            self._prepare()

    def replace_actions(self, chosen: Mask, actions: Stored, values: Array | None = None) -> None:
        """Replace the last actions by `actions` [N, ...] where `chosen`, bool [N]. Call it before `outcome`.

        `values`: of these actions, float32 [N]; only priorities need them.
        """
        at, newest = self._environments, (self._row - 1) % self._steps
        rows = chosen[at]
        self._actions[newest, rows] = actions[at][rows]
        self._chosen[newest, rows] = True
        if values is not None:
            self._action_values[newest, rows] = values[at][rows]

    def outcome(
        self,
        step: StepResult,
        rewards: npt.NDArray[Any],
        final_inputs: Inputs | None,
        final_values: Array | None,
        reward_unit: float = 1.0,
        final_valid: Mask | None = None,
    ) -> None:
        """Add the outcome of the last actions. `rewards` [N] are inserted; learners divide them by `reward_unit`.

        final_inputs: [N, ...], the final inputs of truncated episodes; None if no episode was truncated. final_values:
        float32 [N], their values; only priorities need them. final_valid: bool [N, A], their valid actions.
        """
        at, self._reward_unit = self._environments, reward_unit
        first, terminated = step.first[at], step.terminated[at]
        cut_off = step.truncated[at] & ~terminated
        held = None if step.held is None else step.held[at]
        self._open[:, first] = False
        self._ages += 1  # in held rows, the next `act` moves the transitions to the rows that have their ages
        void = first if held is None else first | held
        self._returns += self._gamma ** (self._ages[:, None] - 1) * np.where(void, 0.0, rewards[at])
        where = self._open & (terminated | cut_off | (self._ages[:, None] == self._steps))
        if held is not None:
            where &= ~held
        self._open &= ~where
        self._completed = _Completed(
            where,
            np.asarray(self._gamma ** self._ages[:, None] * ~terminated, np.float64),
            cut_off,
            self._buffer.peek(final_inputs[at], cut_off) if final_inputs is not None and cut_off.any() else None,
            None if final_values is None else final_values[at],
            None if final_valid is None else final_valid[at],
        )

    def _add_completed(
        self, completed: _Completed, observations: Stored, values: npt.NDArray[Any], valid: Mask | None
    ) -> None:
        """Add complete transitions to the next insertion.

        `observations` are the next ones, with `values` [E] and the valid actions `valid`, bool [E, A].
        """
        rows, places = np.nonzero(completed.where)
        if not len(rows):
            return
        if completed.final is not None:
            cut_off = completed.cut_off.reshape(-1, *[1] * (observations.ndim - 1))
            observations = np.where(cut_off, completed.final, observations)
        if valid is not None and completed.valid is not None:
            valid = np.where(completed.cut_off[:, None], completed.valid, valid)
        returns, discounts = self._returns[rows, places], completed.discounts[rows, places]
        self._columns.append(
            {
                "observation": self._observations[rows, places],
                "action": self._actions[rows, places],
                "reward": returns.astype(np.float32),
                "discount": discounts.astype(np.float32),
                "next_observation": observations[places],
                **({NEXT_VALID: valid[places]} if valid is not None else {}),
                **({DEMONSTRATION: self._chosen[rows, places]} if self._marks_chosen else {}),
            }
        )
        if self._offset is not None:
            if completed.values is not None:
                values = np.where(completed.cut_off, completed.values, values)
            errors = returns / self._reward_unit + discounts * values[places] - self._action_values[rows, places]
            self._priorities.append(priorities_of(errors, self._offset))
        self._count += len(rows)

    def _prepare(self) -> None:
        """Make insertions of the complete transitions."""
        columns = {name: np.concatenate([part[name] for part in self._columns]) for name in self._columns[0]}
        priorities = np.concatenate(self._priorities) if self._priorities else None
        self._columns, self._priorities, self._count = [], [], 0
        learnable = self._learnable(columns)
        if not learnable.all():
            columns = {name: column[learnable] for name, column in columns.items()}
            priorities = None if priorities is None else priorities[learnable]
        named = [numbers for numbers in (columns["observation"], self._observations[self._open]) if numbers.size]
        if not named:
            self._buffer.clear()
            return
        frames, first = self._buffer.frames_since(*named)
        for start in range(0, np.count_nonzero(learnable), LARGEST_INSERT):
            part = slice(start, start + LARGEST_INSERT)
            divided = {name: column[part] for name, column in columns.items()}
            self._ready.append(Insertion(divided, None if priorities is None else priorities[part], frames, first))

    def _learnable(self, columns: Mapping[str, npt.NDArray[Any]]) -> Mask:
        """Return which transitions are within the limits, bool [B]. Log and record how many are not."""
        names = ("observation", "next_observation") if self._check_observations else ()
        learnable = within_limits(columns["reward"] / self._reward_unit, *(columns[name] for name in names))
        count = int(np.count_nonzero(~learnable))
        if self._metrics is not None:
            self._metrics.scalar("replay/left_out", count / len(learnable))
        if count:
            log_not_inserted(count, len(learnable), self._client)
        return learnable


class Transitions:
    """The transitions of all environments of a connection, one `WriterTransitions` for each of the `writers`.

    For keyword arguments and methods see `WriterTransitions`.
    """

    def __init__(self, writers: Sequence[ReplayWriter], layout: ObservationLayout, **options: Any) -> None:
        self._writers = [WriterTransitions(writer, layout, **options) for writer in writers]

    def clear(self) -> None:
        for writer in self._writers:
            writer.clear()

    def insert(self) -> None:
        for writer in self._writers:
            writer.insert()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()

    def act(self, *arguments: Any) -> None:
        for writer in self._writers:
            writer.act(*arguments)

    def replace_actions(self, *arguments: Any) -> None:
        for writer in self._writers:
            writer.replace_actions(*arguments)

    def outcome(self, *outcome: Any) -> None:
        for writer in self._writers:
            writer.outcome(*outcome)
