"""Measure the speed of an environment and its agent while they run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from relaax.client.failure import CannotWrite

LINE_SECONDS = 0.2


class Lines:
    """JSON lines in a file. One is due every 0.2 seconds: from `due` on, by `time.monotonic`.

    Each has `time`: seconds of that clock, which is the same for all processes of a machine. Raises CannotWrite.
    """

    def __init__(self, file: str | Path) -> None:
        self.due = 0.0
        self._path = Path(file)
        try:
            self._file = self._path.open("w", encoding="utf-8")
        except OSError as error:
            raise CannotWrite("--measure", self._path, error) from None

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with suppress(OSError):  # of a line that was refused before
            self._file.close()

    def write(self, line: dict[str, Any]) -> None:
        """Write one whole line."""
        now = time.monotonic()
        try:
            self._file.write(json.dumps({"time": now, **line}) + "\n")
            self._file.flush()
        except OSError as error:
            raise CannotWrite("--measure", self._path, error) from None
        self.due = now + LINE_SECONDS


class Measured:
    """A client whose calls are timed. Writes JSON lines to a file, about five a second.

    The first: `start_seconds`, from connecting to the first action. Each: `time`, `steps` (taken so far, over all
    environments), and `act_ms` (how long each action took since the line before, in milliseconds).
    """

    def __init__(self, client: Any, environments: int, file: str | Path) -> None:
        self._client = client
        self._environments = environments
        self._lines = Lines(file)
        self._steps = 0
        self._act_ms: list[float] = []
        self._begun = False

    def __enter__(self) -> Measured:
        self._client.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with self._lines:
            if self._begun:
                self._write({})
            self._client.__exit__(kind, error, tb)

    def init(self, states: Any) -> Any:
        """Return the first action of an episode."""
        before = time.perf_counter()
        actions = self._client.init(states)
        after = time.perf_counter()
        if self._begun:
            self._note(after - before, 0)
        else:
            self._begun = True
            self._write({"start_seconds": after - before})
        return actions

    def send(self, *outcome: Any, **more: Any) -> Any:
        """Return the next action of one environment."""
        return self._timed(self._client.send, 1, outcome, more)

    def step(self, *outcome: Any, **more: Any) -> Any:
        """Return the next actions of N environments."""
        first = more.get("first")
        void = 0 if first is None else int(first.sum())
        return self._timed(self._client.step, self._environments - void, outcome, more)

    def reset(self, *outcome: Any, **more: Any) -> Any:
        """End an episode: a step, and no action."""
        self._steps += 1
        return self._client.reset(*outcome, **more)

    def _timed(self, call: Callable[..., Any], steps: int, outcome: tuple[Any, ...], more: dict[str, Any]) -> Any:
        before = time.perf_counter()
        actions = call(*outcome, **more)
        self._note(time.perf_counter() - before, steps)
        return actions

    def _note(self, seconds: float, steps: int) -> None:
        self._steps += steps
        self._act_ms.append(seconds * 1e3)
        if time.monotonic() >= self._lines.due:
            self._write({})

    def _write(self, more: dict[str, float]) -> None:
        act_ms = [round(value, 4) for value in self._act_ms]
        self._lines.write({"steps": self._steps, **more, "act_ms": act_ms})
        self._act_ms.clear()
