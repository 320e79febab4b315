"""A process that has imported everything, and lets children of its own save a checkpoint, until one is killed.

Every line of standard input is a `Request`, and is answered by a line with how the child ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relaax.checkpoint import Arrays, Lease, highest_fence
from support.crash_recorder import BEFORE, Recorder
from support.crash_stores import MANAGERS, STORES

KEEP, KEEP_BEST = 2, 1
PARTS = ("shard-0", "shard-1")
_FOR_EVER = 1e6  # seconds: the lease is renewed when the checkpoint is published, and at no other moment
_TESTS = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Request:
    """Save the checkpoint of global step `step` in `directory`; see `Recorder` for the rest.

    `watched` holds the directory, or is it. `flaw` is the name of a mistake to make, where there shall be one.
    """

    directory: str
    watched: str
    log: str
    step: int
    at: int = 0
    when: str = BEFORE
    flaw: str = ""


def state(step: int) -> tuple[dict[str, Arrays], dict[str, Any]]:
    """The parts and the manifest of a checkpoint. The one of step 10 is the best."""
    random = np.random.default_rng(step)
    parts: dict[str, Arrays] = {
        name: {
            "parameters": random.standard_normal(30).astype(np.float32),
            "slots/mean_square": random.random(30).astype(np.float32),
            "slots/updates": np.array([step]),
        }
        for name in PARTS
    }
    shards = [{"part": name, "start": 30 * i, "end": 30 * i + 30, "version": step} for i, name in enumerate(PARTS)]
    return parts, {"mean_return": 5.0 if step == 10 else 1.0, "incarnation": step, "shards": shards}


def save(request: Request) -> None:
    """What a parameter server does with its checkpoints in a life with one of them."""
    recorder = Recorder(Path(request.watched), Path(request.log), request.at, request.when)
    store = STORES[request.flaw](request.directory)
    lease = Lease(STORES[request.flaw](request.directory), ttl=_FOR_EVER)
    lease.acquire(highest_fence(store), _waits)
    manager = MANAGERS[request.flaw](store, KEEP, KEEP_BEST, lease)
    manager.restore()
    manager.clean()
    recorder.note("cleaned")
    parts, manifest = state(request.step)
    manager.save(request.step, parts, manifest)
    recorder.note("saved")
    lease.release()


class Nursery:
    """The process, as its starter sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def save(self, request: Request) -> int:
        """How the child ended: 0, or minus the signal's number. Raises AssertionError if it failed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(request)) + "\n")
        self._process.stdin.flush()
        answer: Mapping[str, Any] = json.loads(self._process.stdout.readline())
        assert answer["code"] <= 0, f"{request}: {answer['said']}"
        return int(answer["code"])


@contextmanager
def nursery() -> Iterator[Nursery]:
    """Start it; it has ended when the block has."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_TESTS), str(_TESTS.parent)])}
    command = [sys.executable, "-m", "support.crash_child"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        try:
            yield Nursery(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _waits(seconds: float) -> bool:
    raise AssertionError("the lease of a dead process is not taken over at once")


def _main() -> None:
    for line in sys.stdin:
        request = Request(**json.loads(line))
        said = Path(f"{request.log}.said")
        child = os.fork()
        if child == 0:
            _be_a_child(request, said)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps({"code": code, "said": said.read_text()}), flush=True)


def _be_a_child(request: Request, said: Path) -> None:
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
    try:
        save(request)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    _main()
