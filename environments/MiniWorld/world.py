"""Worlds of MiniWorld on machines without a screen, several in one process."""

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
_MAKING = threading.Lock()  # connections of one program make their worlds in parallel
_current = threading.local()


def register() -> None:
    """Let gymnasium know MiniWorld's ids, whose frames are drawn by EGL: no screen is needed.

    Raises command.UsageError if this machine lacks the libraries for that.
    """
    os.environ["PYOPENGL_PLATFORM"] = "egl"
    os.environ.setdefault("LP_NUM_THREADS", "0")  # Mesa draws in this thread: other processes need the cores
    import pyglet

    pyglet.options["headless"] = True
    try:
        from miniworld import miniworld
    except ModuleNotFoundError:
        raise
    except Exception as error:  # pyglet's own: of a library, of a display
        raise command.UsageError(f"MiniWorld cannot draw on this machine ({error}): {GRAPHICS}") from error
    _separate(miniworld)


def _separate(miniworld: Any) -> None:
    """Let each world draw its walls from a display list of its own: for MiniWorld it is number 1 in all of them."""
    from pyglet import gl

    miniworld.glNewList = lambda number, mode: gl.glNewList(_current.number, mode)
    miniworld.glCallList = lambda number: gl.glCallList(_current.number)
    miniworld.glDeleteLists = lambda number, count: gl.glDeleteLists(_current.number, count)


class DrawnWorld(gymnasium.Wrapper):
    """A world whose frames are in colour, uint8 [side, side, 3]: what is to be found is told apart by its colour."""

    _numbers = itertools.count(1)

    def __init__(self, identifier: str, side: int, watched: bool) -> None:
        width, height = _WATCHED if watched else _UNWATCHED
        with _MAKING, contextlib.redirect_stdout(io.StringIO()):  # it prints what the renderer can do
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
        seen, reward, terminated, truncated, info = self.env.step(action)
        return seen, float(reward), terminated, truncated and not terminated, info

    def render(self) -> Any:
        _current.number = self._number
        return self.env.render()
