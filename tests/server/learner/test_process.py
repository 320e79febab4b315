"""A learner with a real parameter server and a replay memory in this process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import ConfigBase, load_algorithm
from relaax.configuration import ConfigurationError
from relaax.hosting.fingerprint import fingerprint
from relaax.hosting.loader import Algorithm
from relaax.parameters.client import ParameterClient
from relaax.parameters.interfaces import ParameterServerError, ParameterServerUnavailable, Registration, TrainingEnded
from relaax.replay.interfaces import Insertion
from relaax.replay.local import LocalReplay
from relaax.rlx import Box, Discrete
from relaax.server.access import ReplayUse, replay_use
from relaax.server.command.configuration import description
from relaax.server.learner import process as model_spaces
from relaax.server.learner.learning import Interruption, LearnerState
from relaax.server.learner.process import LearnerPlan, run
from relaax.server.parameter_server.command.models import AlgorithmModels
from relaax.transport.channel import Target
from support import replay_algorithm
from support.parameter_servers import Running, parameter_client, running
from support.processes import wait_until
from support.unused_address import unused_address

SOURCE = Path(replay_algorithm.__file__)
SPACES = Box(-1, 1, shape=(3,)), Discrete(2)


@pytest.fixture
def algorithm() -> Algorithm:
    return load_algorithm(str(SOURCE), SOURCE.parent)


@pytest.fixture
def config(algorithm: Algorithm) -> ConfigBase:
    return algorithm.configure(section())


def section(**keys: Any) -> dict[str, Any]:
    return {"path": str(SOURCE), "max_global_step": 100, **keys}


@pytest.fixture
def server(algorithm: Algorithm, config: ConfigBase) -> Iterator[Running]:
    with running(AlgorithmModels(algorithm, config)) as started:  # type: ignore[arg-type]
        started.core.description = description(algorithm.name, config)
        yield started


class NotedReplay(LocalReplay):
    """A replay memory that records whether it is closed."""

    closed = False

    def close(self) -> None:
        super().close()
        self.closed = True


class Memories:
    """A factory of replay memories that records its arguments."""

    def __init__(self) -> None:
        self.uses: list[ReplayUse] = []
        self.made: list[NotedReplay] = []

    def __call__(self, use: ReplayUse) -> LocalReplay:
        self.uses.append(use)
        self.made.append(NotedReplay(use.declaration, environments=1))
        return self.made[-1]


class Started:
    """A learner in a thread."""

    def __init__(self, plan: LearnerPlan) -> None:
        self.state = LearnerState(plan.number)
        self.error: BaseException | None = None
        self._plan = plan
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            run(self._plan, self.state, Interruption())
        except Exception as error:
            self.error = error

    def join(self) -> BaseException | None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.error


def plan_for(
    address: str, algorithm: Algorithm, config: ConfigBase, memories: Memories, patience: float = 30.0, number: int = 0
) -> LearnerPlan:
    def client() -> ParameterClient:
        return ParameterClient(address, unavailable_after=patience)

    return LearnerPlan(number, algorithm, config, [Target(address)], patience, client, memories, lambda: None)


def worker(algorithm: Algorithm, config: ConfigBase) -> Registration:
    return Registration(fingerprint(algorithm.name, config, *SPACES))


def test_learner_waits_for_a_worker_and_ends_with_training(
    server: Running,
    algorithm: Algorithm,
    config: ConfigBase,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(model_spaces, "POLL_SECONDS", 0.01)
    ended: list[int] = []
    assert algorithm.Learner is not None
    monkeypatch.setattr(algorithm.Learner, "close", lambda learner: ended.append(learner.context.learner))
    memories = Memories()
    with caplog.at_level(logging.INFO):
        learner = Started(plan_for(server.address, algorithm, config, memories, number=3))
        wait_until(lambda: learner.state.phase == "waiting", "it waits for a model")
        assert server.core.status().learners == 0
        with parameter_client(server.address) as bridge:
            bridge.register(worker(algorithm, config))
            bridge.pull()
            wait_until(lambda: memories.made, "the learner has a replay memory")
            columns = {"observation": np.zeros((20, 3), np.float32), "reward": np.zeros(20, np.float32)}
            memories.made[0].writers[0].insert(Insertion(columns))
            wait_until(lambda: server.version >= 5, "the learner pushes")
            status = server.core.status()
            assert (status.learners, status.workers, status.global_step) == (1, 1, 0)
            (described,) = [each for each in server.core.registry.connected() if not each.purpose.acts]
            assert described.origin.environment == "learner 3"
            with pytest.raises(TrainingEnded):
                bridge.push(None, env_steps=100)
            assert isinstance(learner.join(), TrainingEnded)
    assert caplog.text.count("waiting for the first worker") == 1
    use = memories.uses[0]
    assert (use.declaration.spec.name, use.actors, use.session) == (replay_algorithm.NAME, (), "")
    assert ended == [3]
    assert use.declaration.spec.fields["observation"].shape == (3,)
    wait_until(lambda: server.core.registry.count() == 0, "both have deregistered")


def test_learners_and_workers_have_different_random_numbers(algorithm: Algorithm, config: ConfigBase) -> None:
    seeds = [replay_use(algorithm, config, SPACES, number=number).seed for number in range(3)]
    seeds += [replay_use(algorithm, config, SPACES, actors=actors).seed for actors in ([1], [2])]
    assert len(set(seeds)) == 5
    assert seeds[0] == replay_use(algorithm, config, SPACES).seed


def test_different_configuration_is_reported_with_the_difference(
    server: Running, algorithm: Algorithm, config: ConfigBase
) -> None:
    with parameter_client(server.address) as bridge:
        bridge.register(worker(algorithm, config))
        other = algorithm.configure(section(batch=16))
        error = Started(plan_for(server.address, algorithm, other, Memories())).join()
    assert isinstance(error, ParameterServerError)
    assert str(error) == (
        f"parameter server {server.address} has another configuration than this learner: "
        "configuration.batch: 16 at this learner, 8 at the parameter server; use the same configuration for both"
    )


def test_unavailable_parameter_server_ends_the_learner(algorithm: Algorithm, config: ConfigBase) -> None:
    with unused_address() as address:
        error = Started(plan_for(address, algorithm, config, Memories(), patience=0.3)).join()
    assert isinstance(error, ParameterServerUnavailable)


def test_lost_parameter_server_ends_learner_without_samples(
    server: Running, algorithm: Algorithm, config: ConfigBase
) -> None:
    with parameter_client(server.address) as bridge:
        bridge.register(worker(algorithm, config))
        memories = Memories()
        learner = Started(plan_for(server.address, algorithm, config, memories, patience=0.3))
        wait_until(lambda: memories.made, "it has started")
    server.stop()
    assert isinstance(learner.join(), ParameterServerUnavailable)
    assert memories.made[0].closed


def test_algorithm_without_learners_is_rejected(algorithm: Algorithm, config: ConfigBase) -> None:
    bundled = algorithm.configure(section(bundle=True))
    with pytest.raises(ConfigurationError, match="each worker learns from its own replay memory: start no learner"):
        plan_for("localhost:1", algorithm, bundled, Memories())
    da3c = load_algorithm("da3c", Path.cwd())
    with pytest.raises(ConfigurationError, match=r"algorithm.path: da3c does not use learners"):
        plan_for("localhost:1", da3c, config, Memories())
