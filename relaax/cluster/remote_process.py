"""A process on another machine of a Ray cluster, owned by an actor."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from relaax.cluster.keeper import ProcessSnapshot
from relaax.supervision.process import MAX_FAILURES, StartError, Supervised

_log = logging.getLogger(__name__)

EXIT_LOST = -9
"""Exit code of a process whose machine or keeper is lost."""
SNAPSHOT_SECONDS = 2.0
"""Pause between two snapshots of a process. Each costs about a millisecond of processor time."""
POLL_SECONDS = 0.1
"""Pause between two checks whether a requested snapshot has arrived."""
STARTUP_SNAPSHOT_SECONDS = 0.2
"""Pause between two snapshots until the process has announced that it is ready."""
LATE_SECONDS = 15.0
"""A process without a machine after this time is logged as waiting."""

Files = Callable[[], Mapping[str, str]]


class RemoteProcess(Supervised):
    """A process that a keeper (`relaax.cluster.keeper`) owns.

    `placed` creates the actor on a machine of the cluster, if the process has none when it is started. Its argument
    says whether the process had an actor before. `files` returns the content of the keeper's folder: addresses and
    configuration. The last snapshot is stored, so that `exit_code` does not block.
    """

    def __init__(
        self,
        name: str,
        log: Path,
        server: bool,
        placed: Callable[[bool], Any],
        files: Files,
        metrics: Path,
    ) -> None:
        """`metrics`: folder that receives the metrics files of the process."""
        super().__init__(name, log, server)
        self._metrics = metrics
        self._ends: dict[str, int] = {}
        self._placed = placed
        self._files = files
        self._keeper: Any = None
        self._starting: Any = None
        self._pending_snapshot: Any = None
        self._snapshot_at = self._poll_at = 0.0
        self._log_end = 0
        self._snapshot: ProcessSnapshot | None = None
        self._lost = ""
        self._late_warned = False

    def start(self, command: Sequence[str]) -> None:
        self._started_at = time.monotonic()
        self.address, self.failed = None, ""
        if self._keeper is None or self._lost:
            self._kill_keeper()
            self._keeper = self._placed(self.restarts > 0)
            self._log_end, self._ends = 0, {}
        self._late_warned = False
        self._snapshot, self._pending_snapshot, self._lost = None, None, ""
        self._starting = self._keeper.start.remote(list(command), dict(self._files()))

    def restart(self, command: Sequence[str], attempts: int = MAX_FAILURES) -> None:
        if not self._lost:
            super().restart(command, attempts)
            return
        self._restart(command)  # a lost machine does not count as a failure of the process

    def put(self, files: Mapping[str, str]) -> None:
        """Replace files of the keeper's folder. A process without a machine gets them when it starts."""
        if self._keeper is not None and not self._lost:
            self._keeper.put.remote(dict(files))

    def late_error(self, seconds: float) -> StartError:
        if self._snapshot is not None:
            return super().late_error(seconds)
        return StartError(
            f"{self.name} was not placed within {seconds:g} s: no machine of the cluster has the resources "
            "that relaax-cluster.resources requires (`ray status` shows the resources)"
        )

    @property
    def announced(self) -> bool:
        return self._snapshot is not None and self._snapshot.announced

    @property
    def pid(self) -> int | None:
        return None

    @property
    def snapshot(self) -> ProcessSnapshot | None:
        """The last snapshot; None before the process has a machine, and after it is lost."""
        return None if self._lost else self._snapshot

    @property
    def is_waiting_for_place(self) -> bool:
        """Whether the process has waited for a machine for more than LATE_SECONDS."""
        runs = self.exit_code() is None  # notices a completed placement
        return runs and self._starting is not None and time.monotonic() - self._started_at > LATE_SECONDS

    def release_place(self, why: str) -> None:
        """Kill the process to free its resources. It then counts as lost, as if its machine had failed."""
        self._kill_keeper()
        self._lost, self._starting, self._pending_snapshot = why, None, None

    def exit_code(self) -> int | None:
        if self._keeper is not None:
            self._poll()
        if self._lost:
            return EXIT_LOST
        return self._snapshot.exit_code if self._snapshot else None

    @property
    def is_done(self) -> bool:
        return self.exit_code() == 0 and self._snapshot is not None and self._snapshot.done

    def terminate(self) -> None:
        if self._is_running and self._starting is not None:
            self.release_place("it is not needed any more")  # it has no machine: there is nothing to stop
        elif self._is_running:
            self._keeper.terminate.remote()

    def kill(self) -> None:
        if self._is_running:
            self._keeper.kill.remote()

    def wait(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while self._is_running:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
        return True

    def close(self) -> None:
        """Kill the process if it still runs, and free its resources. The last snapshot is kept."""
        with contextlib.suppress(RayError):
            if self._keeper is not None and not self._lost:
                ray.get(self._keeper.close.remote(), timeout=10.0)
        self._kill_keeper()

    @property
    def _is_running(self) -> bool:
        return self._keeper is not None and self.exit_code() is None

    def _poll(self) -> None:
        """Process a snapshot that has arrived, and request the next one if it is due. Does not block."""
        now = time.monotonic()
        if now < self._poll_at:
            return
        self._poll_at = now + POLL_SECONDS
        try:
            if self._starting is not None and _is_ready(self._starting):
                self._finish_start()
            if self._pending_snapshot is not None and _is_ready(self._pending_snapshot):
                arrived, self._pending_snapshot = self._pending_snapshot, None
                self._apply(ray.get(arrived))
            if (
                self._pending_snapshot is None
                and self._starting is None
                and not self._lost
                and now >= self._snapshot_at
            ):
                self._snapshot_at = now + (SNAPSHOT_SECONDS if self.announced else STARTUP_SNAPSHOT_SECONDS)
                self._pending_snapshot = self._keeper.snapshot.remote(self._log_end, dict(self._ends))
            if self._starting is not None and not self._late_warned and now - self._started_at > LATE_SECONDS:
                self._late_warned = True
                _log.warning("%s waits for a machine: no machine has enough free resources", self.name)
        except ActorUnavailableError:
            self._pending_snapshot = None  # Ray reports a lost machine with RayActorError
        except RayTaskError as error:  # for example, because the disk is full
            self.release_place(f"its keeper failed: {error.cause}")
            self._log_lost(self._lost)
        except RayActorError as error:
            self._lost = str(error).partition("\n")[0]
            self._starting = self._pending_snapshot = None
            self._log_lost("its keeper or its machine has ended")

    def _log_lost(self, why: str) -> None:
        _log.warning("%s is lost: %s", self.name, why)
        self._write(f"relaax: {self.name} is lost: {self._lost}\n".encode())

    def _finish_start(self) -> None:
        starting, self._starting = self._starting, None
        try:
            ray.get(starting)
        except ActorUnavailableError:
            self.release_place("its machine did not respond to the start")  # the process may or may not be running

    def _apply(self, snapshot: ProcessSnapshot) -> None:
        if snapshot.log or snapshot.new_metrics:
            self._write(snapshot.log)
            self._append_metrics(snapshot.new_metrics)
            self._snapshot_at = 0.0  # there may be more
        self._log_end = snapshot.log_end
        self._snapshot = snapshot
        self.address = snapshot.address if snapshot.announced else None
        self.failed = snapshot.failed

    def _append_metrics(self, new_metrics: Mapping[str, tuple[int, bytes]]) -> None:
        for name, (begin, piece) in new_metrics.items():
            file = self._metrics / name
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("r+b" if begin else "wb") as opened:
                    opened.seek(begin)
                    opened.write(piece)
            except OSError as error:
                self._warn_once(file, error)
            self._ends[name] = begin + len(piece)

    def _write(self, piece: bytes) -> None:
        try:
            with self.log.open("ab", buffering=0) as log:
                log.write(piece)
        except OSError as error:
            self._warn_once(self.log, error)

    def _kill_keeper(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            with contextlib.suppress(RayError):
                ray.kill(keeper)


def _is_ready(future: Any) -> bool:
    return bool(ray.wait([future], timeout=0)[0])
