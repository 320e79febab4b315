"""Shared code of the environment families' programs: vectors, options, ids, and the run.

gymnasium is imported in functions, because not all programs need it.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import re
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.client import command
from relaax.client.program.loop import run
from relaax.client.program.process import child_wrapper, run_then_close, start_method
from relaax.client.program.summary import RunSummary
from relaax.libraries import missing

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601


def gray(frame: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return the luma of a frame [H, W, 3] as uint8 [H, W]."""
    luma: npt.NDArray[np.uint8] = np.rint(frame @ _LUMA).astype(np.uint8)
    return luma


def add_side(described: argparse.ArgumentParser, default: int = 84) -> None:
    """Add the option --side, the side of square frames."""
    text = f"width and height of a frame ({default})"
    described.add_argument("--side", type=command.positive, default=default, metavar="PIXELS", help=text)


def add_vectorization(described: argparse.ArgumentParser, usual: str) -> None:
    """Add the option --vectorization. `usual`: description of the default."""
    text = f"all environments in this process, or one process each ({usual})"
    described.add_argument("--vectorization", choices=("sync", "async"), help=text)


def vector(make: Callable[[], Any], count: int, mode: str, infos: Collection[str] = ()) -> Any:
    """Return a vector of `count` environments from `make`, with the autoreset mode SAME_STEP.

    `mode`: "sync"; or "async" for one process each, and one more environment in this process for the spaces. `infos`:
    names of the infos that these processes send.
    """
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

    if mode == "sync":
        return SyncVectorEnv([make] * count, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
    quiet = child_wrapper(infos)
    makers = [lambda: quiet(make())] * count
    return AsyncVectorEnv(makers, context=start_method(), autoreset_mode=AutoresetMode.SAME_STEP)


def require(extra: str, *libraries: str) -> None:
    """Raise command.UsageError, which names the extra to install, if one of these libraries is missing."""
    for library in libraries:
        if importlib.util.find_spec(library) is None:
            raise command.UsageError(missing(ModuleNotFoundError(name=library), extra))


def missing_library(error: BaseException, extra: str) -> str | None:
    """Return a sentence that names the library whose import failed, and how to install it; None for other errors."""
    cause = error if isinstance(error, ModuleNotFoundError) else error.__cause__
    if not isinstance(cause, ModuleNotFoundError) or cause.name is None:
        return None
    return missing(cause, extra) or f"{cause.name} is not installed; pip install {cause.name}"


def run_and_close(env: Any, address: str, **settings: Any) -> RunSummary:
    """Run environments against a server, and close them, also after a signal in the middle of a step."""
    return run_then_close(env, lambda: run(env, address, **settings))


def add_frame_skip(described: argparse.ArgumentParser, default: int = 4, what: str = "frames") -> None:
    """Add the option --frame-skip. `what`: the unit in which an action is repeated."""
    text = f"{what} per step ({default})"
    described.add_argument("--frame-skip", type=command.positive, default=default, metavar="K", help=text)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint with the most similar known word; empty if none is similar."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; the nearest is {near[0]!r}" if near else ""


def find_id(wanted: str, ids: Iterable[str], prefix: str, owner: str) -> str:
    """Return the id that begins with `prefix` and matches the name `wanted`. Raises command.UsageError if none matches.

    Case, underscores and hyphens do not matter. The prefix and the version may be omitted; then the newest version is
    used. `owner`: owner of the ids, for the error.
    """
    known = sorted((name for name in ids if name.startswith(prefix)), key=_version)
    if wanted in known:
        return wanted
    names = {
        _letters(part): name
        for name in known
        for full in (name, _bare(name))
        for part in (full, full.removeprefix(prefix))
    }
    found = names.get(_letters(wanted))
    if found is None:
        bare = {_letters(_bare(name).removeprefix(prefix)): _bare(name) for name in known}
        target = _letters(_bare(wanted)).removeprefix(_letters(prefix))
        near = difflib.get_close_matches(target, bare, n=1, cutoff=0.5)
        hint = f"; the nearest is {bare[near[0]]!r}" if near else ""
        raise command.UsageError(f"{owner} has no environment {wanted!r}{hint}")
    return found


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()


def _bare(name: str) -> str:
    """Return an id without its version."""
    return re.sub(r"-v\d+$", "", name)


def _version(name: str) -> int:
    found = re.search(r"-v(\d+)$", name)
    return int(found[1]) if found else -1


# The script reads process ids (negative for process groups) until its input ends, and then kills these processes.
# The input ends when this program exits, or in `close`. `rm` is repeated, because it fails while processes still
# write to the folder.
_SCRIPT = """
all=
while read -r one; do all="$all $one"; done
[ -z "$all" ] || kill -s KILL -- $all 2>/dev/null
[ -z "$1" ] || until rm -rf "$1"; do sleep 0.1; done
"""


class ProcessReaper:
    """Terminate registered processes when this program exits, even by SIGKILL, and remove `folder`. POSIX only."""

    def __init__(self, folder: str = "") -> None:
        self._process = subprocess.Popen(
            ["sh", "-c", _SCRIPT, "sh", folder],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # signals to this program's group do not reach it
        )

    def register(self, number: int) -> None:
        """Register a process, or a process group by its negative number."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number}\n".encode())
        self._process.stdin.flush()

    def close(self) -> None:
        """Kill the registered processes and remove `folder` now. Return when this is done."""
        self._process.communicate()


def children() -> Iterator[int]:
    """Yield the ids of this process's children. Linux only; elsewhere the result is empty."""
    for path in Path("/proc/self/task").glob("*/children"):
        yield from map(int, path.read_text().split())
