"""The messages of RLX as Python values.

Observations and actions are lists of *leaves*: numpy arrays, one per elementary part of the space
(`relaax.rlx.spaces`), each with a leading axis N, the number of environments of the connection.
Optional boolean masks are `None` if no element is true, else a bool array of shape [N].
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
MAX_ENVIRONMENTS = 65_536  # of one connection
MAX_FRAME_SKIP = 1_000
MAX_REWARD = 1e15
"""The largest magnitude of a reward: float32, in which agents compute, holds the square of a sum of 10,000 of these."""
MAX_NUMBER = 1e30
"""The largest magnitude of a return and of a metric's value: no sum of them that is ever made overflows float64."""

Leaves = list[npt.NDArray[np.generic]]
Mask = npt.NDArray[np.bool_]
Rewards = npt.NDArray[np.float64]


class Autoreset(enum.IntEnum):
    """How the environments of a connection pass from one episode to the next (gymnasium's autoreset modes)."""

    DISABLED = 1
    SAME_STEP = 2
    NEXT_STEP = 3


class Mode(enum.IntEnum):
    """What the client wants of the agent: to learn, or to act."""

    TRAIN = 1
    EXPLOIT = 2


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds that the server sets for a connection. Times are in seconds, sizes in bytes."""

    max_frame_bytes: int = 64 * 2**20
    idle_timeout_seconds: float = 600.0
    heartbeat_seconds: float = 10.0
    max_metric_name_bytes: int = 128
    max_metric_names: int = 256
    max_environments: int = 0
    """0 if the server does not say."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The client's introduction."""

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


@dataclass(frozen=True, slots=True)
class Welcome:
    """The server's answer to hello."""

    session_id: str
    algorithm: str
    limits: Limits = Limits()
    protocol_version: int = PROTOCOL_VERSION
    server_version: str = ""


@dataclass(frozen=True, slots=True)
class Episode:
    """A whole episode as the environment counts it: sum of rewards, length in environment steps."""

    environment: int
    episode_return: float
    length: int


@dataclass(frozen=True, slots=True)
class Init:
    """An episode begins in every environment."""

    observation: Leaves
    partial: Mask | None = None


@dataclass(slots=True)
class Step:
    """The outcome of the last actions. Rewards are float64 of shape [N].

    Not frozen, as `Actions` are not: that would double what it costs to make one, and most messages are these.
    """

    reward: Rewards
    observation: Leaves
    terminated: Mask | None = None
    truncated: Mask | None = None
    final_observation: Leaves | None = None
    first: Mask | None = None
    episodes: Sequence[Episode] = ()


@dataclass(frozen=True, slots=True)
class Reset:
    """The episode of every environment ends."""

    reward: Rewards
    truncated: Mask | None = None
    final_observation: Leaves | None = None
    episodes: Sequence[Episode] = ()


@dataclass(frozen=True, slots=True)
class Metrics:
    """Scalars of the environment's own, as (name, value) pairs."""

    scalars: Sequence[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Ping:
    """A request for a sign of life."""

    nonce: int = 0


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to ping."""

    nonce: int = 0


@dataclass(frozen=True, slots=True)
class Bye:
    """The sender leaves."""

    reason: str = ""


@dataclass(slots=True)
class Actions:
    """The actions to take next."""

    action: Leaves


@dataclass(frozen=True, slots=True)
class EpisodeReturns:
    """The answer to reset: float64 of shape [N], 0 if an environment was between two episodes."""

    episode_return: Rewards


@dataclass(frozen=True, slots=True)
class Error:
    """The server's reason for ending the connection.

    `retryable` defaults to that of the code; `message` is cut if it is longer than a sentence ever should be.
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
        """Return what the peer is told of `error`."""
        return cls(error.code, error.message)


@dataclass(frozen=True, slots=True)
class TrainingFinished:
    """Training is over."""

    message: str
    global_step: int = 0


ClientMessage = Hello | Init | Step | Reset | Metrics | Ping | Pong | Bye
ServerMessage = Welcome | Actions | EpisodeReturns | Error | TrainingFinished | Ping | Pong | Bye
Message = ClientMessage | ServerMessage
