"""File systems that a test can fill, make read-only, or break."""

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
        self._filling = path / "filling"

    def fill(self) -> None:
        """Fill the file system to the last byte."""
        with self._filling.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 4096):
                pass

    def free(self) -> None:
        """Delete the file that filled it."""
        self._filling.unlink()

    def protect(self) -> None:
        """Make it read-only. Fails if a process has a file open for writing."""
        _mount("-o", "remount,ro", str(self.path))

    def grow(self, size: str) -> None:
        """Increase its size, for example to "8m"."""
        _mount("-o", f"remount,size={size}", str(self.path))


@contextlib.contextmanager
def small_disk(path: Path, size: str = "256k") -> Iterator[Disk]:
    """Mount a file system in memory at a new folder `path`. Skips the test if mounting is impossible."""
    path.mkdir()
    with _mounted(path, "-t", "tmpfs", "-o", f"size={size}", "tmpfs"):
        yield Disk(path)


class BreakingDisk:
    """An ext4 file system in a file. If the kernel finds an error in it, it becomes read-only."""

    def __init__(self, path: Path, image: Path) -> None:
        self.path = path
        self._image = image

    def break_down(self) -> None:
        """Make the kernel find an error."""
        Path("/sys/fs/ext4", Path(self._device()).name, "trigger_fs_error").write_text("1")

    def repair(self) -> None:
        """Repair it, as after a reboot."""
        subprocess.run(["umount", str(self.path)], check=True)
        wait_until(lambda: not self._device(), "all writes have reached the image file", 120.0)
        subprocess.run(["e2fsck", "-fy", str(self._image)], capture_output=True, check=False)
        _mount("-o", "loop,errors=remount-ro", str(self._image), str(self.path))

    def _device(self) -> str:
        """Return the loop device of the image; empty without one."""
        command = ["losetup", "-n", "-O", "NAME", "-j", str(self._image)]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


@contextlib.contextmanager
def breaking_disk(path: Path) -> Iterator[BreakingDisk]:
    """Mount an ext4 file system of 16 MB at a new folder `path`. Skips the test if that is impossible."""
    path.mkdir()
    image = path.with_suffix(".image")
    with image.open("wb") as file:
        file.truncate(16 * 2**20)
    need("mkfs.ext4", "e2fsck", "losetup")
    if subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], capture_output=True, check=False).returncode:
        pytest.skip("an ext4 file system cannot be made here")
    with _mounted(path, "-o", "loop,errors=remount-ro", str(image)):
        yield BreakingDisk(path, image)


@contextlib.contextmanager
def _mounted(path: Path, *options: str) -> Iterator[None]:
    need("mount", "umount")
    if subprocess.run(["mount", *options, str(path)], capture_output=True, check=False).returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def _mount(*options: str) -> None:
    subprocess.run(["mount", *options], capture_output=True, check=True)
