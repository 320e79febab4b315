"""The life of a learner beside a real parameter server, with a replay memory in this process."""

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
from support.nobody import nobody
from support.parameter_servers import Running, bridge_to, running
from support.processes import wait_until

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
    """Notes its end."""

    closed = False

    def close(self) -> None:
        super().close()
        self.closed = True


class Memories:
    """Makes the one memory of a test, and remembers what it was asked for."""

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


def test_it_waits_for_the_first_worker_and_learns_until_training_ends(
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
        wait_until(lambda: learner.state.phase == "waiting", "it has asked")
        assert server.core.status().learners == 0
        with bridge_to(server.address) as bridge:
            bridge.register(worker(algorithm, config))
            bridge.pull()
            wait_until(lambda: memories.made, "it has a memory")
            columns = {"observation": np.zeros((20, 3), np.float32), "reward": np.zeros(20, np.float32)}
            memories.made[0].writers[0].insert(Insertion(columns))
            wait_until(lambda: server.version >= 5, "it pushes")
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
    wait_until(lambda: server.core.registry.count() == 0, "both have left")


def test_learners_and_workers_draw_differently(algorithm: Algorithm, config: ConfigBase) -> None:
    seeds = [replay_use(algorithm, config, SPACES, number=number).seed for number in range(3)]
    seeds += [replay_use(algorithm, config, SPACES, actors=actors).seed for actors in ([1], [2])]
    assert len(set(seeds)) == 5
    assert seeds[0] == replay_use(algorithm, config, SPACES).seed


def test_a_learner_of_another_configuration_says_in_what_it_differs(
    server: Running, algorithm: Algorithm, config: ConfigBase
) -> None:
    with bridge_to(server.address) as bridge:
        bridge.register(worker(algorithm, config))
        other = algorithm.configure(section(batch=16))
        error = Started(plan_for(server.address, algorithm, other, Memories())).join()
    assert isinstance(error, ParameterServerError)
    assert str(error) == (
        f"parameter server {server.address} has another configuration than this learner: "
        "configuration.batch: 16 at this learner, 8 at the parameter server; use the same configuration for both"
    )


def test_a_parameter_server_that_is_away_is_waited_for_for_a_bounded_time(
    algorithm: Algorithm, config: ConfigBase
) -> None:
    with nobody() as address:
        error = Started(plan_for(address, algorithm, config, Memories(), patience=0.3)).join()
    assert isinstance(error, ParameterServerUnavailable)


def test_one_that_goes_away_while_there_is_nothing_to_learn_from_is_missed(
    server: Running, algorithm: Algorithm, config: ConfigBase
) -> None:
    with bridge_to(server.address) as bridge:
        bridge.register(worker(algorithm, config))
        memories = Memories()
        learner = Started(plan_for(server.address, algorithm, config, memories, patience=0.3))
        wait_until(lambda: memories.made, "it has begun")
    server.stop()
    assert isinstance(learner.join(), ParameterServerUnavailable)
    assert memories.made[0].closed


def test_an_algorithm_without_work_for_learners_is_refused(algorithm: Algorithm, config: ConfigBase) -> None:
    bundled = algorithm.configure(section(bundle=True))
    with pytest.raises(ConfigurationError, match="each worker learns from its own replay memory: start no learner"):
        plan_for("localhost:1", algorithm, bundled, Memories())
    da3c = load_algorithm("da3c", Path.cwd())
    with pytest.raises(ConfigurationError, match=r"algorithm.path: da3c does not use learners"):
        plan_for("localhost:1", da3c, config, Memories())
