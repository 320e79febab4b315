"""The base class of agents: an agent acts, receives the outcomes, and computes gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from relaax.algorithm_base.acting.policy_graph import PolicyGraph
    from relaax.parameters.interfaces import MetricsRecorder, Parameters
    from relaax.replay.interfaces import ReplayMemory
    from relaax.rlx import Space


Leaves = list[npt.NDArray[Any]]
"""One array for each elementary part of a space, with a leading axis N."""

Mask = npt.NDArray[np.bool_]


class InvalidObservation(ValueError):
    """An observation that the agent cannot use. The client gets the text, a sentence that names the environment."""


@dataclass(slots=True)
class StepResult:
    """The outcome of one action in each of the N environments of a connection.

    The worker converts both autoreset modes of gymnasium, SAME_STEP and NEXT_STEP, to this form:

    - If `terminated[i]` or `truncated[i]` is true, the action ended environment i's episode. The last observation of
      the episode is row i of `final_observations`. `observations[i]` is the first of a new episode, and the agent must
      clear its state of environment i (frame stack, LSTM state).
    - If `first[i]` is true, the environment ignored the action and started an episode with `observations[i]`. The
      reward has no meaning. Such a transition is void: it must not enter any loss or counter.
    - If `unwanted[i]` is true, the environment will ignore the next action. If its episode did not end, its row is
      *held*: reward and observation have no meaning, and its last action is still in progress. The outcome of that
      action comes with a later step. Only agents with `AgentBase.out_of_step` get held rows.
    - If `chosen[i]` is true, the environment took another action than the agent's: row i of `actions`. This is never so
      in a void or held row. Only agents with `AgentBase.chosen_actions` get such rows.

    `rewards`: float64 [N]; the masks: bool [N]; `observations` and `final_observations`: leaves [N, ...]. All are
    read-only: leaves are views of the received message, and messages may share masks. `final_observations` is None if
    no episode ended. `unwanted` is None if it is all false. `chosen` and `actions` (leaves [N, ...], with any elements
    in other rows) are None if no action was chosen by the client.

    `ended`: where an episode ended, terminated or truncated. `restart`: where `observations` starts an episode.
    `plain`: whether `terminated`, `truncated` and `first` are the same array. Then all masks are false, as in most
    steps, because the three cannot all be true for an environment. `unwanted` is None then. `held`: bool [N], or None
    if no row is held.
    """

    rewards: npt.NDArray[np.float64]
    observations: Leaves
    terminated: Mask
    truncated: Mask
    first: Mask
    final_observations: Leaves | None = None
    unwanted: Mask | None = None
    chosen: Mask | None = None
    actions: Leaves | None = None
    ended: Mask = field(init=False)
    restart: Mask = field(init=False)
    plain: bool = field(init=False)
    held: Mask | None = field(init=False)

    def __post_init__(self) -> None:
        self.held = None
        self.plain = self.terminated is self.truncated is self.first and self.unwanted is None
        if self.plain:
            self.ended = self.restart = self.first
            return
        self.ended = self.terminated | self.truncated
        self.restart = self.ended | self.first
        if self.unwanted is not None:
            held = self.unwanted & ~self.ended
            self.held = held if held.any() else None

    def cut_off(self) -> Leaves | None:
        """Return the final observations of truncated episodes, leaves [N, ...]; None if no episode was truncated.

        In other rows the values of `final_observations` are undefined, so these rows are taken from `observations`.
        """
        if self.final_observations is None or not self.truncated.any():
            return None
        leaves = zip(self.final_observations, self.observations, strict=True)
        return [np.where(self.truncated.reshape(-1, *[1] * (f.ndim - 1)), f, seen) for f, seen in leaves]

    @property
    def acted(self) -> Mask:
        """Where an action was completed, bool [N]: neither void nor held."""
        return ~self.first if self.held is None else ~(self.first | self.held)

    @property
    def env_steps(self) -> int:
        """Number of environment steps: the completed actions."""
        return self.first.size if self.plain else int(np.count_nonzero(self.acted))


@dataclass(frozen=True, slots=True)
class AgentContext:
    """The arguments of an agent: the connection's spaces and actors, parameters, metrics, and replay memory.

    `actors` are the indices that shard 0 allotted to the connection's environments, and `seed` is the run's. An agent
    seeds its random numbers with both, `np.random.default_rng([context.seed, *context.actors])`, so that no two
    connections draw the same numbers. `replay` is the memory that the algorithm declares (`ReplayBase`); None if it
    declares none, or in exploit mode. `client` is the client's name in logs. `out_of_step`: whether steps may have
    held rows.
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
    out_of_step: bool = False


class AgentBase(ABC):
    """Base class of agents. All methods are batched over the N environments of the connection.

    The worker calls an agent in this loop, in one thread::

        agent = Agent(config, context)            # may run TensorFlow from here on
        actions = agent.reset(observations)
        while the connection is open:
            # the worker sends the actions; while the environments step:
            agent.learn()
            actions = agent.step(step)            # or agent.reset(...) if the client restarts all episodes
        agent.close()

    `reset` abandons the current episodes, without a terminal state or a bootstrap. `step` and `learn` may push to and
    pull from the parameter server through `context.parameters`. An agent must not catch the exceptions of
    `context.parameters`. Any other exception ends only this connection, with an error to its client.
    """

    out_of_step: ClassVar[bool] = False
    """Whether agents handle held rows (see `StepResult`). Otherwise clients that need them are not served."""

    chosen_actions: ClassVar[bool] = False
    """Whether agents learn from actions of the client (see `StepResult`). Otherwise clients that need this are not
    served.
    """

    def __init__(self, config: Any, context: AgentContext) -> None:
        self.config = config
        self.context = context

    @classmethod
    def refusal(cls, config: Any, observation_space: Space, action_space: Space) -> str | None:
        """Return why this algorithm does not support the spaces, or None if it does.

        The text is one sentence that names the space and the supported ones. This is called before TensorFlow runs.
        `state_size` and `action_size` are checked elsewhere, for every algorithm.
        """
        return None

    @classmethod
    def prepare(cls, config: Any, device: str) -> None:
        """Import the modules that agents on `device` (`cpu`, `gpu`, `gpu:I`) use and that are not imported yet.

        The default imports the modules of the engines of `relaax.nn`. This is called once, before workers are forked,
        so that workers share the imported modules. Importing must not run computations of TensorFlow.
        """
        from relaax.nn.engine import load_engines

        load_engines(device)

    @abstractmethod
    def reset(self, observations: Leaves) -> Leaves:
        """Return the first actions of new episodes in all environments: leaves [N, ...] for observations [N, ...]."""

    @abstractmethod
    def step(self, step: StepResult) -> Leaves:
        """Process the outcome of the last actions, and return the next actions, leaves [N, ...]."""

    def learn(self) -> None:  # noqa: B027 - an agent may learn in `step`
        """Learn while the environments step: the worker has sent the actions.

        This is called after every `reset` and `step`. Here the agent has the parameters and statistics with which it
        acted. Parameters that it pulls here are used from the next `step` on. An exception raised here ends the
        connection when the client asks for the next actions.
        """

    def policy_graph(self) -> PolicyGraph | None:
        """Return the greedy policy as data, for `relaax checkpoints export FILE.onnx`; None if not supported."""
        return None

    def close(self) -> None:  # noqa: B027 - optional
        """Release resources: the connection has ended."""
