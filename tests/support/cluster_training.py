"""A training on a Ray cluster, controlled by the command `relaax cluster`."""

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
    """A training that starts with the block, and stops with it unless `stop` was called.

    `config`: the name or the file of a configuration.
    """

    def __init__(self, nodes: RayNodes, config: str | Path, folder: Path, *words: str, name: str = "it") -> None:
        self.nodes = nodes
        self.name = name
        self.folder = folder / "run"
        self._words = ["cluster", "start", str(config), "--name", name, "--run-dir", str(self.folder), *words]
        self._is_running = False

    def __enter__(self) -> ClusterTraining:
        started = self.nodes.relaax(*self._words)
        assert started.returncode == 0, started.stderr
        self._is_running = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._is_running:
            self.stop()

    def status(self) -> Status | None:
        """Return the output of `relaax cluster status --json`, or None if the command failed."""
        done = self.nodes.relaax("cluster", "status", self.name, "--json")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def wait_until(self, condition: Callable[[Status], object], what: str, seconds: float = PLACED_SECONDS) -> Status:
        """Poll the status until `condition` holds, and return it."""
        status: Status = {}

        def holds() -> bool:
            nonlocal status
            status = self.status() or {}
            return bool(status) and bool(condition(status))

        try:
            wait_until(holds, what, seconds, 0.5)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{json.dumps(status, indent=1)}\n{self.log()}") from None
        return status

    def wait_running(self, seconds: float = PLACED_SECONDS) -> Status:
        """Wait until every process runs."""
        return self.wait_until(is_running, "every process runs", seconds)

    def log(self) -> str:
        """Return the list of trainings, and the ends of the training's logs."""
        listed = self.nodes.relaax("cluster", "status")
        logs = [f"== {path.name}\n{tail(path)}" for path in sorted((self.folder / "logs").glob("*.log"))]
        return "\n".join([listed.stdout, listed.stderr, *logs])

    def stop(self) -> dict[str, Any]:
        """Stop the training, which saves a last checkpoint, and return its summary."""
        self._is_running = False
        ended = self.nodes.relaax("cluster", "stop", self.name)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))
        return summary


def is_running(status: Status) -> bool:
    """Return whether every process of the training runs."""
    return all(process["state"] == "runs" for process in status["processes"])


def of_role(status: Status, role: str) -> list[dict[str, Any]]:
    """Return the processes of a role."""
    return [one for one in status["processes"] if one["name"] == role or one["name"].startswith(f"{role}-")]


def connections_of(status: Status) -> int:
    """Return the number of connections of all RLX servers."""
    return sum(server["connections"] or 0 for server in of_role(status, "rlx-server"))


def tail(path: Path, lines: int = 15) -> str:
    """Return the last lines of a file."""
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
