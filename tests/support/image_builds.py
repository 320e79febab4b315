"""Images built by buildah, and containers of them on the network of this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.processes import Processes, Running, wait_until

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ("relaax", "relaax-ale", "relaax-gym")
_BUILD_SECONDS = 3000


class ImageStore:
    """A store of images in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self._engine = ["buildah", "--root", str(folder / "root"), "--runroot", str(folder / "run")]
        self._engine += ["--storage-driver", _driver(folder)]

    def build(self) -> None:
        """Build the base image and all images."""
        self._do([str(ROOT / "docker" / "base-image"), *self._engine])
        self._do([str(ROOT / "docker" / "images"), *IMAGES], ENGINE=" ".join(self._engine))

    def megabytes(self, image: str) -> float:
        """Return the size of an image, all layers included, in MB."""
        listed = json.loads(self._do([*self._engine, "images", "--json", image]))
        number, unit = listed[0]["size"].split()
        return float(number) * {"KB": 1e-3, "MB": 1, "GB": 1e3}[unit]

    def configuration(self, image: str) -> dict[str, Any]:
        """Return the part of an image's metadata that configures its containers."""
        found: dict[str, Any] = json.loads(self._do([*self._engine, "inspect", "--type", "image", image]))["Docker"]
        return found["config"]

    @contextmanager
    def container(self, image: str) -> Iterator[Container]:
        """Create a container without a process, and remove it after the block."""
        name = self._do([*self._engine, "from", image]).strip()
        try:
            yield Container(self._engine, name, self.configuration(image))
        finally:
            self._do([*self._engine, "rm", name])

    def remove(self) -> None:
        """Remove all containers and images."""
        subprocess.run([*self._engine, "rm", "--all"], capture_output=True, check=False)
        subprocess.run([*self._engine, "rmi", "--all", "--force"], capture_output=True, check=False)

    def _do(self, command: list[str], **variables: str) -> str:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env={**os.environ, **variables},
            timeout=_BUILD_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done.stdout


class Container:
    """A container of an image."""

    def __init__(self, engine: list[str], name: str, configuration: dict[str, Any]) -> None:
        self._engine, self._name = engine, name
        self.entrypoint: list[str] = configuration["Entrypoint"]
        self.health: list[str] = configuration["Healthcheck"]["Test"]

    def command(self, *words: str, env: Mapping[str, str] | None = None, volume: str | None = None) -> list[str]:
        """Return the command line that runs `words` in the container."""
        options = [
            word
            for name, value in {"TINI_SUBREAPER": "1", **(env or {})}.items()
            for word in ("--env", f"{name}={value}")
        ]
        options += ["--volume", volume] if volume else []
        return [*self._engine, "run", "--isolation", "chroot", "--network", "host", *options, self._name, "--", *words]

    def start(self, processes: Processes, *arguments: str, **options: Any) -> Running:
        """Start the entrypoint with these arguments, as `docker run IMAGE ARGUMENTS` does."""
        return processes.start(*self.command(*self.entrypoint, *arguments, **options))

    def is_healthy(self) -> bool:
        """Return whether the health check of the image succeeds."""
        kind, *words = self.health
        words = words if kind == "CMD" else ["sh", "-c", *words]
        return subprocess.run(self.command(*words), capture_output=True, timeout=120, check=False).returncode == 0


def stop(running: Running, seconds: float = 120) -> int:
    """Send SIGTERM to the first process, as `docker stop` does. Check that all processes end; return the exit code."""
    started = psutil.Process(running.pid)

    def find_tini() -> psutil.Process | None:
        for process in started.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if process.name() == "tini":
                    return process
        return None

    tini = wait_until(find_tini, "the container's first process", seconds)
    everything = started.children(recursive=True)
    tini.terminate()
    code = running.wait(seconds)
    assert psutil.wait_procs(everything, 30)[1] == []
    return code


def _driver(folder: Path) -> str:
    """Return "overlay" if it can be mounted, else "vfs", which takes time and space for a copy of every layer."""
    parts = [folder / "try" / name for name in ("lower", "upper", "work", "merged")]
    for part in parts:
        part.mkdir(parents=True)
    lower, upper, work, merged = map(str, parts)
    mount = ["mount", "-t", "overlay", "overlay", "-o", f"lowerdir={lower},upperdir={upper},workdir={work}", merged]
    can_mount = shutil.which("mount") is not None and not subprocess.run(mount, capture_output=True).returncode
    if can_mount:
        subprocess.run(["umount", merged], check=True)
    return "overlay" if can_mount else "vfs"


def require_buildah() -> None:
    """Install buildah if possible. Otherwise skip the test, and name what is missing."""
    installed = subprocess.run(
        [ROOT / "tests/support/install-image-tools"], capture_output=True, text=True, check=False, timeout=900
    )
    if installed.returncode or shutil.which("buildah") is None:
        pytest.skip(f"images cannot be built on this machine: {installed.stdout.strip() or 'no buildah'}")
