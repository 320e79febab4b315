"""The keys of the tracker: what is refused before a start, and what MLflow gets of a configuration."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from relaax.server.parameter_server.main import app
from relaax.server.tracker.mlflow_run import SentState, parameters, reason_of
from support.refusals import outcome_of

CONFIG = ("--config", "da3c_gym_cartpole", "--bind", "127.0.0.1:0", "--set", "relaax-parameter-server.tracker=mlflow")


@pytest.mark.parametrize(
    ("options", "installed", "sentence"),
    [
        (("--set", "relaax-parameter-server.metrics_dir=null"), True, "set relaax-parameter-server.metrics_dir"),
        ((), True, "set tracker_uri, such as http://localhost:5000, or the variable MLFLOW_TRACKING_URI"),
        (
            ("--set", "relaax-parameter-server.tracker_uri=http://localhost:9"),
            False,
            "mlflow is not installed; pip install 'relaax[mlflow]'",
        ),
        (("--set", "relaax-parameter-server.tracker=mlfow"), True, "mlfow"),
    ],
    ids=["no-metrics", "no-server", "no-library", "misspelt"],
)
def test_unusable_tracker_is_refused(
    options: tuple[str, ...], installed: bool, sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    found = importlib.util.find_spec

    def find_spec(name: str, *rest: Any) -> Any:
        return found(name, *rest) if installed or name != "mlflow" else None

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    done = outcome_of(app, *CONFIG, *options)
    assert done.exit_code == 2
    assert "relaax-parameter-server.tracker: " in done.output
    assert sentence in " ".join(done.output.split())


def test_configuration_becomes_parameters() -> None:
    document = {
        "algorithm": {"network": {"dense": [64, 64]}, "rate": 7e-4, "seed": None},
        "relaax-run": {"clients": 2, "kwargs": {"größe=1": True}, "name": "x" * 7000},
    }
    assert parameters(document) == {
        "algorithm.network.dense": "64, 64",
        "algorithm.rate": "0.0007",
        "algorithm.seed": "none",
        "relaax-run.clients": "2",
        "relaax-run.kwargs.gr__e_1": "True",
        "relaax-run.name": "x" * 6000,
    }


def test_state_of_another_server_is_not_used(tmp_path: Path) -> None:
    state = SentState.of(tmp_path, "http://user:word@one:5000")
    assert state.run_id is None
    state.run_id = "abc"
    state.write(tmp_path)
    assert "word" not in (tmp_path / "mlflow.json").read_text("utf-8")
    assert SentState.of(tmp_path, "http://user:word@one:5000") == state
    assert SentState.of(tmp_path, "http://two:5000").run_id is None
    (tmp_path / "mlflow.json").write_text("{", "utf-8")
    assert SentState.of(tmp_path, "http://one:5000").run_id is None


def test_reason_is_the_innermost_cause_without_password() -> None:
    try:
        try:
            raise ConnectionRefusedError(111, "Connection refused")
        except OSError as error:
            raise ValueError("a long text") from error
    except ValueError as error:
        assert reason_of(error) == "Connection refused"
    assert reason_of(ValueError("no http://user:word@one\nmore")) == "no http://one"
