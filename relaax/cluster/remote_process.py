"""A process on another machine of a Ray cluster: an actor owns it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from relaax.cluster.keeper import Look
from relaax.supervision.process import MAX_FAILURES, StartError, Supervised

_log = logging.getLogger(__name__)

GONE = -9
"""The exit code of a process whose machine or keeper is gone."""
LOOK_SECONDS = 2.0
"""Pause between two looks at a process: each costs a millisecond of the machines' time."""
ASK_SECONDS = 0.1
"""Pause between two questions whether a look is back."""
FIRST_LOOKS_SECONDS = 0.2
"""Until it has announced itself."""
LATE_SECONDS = 15.0
"""Who is not placed by then is said to wait."""

Files = Callable[[], Mapping[str, str]]


class RemoteProcess(Supervised):
    """A process that a keeper (`relaax.cluster.keeper`) owns.

    `placed` makes the actor on a machine of the cluster's choice, each time that the process is started and has none;
    it is told whether that is not the first time.
    `files` returns what its folder holds: addresses, configuration. What was last seen of it is kept: asking for the
    exit code waits for nobody.
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
        """`metrics`: the folder to which the files of its own grow."""
        super().__init__(name, log, server)
        self._metrics = metrics
        self._ends: dict[str, int] = {}
        self._placed = placed
        self._files = files
        self._keeper: Any = None
        self._starting: Any = None
        self._looking: Any = None
        self._look_at = self._ask_at = 0.0
        self._log_end = 0
        self._seen: Look | None = None
        self._lost = ""
        self._warned = False

    def start(self, command: Sequence[str]) -> None:
        self._started_at = time.monotonic()
        self.address, self.failed = None, ""
        if self._keeper is None or self._lost:
            self._forget()
            self._keeper = self._placed(self.restarts > 0)
            self._log_end, self._ends = 0, {}
        self._warned = False
        self._seen, self._looking, self._lost = None, None, ""
        self._starting = self._keeper.start.remote(list(command), dict(self._files()))

    def restart(self, command: Sequence[str], attempts: int = MAX_FAILURES) -> None:
        if not self._lost:
            super().restart(command, attempts)
            return
        self._start_again(command)  # the loss of a machine is no failure of the process

    def put(self, files: Mapping[str, str]) -> None:
        """Replace files of its folder. One that is not placed yet gets them when it starts."""
        if self._keeper is not None and not self._lost:
            self._keeper.put.remote(dict(files))

    def late_error(self, seconds: float) -> StartError:
        if self._seen is not None:
            return super().late_error(seconds)
        return StartError(
            f"{self.name} was not placed within {seconds:g} s: no machine of the cluster has the resources "
            "that relaax-cluster.resources asks for (`ray status` shows what there is)"
        )

    @property
    def announced(self) -> bool:
        return self._seen is not None and self._seen.announced

    @property
    def pid(self) -> int | None:
        return None

    @property
    def seen(self) -> Look | None:
        """What was last seen of it; None if it was not placed yet, or is lost."""
        return None if self._lost else self._seen

    @property
    def waits_for_place(self) -> bool:
        """Whether it has waited for a machine for some time."""
        runs = self.exit_code() is None  # takes in that it was placed
        return runs and self._starting is not None and time.monotonic() - self._started_at > LATE_SECONDS

    def lose_place(self, why: str) -> None:
        """Kill it, so that others can have its resources; it is then as if its machine were lost."""
        self._forget()
        self._lost, self._starting, self._looking = why, None, None

    def exit_code(self) -> int | None:
        if self._keeper is not None:
            self._look()
        if self._lost:
            return GONE
        return self._seen.exit_code if self._seen else None

    @property
    def is_done(self) -> bool:
        return self.exit_code() == 0 and self._seen is not None and self._seen.done

    def terminate(self) -> None:
        if self._runs and self._starting is not None:
            self.lose_place("it is not needed any more")  # it was not placed: nothing to end in order
        elif self._runs:
            self._keeper.terminate.remote()

    def kill(self) -> None:
        if self._runs:
            self._keeper.kill.remote()

    def wait(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while self._runs:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
        return True

    def close(self) -> None:
        """Kill what is left and give its place back. What was last seen stays."""
        with contextlib.suppress(RayError):
            if self._keeper is not None and not self._lost:
                ray.get(self._keeper.close.remote(), timeout=10.0)
        self._forget()

    @property
    def _runs(self) -> bool:
        return self._keeper is not None and self.exit_code() is None

    def _look(self) -> None:
        """Take what a look has shown, and look again if it is time; waits for nothing."""
        now = time.monotonic()
        if now < self._ask_at:
            return
        self._ask_at = now + ASK_SECONDS
        try:
            if self._starting is not None and _is_there(self._starting):
                self._take_start()
            if self._looking is not None and _is_there(self._looking):
                looking, self._looking = self._looking, None
                self._take(ray.get(looking))
            if self._looking is None and self._starting is None and not self._lost and now >= self._look_at:
                self._look_at = now + (LOOK_SECONDS if self.announced else FIRST_LOOKS_SECONDS)
                self._looking = self._keeper.look.remote(self._log_end, dict(self._ends))
            if self._starting is not None and not self._warned and now - self._started_at > LATE_SECONDS:
                self._warned = True
                _log.warning("%s waits for a place: no machine has the resources free that it takes", self.name)
        except ActorUnavailableError:
            self._looking = None  # its machine does not answer; Ray says so when it is lost
        except RayTaskError as error:  # a disk that is full, for one
            self.lose_place(f"its keeper failed: {error.cause}")
            self._tell_lost(self._lost)
        except RayActorError as error:
            self._lost = str(error).partition("\n")[0]
            self._starting = self._looking = None
            self._tell_lost("its keeper or its machine has ended")

    def _tell_lost(self, why: str) -> None:
        _log.warning("%s is lost: %s", self.name, why)
        self._write(f"relaax: {self.name} is lost: {self._lost}\n".encode())

    def _take_start(self) -> None:
        starting, self._starting = self._starting, None
        try:
            ray.get(starting)
        except ActorUnavailableError:
            self.lose_place("its machine did not answer when it was to start")  # nobody knows whether it has

    def _take(self, look: Look) -> None:
        if look.log or look.grown:
            self._write(look.log)
            self._grow(look.grown)
            self._look_at = 0.0  # there may be more
        self._log_end = look.log_end
        self._seen = look
        self.address = look.address if look.announced else None
        self.failed = look.failed

    def _grow(self, grown: Mapping[str, tuple[int, bytes]]) -> None:
        for name, (begin, piece) in grown.items():
            file = self._metrics / name
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("r+b" if begin else "wb") as opened:
                    opened.seek(begin)
                    opened.write(piece)
            except OSError as error:
                self._complain(file, error)
            self._ends[name] = begin + len(piece)

    def _write(self, piece: bytes) -> None:
        try:
            with self.log.open("ab", buffering=0) as log:
                log.write(piece)
        except OSError as error:
            self._complain(self.log, error)

    def _forget(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            with contextlib.suppress(RayError):
                ray.kill(keeper)


def _is_there(future: Any) -> bool:
    return bool(ray.wait([future], timeout=0)[0])
