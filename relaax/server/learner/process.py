"""The life of a learner: it waits for a model, registers, connects to replay memory and learns."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from relaax.algorithm_base import Algorithm, ConfigBase, LearnerContext, Registration, fingerprint
from relaax.algorithm_base.gradient_filters import agent_parameters
from relaax.configuration import ConfigurationError
from relaax.parameters.channel import Target
from relaax.parameters.interfaces import ParameterClientBase
from relaax.parameters.purposes import LEARN
from relaax.server.access import MakeReplay, use_of
from relaax.server.learner.interruption import Interruption
from relaax.server.learner.learning import LearnerState, learn
from relaax.server.learner.model_spaces import await_spaces
from relaax.server.learner.sampling import SampleAhead

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LearnerPlan:
    """What a learner is made of. `ready` is called as soon as the parameter server has answered, each time."""

    number: int
    algorithm: Algorithm
    config: ConfigBase
    targets: Sequence[Target]
    patience: float
    make_client: Callable[[], ParameterClientBase]
    make_replay: MakeReplay
    ready: Callable[[], None]

    def __post_init__(self) -> None:
        """Raise ConfigurationError if there is nothing to do for a learner."""
        name = self.algorithm.name
        if self.algorithm.Learner is None or self.algorithm.Replay is None:
            raise ConfigurationError(f"algorithm.path: {name} has no replay memory: its workers learn themselves")
        if self.algorithm.Replay.bundled(self.config):
            raise ConfigurationError(
                f"algorithm: as {name} is configured, each worker learns from a memory of its own: no learner is needed"
            )


def run(plan: LearnerPlan, state: LearnerState, interruption: Interruption) -> None:
    """Learn until an exception ends it: TrainingEnded, or what servers, learner and signals raise."""
    with contextlib.ExitStack() as ended, interruption.armed():
        _run(plan, state, interruption, ended)


def _run(plan: LearnerPlan, state: LearnerState, interruption: Interruption, ended: contextlib.ExitStack) -> None:
    """Learn. What is to be closed afterwards is given to `ended`."""
    algorithm, config = plan.algorithm, plan.config
    assert algorithm.Learner is not None

    def enter(phase: Literal["waiting", "learning"]) -> None:
        first, state.phase = state.phase == "starting", phase
        if first:
            plan.ready()

    def waiting() -> None:
        enter("waiting")
        interruption.check()

    spaces = await_spaces(plan.targets[0], algorithm, config, plan.patience, waiting)
    client = plan.make_client()
    ended.callback(client.close)
    client.register(
        Registration(
            fingerprint(algorithm.name, config, *spaces),
            environments=0,
            purpose=LEARN,
            environment=f"learner {plan.number}",
            host=socket.gethostname(),
        )
    )
    state.global_step = client.global_step
    enter("learning")
    _log.info("learner %d begins at global step %d", plan.number, client.global_step)
    replay = plan.make_replay(use_of(algorithm, config, spaces, number=plan.number))
    ended.callback(replay.close)
    observation_space, action_space = spaces
    context = LearnerContext(
        observation_space=observation_space,
        action_space=action_space,
        seed=config.seed,
        learner=plan.number,
        parameters=agent_parameters(client, config),
        metrics=client.metrics,
        replay=replay,
    )
    learner = algorithm.Learner(config, context)
    ended.callback(learner.close)
    samples = SampleAhead(replay, learner.batch_size)
    ended.callback(samples.close)
    learn(learner, samples, client, state, interruption)
