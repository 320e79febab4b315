"""What the programs of environment families share: vectors of screens, ids by a bare name, the run itself.

gymnasium is imported where it is needed: a program that has environments of it has it.
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
from relaax.client.program.process import closed_after, quiet_child, start_method
from relaax.client.program.summary import RunSummary
from relaax.libraries import missing

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601


def gray(frame: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return the luma of a frame [H, W, 3] as uint8 [H, W]."""
    luma: npt.NDArray[np.uint8] = np.rint(frame @ _LUMA).astype(np.uint8)
    return luma


def add_side(described: argparse.ArgumentParser, default: int = 84) -> None:
    """Add the option --side: frames are squares."""
    described.add_argument(
        "--side",
        type=command.positive,
        default=default,
        metavar="PIXELS",
        help=f"width and height of a frame ({default})",
    )


def add_vectorization(described: argparse.ArgumentParser, usual: str) -> None:
    """Add the option --vectorization. `usual`: which one is taken when."""
    described.add_argument(
        "--vectorization",
        choices=("sync", "async"),
        help=f"all environments in this process, or one process each ({usual})",
    )


def vector(make: Callable[[], Any], count: int, mode: str, infos: Collection[str] = ()) -> Any:
    """Return `count` environments that `make` makes as one vector, which resets in the step that ends an episode.

    `mode`: "sync", or "async" for one process each; then one is made in this process, too, for its spaces. `infos`: the
    names of the infos that those processes send.
    """
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

    if mode == "sync":
        return SyncVectorEnv([make] * count, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
    quiet = quiet_child(infos)
    makers = [lambda: quiet(make())] * count
    return AsyncVectorEnv(makers, context=start_method(), autoreset_mode=AutoresetMode.SAME_STEP)


def require(extra: str, *libraries: str) -> None:
    """Raise command.UsageError, with the extra that brings them, if one of these libraries is not installed."""
    for library in libraries:
        if importlib.util.find_spec(library) is None:
            raise command.UsageError(missing(ModuleNotFoundError(name=library), extra))


def run_and_close(env: Any, address: str, **settings: Any) -> RunSummary:
    """Run environments against a server and close them, also those that a signal stopped in the middle of a step."""
    return closed_after(env, lambda: run(env, address, **settings))


def find_id(wanted: str, ids: Iterable[str], prefix: str, owner: str) -> str:
    """Return the id, of those that begin with `prefix`, that is meant by a name. Raises command.UsageError if none is.

    Case, underscores and hyphens do not matter, and both the prefix and the version may be left out: the newest version
    is taken. `owner`: whose ids they are, for the message.
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


# Reads numbers of processes, or of groups with a minus, until its input ends: with this program, or by `close`.
# The folder can be removed when nobody writes to it any more.
_SCRIPT = """
all=
while read -r one; do all="$all $one"; done
[ -z "$all" ] || kill -s KILL -- $all 2>/dev/null
[ -z "$1" ] || until rm -rf "$1"; do sleep 0.1; done
"""


class Watchman:
    """Ends what it is told of when this program has ended, be it killed, and removes `folder`, if any. POSIX only."""

    def __init__(self, folder: str = "") -> None:
        self._process = subprocess.Popen(
            ["sh", "-c", _SCRIPT, "sh", folder],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a signal for this program's group is none for it
        )

    def watch(self, number: int) -> None:
        """Let a process end with this one, or a group by its negative number."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number}\n".encode())
        self._process.stdin.flush()

    def close(self) -> None:
        """End what is watched now, and wait until it has been told to."""
        self._process.communicate()


def children() -> Iterator[int]:
    """Yield the processes that this one has started, where the system says so (Linux)."""
    for path in Path("/proc/self/task").glob("*/children"):
        yield from map(int, path.read_text().split())
