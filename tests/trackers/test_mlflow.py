"""`tracker: mlflow`: trainings on a real MLflow server, and with servers that die or do not answer."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from relaax import policy
from relaax.bundled import bundled_folder
from relaax.metrics.writer import newest_number
from relaax.server.tracker.event_tail import EventTail
from support.mlflow_server import REASON, MlflowServer, is_installed
from support.processes import Processes, Running, wait_until
from support.run import PATIENCE, Run, Runs, is_alive
from support.unused_address import unused_address

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.checks(
        *("relaax/server/tracker", "relaax/server/parameter_server/command", "relaax/metrics", "relaax/policy"),
        *("tests/support/install-trackers", "tests/support/mlflow_server.py"),
    ),
    pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="the extra mlflow is not installed"),
]
needs_server = pytest.mark.skipif(not is_installed(), reason=REASON)
LIMIT = 400.0  # seconds until the process has imported MLflow and sent its first request on a busy machine
CONFIG = "da3c_gym_cartpole"
GONE, BACK = "is not available", "answers again"
TRAINING = ("--clients", "1", "--envs-per-client", "4", "--no-progress", "--set", "run.target_return=null")
TRACKED = (*TRAINING, "--set", "parameter-server.tracker=mlflow")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    folder = tmp_path_factory.mktemp("mlflow")
    with Processes(folder) as processes:
        server = MlflowServer(processes, folder)
        server.start()
        yield server


def _at(uri: str) -> tuple[str, ...]:
    return (*TRACKED, "--set", f"parameter-server.tracker_uri={uri}")


def _state(metrics: Path) -> Any:
    return json.loads((metrics / "mlflow.json").read_text("utf-8"))


def _wait_for_run(run: Run, server: MlflowServer) -> str:
    """Return the id of the MLflow run after its first policy has arrived."""
    metrics = run.directory / "metrics"

    def sent() -> bool:
        assert run.running.returncode is None, run.running.report()
        return (metrics / "mlflow.json").exists() and bool(_state(metrics)["policies"])

    wait_until(sent, "a policy is sent", LIMIT, interval=0.5)
    return str(_state(metrics)["run_id"])


def _end(run: Run, code: int = 0) -> None:
    assert run.running.wait(LIMIT) == code, run.running.report()
    run.expect_nothing_left()


@needs_server
def test_training_is_shown_and_resumed(runs: Runs, server: MlflowServer, tmp_path: Path) -> None:
    options = ("--set", "run.kwargs={}", "--set", "run.checkpoint_interval=2", *_at(server.uri))
    run = runs.start(*options, "--eval-every", "1000", "--eval-episodes", "2")
    run_id = _wait_for_run(run, server)
    wait_until(lambda: "evaluation/mean_return" in _metrics(server, run_id), "an evaluation is sent", LIMIT)
    parameter_server = run.of("parameter-server")[0]
    assert parameter_server.memory_info().rss < 120e6  # MLflow takes 180 MB
    run.running.send_signal(signal.SIGINT)
    _end(run, 130)

    shown = server.run(run_id)
    assert shown["info"]["status"] == "KILLED"
    assert shown["info"]["run_name"] == "run"
    parameters = {one["key"]: one["value"] for one in shown["data"]["params"]}
    assert parameters["algorithm.episode_len"] == "5"
    assert parameters["relaax-run.name"] == "CartPole-v1"
    _expect_same_curve(server, run_id, run.directory / "metrics")
    assert server.files(run_id, "policies") == ["policies/best.safetensors", "policies/newest.safetensors"]
    newest = server.download(run_id, "policies/newest.safetensors", tmp_path / "newest.safetensors")
    actor = policy.load(newest, algorithm=bundled_folder("algorithms") / "da3c")
    first = actor.description.global_step
    assert first == run.summary["env_steps"]

    more = runs.start(*options, "--max-steps", str(first + 2000), directory=run.directory)
    _end(more)
    assert _state(run.directory / "metrics")["run_id"] == run_id
    assert server.run(run_id)["info"]["status"] == "FINISHED"
    _expect_same_curve(server, run_id, run.directory / "metrics")
    newest = server.download(run_id, "policies/newest.safetensors", tmp_path / "newest.safetensors")
    actor = policy.load(newest, algorithm=bundled_folder("algorithms") / "da3c")
    assert actor.description.global_step == more.summary["env_steps"] >= first + 2000


def _metrics(server: MlflowServer, run_id: str) -> dict[str, float]:
    return {one["key"]: one["value"] for one in server.run(run_id)["data"]["metrics"]}


def _expect_same_curve(server: MlflowServer, run_id: str, folder: Path) -> None:
    """Expect that the points in MLflow are points of TensorBoard's files, and that the last ones are equal."""
    assert any(newest_number([path.name]) for path in folder.iterdir())
    scalars = EventTail(folder).read(10**6)
    for metric in ("episode/return", "speed/steps_per_second"):
        written = [(one.step, one.value) for one in scalars if one.name == metric]
        sent = [(int(one["step"]), one["value"]) for one in server.curve(run_id, metric)]
        assert len(sent) >= 2
        assert set(sent) <= set(written)
        assert written[-1] in sent


@needs_server
def test_outage_costs_a_warning_and_no_metrics(runs: Runs, processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "mlflow").mkdir()
    server = MlflowServer(processes, tmp_path / "mlflow")
    server.start()
    run = runs.start(*_at(server.uri), "--set", "run.checkpoint_interval=2")
    run_id = _wait_for_run(run, server)
    server.kill()
    wait_until(lambda: GONE in run.log("parameter-server"), "the outage is logged", LIMIT, interval=0.5)
    run.wait_for_steps(run.status.global_step + 1000)
    server.start()
    wait_until(lambda: BACK in run.log("parameter-server"), "the end of the outage is logged", LIMIT, interval=0.5)
    run.running.send_signal(signal.SIGINT)
    _end(run, 130)
    log = run.log("parameter-server")
    assert log.count(GONE) == 1, log
    assert log.count(BACK) == 1, log
    assert run.summary["lost_steps"] == 0
    _expect_same_curve(server, run_id, run.directory / "metrics")


@pytest.mark.parametrize("listens", [True, False], ids=["silent", "absent"])
def test_unusable_server_does_not_delay_training(runs: Runs, listens: bool) -> None:
    with unused_address() as absent, socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}" if listens else absent
        run = runs.start(*_at(f"http://{address}"))
        run.wait_for_steps(0)
        wait_until(lambda: GONE in run.log("parameter-server"), "the outage is logged", LIMIT, interval=0.5)
        more = run.status.global_step + 2000
        run.wait_for_steps(more)
        run.running.send_signal(signal.SIGTERM)
        _end(run, 130)
    log = run.log("parameter-server")
    assert log.count(GONE) == 1, log
    assert "the tracker ends before" not in log
    assert run.summary["env_steps"] > more
    assert run.summary["lost_steps"] == 0


@needs_server
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, "KILLED"), (signal.SIGKILL, "FAILED")])
def test_status_tells_how_a_server_ended(
    processes: Processes, server: MlflowServer, tmp_path: Path, number: signal.Signals, status: str
) -> None:
    running, tracker = _parameter_server(processes, server.uri, tmp_path)
    wait_until((tmp_path / "metrics" / "mlflow.json").exists, "the MLflow run is created", LIMIT, interval=0.5)
    run_id = _state(tmp_path / "metrics")["run_id"]
    wait_until(lambda: server.files(run_id) == ["configuration.yaml"], "the configuration is sent", LIMIT)
    if number == signal.SIGKILL:
        running.kill()
    else:
        assert running.stop(timeout=LIMIT) == 0, running.report()
    wait_until(lambda: not is_alive(tracker), "the tracker ends with its server", 60.0)
    assert server.run(run_id)["info"]["status"] == status


def test_killed_tracker_is_restarted(processes: Processes, tmp_path: Path) -> None:
    with unused_address() as absent:
        running, tracker = _parameter_server(processes, f"http://{absent}", tmp_path)
        os.kill(tracker.pid, signal.SIGKILL)
        wait_until(lambda: "the tracker ended (-9)" in running.stderr, "the end is logged", PATIENCE)
        wait_until(lambda: _trackers(running), "a tracker is started again", LIMIT)
        again = _trackers(running)[0]
        assert running.stop(timeout=LIMIT) == 0, running.report()
        assert not is_alive(again)


def _parameter_server(processes: Processes, uri: str, folder: Path) -> tuple[Running, psutil.Process]:
    """Start a parameter server; return it and its tracker."""
    running, _ = processes.start_server(
        *("relaax-parameter-server", "--config", CONFIG, "--bind", "127.0.0.1:0"),
        *("--checkpoint-dir", folder / "checkpoints", "--metrics-dir", folder / "metrics"),
        *("--set", "relaax-parameter-server.tracker=mlflow", "--set", f"relaax-parameter-server.tracker_uri={uri}"),
        fresh=True,
    )
    return running, wait_until(lambda: _trackers(running), "the tracker runs", PATIENCE)[0]


def _trackers(running: Running) -> list[psutil.Process]:
    children = psutil.Process(running.pid).children()
    return [child for child in children if is_alive(child) and "relaax.server.tracker.main" in child.cmdline()]
