"""The messages of RLX as Python values.

Observations and actions are lists of *leaves*: one numpy array for each elementary part of the space
(`relaax.rlx.spaces`). Each leaf has a leading axis N, the number of environments of the connection.
Optional boolean masks are None if no element is true, else a bool array of shape [N].
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from relaax.rlx.errors import ErrorCode, ProtocolError, shortened
from relaax.rlx.spaces import Space

PROTOCOL_VERSION = 1
MAX_ENVIRONMENTS = 65_536  # on one connection
MAX_FRAME_SKIP = 1_000
MAX_REWARD = 1e15
"""The largest magnitude of a reward. The square of a sum of 10,000 such rewards fits float32, which agents use."""
MAX_ENVIRONMENT_PARAMETERS = 64  # of an environment
MAX_NUMBER = 1e30
"""The largest magnitude of a return, a parameter and a metric's value. Sums of such numbers do not overflow float64."""

Leaves = list[npt.NDArray[np.generic]]
Mask = npt.NDArray[np.bool_]
Rewards = npt.NDArray[np.float64]
Parameters = npt.NDArray[np.float64]


class Autoreset(enum.IntEnum):
    """The autoreset modes of gymnasium: how an environment starts the next episode."""

    DISABLED = 1
    SAME_STEP = 2
    NEXT_STEP = 3


class Mode(enum.IntEnum):
    """Whether the agent learns from the client's experience (TRAIN) or only acts (EXPLOIT)."""

    TRAIN = 1
    EXPLOIT = 2


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that the server sets for a connection. Times are in seconds, sizes in bytes."""

    max_frame_bytes: int = 64 * 2**20
    idle_timeout_seconds: float = 600.0
    heartbeat_seconds: float = 10.0
    max_metric_name_bytes: int = 128
    max_metric_names: int = 256
    max_environments: int = 0
    """0 if the server does not announce it."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a client: its spaces, environments and mode."""

    observation_space: Space
    action_space: Space
    environments: int = 1
    autoreset: Sequence[Autoreset] = (Autoreset.DISABLED,)
    mode: Mode = Mode.TRAIN
    protocol_version: int = PROTOCOL_VERSION
    client_name: str = ""
    client_version: str = ""
    token: str = field(default="", repr=False)
    environment: str = ""
    host: str = ""
    frame_skip: int = 1
    session_id: str = ""
    reports_episodes: bool = False
    out_of_step: bool = False
    chosen_actions: bool = False
    environment_parameters: bool = False


@dataclass(frozen=True, slots=True)
class Welcome:
    """The server's answer to hello."""

    session_id: str
    algorithm: str
    limits: Limits = Limits()
    protocol_version: int = PROTOCOL_VERSION
    server_version: str = ""
    out_of_step: bool = False
    chosen_actions: bool = False
    environment_parameters: bool = False
    parameter_names: Sequence[str] = ()
    parameters: Parameters | None = None
    """Values for the first episode of each environment, float64 of shape [N x P]; None without `parameter_names`."""


@dataclass(frozen=True, slots=True)
class Episode:
    """A whole episode as the environment counts it: the sum of its rewards, and its length in environment steps."""

    environment: int
    episode_return: float
    length: int


@dataclass(frozen=True, slots=True)
class Init:
    """The first observation of an episode in every environment.

    `partial`: the episodes that had begun before this connection. `idle`: the environments that want no action.
    """

    observation: Leaves
    partial: Mask | None = None
    idle: Mask | None = None


@dataclass(slots=True)
class Step:
    """The outcome of the last actions. Rewards are float64 of shape [N].

    `chosen`: the environments that took the client's action, in `action`, instead of the agent's.

    Most messages are `Step` and `Actions`. They are not frozen, because that would double the time to make one.
    """

    reward: Rewards
    observation: Leaves
    terminated: Mask | None = None
    truncated: Mask | None = None
    final_observation: Leaves | None = None
    first: Mask | None = None
    episodes: Sequence[Episode] = ()
    idle: Mask | None = None
    chosen: Mask | None = None
    action: Leaves | None = None


@dataclass(frozen=True, slots=True)
class Reset:
    """The end of the episode of every environment."""

    reward: Rewards
    truncated: Mask | None = None
    final_observation: Leaves | None = None
    episodes: Sequence[Episode] = ()
    chosen: Mask | None = None
    action: Leaves | None = None


@dataclass(frozen=True, slots=True)
class Metrics:
    """Metrics of the environment, as (name, value) pairs."""

    scalars: Sequence[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Ping:
    """A request for a pong with the same nonce."""

    nonce: int = 0


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to ping."""

    nonce: int = 0


@dataclass(frozen=True, slots=True)
class Bye:
    """The last message of a sender that closes the connection."""

    reason: str = ""


@dataclass(slots=True)
class Actions:
    """The actions to take next.

    `parameters_of`: indices of the environments that have new parameters for their next episode, increasing.
    `parameters`: their values, float64 of shape [len(parameters_of) x P].
    """

    action: Leaves
    parameters_of: Sequence[int] = ()
    parameters: Parameters | None = None


@dataclass(frozen=True, slots=True)
class EpisodeReturns:
    """The answer to reset: float64 of shape [N], 0 for an environment that was between two episodes."""

    episode_return: Rewards


@dataclass(frozen=True, slots=True)
class Error:
    """The server's reason for ending the connection.

    `retryable` defaults to that of the code. `message` is cut to `MAX_SENTENCE` characters.
    """

    code: ErrorCode
    message: str
    retryable: bool | None = None
    retry_after_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.retryable is None:
            object.__setattr__(self, "retryable", self.code.retryable)
        object.__setattr__(self, "message", shortened(self.message))

    @classmethod
    def of(cls, error: ProtocolError) -> Error:
        """Return the message that reports `error` to the peer."""
        return cls(error.code, error.message)


@dataclass(frozen=True, slots=True)
class TrainingFinished:
    """The end of training; the client should exit with code 0."""

    message: str
    global_step: int = 0


ClientMessage = Hello | Init | Step | Reset | Metrics | Ping | Pong | Bye
ServerMessage = Welcome | Actions | EpisodeReturns | Error | TrainingFinished | Ping | Pong | Bye
Message = ClientMessage | ServerMessage
