"""The tracker: a process that sends the metrics and policies of a training to an MLflow server.

The parameter server starts it. Its standard input has its instructions in one line, and at the end the status of the
run. If the input ends without a status, the parameter server has died.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import math
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from relaax.checkpoint import CheckpointManager, Damaged, StoreError
from relaax.checkpoint.evaluation import evaluations, rank_of, ranked
from relaax.configuration import ParameterServerSection
from relaax.files import write_whole
from relaax.metrics.writer import do_without_tensorflow
from relaax.policy.file import policy_of
from relaax.server.checkpoints.storage import checkpoint_store
from relaax.server.command.logs import configure_logging
from relaax.server.tracker.event_tail import EventTail, thinned
from relaax.server.tracker.launch import END_SECONDS, FAILED, OUTCOME, Instructions
from relaax.server.tracker.mlflow_run import LAST_REQUEST_SECONDS, VARIABLES, MlflowRun, is_refusal, reason_of

_log = logging.getLogger("relaax.server.tracker")

SEND_SECONDS = 10.0
"""Seconds between two requests with metrics. Each metric has one value in this time, because MLflow stores each value
as a row of a database; TensorBoard's files have all."""
POLICY_SECONDS = 600.0
"""Seconds between two uploads of policies while training runs."""
LOST_SECONDS = 10.0
"""Seconds for the last requests after the parameter server has died."""
MAX_PAUSE = 60.0
_EVENTS = 2000
"""Events in memory at a time, which bounds the memory after a long outage."""
_FOLDERS = ("", "evaluation")
"""Folders below that of metrics with event files: of the parameter server, and of evaluations by `relaax run`."""
NEWEST, BEST = "newest.safetensors", "best.safetensors"
_NICE = 5
"""Training comes first. With a higher value, the import of MLflow could take minutes on busy cores."""


class End:
    """The end of training, reported by standard input: `status` of the run, set together with `event`."""

    def __init__(self, source: IO[bytes]) -> None:
        self.status = FAILED
        self.event = threading.Event()
        self._source = source
        threading.Thread(target=self._wait, name="end", daemon=True).start()

    def _wait(self) -> None:
        """Wait for the status, and then end this process in time: a request or an upload may take longer."""
        line = self._source.readline().decode().strip()
        self.status = line or FAILED
        self.event.set()
        time.sleep(END_SECONDS if line else LOST_SECONDS)
        _log.warning("the tracker ends before everything is sent; the next start of the training sends the rest")
        os._exit(0)


class Tracker:
    """Copies a training to MLflow. Failures are logged once, and everything is retried."""

    def __init__(self, instructions: Instructions, end: End) -> None:
        self._instructions = instructions
        self._end = end
        self._folder = Path(instructions.metrics_dir)
        self._run: MlflowRun | None = None
        self._is_failing = False
        self._pause = 0.0
        self._next_policies = -math.inf
        self._refused: set[str] = set()

    def run(self) -> None:
        """Send until training ends, and then the rest."""
        while not self._end.event.wait(max(SEND_SECONDS, self._pause)):
            self._attempt()
        if self._is_failing:
            os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = str(LAST_REQUEST_SECONDS)
        elif self._attempt(self._status()):
            return
        self._attempt(self._status())

    def _status(self) -> str:
        """Return the status of the run: of `relaax run` if it has stopped the training."""
        with contextlib.suppress(OSError):
            return (self._folder / OUTCOME).read_text(encoding="utf-8").strip() or self._end.status
        return self._end.status

    def _attempt(self, status: str | None = None) -> bool:
        """Send what is new, and return whether the server has it."""
        shown = self._instructions.shown_uri
        try:
            self._send(status)
        except Exception as error:  # training continues whatever the server does
            if not self._is_failing:
                _log.warning(
                    "MLflow at %s is not available, retrying; metrics stay in %s: %s",
                    shown,
                    self._folder,
                    reason_of(error),
                )
            self._is_failing = True
            self._pause = min(max(2 * self._pause, SEND_SECONDS), MAX_PAUSE)
        else:
            if self._is_failing:
                _log.warning("MLflow at %s answers again, and gets what it missed", shown)
            self._is_failing, self._pause = False, 0.0
        return not self._is_failing

    def _send(self, status: str | None) -> None:
        """Send what is new; with `status`, also the policies and then the status."""
        if self._run is None:
            instructions = self._instructions
            self._run = MlflowRun(self._folder, instructions.uri, instructions.document)
        if not self._run.is_open:
            self._run.open()
            _log.info("MLflow run %s at %s", self._run.state.run_id, self._instructions.shown_uri)
        for folder in _FOLDERS:
            self._send_scalars(self._run, folder)
        if status is not None:
            self._run.end(status)  # first, because an upload may be cut off
        if status is not None or time.monotonic() >= self._next_policies:
            self._send_policies(self._run)

    def _send_scalars(self, run: MlflowRun, folder: str) -> None:
        tail = EventTail(self._folder / folder, run.state.positions.get(folder))
        before = None
        while tail.position != before:
            before = tail.position
            scalars = thinned(tail.read(_EVENTS), SEND_SECONDS)
            try:
                run.send_scalars(scalars)
            except Exception as error:
                if not is_refusal(error):
                    raise
                self._report_refusal("metrics", error)
            if tail.position != run.state.positions.get(folder):
                run.state.positions[folder] = tail.position
                run.save_state()

    def _report_refusal(self, what: str, error: BaseException) -> None:
        if what not in self._refused:
            self._refused.add(what)
            _log.warning("MLflow refuses some %s, which are left out: %s", what, reason_of(error))

    def _send_policies(self, run: MlflowRun) -> None:
        """Send the policies of the newest and the best checkpoint, if they are new."""
        section = ParameterServerSection(**self._instructions.checkpoints)
        if (store := checkpoint_store(section)) is None:
            return
        manager = CheckpointManager(store)
        try:
            for name, checkpoint_id in _newest_and_best(manager).items():
                if run.state.policies.get(name) != checkpoint_id:
                    with _as_file(manager, checkpoint_id, name) as file:
                        run.send_file(file, "policies")
                    run.state.policies[name] = checkpoint_id
                    run.save_state()
                    self._next_policies = time.monotonic() + POLICY_SECONDS
        except (StoreError, Damaged) as error:  # an older checkpoint is deleted when a newer one is saved
            _log.warning("the policy is not sent to MLflow: %s", error)
            self._next_policies = time.monotonic() + POLICY_SECONDS


def _newest_and_best(manager: CheckpointManager) -> dict[str, str]:
    """Return the ids of the newest and the best checkpoint by file name; nothing if there is no checkpoint."""
    ids = manager.published()
    ranks = {one: rank_of(manager.manifest(one)) for one in ids}
    best = ranked(ranks, evaluations(manager.store, manager.store.list(), ids))
    return {name: found[0] for name, found in ((NEWEST, ids), (BEST, best)) if found}


@contextlib.contextmanager
def _as_file(manager: CheckpointManager, checkpoint_id: str, name: str) -> Iterator[Path]:
    """Write the policy of a checkpoint to a temporary file with this name."""
    with tempfile.TemporaryDirectory(prefix="relaax-mlflow-") as folder:
        file = Path(folder) / name
        write_whole(file, policy_of(manager.load(checkpoint_id)))
        yield file


@contextlib.contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Wait until the process of an earlier server has ended, so that its status does not replace this one's."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".mlflow.lock").open("w") as lock:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> None:
    """Read the instructions, and track the training until it ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parameter server gets it too, and reports the end
    os.nice(_NICE)
    os.environ.update({name: value for name, value in VARIABLES.items() if name not in os.environ})
    line = sys.stdin.buffer.readline()
    if not line:
        return
    found: dict[str, Any] = json.loads(line)
    instructions = Instructions(**found)
    configure_logging(instructions.log_level, instructions.log_format)
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    do_without_tensorflow()
    end = End(sys.stdin.buffer)
    with _only_one(Path(instructions.metrics_dir)):
        (Path(instructions.metrics_dir) / OUTCOME).unlink(missing_ok=True)
        Tracker(instructions, end).run()
    sys.stdout.flush()
    os._exit(0)  # a thread of MLflow must not delay the end


if __name__ == "__main__":
    main()
