"""An agent in the place where a worker would have put it."""

from __future__ import annotations

from collections.abc import Callable

from relaax.algorithm_base.agent import AgentBase, AgentContext
from relaax.algorithm_base.config import ConfigBase
from relaax.algorithm_base.fingerprint import fingerprint
from relaax.algorithm_base.loader import Algorithm
from relaax.algorithm_base.step import StepResult
from relaax.algorithm_base.testing.fake_parameters import FakeParameters
from relaax.algorithm_base.testing.random_environments import RandomEnvironments
from relaax.parameters.interfaces import Registration
from relaax.parameters.purposes import EXPLOIT, TRAIN
from relaax.rlx import Space


def make_agent(
    algorithm: Algorithm,
    config: ConfigBase,
    observation_space: Space,
    action_space: Space,
    *,
    environments: int = 1,
    exploit: bool = False,
    first_actor: int = 0,
    parameters: FakeParameters | None = None,
) -> tuple[AgentBase, FakeParameters]:
    """Make an agent, with `parameters` or else the initial ones, registered as a worker does it."""
    if parameters is None:
        server = algorithm.ParameterServer(config, observation_space, action_space)
        parameters = FakeParameters(
            server.initial_parameters(config.seed), statistics=server.statistics(), target=server.target_interval()
        )
    name = fingerprint(algorithm.name, config, observation_space, action_space)
    registered = parameters.register(
        Registration(name, environments=environments, purpose=EXPLOIT if exploit else TRAIN)
    )
    context = AgentContext(
        observation_space=observation_space,
        action_space=action_space,
        environments=environments,
        actors=tuple(actor + first_actor for actor in registered.actors),
        seed=config.seed,
        exploit=exploit,
        parameters=parameters,
        metrics=parameters.metrics,
    )
    return algorithm.Agent(config, context), parameters


def live(
    agent: AgentBase,
    environments: RandomEnvironments,
    steps: int,
    edit: Callable[[int, StepResult], StepResult] = lambda _, step: step,
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Let an agent live from a reset on, for so many steps or `until`. `edit` may change what the agent is told."""
    actions = agent.reset(environments.reset())
    agent.learn()
    for number in range(steps):
        actions = agent.step(edit(number, environments.step(actions)))
        agent.learn()
        if until():
            return
