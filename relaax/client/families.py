"""What the programs of environment families share: vectors of screens, ids by a bare name, the run itself.

gymnasium is imported where it is needed: a program that has environments of it has it.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.client import closing, command
from relaax.client.loop import run
from relaax.client.parallel_connections import start_method
from relaax.client.run_summary import RunSummary
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
    quiet = closing.quiet_child(infos)
    makers = [lambda: quiet(make())] * count
    return AsyncVectorEnv(makers, context=start_method(), autoreset_mode=AutoresetMode.SAME_STEP)


def require(extra: str, *libraries: str) -> None:
    """Raise command.UsageError, with the extra that brings them, if one of these libraries is not installed."""
    for library in libraries:
        if importlib.util.find_spec(library) is None:
            raise command.UsageError(missing(ModuleNotFoundError(name=library), extra))


def run_and_close(env: Any, address: str, **settings: Any) -> RunSummary:
    """Run environments against a server and close them, also those that a signal stopped in the middle of a step."""
    return closing.closed_after(env, lambda: run(env, address, **settings))


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
