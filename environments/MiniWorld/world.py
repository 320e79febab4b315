"""Worlds of MiniWorld without a display, several in one process."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import threading
from typing import Any

import gymnasium

from relaax.client import command

GRAPHICS = "install Mesa's libraries; Debian, Ubuntu: apt-get install libegl1 libgl1-mesa-dri libglu1-mesa"
_WATCHED, _UNWATCHED = (640, 480), (8, 8)
_CREATION_LOCK = threading.Lock()  # connections of one program create their worlds in parallel
_current = threading.local()


def register() -> None:
    """Register MiniWorld's ids with gymnasium. EGL draws the frames, so no display is needed.

    Raises command.UsageError if this machine lacks the libraries.
    """
    os.environ["PYOPENGL_PLATFORM"] = "egl"
    os.environ.setdefault("LP_NUM_THREADS", "0")  # Mesa draws in this thread: other processes need the cores
    import pyglet

    pyglet.options["headless"] = True
    try:
        from miniworld import miniworld
    except ModuleNotFoundError:
        raise
    except Exception as error:  # pyglet raises errors of its own if a library or a display is missing
        raise command.UsageError(f"MiniWorld cannot draw on this machine ({error}): {GRAPHICS}") from error
    _use_own_display_lists(miniworld)


def _use_own_display_lists(miniworld: Any) -> None:
    """Give each world its own display list for walls: MiniWorld uses number 1 for every world."""
    from pyglet import gl

    miniworld.glNewList = lambda number, mode: gl.glNewList(_current.number, mode)
    miniworld.glCallList = lambda number: gl.glCallList(_current.number)
    miniworld.glDeleteLists = lambda number, count: gl.glDeleteLists(_current.number, count)


class DrawnWorld(gymnasium.Wrapper):
    """A world whose frames are in colour, uint8 [side, side, 3], because the goals of tasks differ by colour."""

    _numbers = itertools.count(1)

    def __init__(self, identifier: str, side: int, watched: bool) -> None:
        width, height = _WATCHED if watched else _UNWATCHED
        with _CREATION_LOCK, contextlib.redirect_stdout(io.StringIO()):  # it prints the features of the renderer
            self._number = _current.number = next(self._numbers)
            env = gymnasium.make(
                identifier,
                disable_env_checker=True,
                obs_width=side,
                obs_height=side,
                window_width=width,
                window_height=height,
                render_mode="rgb_array" if watched else None,
            )
        super().__init__(env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        _current.number = self._number
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        _current.number = self._number
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, float(reward), terminated, truncated and not terminated, info

    def render(self) -> Any:
        _current.number = self._number
        return self.env.render()
