"""Images of an environment, in a window or as videos."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import re
import struct
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from relaax.client.connection.failure import CannotWrite, Failure
from relaax.libraries import explained

logger = logging.getLogger("relaax.client")

Image = npt.NDArray[np.uint8]
DEFAULT_FPS = 30
SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
"""Environment variables. On Linux, one of them is set if there is a screen."""
_WINDOW_SIDE = 400  # smaller images are shown larger


@dataclass(frozen=True, slots=True)
class Watching:
    """The requested images of a connection's first environment.

    `display`: whether to open a window. `video`: folder of MP4 files, one for every `every`-th episode from the first.
    Images come from the environment's `render()` in the mode "rgb_array".
    """

    display: bool = False
    video: Path | None = None
    every: int = 1


class Watch:
    """A context that shows or records an image after each reset and step of environment 0.

    `env`: an Env or a VectorEnv whose `render()` returns uint8 [H, W, 3], or one such image for each environment.
    `name`: name of the environment, for the window and the files. Raises Failure if there is no screen for a window.
    `frame` raises Failure if the environment returns no image.
    """

    def __init__(self, watching: Watching, env: Any, name: str) -> None:
        self._watching = watching
        self._env = env
        self._name = re.sub(r"\W+", "-", name.rpartition("/")[2]).strip("-").lower() or "environment"
        self._fps = float(env.metadata.get("render_fps") or DEFAULT_FPS)
        self._video: _Video | None = None
        self._window: _Window | None = None
        self._number = 0
        self._in_episode = False
        if watching.display and not has_screen():  # before the first image
            raise Failure("--display: there is no screen (DISPLAY is not set); --video DIR writes MP4 files instead")

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_episode()
        if self._window is not None:
            self._window.close()

    def set_episode(self, number: int) -> None:
        """End the current episode. The next image begins episode `number`, counted from 0."""
        self.end_episode()
        self._number = number

    def frame(self) -> None:
        """Render an image. The first image, and the first one after `end_episode`, begins an episode."""
        begins, self._in_episode = not self._in_episode, True
        folder = self._watching.video if self._number % self._watching.every == 0 else None
        if folder is None and not self._watching.display:
            return
        image = self._image()
        if begins and folder is not None:
            self._video = _Video(folder, f"{self._name}-{self._number:06d}", self._fps)
        if self._video is not None:
            video, self._video = self._video, None  # a video that fails must not be finished
            video.append(image)
            self._video = video
        if self._watching.display:
            if self._window is None:
                self._window = _Window(self._name, image, self._fps)
            self._window.show(image)

    def end_episode(self) -> None:
        """End the episode, and its video."""
        video, self._video = self._video, None
        if video is not None:
            video.close()
        if self._in_episode:
            self._number += 1
        self._in_episode = False

    def _image(self) -> Image:
        """Return the image of environment 0. If the vector allows it, only this environment is rendered."""
        several = getattr(getattr(self._env, "unwrapped", self._env), "envs", None)
        image = several[0].render() if several else self._env.render()
        if isinstance(image, tuple | list) and image:
            image = image[0]
        if not (isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.shape[2:] == (3,)):
            raise Failure(
                f"render() of {self._name} returned {type(image).__name__}, not an image (uint8 [H, W, 3]): create the "
                'environment with render_mode="rgb_array", or omit --display and --video'
            )
        return image


class _Video:
    """An MP4 file. Its name ends with .part.mp4 until `close`. Existing files are not overwritten."""

    def __init__(self, folder: Path, stem: str, fps: float) -> None:
        with explained("watch"):
            import imageio
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._path = _claim_name(folder, stem)
        except OSError as error:
            raise CannotWrite("--video", folder, error) from None
        self._part = self._path.with_suffix(".part.mp4")
        # imageio leaves the pipe open if ffmpeg has exited, for example on a full disk.
        warnings.filterwarnings("ignore", "unclosed file <_io.BufferedWriter", ResourceWarning)
        self._writer: Any = imageio.get_writer(
            self._part, fps=fps, codec="libx264", macro_block_size=2, ffmpeg_log_level="fatal"
        )

    def append(self, image: Image) -> None:
        """Add an image, padded to even sides for the codec."""
        even = np.pad(image, ((0, image.shape[0] % 2), (0, image.shape[1] % 2), (0, 0)), mode="edge")
        try:
            self._writer.append_data(even)
        except OSError:  # ffmpeg has exited
            self._fail()

    def close(self) -> None:
        """Finish the file. Raises CannotWrite if it is incomplete."""
        self._writer.close()
        if not _is_whole(self._part):
            self._fail()
        self._part.replace(self._path)
        logger.info("wrote %s", self._path)

    def _fail(self) -> NoReturn:
        self._writer.close()
        full = os.statvfs(self._path.parent).f_bavail == 0 if hasattr(os, "statvfs") else False
        self._part.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
        number = errno.ENOSPC if full else errno.EIO
        raise CannotWrite("--video", self._path.parent, OSError(number, os.strerror(number)))


def _is_whole(path: Path) -> bool:
    """Return whether an MP4 file has its index, the box `moov`, which is written last (ISO/IEC 14496-12, section 4.2).

    This replaces ffmpeg's exit code, which imageio does not return.
    """
    with path.open("rb") as file:
        while len(head := file.read(16)) == 16:
            size, kind, long = struct.unpack(">I4sQ", head)
            if kind == b"moov":
                return True
            file.seek((long if size == 1 else size) - 16, os.SEEK_CUR)
            if size == 0:
                break
    return False


def _claim_name(folder: Path, stem: str) -> Path:
    """Create and return a new file with a free name. Other programs may do the same at the same time."""
    for again in itertools.count(1):
        path = folder / (f"{stem}.mp4" if again == 1 else f"{stem}-{again}.mp4")
        try:
            path.open("x").close()
        except FileExistsError:
            continue
        return path
    raise AssertionError("itertools.count is infinite")


class _Window:
    """A pygame window at the environment's frame rate. Raises Failure if there is no screen."""

    def __init__(self, title: str, image: Image, fps: float) -> None:
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        with explained("watch"):
            import pygame
        self._pygame, self._fps = pygame, fps
        try:
            pygame.display.init()
            height, width = (side * max(1, _WINDOW_SIDE // max(image.shape[:2])) for side in image.shape[:2])
            self._screen = pygame.display.set_mode((width, height), pygame.RESIZABLE)
        except pygame.error as error:
            raise Failure(f"--display: cannot open a window: {error}; --video DIR writes MP4 files instead") from None
        pygame.display.set_caption(title)
        self._clock = pygame.time.Clock()

    def show(self, image: Image) -> None:
        """Show an image for one frame. Raises KeyboardInterrupt if the user has closed the window."""
        pygame = self._pygame
        if any(event.type == pygame.QUIT for event in pygame.event.get()):
            raise KeyboardInterrupt
        surface = pygame.surfarray.make_surface(image.swapaxes(0, 1))
        pygame.transform.scale(surface, self._screen.get_size(), self._screen)
        pygame.display.flip()
        self._clock.tick(self._fps)

    def close(self) -> None:
        self._pygame.display.quit()


def has_screen() -> bool:
    """Return whether there may be a screen. Systems other than Linux always have one."""
    return sys.platform != "linux" or any(os.environ.get(name) for name in SCREENS)
