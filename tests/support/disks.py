"""A file system of its own, which can be filled and made read-only."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.machine import need
from support.processes import wait_until


class Disk:
    """A small file system at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filling = path / "something else"

    def fill(self) -> None:
        """To the last byte."""
        with self._filling.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 4096):
                pass

    def free(self) -> None:
        """Take away what filled it."""
        self._filling.unlink()

    def protect(self) -> None:
        """Make it read-only: nobody may have a file open for writing."""
        _mount("-o", "remount,ro", str(self.path))

    def grow(self, size: str) -> None:
        """It has so many bytes from now on, such as 8m."""
        _mount("-o", f"remount,size={size}", str(self.path))


@contextlib.contextmanager
def small_disk(path: Path, size: str = "256k") -> Iterator[Disk]:
    """A disk in memory at `path`, which is made. The test is skipped if nothing can be mounted here."""
    path.mkdir()
    with _mounted(path, "-t", "tmpfs", "-o", f"size={size}", "tmpfs"):
        yield Disk(path)


class BreakingDisk:
    """An ext4 file system in a file. When the kernel finds an error in it, it becomes read-only at once."""

    def __init__(self, path: Path, image: Path) -> None:
        self.path = path
        self._image = image

    def break_down(self) -> None:
        """An error is found."""
        Path("/sys/fs/ext4", Path(self._device()).name, "trigger_fs_error").write_text("1")

    def repair(self) -> None:
        """Mend it, as after a reboot."""
        subprocess.run(["umount", str(self.path)], check=True)
        wait_until(lambda: not self._device(), "what was written before has reached the file", 120.0)
        subprocess.run(["e2fsck", "-fy", str(self._image)], capture_output=True, check=False)
        _mount("-o", "loop,errors=remount-ro", str(self._image), str(self.path))

    def _device(self) -> str:
        """The loop device of the image; empty if there is none."""
        asked = ["losetup", "-n", "-O", "NAME", "-j", str(self._image)]
        return subprocess.run(asked, capture_output=True, check=True, text=True).stdout.strip()


@contextlib.contextmanager
def breaking_disk(path: Path) -> Iterator[BreakingDisk]:
    """An ext4 file system of 16 MB at `path`, which is made. The test is skipped if there can be none here."""
    path.mkdir()
    image = path.with_suffix(".image")
    with image.open("wb") as file:
        file.truncate(16 * 2**20)
    need("mkfs.ext4", "e2fsck", "losetup")
    if subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], capture_output=True, check=False).returncode:
        pytest.skip("no ext4 file system can be made here")
    with _mounted(path, "-o", "loop,errors=remount-ro", str(image)):
        yield BreakingDisk(path, image)


@contextlib.contextmanager
def _mounted(path: Path, *how: str) -> Iterator[None]:
    need("mount", "umount")
    if subprocess.run(["mount", *how, str(path)], capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def _mount(*how: str) -> None:
    subprocess.run(["mount", *how], capture_output=True, check=True)
