"""The algorithm's side of a connection: it acts and computes gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relaax.algorithm_base.step import Leaves, StepResult

if TYPE_CHECKING:
    from relaax.algorithm_base.policy_graph import PolicyGraph
    from relaax.parameters.interfaces import MetricsRecorder, Parameters
    from relaax.replay.interfaces import ReplayMemory
    from relaax.rlx import Space


@dataclass(frozen=True, slots=True)
class AgentContext:
    """What a worker gives the agent it makes: the connection's spaces and place in training, parameters and metrics.

    `actors` are the indices that shard 0 allotted to the connection's environments, and `seed` is the run's: an agent
    seeds its random numbers with both, `np.random.default_rng([context.seed, *context.actors])`, so that no two
    connections draw the same. `replay` is the memory that the algorithm declares (`ReplayBase`), None if it declares
    none or only acts. `client` is what logs call the connection's client.
    """

    observation_space: Space
    action_space: Space
    environments: int
    actors: tuple[int, ...]
    seed: int
    exploit: bool
    parameters: Parameters
    metrics: MetricsRecorder
    replay: ReplayMemory | None = None
    client: str = ""


class AgentBase(ABC):
    """What an algorithm author implements. Always batched over the N environments of the connection.

    The loop that drives it, in the worker process, one thread::

        agent = Agent(config, context)            # may run TensorFlow from here on
        actions = agent.reset(observations)
        while the connection lives:
            # the actions are sent, and the environments step, while
            agent.learn()
            actions = agent.step(step)            # or agent.reset(...) if the client starts all episodes anew
        agent.close()

    `reset` abandons whatever was going on: no terminal, no bootstrap. `step` and `learn` may push to and pull from the
    parameter server through `context.parameters`, whose exceptions pass through. Any other exception ends this
    connection with an error to its client, and nothing else.
    """

    def __init__(self, config: Any, context: AgentContext) -> None:
        self.config = config
        self.context = context

    @classmethod
    def refusal(cls, config: Any, observation_space: Space, action_space: Space) -> str | None:
        """Return why this algorithm cannot handle the spaces: one sentence that names the space and what it can handle.

        None if it can. Called before anything of TensorFlow runs. `state_size` and `action_size` are checked
        for every algorithm besides.
        """
        return None

    @classmethod
    def prepare(cls, config: Any, device: str) -> None:
        """Import what agents on `device` (`cpu`, `gpu`, `gpu:I`) need and the algorithm's modules do not import.

        By default what the engines of `relaax.nn` need. Called once, before workers are forked: they share what was
        imported then, and each would import for itself what was not. Nothing of it may run here.
        """
        from relaax.nn.engine import load_engines

        load_engines(device)

    @abstractmethod
    def reset(self, observations: Leaves) -> Leaves:
        """Every environment starts an episode. Leaves [N, ...] of observations in, leaves [N, ...] of actions out."""

    @abstractmethod
    def step(self, step: StepResult) -> Leaves:
        """Return the outcome of the last actions in, the next actions out."""

    def learn(self) -> None:  # noqa: B027 - an agent may do all of it in `step`
        """Do what can wait until the actions are on their way: the environments step meanwhile.

        Called after every `reset` and `step`. What an agent does here instead of in `step`, it does with parameters
        and statistics as they were when it acted, and what it fetches here serves from the next `step` on. What it
        raises here ends the connection when the client asks for the next actions.
        """

    def policy_graph(self) -> PolicyGraph | None:
        """Return what is computed to act, for `relaax checkpoints export FILE.onnx`; None if that cannot be told."""
        return None

    def close(self) -> None:  # noqa: B027 - nothing to do is a good default
        """The connection has ended."""
