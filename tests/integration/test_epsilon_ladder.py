"""Ape-X's ladder of epsilons with real servers: it spans the actors that are training."""

from __future__ import annotations

import json
import signal
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from relaax.algorithm_base import Box, Discrete
from relaax.algorithm_base.acting.exploration import ladder_of_epsilons
from relaax.rlx import Mode
from support.metrics_page import scalars
from support.processes import Processes, Running, wait_until
from support.rlx_line import Line
from support.service import PARAMETER_SERVER, REPLAY_SERVER, RLX_SERVER, status_of

pytestmark = pytest.mark.checks("relaax/server", "algorithms/apex", "relaax/cli/run")

ENVIRONMENTS = 4  # per connection
INTERVAL = 10
OF_EIGHT = float(ladder_of_epsilons(range(8), 8).mean())
PATIENCE = 90.0


class Actors:
    """An Ape-X service without learners, and its training connections, which step in turn."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self._processes, self._folder = processes, folder
        document = {
            "relaax-parameter-server": {"checkpoint-dir": str(folder / "kept"), "metrics-dir": str(folder / "metrics")},
            "algorithm": {"path": "apex", "network": {"dense": [8]}, "actor_interval": INTERVAL},
        }
        self._config = folder / "apex.yaml"
        self._config.write_text(json.dumps(document))  # JSON is YAML
        self._servers: list[Running] = []
        self._open = ExitStack()
        self._lines: list[Line] = []
        self.parameter_server = self.address = ""

    def start(self, connections: int) -> None:
        bind = ("--config", self._config, "--bind", "127.0.0.1:0")
        first, self.parameter_server = self._processes.start_server(*PARAMETER_SERVER, *bind)
        second, replay_server = self._processes.start_server(*REPLAY_SERVER, *bind)
        services = ("--parameter-server", self.parameter_server, "--replay-server", replay_server)
        third, self.address = self._processes.start_server(*RLX_SERVER, *bind, *services)
        self._servers = [third, second, first]
        self.connect(connections)

    def connect(self, connections: int) -> None:
        for _ in range(connections):
            self._lines.append(self.line(ENVIRONMENTS))
        self.step()

    def line(self, environments: int, mode: Mode = Mode.TRAIN) -> Line:
        """Return a connection that has started to act."""
        line = self._open.enter_context(Line(self.address))
        line.open(environments=environments, observation_space=Box(-1, 1, (2,)), action_space=Discrete(2), mode=mode)
        line.init()
        return line

    def disconnect(self, connections: int) -> None:
        """Close the sockets of the first `connections`, as killed clients do."""
        for _ in range(connections):
            self._lines.pop(0).socket.close()

    def stop(self) -> None:
        self._open.close()
        self._lines.clear()
        for server in self._servers:
            server.stop(signal.SIGTERM)

    def step(self) -> None:
        for _ in range(INTERVAL):
            for line in self._lines:
                line.step()

    def expect_mean(self, expected: float) -> None:
        """Step until the last three mean epsilons in the metrics are within 10 % of `expected`."""
        before, seen = len(self._written()), [0.0]

        def has_settled() -> bool:
            self.step()
            seen[:] = self._written()[before:]
            return len(seen) >= 3 and bool(np.all(np.abs(np.array(seen[-3:]) / expected - 1) < 0.1))

        try:
            wait_until(has_settled, f"a mean epsilon of {expected:.4f}", PATIENCE)
        except AssertionError as late:
            raise AssertionError(f"{late}; seen: {seen}") from None

    def _written(self) -> list[float]:
        return scalars(self._folder / "metrics").get("epsilon", [])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_epsilon_ladder_follows_the_training_actors(processes: Processes, tmp_path: Path, short: bool) -> None:
    actors = Actors(processes, tmp_path)
    actors.start(2)
    actors.expect_mean(OF_EIGHT)
    for _ in range(1 if short else 2):
        steps = status_of(actors.parameter_server).global_step
        actors.stop()
        actors.start(2)
        assert status_of(actors.parameter_server).global_step > steps > 0, "training is resumed"
        actors.expect_mean(OF_EIGHT)
    actors.disconnect(1)
    actors.connect(1)
    actors.expect_mean(OF_EIGHT)
    actors.line(64, Mode.EXPLOIT)
    actors.disconnect(1)
    actors.connect(1)
    actors.expect_mean(OF_EIGHT)
    actors.connect(2)
    actors.expect_mean(float(ladder_of_epsilons(range(16), 16).mean()))
    actors.disconnect(2)
    actors.expect_mean(OF_EIGHT)
    actors.stop()
