"""Findings of a check of environments: errors, warnings, and their report."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from relaax.console import one_line, shown
from relaax.rlx import Space, space_from_dict, space_to_dict

Level = Literal["error", "warning"]


@dataclass
class CheckFinding:
    """One kind of fault: its first occurrence, and the number of occurrences."""

    level: Level
    text: str
    times: int = 1

    def __str__(self) -> str:
        again = f" ({self.times:,} times)" if self.times > 1 else ""
        return one_line(f"{self.level}: {self.text}{again}")


class Findings:
    """The findings of a check. Each kind is reported once."""

    def __init__(self) -> None:
        self._by_kind: dict[str, CheckFinding] = {}

    def __iter__(self) -> Iterator[CheckFinding]:
        return iter(self._by_kind.values())

    def __len__(self) -> int:
        return len(self._by_kind)

    @property
    def errors(self) -> int:
        """Return the number of errors."""
        return sum(finding.level == "error" for finding in self)

    def error(self, kind: str, text: str, level: Level = "error") -> None:
        """Add a fault that training refuses, or that makes it learn from wrong numbers."""
        if kind in self._by_kind:
            self._by_kind[kind].times += 1
        else:
            self._by_kind[kind] = CheckFinding(level, text)

    def warning(self, kind: str, text: str) -> None:
        """Add a fault that training tolerates."""
        self.error(kind, text, "warning")


@dataclass
class CheckReport:
    """The report of a check: number of episodes and steps, and findings.

    `spaces`: observation and action space of one environment; None if they are not supported. `mean_return`: mean over
    whole episodes; None if there was no whole episode.
    """

    spaces: tuple[Space, Space] | None
    episodes: int
    steps: int
    mean_return: float | None
    findings: list[CheckFinding] = field(default_factory=list)

    @property
    def errors(self) -> int:
        """Return the number of errors."""
        return sum(finding.level == "error" for finding in self.findings)

    def lines(self, more: Iterable[str] = ()) -> Iterator[str]:
        """Yield the lines of the report. `more`: additional lines about the spaces."""
        yield from (str(finding) for finding in sorted(self.findings, key=lambda finding: finding.level))
        if self.spaces is not None:
            yield "observations {}, actions {}".format(*self.spaces)
        yield from more
        numbers = {"error": self.errors, "warning": len(self.findings) - self.errors}
        found = [_counted(number, level) for level, number in numbers.items() if number]
        verdict = "failed" if self.errors else "ok"
        played = f"{_counted(self.episodes, 'episode')}, {_counted(self.steps, 'step')}"
        if self.mean_return is not None and not self.errors:
            played += f", mean return {shown(self.mean_return)} at random"
        yield f"{verdict}: {'; '.join([played, ', '.join(found) or 'no warnings'])}"

    def finish(self, file: Path | None) -> bool:
        """Add processes that are still running, then print the report or write it to `file`. Return False on errors."""
        for process in left_processes():
            self.findings.append(CheckFinding("error", f"close() left {process} running: terminate it in close()"))
        if file is None:
            print(*self.lines(), sep="\n", flush=True)
        else:
            self.write(file)
        return not self.errors

    def write(self, file: Path) -> None:
        """Write the report as JSON."""
        report = vars(self) | {
            "spaces": self.spaces and [space_to_dict(space) for space in self.spaces],
            "findings": [vars(finding) for finding in self.findings],
        }
        file.write_text(json.dumps(report), "utf-8")

    @classmethod
    def read(cls, file: Path) -> CheckReport:
        """Read a report that another process has written."""
        report = json.loads(file.read_text("utf-8"))
        report["spaces"] = report["spaces"] and tuple(space_from_dict(space) for space in report["spaces"])
        report["findings"] = [CheckFinding(**finding) for finding in report["findings"]]
        return cls(**report)


def _counted(number: int, what: Any) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


_SECONDS = 2.0
_OF_PYTHON = "multiprocessing"  # its resource tracker and fork server end with this process


def left_processes() -> list[str]:
    """Return the descendants of this process that do not end within two seconds, such as "process 12 (sleep)".

    Linux only; on other systems the result is empty.
    """
    until = time.monotonic() + _SECONDS
    while (left := list(_below(os.getpid()))) and time.monotonic() < until:
        time.sleep(0.02)
    return left


def _below(pid: int) -> Iterator[str]:
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in _read(listed).split():
            status = dict(line.partition(":\t")[::2] for line in _read(Path(f"/proc/{child}/status")).splitlines())
            is_alive = not status.get("State", "Z").startswith(("Z", "X"))
            if is_alive and _OF_PYTHON not in _read(Path(f"/proc/{child}/cmdline")):
                yield f"process {child} ({status['Name']})"
            yield from _below(int(child))


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:  # it has ended
        return ""
