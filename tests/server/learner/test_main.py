"""The command `relaax-learner`, as a process."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relaax.server.learner.learning import FAMILIES
from relaax.server.learner.main import app
from support import replay_algorithm
from support.metrics_page import documented_for_prometheus
from support.processes import Processes, Running, wait_until
from support.refusals import outcome_of, refusal
from support.scrape import health, scraped, status_url
from support.service import LEARNER, PARAMETER_SERVER
from support.unused_address import unused_address

pytestmark = pytest.mark.checks("relaax/server", "relaax/replay", "relaax/hosting")

PREFIX = "relaax_learner_"
READY = "relaax-learner ready"


def written(folder: Path, **algorithm: Any) -> Path:
    document = {
        "relaax-parameter-server": {"bind": "127.0.0.1:0"},
        "algorithm": {"path": str(Path(replay_algorithm.__file__)), **algorithm},
    }
    path = folder / "replay.yaml"
    path.write_text(json.dumps(document))  # JSON is YAML
    return path


@pytest.fixture
def address(processes: Processes, tmp_path: Path) -> Iterator[str]:
    """A parameter server without a model."""
    _, address = processes.start_server(*PARAMETER_SERVER, "--config", written(tmp_path))
    yield address


def start(processes: Processes, tmp_path: Path, address: str, *more: str) -> Running:
    return processes.start(*LEARNER, "--config", written(tmp_path), "--parameter-server", address, *more)


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGTERM, 0, marks=pytest.mark.slow), (signal.SIGINT, 130)]
)
def test_signal_ends_learner_that_waits_for_the_first_worker(
    processes: Processes, tmp_path: Path, address: str, number: int, code: int
) -> None:
    learner = start(processes, tmp_path, address)
    learner.wait_for_line(READY)
    assert learner.stop(number) == code
    assert "Traceback" not in learner.stderr
    assert f"learner ends because of {signal.Signals(number).name}" in learner.stderr
    assert learner.lines == [READY]


def test_signal_ends_learner_without_a_parameter_server(processes: Processes, tmp_path: Path) -> None:
    with unused_address() as address:
        learner = start(processes, tmp_path, address)
        wait_until(lambda: "is unavailable, retrying for 60 s" in learner.stderr, "the learner waits", timeout=60)
        assert learner.stop(signal.SIGTERM) == 0
    assert learner.lines == []


def test_learner_ends_after_its_parameter_server_patience(processes: Processes, tmp_path: Path) -> None:
    with unused_address() as address:
        learner = start(processes, tmp_path, address, "--set", "learner.parameter_server_patience=0.2")
        assert learner.wait(60) == 1
    assert f"relaax-learner: parameter server {address} was unavailable for 0.2 s" in learner.stderr
    assert "Traceback" not in learner.stderr


def test_status_port_reports_the_waiting_phase(processes: Processes, tmp_path: Path, address: str) -> None:
    learner = start(processes, tmp_path, address, "--status-bind", "127.0.0.1:0", "--learner", "2")
    url = status_url(learner)
    learner.wait_for_line(READY)
    status, more = health(url)
    assert (status, more["server"], more["learner"], more["phase"]) == (200, "relaax-learner", 2, "waiting")
    values = scraped(url)
    assert values["relaax_learner_serving"] == 1
    assert values["relaax_learner_learning"] == values["relaax_learner_updates_total"] == 0
    assert learner.stop(signal.SIGTERM) == 0


def test_metrics_page_lists_all_learner_families() -> None:
    assert documented_for_prometheus(PREFIX) == {family.name for family in FAMILIES}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--set", "algorithm.bundle=true"], "each worker learns from its own replay memory: start no learner"),
        (["--set", "algorithm.path=da3c", "--set", "algorithm.batch=null"], "batch"),
        (["--set", "learner.device=gpu:9"], "relaax-learner.device: "),
        (["--status-bind", "0.0.0.0:0"], "can be reached from other machines"),
        (["--set", "learner.learner=1"], "relaax-learner: unknown key 'learner'"),
        (["--set", "learner.replay_server_token_file=nowhere"], "relaax-learner.replay_server_token_file: the token"),
        (["--set", "learner.parameter_server_certificate=x"], "relaax-learner.parameter_server_key: required if"),
    ],
)
def test_unusable_configuration_is_one_error_line(tmp_path: Path, given: list[str], sentence: str) -> None:
    said = refusal(app, "--config", written(tmp_path), *given)
    (line,) = [line for line in said.splitlines() if line.startswith("relaax-learner: ")]
    assert sentence in line


def test_learner_that_refuses_exits_with_2(processes: Processes, tmp_path: Path) -> None:
    learner = processes.start(*LEARNER, "--config", "da3c_gym_cartpole")
    assert learner.wait(60) == 2
    assert "algorithm.path: da3c does not use learners, as its workers learn themselves" in learner.stderr
    assert "Traceback" not in learner.stderr


def test_learner_configuration_is_checked_and_printed(tmp_path: Path) -> None:
    checked = outcome_of(app, "--config", written(tmp_path), "--check-config")
    assert checked.exit_code == 0
    assert "is valid: algorithm" in checked.stdout.splitlines()[0]
    shown = outcome_of(app, "--config", written(tmp_path), "--print-config", "--bridge", "grpc")
    assert shown.exit_code == 0
    assert "  bridge: grpc  # command line" in shown.stdout.splitlines()
