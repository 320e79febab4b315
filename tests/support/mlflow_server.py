"""A real MLflow server, from the folder where tests/support/install-trackers installs it."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from support.processes import Processes, Running, wait_until

FOLDER = Path("~/.cache/relaax-mlflow").expanduser()
REASON = "MLflow is not installed; tests/support/install-trackers installs it"
_START_SECONDS = 400.0  # it starts within 10 s on an idle machine
_ANSWER_SECONDS = 60.0


def is_installed() -> bool:
    return (FOLDER / "mlflow").is_dir()


class MlflowServer:
    """A server with a database and files in a folder. It keeps its port when it is started again."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self._processes = processes
        self._folder = folder
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            self._port = unused.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self._port}"
        self._running: Running | None = None

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        stores = (
            *("--backend-store-uri", f"sqlite:///{self._folder / 'mlflow.db'}"),
            *("--artifacts-destination", str(self._folder / "artifacts")),
        )
        variables = {
            "PYTHONPATH": str(FOLDER),
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }
        command = (sys.executable, "-m", "mlflow", "server", "--port", str(self._port), "--workers", "1", *stores)
        running = self._running = self._processes.start(*command, env=variables, fresh=True)

        def answers() -> bool:
            assert running.returncode is None, running.report()
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.uri}/health", timeout=10):
                return True
            return False

        wait_until(answers, "the MLflow server answers", _START_SECONDS, interval=0.5)

    def kill(self) -> None:
        """Kill all its processes."""
        assert self._running is not None
        self._running.end()

    def get(self, path: str) -> Any:
        """Return the answer to a request of its REST interface."""
        with urllib.request.urlopen(f"{self.uri}/api/2.0/{path}", timeout=_ANSWER_SECONDS) as answer:
            return json.load(answer)

    def run(self, run_id: str) -> Any:
        return self.get(f"mlflow/runs/get?run_id={run_id}")["run"]

    def curve(self, run_id: str, metric: str) -> list[Any]:
        """Return the values of a metric by global step."""
        found = self.get(f"mlflow/metrics/get-history?run_id={run_id}&metric_key={metric}&max_results=10000")
        return sorted(found["metrics"], key=lambda one: int(one["step"]))

    def files(self, run_id: str, folder: str = "") -> list[str]:
        answer = self.get(f"mlflow/artifacts/list?run_id={run_id}&path={folder}")
        return [one["path"] for one in answer.get("files", [])]

    def download(self, run_id: str, path: str, target: Path) -> Path:
        """Write a file of a run to `target`."""
        root = self.run(run_id)["info"]["artifact_uri"].removeprefix("mlflow-artifacts:/").lstrip("/")
        url = f"{self.uri}/api/2.0/mlflow-artifacts/artifacts/{root}/{path}"
        with urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as answer:
            target.write_bytes(answer.read())
        return target
