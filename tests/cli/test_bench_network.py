"""The bound of `relaax bench`: environments that compute the network of their training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.cli.bench import results
from relaax.cli.bench.network import Recorder, network_work, recording
from relaax.cli.bench.programs import Spent, with_network
from relaax.cli.bench.service import ProcessorUse
from relaax.cli.options import cores
from relaax.cli.run.plan import make_plan
from relaax.hosting.loader import load_algorithm
from relaax.nn.host.engine import HostEngine
from relaax.nn.specification import NetworkSpec
from relaax.rlx import Box, Discrete
from support.processes import Processes, wait_until

OBSERVATION, ACTION = Box(-1, 1, shape=(4,)), Discrete(2)
ROOT = Path(__file__).resolve().parents[2]
LENGTH = 5


@pytest.mark.parametrize(("name", "key"), [("da3c", "episode_len"), ("n_step_q", "update_interval")])
def test_network_computes_a_gradient_once_per_rollout(name: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[tuple[int, ...]] = []
    gradient = HostEngine.gradient

    def counted(engine: HostEngine, inputs: Any, *arguments: Any, **named: Any) -> Any:
        computed.append(inputs.shape[:2])
        return gradient(engine, inputs, *arguments, **named)

    monkeypatch.setattr(HostEngine, "gradient", counted)
    algorithm = load_algorithm(name, ROOT / "algorithms")
    work = network_work(algorithm, {"path": name, key: LENGTH}, OBSERVATION, ACTION, 3)
    computed.clear()
    for _ in range(4 * LENGTH):
        work()
    assert computed == [(LENGTH, 3)] * 4


def test_recorder_returns_the_steps_between_gradients() -> None:
    spec = NetworkSpec((4,), {"value": 1}, dense=(8,))
    recorder = Recorder()
    state, restart = np.zeros((2, 0), np.float32), np.zeros((3, 2), np.bool_)
    with recording(recorder):
        engine = HostEngine(spec, np.float32, (3, 2))
        engine.set_parameters(np.zeros(spec.layout().size, np.float32))
        for step in range(12):
            engine.act(np.ones((2, 4), np.float32), state, step % 3)
            if step % 3 == 2:
                engine.gradient(np.ones((3, 2, 4), np.float32), state, restart, lambda outputs, part: outputs)
            recorder.next_step()
    assert recorder.is_complete
    assert recorder.gradients == [2, 5, 8, 11]
    assert [len(calls) for calls in recorder.period()] == [1, 1, 2]
    assert HostEngine.act.__name__ == "act", "the methods are restored"


def test_parts_of_a_step_add_up() -> None:
    windows = {"emulator_only": [4000.0], "with_network": [2500.0], "training": [2000.0]}
    spent = {"client": Spent(0.6, 0.1), "worker": Spent(0.5, 0.2), "parameter_server": Spent(0.1, 0.0)}
    parts = results.parts_us(windows, [ProcessorUse(2, 8, 1.0, 2000, 10, spent, 0.05)])
    alone, network = 1e6 * cores() / 4000, 1e6 * cores() * (1 / 2500 - 1 / 4000)
    assert parts["environments"] == pytest.approx(alone)
    assert parts["network"] == pytest.approx(network)
    assert parts["clients and workers"] == pytest.approx(1e6 * 1.1 / 2000 - alone - network)
    assert parts["operating system"] == pytest.approx(1e6 * 0.3 / 2000)
    assert (parts["parameter server"], parts["idle"]) == (50.0, 25.0)


@pytest.mark.parametrize("config", ["da3c_ale_boxing", "da3c_gym_cartpole"])
def test_each_connection_has_a_process(config: str, tmp_path: Path) -> None:
    plan = make_plan(config, ["run.clients=2", "run.connections_per_client=3", "run.envs_per_client=1"])
    form = with_network(plan, tmp_path / "run.yaml")
    assert len(form.commands) == 6
    assert len({command[command.index("--seed") + 1] for command in form.commands}) == 6


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/bench", "relaax/client/program/measuring.py", "algorithms")
def test_program_steps_environments_and_computes(processes: Processes, tmp_path: Path) -> None:
    plan = make_plan("da3c_gym_cartpole", ["run.clients=1", "run.envs_per_client=2"])
    configuration = tmp_path / "run.yaml"
    configuration.write_text(json.dumps(plan.configuration.as_dict()), encoding="utf-8")
    ((interpreter, *command),) = with_network(plan, configuration).commands
    measured = tmp_path / "m.jsonl"
    processes.start(interpreter, *command, "--measure", measured)
    wait_until(lambda: measured.exists() and measured.read_text().count("\n") > 3, "four lines", 120)
    first, *_, last = map(json.loads, measured.read_text().splitlines())
    assert last["steps"] > first["steps"]
