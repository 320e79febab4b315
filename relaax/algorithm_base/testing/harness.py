"""Agents and learners with the context that a worker would give them."""

from __future__ import annotations

from collections.abc import Callable

from relaax.algorithm_base.acting.policy_graph import PolicyGraph
from relaax.algorithm_base.agent import AgentBase, AgentContext, Leaves, StepResult
from relaax.algorithm_base.config import ConfigBase
from relaax.algorithm_base.learner import LearnerBase, LearnerContext
from relaax.algorithm_base.testing.fake_parameters import FakeParameters
from relaax.algorithm_base.testing.random_environments import RandomEnvironments
from relaax.hosting.fingerprint import fingerprint
from relaax.hosting.loader import Algorithm
from relaax.parameters.interfaces import EXPLOIT, TRAIN, Registration
from relaax.replay.interfaces import ReplayMemory
from relaax.replay.local import LocalReplay
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
    out_of_step: bool = False,
    parameters: FakeParameters | None = None,
    replay: ReplayMemory | None = None,
) -> tuple[AgentBase, FakeParameters]:
    """Return an agent and its registered parameters. Without `parameters`, they are the initial ones.

    If the algorithm has a replay memory, it is `replay`, or a new one in this process. If the algorithm uses separate
    learners, `learn` of the returned agent also runs one.
    """
    if parameters is None:
        server = algorithm.ParameterServer(config, observation_space, action_space)
        parameters = FakeParameters(
            server.initial_parameters(config.seed),
            statistics=server.statistics(),
            target=server.target_interval(),
            learning_rates=server.learning_rates(),
        )
    parameters.first_actor = first_actor
    name = fingerprint(algorithm.name, config, observation_space, action_space)
    registered = parameters.register(
        Registration(name, environments=environments, purpose=EXPLOIT if exploit else TRAIN)
    )
    if replay is None and not exploit:
        replay = local_replay(algorithm, config, observation_space, action_space, environments)
    context = AgentContext(
        observation_space=observation_space,
        action_space=action_space,
        environments=environments,
        actors=registered.actors,
        seed=config.seed,
        exploit=exploit,
        parameters=parameters,
        metrics=parameters.metrics,
        replay=replay,
        out_of_step=out_of_step,
    )
    agent = algorithm.Agent(config, context)
    if context.replay is None or not algorithm.learns_separately(config):
        return agent, parameters
    return AgentWithLearner(agent, make_learner(algorithm, config, context)), parameters


def local_replay(
    algorithm: Algorithm, config: ConfigBase, observation_space: Space, action_space: Space, environments: int
) -> LocalReplay | None:
    """Return the replay memory that the algorithm declares, in this process; None if it declares none."""
    if algorithm.Replay is None:
        return None
    declaration = algorithm.Replay(config, observation_space, action_space).table()
    return LocalReplay(declaration, environments, groups=2, seed=config.seed)


def make_learner(algorithm: Algorithm, config: ConfigBase, context: AgentContext) -> LearnerBase:
    """Return a learner that shares the replay memory and the parameters of an agent's context."""
    assert algorithm.Learner is not None, f"{algorithm.name} has no learner"
    return algorithm.Learner(config, LearnerContext.beside(context, 0))


class AgentWithLearner(AgentBase):
    """An agent and a separate learner of its memory, which are two processes in a run."""

    def __init__(self, agent: AgentBase, learner: LearnerBase) -> None:
        super().__init__(agent.config, agent.context)
        self._agent, self._learner = agent, learner

    def reset(self, observations: Leaves) -> Leaves:
        return self._agent.reset(observations)

    def step(self, step: StepResult) -> Leaves:
        return self._agent.step(step)

    def learn(self) -> None:
        """Run `learn` of the agent, then updates of the learner: at most one for each environment."""
        self._agent.learn()
        replay = self.context.replay
        assert replay is not None, "a learner needs a replay memory"
        for _ in range(self.context.environments):
            sampled = replay.sample(self._learner.batch_size, timeout=0.0)
            if sampled is None:
                return
            self._learner.step(sampled)

    def policy_graph(self) -> PolicyGraph | None:
        return self._agent.policy_graph()

    def close(self) -> None:
        self._agent.close()
        self._learner.close()


def live(
    agent: AgentBase,
    environments: RandomEnvironments,
    steps: int,
    edit: Callable[[int, StepResult], StepResult] = lambda _, step: step,
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Run an agent from a reset for `steps` steps, or until `until()` is true. `edit` may change each outcome."""
    actions = agent.reset(environments.reset())
    agent.learn()
    for number in range(steps):
        actions = agent.step(edit(number, environments.step(actions)))
        agent.learn()
        if until():
            return
