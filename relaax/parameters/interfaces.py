"""Interfaces of a worker to the parameter server, whatever the transport."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from relaax.parameters.moments import Moments

FlatVector = npt.NDArray[np.float32]


class ParameterServerError(Exception):
    """The parameter server refused, with a sentence that says why. Retrying will not help."""


class ParameterServerUnavailable(ParameterServerError):
    """The parameter server could not be reached within the bounded wait."""


class ParameterServerUnauthenticated(ParameterServerError):
    """The parameter server did not prove its identity, or this side did not prove that it may connect."""


class ParameterServerUnusable(ParameterServerError):
    """The configured transport is impossible for this server or this host."""


class TrainingEnded(Exception):
    """Training has reached `max_global_step`."""

    def __init__(self, global_step: int) -> None:
        super().__init__(f"training ended at global step {global_step}")
        self.global_step = global_step


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a process registers for, and what it may do. All code that asks reads one of the rows below.

    name, mode: in messages (`an exploit worker`), and in one word, for tables. number: its `Role` in the .proto file.
    acts: whether it has environments, and so actor indices. changes: whether it may push, gather statistics and update
        shared memory.
    outlives_training: whether a server that started with a finished model serves it for ever.
    """

    name: str
    mode: str
    number: int
    acts: bool
    may_update: bool
    outlives_training: bool

    @property
    def trains(self) -> bool:
        """Whether its environments are actors of the training."""
        return self.acts and self.may_update


TRAIN = Purpose("a training worker", "train", 1, acts=True, may_update=True, outlives_training=False)
EXPLOIT = Purpose("an exploit worker", "exploit", 2, acts=True, may_update=False, outlives_training=True)
LEARN = Purpose("a learner", "learn", 3, acts=False, may_update=True, outlives_training=False)

PURPOSES = {purpose.number: purpose for purpose in (TRAIN, EXPLOIT, LEARN)}
"""All purposes by number."""


@dataclass(frozen=True, slots=True)
class Registration:
    """The description that a worker, or another process, gives of itself.

    `fingerprint` is canonical JSON (see `relaax.hosting.fingerprint`). `host` is the environment's, `server` the
    RLX server's HOST:PORT. `client` is the name that the client's token proves. A learner has 0 environments, no
    server, and calls itself by `environment` and `host`.
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


@dataclass(frozen=True, slots=True)
class Registered:
    """The parameter server's answer: the length of the flat vector and this connection's actor indices."""

    parameters: int
    actors: tuple[int, ...]
    global_step: int


@dataclass(frozen=True, slots=True)
class Pulled:
    """A consistent copy of the parameters: float32 of shape [parameters], never written to afterwards.

    `statistics`: the merged ones of all workers, as of this pull. `frames`: environment frames of all workers so far,
    steps x frame skip. `target`: the target network, float32 of shape [parameters], read-only, the same array until it
    is renewed; None if the algorithm declares none (`ParameterServerBase.target_interval`), or the worker only acts.

    `actor_count`: the environments of all connected training workers, 0 if that is not known, as without a parameter
    server. `actor_rank`: the rank of the connection's first environment among them, from 0; its other environments have
    the next ranks. Ranks have no gaps, and change when actors connect or disconnect, other than actor indices.
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
    """The outcome of a push. `discarded` is why the gradient was not applied, else None.

    `pulled` holds the fresh parameters if they were asked for, as `Parameters.pull` gives them. After a roll-back of
    the model (`discarded == "incarnation"`) the client has registered anew and `pulled` is always given.
    """

    discarded: str | None
    global_step: int
    version: int
    staleness: int
    pulled: Pulled | None


class MetricsRecorder(ABC):
    """Records the metrics of an agent and its worker."""

    @abstractmethod
    def scalar(self, name: str, value: float) -> None:
        """Add a sample of a named scalar; samples are averaged and sent in batches."""

    def sample(self, name: str, value: float) -> None:
        """Add a positive sample of a named quantity whose quantiles are wanted, such as a time, rather than its mean.

        By default it is taken for a scalar's.
        """
        self.scalar(name, value)

    def gauge(self, name: str, value: float) -> None:  # noqa: B027
        """Set a gauge of this worker, its server or its machine (see `relaax.metrics.fleet`)."""

    @abstractmethod
    def statistic(self, name: str, moments: Moments) -> None:
        """Add samples of a statistic that the algorithm declares (`ParameterServerBase.statistics`).

        They are merged with those gathered before, and sent with the next push; they count exactly once, also if that
        push's gradient is discarded. Not in exploit mode. Raises ValueError if they cannot be merged.
        """

    @abstractmethod
    def episode(self, episode_return: float, length: int) -> None:
        """Count a whole episode that has ended."""


class Parameters(ABC):
    """The global parameters as an agent has them. Used by one thread::

        pulled = parameters.pull()
        while ...:
            pushed = parameters.push(gradient, env_steps=40)

    Every call may raise `TrainingEnded`, `ParameterServerUnavailable` (after a bounded wait) and
    `ParameterServerError`.
    """

    @abstractmethod
    def pull(self) -> Pulled:
        """Fetch the newest parameters, statistics, target network and counts; the same object as before if all are the
        same. If some are, they are the same arrays as before.
        """

    def gradient_memory(self) -> FlatVector | None:
        """Return where the next gradient is best computed, since no copy of it need be sent then.

        float32 [parameters] of any numbers, to be given to the next `push`, and then asked for anew. None if any memory
        is as good.
        """
        return None

    @abstractmethod
    def push(
        self, gradient: FlatVector | None, env_steps: int, want_parameters: bool = True, *, loss: float | None = None
    ) -> Pushed:
        """Send one update, computed on the parameters of the last pull; its answer comes in the same round trip.

        `gradient`: float32 of shape [parameters], or None to advance the global step only.
        `env_steps`: environment steps consumed since the last push; they count even if the gradient is discarded.
        `loss`: of which it is the gradient, if `algorithm.loss_outlier_deviations` is to apply.
        """

    def push_later(
        self, gradient: FlatVector | None, env_steps: int, want_parameters: bool = True, *, loss: float | None = None
    ) -> Callable[[], Pushed]:
        """Send one update as `push` does; what is returned waits for the answer, and raises, as `push` does.

        Meanwhile the gradient must not change. Any other call waits for the answer first.
        """
        pushed = self.push(gradient, env_steps, want_parameters, loss=loss)
        return lambda: pushed


class ParameterClientBase(ABC):
    """A worker's client of the parameter server. Used by one thread.

    Its life: `register`, `pull`, then `push`, which carries what was gathered in `metrics`, or `flush` if nothing is to
    be pushed; `close` at the end. Every call may raise what those of `Parameters` may, and methods of the same names
    do the same.
    """

    metrics: MetricsRecorder
    """Metrics to send with the next push or flush."""

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
        """See `Parameters`. `withheld`: there was a gradient, and it is kept back: it counts as discarded."""

    def push_later(
        self, gradient: FlatVector | None, env_steps: int, want_parameters: bool = True, *, withheld: bool = False
    ) -> Callable[[], Pushed]:
        pushed = self.push(gradient, env_steps, want_parameters, withheld=withheld)
        return lambda: pushed

    @abstractmethod
    def flush(self) -> None:
        """Send the gathered metrics now, if no push is due (exploit mode)."""

    @property
    @abstractmethod
    def global_step(self) -> int:
        """Environment steps over all workers, as last seen."""

    @abstractmethod
    def close(self) -> None:
        """Deregister and disconnect. Never raises."""
