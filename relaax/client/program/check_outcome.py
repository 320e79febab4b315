"""Checks of one outcome of an environment: observation, reward, flags and infos."""

from __future__ import annotations

import pickle
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax import rlx
from relaax.client.connection.values import flag_of, require_final, reward_of, values_of
from relaax.client.program.check_report import Findings
from relaax.rlx.action_masks import ACTION_MASK, choices_of, mask_leaf, read_mask
from relaax.rlx.messages import MAX_REWARD
from relaax.rlx.value_mismatch import ValueMismatch

Parts = dict[str, npt.NDArray[Any]]


class OutcomeCheck:
    """The checks of one environment's outcomes, or of batches of outcomes if `axes` is 1.

    `where`, in its methods: the prefix of a finding, such as "episode 1, step 3: ".
    """

    def __init__(self, space: Any, action_space: Any, findings: Findings, axes: int = 0) -> None:
        """Raises UnsupportedSpace and ValueError if a space is not supported."""
        self._values, actions = values_of(space), values_of(action_space).space
        self._findings = findings
        self._axes = axes
        self._elements = dict(zip(self._values.space.paths(), self._values.space.elements(), strict=True))
        self._before: list[tuple[npt.NDArray[Any], bytes]] = []
        self._choices = choices_of(actions)
        self._mask = mask_leaf(ACTION_MASK, self._values.space, actions)
        self._has_mask = any(ACTION_MASK in path for path in self._elements)

    def observation(self, where: str, value: Any) -> rlx.Leaves | None:
        """Check an observation or a batch. Return its leaves; None if it is not in its space."""
        try:
            leaves = [np.array(leaf) for leaf in self._values.to_leaves(value, self._axes)]
        except ValueMismatch as mismatch:
            self._findings.error("space", f"{where}the observation is not in its space: {mismatch}")
            return None
        for path, leaf in zip(self._elements, leaves, strict=True):
            self._check_numbers(where, path, leaf)
        self._check_arrays(where, dict(_arrays(value)))
        return leaves

    def reward(self, where: str, reward: Any) -> float | None:
        """Check a reward. Return it as a float; None if it is invalid."""
        try:
            number = reward_of(reward)
        except ValueError as error:
            self._findings.error("reward", f"{where}{error}")
            return None
        if abs(number) > MAX_REWARD:
            text = f"the reward is {number:g}, and servers refuse rewards with a size above {MAX_REWARD:g}: scale it"
            self._findings.error("reward", f"{where}{text}")
        return number

    def flag(self, where: str, name: str, flag: Any) -> bool:
        """Check `terminated` or `truncated`. Return it as a bool."""
        array = np.asarray(flag)
        try:
            value = flag_of(name, flag)
        except ValueError as error:
            self._findings.error(name, f"{where}{error}")
            return False
        if array.dtype.kind == "b":
            return value
        is_tolerated = array.dtype.kind in "iuf" and array in (0, 1)
        add = self._findings.warning if is_tolerated else self._findings.error
        add(name, f"{where}{name} is {reprlib.repr(flag)}: return True or False")
        return value

    def final(self, where: str, observation: Any, terminated: bool, truncated: bool) -> rlx.Leaves | None:
        """Check the observation of a step. A terminated episode may end with None."""
        if observation is None and (terminated or truncated):
            try:
                require_final(observation, terminated, truncated)
            except ValueError as error:
                self._findings.error("final", f"{where}{error}")
            return None
        return self.observation(where, observation)

    def mask(self, where: str, leaves: rlx.Leaves | None, unwanted: npt.NDArray[np.bool_] | None = None) -> None:
        """Check that the action mask of an observation or a batch allows an action. `unwanted`: rows without action."""
        if self._mask is None or leaves is None:
            return
        leaf = leaves[self._mask] if self._axes else leaves[self._mask][None]
        _, blocked = read_mask(leaf, self._choices)
        if unwanted is not None:
            blocked &= ~unwanted
        if blocked.any():
            row = f"environment {int(blocked.argmax())}: " if self._axes else ""
            path = list(self._elements)[self._mask]
            text = f"{where}{row}observation{path} allows no action of a choice"
            self._findings.error("mask", f"{text}: servers refuse it; mark a valid action, or end the episode")

    def info(self, where: str, info: Any) -> None:
        """Check the infos of a reset or a step."""
        if not isinstance(info, Mapping):
            add = self._findings.warning if info is None else self._findings.error
            add("info", f"{where}info is {reprlib.repr(info)}: return a dict, such as {{}}")
            return
        if ACTION_MASK in info and not self._has_mask:
            self._findings.warning(
                "mask",
                f"{where}info has an entry {ACTION_MASK!r}, which agents do not get: make it a part of a Dict"
                " observation, for example with `--action-mask info` of the program for gymnasium",
            )
        for key, entry in info.items():
            if (reason := _unpicklable(entry)) is not None:
                what = f"{where}info[{key!r}], of type {type(entry).__name__}, cannot be pickled ({reason})"
                self._findings.warning(
                    "pickle",
                    f"{what}, but environments in other processes must pickle it: omit it, or return numbers and text",
                )

    def _check_numbers(self, where: str, path: str, leaf: npt.NDArray[Any]) -> None:
        odd = ~np.isfinite(leaf)
        if odd.any():
            text = f"{where}{self._place(path, odd)} is {leaf[odd][0]}"
            self._findings.error("finite", f"{text}: servers refuse it; return a finite number or end the episode")
        low, high = _bounds(self._elements[path])
        outside = ~odd & ((leaf < low) | (leaf > high))
        if outside.any():
            index = np.unravel_index(int(np.argmax(outside)), leaf.shape)
            least, most = (np.broadcast_to(bound, leaf.shape)[index] for bound in (low, high))
            self._findings.error(
                "bounds",
                f"{where}{self._place(path, outside)} is {leaf[index]:g}, outside the bounds {least:g} to {most:g}"
                f" of its space {self._elements[path]}: widen the space, or clip the value",
            )

    def _place(self, path: str, where: npt.NDArray[np.bool_]) -> str:
        """Return the name of the first element of a leaf where `where` is true."""
        index = [int(i) for i in np.unravel_index(int(np.argmax(where)), where.shape)]
        own = index[self._axes :]
        text = f"observation{path}{own or ''}"
        return f"environment {index[0]}: {text}" if self._axes else text

    def _check_arrays(self, where: str, parts: Parts) -> None:
        """Check the dtypes of returned arrays, and that earlier arrays have not been overwritten."""
        if self._axes:
            return  # vectors convert and copy
        for path, array in parts.items():
            element = self._elements.get(path)
            if isinstance(element, rlx.Box) and array.dtype != element.dtype:
                self._findings.warning(
                    "dtype",
                    f"{where}observation{path} is {array.dtype}, but its space is {element.dtype}: RELAAX converts it,"
                    f" but wrappers may not; return it with .astype(np.{element.dtype})",
                )
        if any(array.tobytes() != content for array, content in self._before):
            self._findings.warning(
                "overwritten",
                f"{where}the array of the previous observation was overwritten: RELAAX copies observations, but"
                " wrappers that keep them may not; return a copy",
            )
        self._before = [(array, array.tobytes()) for array in parts.values()]


def _bounds(element: rlx.ElementarySpace) -> tuple[Any, Any]:
    """Return the minimum and the maximum value, or arrays of them."""
    if isinstance(element, rlx.Box):
        return element.low, element.high
    if isinstance(element, rlx.Discrete):
        return element.start, element.start + element.n - 1
    if isinstance(element, rlx.MultiDiscrete):
        return 0, np.asarray(element.nvec) - 1
    return 0, 1


def _arrays(value: Any, path: str = "") -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield the arrays of an observation with their paths."""
    if isinstance(value, np.ndarray):
        yield path, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _arrays(part, f"{path}[{key!r}]")
    elif isinstance(value, tuple):
        for index, part in enumerate(value):
            yield from _arrays(part, f"{path}[{index}]")


def _unpicklable(value: Any) -> str | None:
    """Return why a value cannot be pickled; None if it can."""
    try:
        pickle.dumps(value)
    except Exception as error:  # any class may raise any error
        return f"{type(error).__name__}: {error}"
    return None
