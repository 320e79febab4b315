"""A process that forks a child for each checkpoint to save. The child may be killed while it saves.

Each line of standard input is a `Request`. The answer is a line with the exit status of the child. Forking a process
that has imported everything is faster than starting a new one.
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
_LEASE_SECONDS = 1e6  # so long that the lease is renewed only when the checkpoint is published
_TESTS = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Request:
    """A request to save the checkpoint of global step `step` in `directory`.

    `watched`: a folder that contains the directory, or the directory itself. `flaw`: the name of a flawed store or
    manager of `support.crash_stores`; empty for the correct ones. `Recorder` describes the other fields.
    """

    directory: str
    watched: str
    log: str
    step: int
    at: int = 0
    when: str = BEFORE
    flaw: str = ""


def state(step: int) -> tuple[dict[str, Arrays], dict[str, Any]]:
    """Return the parts and the manifest of a checkpoint. The checkpoint of step 10 has the best return."""
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
    """Restore, clean and save as a parameter server does between its start and its end."""
    recorder = Recorder(Path(request.watched), Path(request.log), request.at, request.when)
    store = STORES[request.flaw](request.directory)
    lease = Lease(STORES[request.flaw](request.directory), ttl=_LEASE_SECONDS)
    lease.acquire(highest_fence(store), _refuse_to_wait)
    manager = MANAGERS[request.flaw](store, KEEP, KEEP_BEST, lease)
    manager.restore()
    manager.clean()
    recorder.note("cleaned")
    parts, manifest = state(request.step)
    manager.save(request.step, parts, manifest)
    recorder.note("saved")
    lease.release()


class CheckpointSaver:
    """A client of the process that forks a child for each checkpoint."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def save(self, request: Request) -> int:
        """Save a checkpoint in a child. Return its exit code: 0, or minus the signal number.

        Raises AssertionError if the child failed.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(request)) + "\n")
        self._process.stdin.flush()
        answer: Mapping[str, Any] = json.loads(self._process.stdout.readline())
        assert answer["code"] <= 0, f"{request}: {answer['stderr']}"
        return int(answer["code"])


@contextmanager
def checkpoint_saver() -> Iterator[CheckpointSaver]:
    """Start the process, and end it after the block."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_TESTS), str(_TESTS.parent)])}
    command = [sys.executable, "-m", "support.crash_child"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        try:
            yield CheckpointSaver(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _refuse_to_wait(seconds: float) -> bool:
    raise AssertionError("the lease of a dead process was not taken over at once")


def _main() -> None:
    for line in sys.stdin:
        request = Request(**json.loads(line))
        stderr = Path(f"{request.log}.stderr")
        child = os.fork()
        if child == 0:
            _run_child(request, stderr)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps({"code": code, "stderr": stderr.read_text()}), flush=True)


def _run_child(request: Request, stderr: Path) -> None:
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
    try:
        save(request)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    _main()
