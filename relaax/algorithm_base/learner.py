"""The base class of learners: a learner computes gradients from samples of replay memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relaax.algorithm_base.agent import AgentContext
    from relaax.parameters.interfaces import MetricsRecorder, Parameters
    from relaax.replay.interfaces import ReplayMemory, Sampled
    from relaax.rlx import Space


@dataclass(frozen=True, slots=True)
class LearnerContext:
    """The arguments of a learner.

    `learner` is its index, from 0. For a bundled learner it is the index of the worker's first actor.
    """

    observation_space: Space
    action_space: Space
    seed: int
    learner: int
    parameters: Parameters
    metrics: MetricsRecorder
    replay: ReplayMemory

    @classmethod
    def beside(cls, agent: AgentContext, learner: int) -> LearnerContext:
        """Return the context of a learner that shares an agent's memory and its connection to the parameter server."""
        assert agent.replay is not None, "an agent in exploit mode has no replay memory"
        return cls(
            agent.observation_space,
            agent.action_space,
            agent.seed,
            learner,
            agent.parameters,
            agent.metrics,
            agent.replay,
        )


class LearnerBase(ABC):
    """Base class of learners, for `relaax-learner` processes or for agents that bundle a learner.

    A process calls a learner in this loop, in one thread; another thread samples in advance::

        learner = Learner(config, context)
        while training continues:
            learner.step(sampled)
        learner.close()

    `step` pushes to and pulls from the parameter server through `context.parameters`, and updates priorities through
    `context.replay`. A learner must not catch their exceptions. Any other exception ends the process.
    """

    def __init__(self, config: Any, context: LearnerContext) -> None:
        self.config = config
        self.context = context

    @property
    @abstractmethod
    def batch_size(self) -> int:
        """Number of items that `step` needs."""

    @abstractmethod
    def step(self, sampled: Sampled) -> None:
        """Make one update from a batch."""

    def close(self) -> None:  # noqa: B027 - optional
        """Release resources: the learner has ended."""


def record_sample(metrics: MetricsRecorder, sampled: Sampled) -> None:
    """Record the size of the sampled memory and the mean age of the items. The caller of `step` calls it."""
    metrics.scalar("replay/size", float(sampled.size))
    metrics.scalar("replay/sample_age", float(sampled.ages.mean()))
