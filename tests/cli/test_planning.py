"""`relaax plan`: its output, its errors, and its forecasts from the file of a benchmark."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from relaax.cli.app import app
from relaax.cli.plan.workload import make_workload, multiplications
from relaax.cli.run.plan import make_plan
from relaax.nn.specification import Convolution, NetworkSpec
from relaax.planning.costs import UnusableMeasurement, costs_from_measurement
from relaax.planning.forecast import forecast_on
from relaax.planning.workload import MachineSize
from relaax.rlx import Box, Discrete
from support.programs import completed
from support.service import RELAAX

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "docs" / "results" / "scaling-bench.json"
CARTPOLE = "da3c_gym_cartpole"
SPACES = Box(-1, 1, [4], "float32"), Discrete(2)
WITHOUT = ("--observation", "4", "--actions", "2", "--measured", str(RECORDED))


def run_plan(*words: str) -> Any:
    return CliRunner().invoke(app, ["plan", *words])


def plan_as_json(*words: str) -> dict[str, Any]:
    result = run_plan(*words, "--json")
    assert result.exit_code == 0, result.output + result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.slow
@pytest.mark.checks("relaax/planning", "relaax/cli/plan")
def test_plan_is_printed_without_given_spaces() -> None:
    """The command runs in its own process, uses the project's figures, and makes an environment to learn its spaces."""
    done = completed([*RELAAX, "plan", CARTPOLE, "--environments", "64", "--rate", "10"], dict(os.environ))
    assert done.returncode == 0, done.stdout + done.stderr
    for words in (
        "environments",
        "workers",
        "parameter server",
        "64 environments, 10 steps/s each: 640 steps/s",
        "an action: p50",
        "a checkpoint: 0.1 MB",
        "first bottleneck: ",
        "from: worker and servers: figures of the project's own machine",
    ):
        assert words in done.stdout, words
    assert "\x1b" not in done.stdout, "no colors in a pipe"


def test_benchmark_file_replaces_the_project_figures() -> None:
    found = plan_as_json(CARTPOLE, "--environments", "1000", "--rate", "2", "--cores", "4", *WITHOUT)
    assert found["sources"][0].startswith(str(RECORDED))
    assert found["workload"]["parameters"] == json.loads(RECORDED.read_text())["parameters"]
    assert found["workload"]["connections"] == 250
    assert found["steps_per_second"] == pytest.approx(2000)
    assert {part["name"] for part in found["parts"]} == {"environments", "workers", "parameter server"}
    assert found["machine"]["cores"] == 4
    assert found["act_p99_ms"] >= found["act_p50_ms"] > 0


def test_keys_of_the_configuration_change_the_plan() -> None:
    given = (CARTPOLE, "--environments", "100", "--rate", "5", *WITHOUT)
    default = plan_as_json(*given)
    assert plan_as_json(*given, "--environments-per-connection", "10")["workload"]["connections"] == 10
    keys = ("algorithm.episode_len=10", "relaax-rlx-server.wire_precision=float16", "relaax-parameter-server.shards=3")
    changed = plan_as_json(*given, *(word for key in keys for word in ("--set", key)))
    assert changed["workload"]["rollout"] == 2 * default["workload"]["rollout"]
    assert (changed["workload"]["wire_bytes"], changed["workload"]["shards"]) == (2, 3)
    assert changed["push_bytes_per_second"] < 0.3 * default["push_bytes_per_second"]


def test_too_few_machines_are_reported() -> None:
    result = run_plan(CARTPOLE, "--environments", "10000", "--rate", "60", "--machines", "1", "--cores", "2", *WITHOUT)
    assert result.exit_code == 3, result.output
    assert "of 600,000 that they would take" in result.stdout
    assert "would help: " in result.stdout


def test_replay_memory_needs_servers_and_learners() -> None:
    found = plan_as_json(
        *("apex_ale", "--environments", "16", "--rate", "15", "--machines", "1", "--cores", "64"),
        *("--observation", "84x84", "--measured", str(RECORDED)),
    )
    parts = {part["name"]: part for part in found["parts"]}
    assert {"replay servers", "learners"} <= parts.keys()
    assert parts["learners"]["processes"] == 2
    assert parts["replay servers"]["process_mb"] > 3_000, "half a million transitions of 7 kB"
    assert found["workload"]["rollout_key"] == "algorithm.actor_interval"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("no_such_config",), "no_such_config"),
        ((CARTPOLE, "--rate", "0"), "--rate must be a finite number above 0, not 0"),
        ((CARTPOLE, "--network", "-1"), "--network must be a finite number above 0, not -1"),
        ((CARTPOLE, "--memory", "nan"), "--memory must be a finite number above 0, not nan"),
        ((CARTPOLE, "--round-trip", "-1"), "--round-trip must be a finite number of at least 0 ms, not -1"),
        ((CARTPOLE, "--environments", "0"), "'--environments': Input should be greater than or equal to 1"),
        ((CARTPOLE, "--measured", "gone.json"), "--measured gone.json: No such file"),
        ((CARTPOLE, "--observation", "4"), "add --measured FILE"),
        ((CARTPOLE, *WITHOUT[2:], "--observation", "4xx"), "--observation must be a shape, such as 84x84"),
        ((CARTPOLE, "--set", "relaax-run.name=CartPool-v1"), "CartPool"),
    ],
)
def test_invalid_request_is_refused_in_one_sentence(words: tuple[str, ...], sentence: str) -> None:
    result = run_plan(*words)
    assert result.exit_code == 2, result.output + result.stderr
    assert sentence in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("program", "code", "sentence"),
    [
        ("sys.exit('no simulator here')", 1, "no simulator here"),
        ("print('no map of that name', file=sys.stderr); sys.exit(2)", 2, "no map of that name"),
        ("connect().close()", 1, "the environment's program closed the connection"),
        ("connect().sendall(b'GET / HTTP/1.1' * 9)", 1, "the environment's program closed the connection"),
    ],
)
def test_program_that_is_no_environment_is_reported(program: str, code: int, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        "import socket, sys\n"
        "def connect():\n"
        "    host, port = sys.argv[1].split(':')\n"
        "    return socket.create_connection((host, int(port)))\n"
        f"{program}\n"
    )
    keys = (f"relaax-run.environment={tmp_path / 'main.py'}", "relaax-run.envs_per_client=1")
    result = run_plan(CARTPOLE, *(word for key in keys for word in ("--set", key)))
    assert result.exit_code == code, result.output + result.stderr
    assert sentence in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("text", "sentence"), [("[]", "is not a result of"), ("{", "Expecting"), ('{"machine": {}}', "lacks")]
)
def test_file_that_is_no_benchmark_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "some.json").write_text(text)
    result = run_plan(CARTPOLE, "--observation", "4", "--actions", "2", "--measured", str(tmp_path / "some.json"))
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_multiplications_are_counted_layer_by_layer() -> None:
    dense = NetworkSpec(inputs=(4,), heads={"a": 2, "v": 1}, dense=(64, 64))
    assert multiplications(dense) == 4 * 64 + 64 * 64 + 64 * 3
    atari = NetworkSpec(
        inputs=(84, 84, 4),
        heads={"a": 6, "v": 1},
        dense=(256,),
        convolutions=(Convolution(16, 8, 4), Convolution(32, 4, 2)),
    )
    assert multiplications(atari) == 20 * 20 * 16 * 8 * 8 * 4 + 9 * 9 * 32 * 4 * 4 * 16 + 9 * 9 * 32 * 256 + 256 * 7


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED.read_text("utf-8"))
    return found


def test_model_reproduces_its_calibration() -> None:
    """The forecast of the measured training is within 30 % of the measurement."""
    result = recorded()
    n, connections = result["envs_per_client"], result["clients"]
    plan = make_plan(CARTPOLE, [f"run.envs_per_client={n}"])
    workload = make_workload(plan, SPACES, n * connections, None)
    costs = costs_from_measurement(result, workload, "recorded")
    size = MachineSize(cores=result["machine"]["cores"], gigabytes=16.0, gigabits=1.0, round_trip_ms=0.0)
    found = forecast_on(workload, costs, size, 1)
    training = result["processor_training"]
    us = 1e6 * sum(part.cores for part in found.parts) / found.steps_per_second
    spent = training["us"]["client"] + training["us"]["worker"]
    spent += training["us"]["parameter_server"] * training["pushes_per_second"] / training["steps_per_second"]
    assert us == pytest.approx(spent, rel=0.3)
    single = make_workload(make_plan(CARTPOLE, ["run.envs_per_client=1"]), SPACES, 1, None)
    alone = forecast_on(single, costs_from_measurement(result, single, "recorded"), size, 1)
    assert alone.act_p50_ms == pytest.approx(result["act_latency_ms"]["p50"], rel=0.3)


@pytest.mark.parametrize("key", ["processor_single", "parameters", "bridge"])
def test_file_of_an_older_version_names_the_missing_key(key: str) -> None:
    result = recorded()
    del result[key]
    workload = make_workload(make_plan(CARTPOLE, []), SPACES, 1, None)
    with pytest.raises(UnusableMeasurement, match=f"old.json lacks {key}: measure it with this version"):
        costs_from_measurement(result, workload, "old.json")


def test_cold_factor_is_1_if_no_crowd_was_measured() -> None:
    result = recorded()
    del result["processor_crowd"], result["processor_paced"]
    costs = costs_from_measurement(result, make_workload(make_plan(CARTPOLE, []), SPACES, 1, None), "large.json")
    assert (costs.client.cold, costs.worker.cold, costs.paced) == (1.0, 1.0, 1.0)
