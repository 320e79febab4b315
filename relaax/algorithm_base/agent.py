"""The algorithm's side of a connection: it acts, is told the outcomes, and computes gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from relaax.algorithm_base.policy_graph import PolicyGraph
    from relaax.parameters.interfaces import MetricsRecorder, Parameters
    from relaax.replay.interfaces import ReplayMemory
    from relaax.rlx import Space


Leaves = list[npt.NDArray[Any]]
"""One array per elementary part of a space, each with a leading axis N."""

Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class StepResult:
    """The outcome of one action in each of the N environments of a connection.

    The worker brings both of gymnasium's habits of ending episodes into this one form:

    - `terminated[i]` or `truncated[i]` says that the action ended environment i's episode, whose last observation is
      row i of `final_observations`. Whatever the agent remembers of that episode (frame stack, LSTM state) ends
      there, and `observations[i]` starts afresh.
    - `first[i]` says that there was nothing to act on: the action was ignored, the reward is void and
      `observations[i]` starts an episode. Such a transition belongs into no loss and no counter.

    `rewards`: float64 [N]; the masks: bool [N]; `observations` and `final_observations`: leaves [N, ...]. None of them
    may be written: leaves are views of what came over the wire, and messages may share masks.
    `final_observations` is None if no episode ended.

    `ended`: where an episode ended, either way. `restart`: where `observations` starts one. `plain`: nothing is marked
    anywhere, as in most steps; the three masks are then one and the same array (no environment could be marked in all
    of them), and so are these two.
    """

    rewards: npt.NDArray[np.float64]
    observations: Leaves
    terminated: Mask
    truncated: Mask
    first: Mask
    final_observations: Leaves | None = None
    ended: Mask = field(init=False)
    restart: Mask = field(init=False)
    plain: bool = field(init=False)

    def __post_init__(self) -> None:
        self.plain = self.terminated is self.truncated is self.first
        if self.plain:
            self.ended = self.restart = self.first
            return
        self.ended = self.terminated | self.truncated
        self.restart = self.ended | self.first

    def cut_off(self) -> Leaves | None:
        """Return the final observations of truncated episodes, leaves [N, ...]; None if there is none.

        Elsewhere final observations may hold anything, so what is seen next stands in for them.
        """
        if self.final_observations is None or not self.truncated.any():
            return None
        leaves = zip(self.final_observations, self.observations, strict=True)
        return [np.where(self.truncated.reshape(-1, *[1] * (f.ndim - 1)), f, seen) for f, seen in leaves]

    @property
    def env_steps(self) -> int:
        """How many of the N actions counted."""
        return self.first.size if self.plain else int(self.first.size - np.count_nonzero(self.first))


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
