"""A level of DeepMind Lab as a gymnasium environment: small gray frames, eleven actions."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete

from relaax.client import command
from relaax.client.program.families import gray

SIDE = 84
FRAME = "RGB_INTERLEAVED"
FRAMES_PER_SECOND = 60

Actions = tuple[tuple[str, str, int], ...]

ACTIONS: Actions = (
    ("look left", "LOOK_LEFT_RIGHT_PIXELS_PER_FRAME", -20),
    ("look right", "LOOK_LEFT_RIGHT_PIXELS_PER_FRAME", 20),
    ("look up", "LOOK_DOWN_UP_PIXELS_PER_FRAME", 10),
    ("look down", "LOOK_DOWN_UP_PIXELS_PER_FRAME", -10),
    ("strafe left", "STRAFE_LEFT_RIGHT", -1),
    ("strafe right", "STRAFE_LEFT_RIGHT", 1),
    ("move forward", "MOVE_BACK_FORWARD", 1),
    ("move back", "MOVE_BACK_FORWARD", -1),
    ("fire", "FIRE", 1),
    ("jump", "JUMP", 1),
    ("crouch", "CROUCH", 1),
)
"""The name of each action, the control of the Lab that it sets, and the value; other controls are 0."""

SHRUNK = tuple(a for a in ACTIONS if a[0].startswith(("look l", "look r", "strafe", "move")))
"""The actions that move and turn in the plane, which are enough for mazes."""


class Level(gymnasium.Env):
    """A level whose observations are gray frames, uint8 [84, 84].

    An action is an index into `SHRUNK`, or into `ACTIONS` without `shrink`. It is held for `frame_skip` frames.

    `open_lab` creates the `deepmind_lab.Lab`, whose frames (RGB_INTERLEAVED) must be 84 by 84. It is called at the
    first reset, so a process that only needs the spaces starts no engine. Every episode ends as terminated, because the
    Lab does not distinguish its time limit from the level's own end. The Lab gives no frame at the end of an episode,
    so the last observation is the newest earlier frame.
    """

    def __init__(self, open_lab: Callable[[], Any], frame_skip: int = 4, shrink: bool = True) -> None:
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": FRAMES_PER_SECOND / frame_skip}
        self.render_mode = "rgb_array"
        self.observation_space = Box(0, 255, (SIDE, SIDE), np.uint8)
        self._open_lab = open_lab
        self._frame_skip = frame_skip
        self._actions = SHRUNK if shrink else ACTIONS
        self.action_space = Discrete(len(self._actions))
        self._lab: Any = None
        self._controls: list[npt.NDArray[np.intc]] = []
        self._frame: npt.NDArray[np.uint8] = np.zeros((SIDE, SIDE), np.uint8)
        self._screen: npt.NDArray[np.uint8] = np.zeros((SIDE, SIDE, 3), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        if self._lab is None:
            self._lab = self._open_lab()
            self._controls = controls(self._lab.action_spec(), self._actions)
        self._lab.reset(
            seed=int(self.np_random.integers(2**31))
        )  # each episode has its own seed, so episodes differ, and runs with the same seed do not
        self._frame = self._next_frame()
        return self._frame, {}

    def step(self, action: Any) -> tuple[npt.NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        reward = float(self._lab.step(self._controls[int(action)], num_steps=self._frame_skip))
        terminated = not self._lab.is_running()
        if not terminated:
            self._frame = self._next_frame()
        return self._frame, reward, terminated, False, {}

    def render(self) -> npt.NDArray[np.uint8]:
        """Return the newest frame, uint8 [84, 84, 3]."""
        return self._screen

    def close(self) -> None:
        lab, self._lab = self._lab, None
        if lab is not None:
            lab.close()

    def _next_frame(self) -> npt.NDArray[np.uint8]:
        self._screen = np.asarray(self._lab.observations()[FRAME])
        return gray(self._screen)


def open_lab(name: str, renderer: str = "software") -> Any:
    """Return the `deepmind_lab.Lab` of one level. Raises command.UsageError if it cannot be opened."""
    lab = importlib.import_module("deepmind_lab")
    try:
        return lab.Lab(name, [FRAME], config={"width": str(SIDE), "height": str(SIDE)}, renderer=renderer)
    except (RuntimeError, ValueError) as error:
        raise command.UsageError(f"DeepMind Lab cannot open the level {name!r}: {error}") from None


def controls(action_spec: list[dict[str, Any]], actions: Actions) -> list[npt.NDArray[np.intc]]:
    """Return the control vector of each action; `action_spec` names the Lab's controls in order."""
    names = [control["name"] for control in action_spec]
    vectors = [np.zeros(len(names), np.intc) for _ in actions]
    for vector, (_, control, value) in zip(vectors, actions, strict=True):
        vector[names.index(control)] = value
    return vectors
