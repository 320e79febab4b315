"""Show what an environment does, in a window or as videos."""

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
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from relaax.client.connection.failure import CannotWrite, Failure
from relaax.libraries import explained

logger = logging.getLogger("relaax.client")

Image = npt.NDArray[np.uint8]
DEFAULT_FPS = 30
SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
"""Environment variables of which one is set where there is a screen, on Linux."""
_WINDOW_SIDE = 400  # smaller images are shown larger


@dataclass(frozen=True, slots=True)
class Watching:
    """What to watch of the first environment of a connection.

    `display`: a window. `video`: the folder of MP4 files, of every `every`-th episode from the first on. Images come
    from the environment's `render()`, in the mode "rgb_array".
    """

    display: bool = False
    video: Path | None = None
    every: int = 1


class Watch:
    """Takes an image after each reset and step of environment 0, until the block ends.

    `env`: an Env or a VectorEnv whose `render()` returns uint8 [H, W, 3], or one such image for each environment.
    `name`: of the environment, for the window and the files. Raises Failure if there is no screen for a window, and
    `frame` does if the environment gives no image.
    """

    def __init__(self, watching: Watching, env: Any, name: str) -> None:
        self._watching = watching
        self._env = env
        self._name = re.sub(r"\W+", "-", name.rpartition("/")[2]).strip("-").lower() or "environment"
        self._fps = float(env.metadata.get("render_fps") or DEFAULT_FPS)
        self._film: _Film | None = None
        self._window: _Window | None = None
        self._number = 0
        self._begun = False
        if watching.display:
            _require_screen()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.over()
        if self._window is not None:
            self._window.close()

    def begin(self, number: int) -> None:
        """Let the next image begin episode `number`, counted from 0."""
        self.over()
        self._number = number

    def frame(self) -> None:
        """Take an image. The first one, and the first one after `over`, begins an episode."""
        filmed = self._watching.video is not None and self._number % self._watching.every == 0
        if not (filmed or self._watching.display):
            self._begun = True
            return
        image = self._image()
        if not self._begun and filmed:
            assert self._watching.video is not None
            self._film = _Film(self._watching.video, f"{self._name}-{self._number:06d}", self._fps)
        self._begun = True
        if self._film is not None:
            film, self._film = self._film, None  # nothing is to be finished of one that fails
            film.append(image)
            self._film = film
        if self._watching.display:
            if self._window is None:
                self._window = _Window(self._name, image, self._fps)
            self._window.show(image)

    def over(self) -> None:
        """End the episode, and its video."""
        film, self._film = self._film, None
        if film is not None:
            film.close()
        if self._begun:
            self._number += 1
        self._begun = False

    def _image(self) -> Image:
        """Return the image of environment 0; of several only this one is rendered, if it can be reached."""
        several = getattr(getattr(self._env, "unwrapped", self._env), "envs", None)
        image = several[0].render() if several else self._env.render()
        if isinstance(image, tuple | list) and image:
            image = image[0]
        if not (isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.shape[2:] == (3,)):
            raise Failure(
                f"{self._name} gives no image to watch: its render() returned {type(image).__name__}, not uint8 "
                '[H, W, 3]; make it with render_mode="rgb_array", or leave out --display and --video'
            )
        return image


class _Film:
    """An MP4 file, complete after `close`: until then its name ends with .part.mp4. Nothing is overwritten."""

    def __init__(self, folder: Path, stem: str, fps: float) -> None:
        with explained("watch"):
            import imageio
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._path = _free(folder, stem)
        except OSError as error:
            raise CannotWrite("--video", folder, error) from None
        self._part = self._path.with_suffix(".part.mp4")
        # imageio leaves the pipe open if ffmpeg has ended by itself, as it does on a full disk.
        warnings.filterwarnings("ignore", "unclosed file <_io.BufferedWriter", ResourceWarning)
        self._writer: Any = imageio.get_writer(
            self._part, fps=fps, codec="libx264", macro_block_size=2, ffmpeg_log_level="fatal"
        )

    def append(self, image: Image) -> None:
        """Add an image. Its sides become even, as the codec needs them."""
        even = np.pad(image, ((0, image.shape[0] % 2), (0, image.shape[1] % 2), (0, 0)), mode="edge")
        try:
            self._writer.append_data(even)
        except OSError:  # ffmpeg has ended
            self._give_up()

    def close(self) -> None:
        """Finish the file. Raises CannotWrite if it is not whole."""
        self._writer.close()
        if not _is_whole(self._part):
            self._give_up()
        self._part.replace(self._path)
        logger.info("wrote %s", self._path)

    def _give_up(self) -> NoReturn:
        self._writer.close()
        full = os.statvfs(self._path.parent).f_bavail == 0 if hasattr(os, "statvfs") else False
        self._part.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
        number = errno.ENOSPC if full else errno.EIO
        raise CannotWrite("--video", self._path.parent, OSError(number, os.strerror(number)))


def _is_whole(path: Path) -> bool:
    """Return whether an MP4 file has its index, the box `moov`, which is written last (ISO/IEC 14496-12, section 4.2).

    ffmpeg's exit code is not to be had.
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


def _free(folder: Path, stem: str) -> Path:
    """Claim a name that no file in the folder has; other programs may look for one at the same time."""
    for again in itertools.count(1):
        path = folder / (f"{stem}.mp4" if again == 1 else f"{stem}-{again}.mp4")
        try:
            path.open("x").close()
        except FileExistsError:
            continue
        return path
    raise AssertionError("numbers never end")


class _Window:
    """A window of pygame, at the environment's own pace. Raises Failure if there is no screen."""

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
            raise Failure(f"--display: no window can be opened: {error}; --video DIR writes MP4 files") from None
        pygame.display.set_caption(title)
        self._clock = pygame.time.Clock()

    def show(self, image: Image) -> None:
        """Show an image for its time. Raises KeyboardInterrupt if the user has closed the window."""
        pygame = self._pygame
        if any(event.type == pygame.QUIT for event in pygame.event.get()):
            raise KeyboardInterrupt
        surface = pygame.surfarray.make_surface(image.swapaxes(0, 1))
        pygame.transform.scale(surface, self._screen.get_size(), self._screen)
        pygame.display.flip()
        self._clock.tick(self._fps)

    def close(self) -> None:
        """Close the window."""
        self._pygame.display.quit()


def has_screen() -> bool:
    """Return whether a window can be tried. Systems other than Linux have a screen."""
    return sys.platform != "linux" or any(os.environ.get(name) for name in SCREENS)


def _require_screen() -> None:
    """Raise Failure if there is no screen, before anything is drawn for it."""
    if not has_screen():
        raise Failure("--display: there is no screen here (DISPLAY is not set); --video DIR writes MP4 files")
