"""Interfaces between a worker and the parameter server, the same for every transport."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from relaax.lessons.values import Drawn, Edition
from relaax.parameters.moments import Moments

FlatVector = npt.NDArray[np.float32]


class ParameterServerError(Exception):
    """The parameter server refused a call; a retry does not help. The message says why."""


class ParameterServerUnavailable(ParameterServerError):
    """The parameter server could not be reached within the bounded wait."""


class ParameterServerUnauthenticated(ParameterServerError):
    """The parameter server could not prove its identity, or this side could not prove that it may connect."""


class ParameterServerUnusable(ParameterServerError):
    """The configured transport cannot be used with this server or on this host."""


class TrainingEnded(Exception):
    """Training has reached `max_global_step`."""

    def __init__(self, global_step: int) -> None:
        super().__init__(f"training ended at global step {global_step}")
        self.global_step = global_step


@dataclass(frozen=True, slots=True)
class Purpose:
    """The purpose of a registered process, and what it allows.

    name: for messages, such as `an exploit worker`. mode: one word, for tables. number: its `Role` in the .proto file.
    acts: whether the process has environments, and so actor indices.
    may_update: whether it may push, gather statistics and update shared memory.
    outlives_training: whether a server that starts with a finished model continues to serve the process.
    """

    name: str
    mode: str
    number: int
    acts: bool
    may_update: bool
    outlives_training: bool

    @property
    def trains(self) -> bool:
        """Whether the environments of the process are actors of the training."""
        return self.acts and self.may_update


TRAIN = Purpose("a training worker", "train", 1, acts=True, may_update=True, outlives_training=False)
EXPLOIT = Purpose("an exploit worker", "exploit", 2, acts=True, may_update=False, outlives_training=True)
LEARN = Purpose("a learner", "learn", 3, acts=False, may_update=True, outlives_training=False)
INFER = Purpose("an inference process", "infer", 4, acts=False, may_update=False, outlives_training=True)

PURPOSES = {purpose.number: purpose for purpose in (TRAIN, EXPLOIT, LEARN, INFER)}
"""All purposes by number."""


@dataclass(frozen=True, slots=True)
class Registration:
    """The description that a worker or another process registers with.

    `fingerprint` is canonical JSON (see `relaax.hosting.fingerprint`). `host` is that of the environment. `server` is
    HOST:PORT of the RLX server. `client` is the name that the client's token proves. A learner and an inference process
    have 0 environments; their `environment` and `host` are their own name and host, and a learner has no server.
    `wants_target`: whether a training worker receives the target network. Actors with separate learners do not need it.
    `wants_parameters`: whether the worker uses parameters. If not, it receives parameters with its first pull only, and
    then versions, statistics and counts.
    """

    fingerprint: str
    session_id: str = ""
    environments: int = 1
    purpose: Purpose = TRAIN
    frame_skip: int = 1
    environment: str = ""
    host: str = ""
    server: str = ""
    client: str = ""
    wants_target: bool = True
    wants_parameters: bool = True


@dataclass(frozen=True, slots=True)
class Registered:
    """The parameter server's answer: the length of the flat vector and this connection's actor indices."""

    parameters: int
    actors: tuple[int, ...]
    global_step: int


@dataclass(frozen=True, slots=True)
class Pulled:
    """A consistent copy of the parameters: float32 of shape [parameters], never written to afterwards.

    `statistics`: the merged statistics of all workers at this pull. `frames`: environment frames of all workers so far
    (steps x frame skip). `target`: the target network, float32 of shape [parameters], read-only. Until the network is
    renewed, all pulls return the same array. None if the algorithm declares no target network
    (`ParameterServerBase.target_interval`), if the worker only acts, or if its learners are separate.

    `actor_count`: the number of environments of all connected training workers; 0 if unknown (without a parameter
    server). `actor_rank`: the rank of the connection's first environment among them, from 0. The connection's other
    environments have the next ranks. Ranks have no gaps. Unlike actor indices, they change when actors connect or
    disconnect.
    """

    parameters: FlatVector
    version: int
    global_step: int
    statistics: Mapping[str, Moments] = field(default_factory=dict)
    frames: int = 0
    target: FlatVector | None = None
    actor_count: int = 0
    actor_rank: int = 0


@dataclass(frozen=True, slots=True)
class Pushed:
    """The outcome of a push. `discarded` is the reason why the gradient was discarded; None if it was not.

    `pulled` holds the new parameters if they were requested, as `Parameters.pull` returns them. If the model was rolled
    back (`discarded == "incarnation"`), the client has registered again and `pulled` is always given.
    """

    discarded: str | None
    global_step: int
    version: int
    staleness: int
    pulled: Pulled | None


class MetricsRecorder(ABC):
    """Recorder of the metrics of an agent and its worker."""

    wants_picture = False
    """Whether the server has asked for a picture of the first environment."""

    @abstractmethod
    def scalar(self, name: str, value: float) -> None:
        """Add a sample of a named scalar; samples are averaged and sent in batches."""

    def sample(self, name: str, value: float) -> None:
        """Add a positive sample of a named quantity whose quantiles are of interest, such as a time.

        The default implementation records it as a scalar.
        """
        self.scalar(name, value)

    def gauge(self, name: str, value: float) -> None:  # noqa: B027
        """Set a gauge of this worker, its server or its machine (see `relaax.metrics.fleet`)."""

    def game(self, checkpoint_id: str, episode_return: float) -> None:  # noqa: B027
        """Record the return of an episode that this worker played with a checkpoint against the training."""

    def picture(self, height: int, width: int, pixels: bytes) -> None:  # noqa: B027
        """Record the picture that the server has asked for (see `relaax.parameters.pictures`); 0, 0, b"" for none."""

    @abstractmethod
    def statistic(self, name: str, moments: Moments) -> None:
        """Add samples of a statistic that the algorithm declares (`ParameterServerBase.statistics`).

        They are merged with earlier samples and sent with the next push. They count exactly once, even if that push's
        gradient is discarded. Not available in exploit mode. Raises ValueError if they cannot be merged.
        """

    @abstractmethod
    def episode(self, episode_return: float, length: int, drawn: Drawn | None = None) -> None:
        """Record a whole episode that has ended: its return, and its length in environment steps.

        `drawn`: the parameters of its environment; None if the server did not set them.
        """


class Parameters(ABC):
    """An agent's access to the global parameters. Used by one thread::

        pulled = parameters.pull()
        while ...:
            pushed = parameters.push(gradient, env_steps=40)

    Every call may raise `TrainingEnded`, `ParameterServerUnavailable` (after a bounded wait) and
    `ParameterServerError`.
    """

    @abstractmethod
    def pull(self) -> Pulled:
        """Fetch the newest parameters, statistics, target network and counts.

        If all are unchanged, the same object is returned as before. Unchanged parts are the same arrays as before.
        """

    def gradient_memory(self) -> FlatVector | None:
        """Return the memory to compute the next gradient in, so that it is not copied when it is sent.

        float32 [parameters] with arbitrary content. Pass it to the next `push`, then call this method again. None if
        the choice of memory makes no difference.
        """
        return None

    @abstractmethod
    def push(
        self, gradient: FlatVector | None, env_steps: int, want_parameters: bool = True, *, loss: float | None = None
    ) -> Pushed:
        """Send one update, computed on the parameters of the last pull, and return its outcome. Takes one round trip.

        `gradient`: float32 of shape [parameters], or None to advance the global step only.
        `env_steps`: environment steps consumed since the last push; they count even if the gradient is discarded.
        `loss`: the loss of which `gradient` is the gradient; needed for `algorithm.loss_outlier_deviations`.
        """

    def push_later(
        self, gradient: FlatVector | None, env_steps: int, want_parameters: bool = True, *, loss: float | None = None
    ) -> Callable[[], Pushed]:
        """Send one update and return a function that waits for its outcome. That function raises what `push` raises.

        Do not change the gradient before that function returns. Any other call waits for the outcome first.
        """
        pushed = self.push(gradient, env_steps, want_parameters, loss=loss)
        return lambda: pushed


class ParameterClientBase(ABC):
    """A worker's client of the parameter server. Used by one thread.

    Call `register`, then `pull`, then `push` repeatedly, and `close` at the end. A push also sends the metrics in
    `metrics`; `flush` sends them without a push. `Parameters` documents the methods that
    both classes have. Every call may raise the same errors as there.
    """

    metrics: MetricsRecorder
    """Metrics to send with the next push or flush."""
    edition: Edition | None = None
    """The newest values of the environments' parameters that shard 0 has sent; None without parameters."""

    @abstractmethod
    def register(self, registration: Registration) -> Registered:
        """Register this worker. Called once, before anything else."""

    @abstractmethod
    def pull(self) -> Pulled: ...

    def gradient_memory(self) -> FlatVector | None:
        return None

    @abstractmethod
    def push(
        self, gradient: FlatVector | None, env_steps: int, want_parameters: bool = True, *, withheld: bool = False
    ) -> Pushed:
        """See `Parameters.push`. `withheld`: the worker withholds its gradient, which counts as discarded."""

    def push_later(
        self, gradient: FlatVector | None, env_steps: int, want_parameters: bool = True, *, withheld: bool = False
    ) -> Callable[[], Pushed]:
        pushed = self.push(gradient, env_steps, want_parameters, withheld=withheld)
        return lambda: pushed

    @abstractmethod
    def flush(self) -> None:
        """Send the gathered metrics without a push (exploit mode), at most once a second."""

    @property
    @abstractmethod
    def global_step(self) -> int:
        """Environment steps of all workers, as the server reported them last."""

    @abstractmethod
    def close(self) -> None:
        """Deregister and disconnect. Never raises."""
