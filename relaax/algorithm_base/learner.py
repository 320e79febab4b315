"""The algorithm's side of a learner: it samples replay memory and computes gradients."""

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
    """What a learner is made with. `learner` is its number, from 0; a worker that bundles one gives its first actor."""

    observation_space: Space
    action_space: Space
    seed: int
    learner: int
    parameters: Parameters
    metrics: MetricsRecorder
    replay: ReplayMemory

    @classmethod
    def beside(cls, agent: AgentContext, learner: int) -> LearnerContext:
        """Return the context of a learner with an agent's memory, and its way to the parameter server."""
        assert agent.replay is not None, "an agent that only acts has no memory"
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
    """What an algorithm author implements for a `relaax-learner`, or has an agent drive.

    The loop that drives it, one thread; another one samples ahead::

        learner = Learner(config, context)
        while training goes on:
            learner.step(sampled)
        learner.close()

    `step` pushes to and pulls from the parameter server through `context.parameters`, and gives new priorities to
    `context.replay`; their exceptions pass through. Any other exception ends the process.
    """

    def __init__(self, config: Any, context: LearnerContext) -> None:
        self.config = config
        self.context = context

    @property
    @abstractmethod
    def batch_size(self) -> int:
        """How many items `step` wants."""

    @abstractmethod
    def step(self, sampled: Sampled) -> None:
        """Learn from a batch: one update."""

    def close(self) -> None:  # noqa: B027 - nothing to do is a good default
        """The learner has ended."""


def record_sample(metrics: MetricsRecorder, sampled: Sampled) -> None:
    """Record how full the memory is that items were drawn from, and how old they are. For who drives a learner."""
    metrics.scalar("replay/size", float(sampled.size))
    metrics.scalar("replay/sample_age", float(sampled.ages.mean()))
