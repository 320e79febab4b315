"""A training on a Ray cluster, as a person has it: by the command `relaax cluster`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from support.processes import wait_until
from support.ray_nodes import RayNodes

PLACED_SECONDS = 180.0
Status = dict[str, Any]


class ClusterTraining:
    """Started with the block, and ended with it if that has not happened before. `config`: a name or a file."""

    def __init__(self, nodes: RayNodes, config: str | Path, folder: Path, *words: str, name: str = "it") -> None:
        self.nodes = nodes
        self.name = name
        self.folder = folder / "run"
        self._words = ["cluster", "start", str(config), "--name", name, "--run-dir", str(self.folder), *words]
        self._runs = False

    def __enter__(self) -> ClusterTraining:
        started = self.nodes.relaax(*self._words)
        assert started.returncode == 0, started.stderr
        self._runs = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._runs:
            self.stop()

    def status(self) -> Status | None:
        """What `relaax cluster status --json` says; None if it says nothing yet."""
        asked = self.nodes.relaax("cluster", "status", self.name, "--json")
        return json.loads(asked.stdout) if asked.returncode == 0 else None

    def wait_until(self, condition: Callable[[Status], object], what: str, seconds: float = PLACED_SECONDS) -> Status:
        """Ask until it is true, and return what was said then."""
        said: Status = {}

        def holds() -> bool:
            nonlocal said
            said = self.status() or {}
            return bool(said) and bool(condition(said))

        try:
            wait_until(holds, what, seconds, 0.5)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{json.dumps(said, indent=1)}\n{self.log()}") from None
        return said

    def wait_running(self, seconds: float = PLACED_SECONDS) -> Status:
        """Wait until every process runs."""
        return self.wait_until(everybody_runs, "every process runs", seconds)

    def log(self) -> str:
        """What its controller has said."""
        listed = self.nodes.relaax("cluster", "status")
        logs = [f"== {path.name}\n{tail(path)}" for path in sorted((self.folder / "logs").glob("*.log"))]
        return "\n".join([listed.stdout, listed.stderr, *logs])

    def stop(self) -> dict[str, Any]:
        """End it with a last checkpoint, and return its summary."""
        self._runs = False
        ended = self.nodes.relaax("cluster", "stop", self.name)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))
        return summary


def everybody_runs(status: Status) -> bool:
    """Whether each process does."""
    return all(process["state"] == "runs" for process in status["processes"])


def of_role(status: Status, role: str) -> list[dict[str, Any]]:
    """The processes of a role."""
    return [one for one in status["processes"] if one["name"] == role or one["name"].startswith(f"{role}-")]


def connections_of(status: Status) -> int:
    """How many environments' connections all RLX servers have."""
    return sum(server["connections"] or 0 for server in of_role(status, "rlx-server"))


def tail(path: Path, lines: int = 15) -> str:
    """The end of a file."""
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
