"""How a worker reaches the parameter server: one interface, whatever carries it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from relaax.parameters.moments import Moments

FlatVector = npt.NDArray[np.float32]


class BridgeError(Exception):
    """The parameter server refused, with a sentence that says why. Trying again will not help."""


class BridgeUnavailable(BridgeError):
    """The parameter server could not be reached within the bounded wait."""


class BridgeUnauthenticated(BridgeError):
    """The parameter server did not prove who it is, or this side did not prove that it may use it."""


class BridgeUnusable(BridgeError):
    """The way to the parameter server that was configured is none that it, or this host, can have."""


class TrainingEnded(Exception):
    """Training has reached `max_global_step`."""

    def __init__(self, global_step: int) -> None:
        super().__init__(f"training ended at global step {global_step}")
        self.global_step = global_step


@dataclass(frozen=True, slots=True)
class Registration:
    """What a worker says about itself. `fingerprint` is canonical JSON (see `relaax.algorithm_base.fingerprint`)."""

    fingerprint: str
    session_id: str = ""
    environments: int = 1
    exploit: bool = False
    frame_skip: int = 1
    environment: str = ""


@dataclass(frozen=True, slots=True)
class Registered:
    """What the parameter server answers: the length of the flat vector and this connection's actor indices."""

    parameters: int
    actors: tuple[int, ...]
    global_step: int


@dataclass(frozen=True, slots=True)
class Pulled:
    """A consistent copy of the parameters: float32 of shape [parameters], never written to afterwards.

    `statistics` are the merged ones of all workers, as of this pull; none where the algorithm declares none.
    """

    parameters: FlatVector
    version: int
    global_step: int
    statistics: Mapping[str, Moments] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pushed:
    """What became of a push. `discarded` is why the gradient was not applied, else None.

    `pulled` holds the fresh parameters where they were asked for: the same object as before where they and the
    statistics are the same. After a roll-back of the model (`discarded == "incarnation"`) the bridge has registered
    anew and `pulled` is always given.
    """

    discarded: str | None
    global_step: int
    version: int
    staleness: int
    pulled: Pulled | None


class BridgeBase(ABC):
    """A worker's way to the parameter server. Used by one thread.

    The life of a bridge::

        registered = bridge.register(registration)
        pulled = bridge.pull()
        while ...:
            bridge.episode(episode_return, length)           # gathered, sent with the next push
            bridge.scalar("loss/value", 0.3)                 # gathered, sent with the next push
            bridge.statistic("rewards", Moments.of(rewards)) # gathered, sent with the next push
            pushed = bridge.push(gradient, env_steps=40)
        bridge.close()

    Every call may raise `TrainingEnded`, `BridgeUnavailable` (after a bounded wait) and `BridgeError`.
    """

    @abstractmethod
    def register(self, registration: Registration) -> Registered:
        """Introduce this worker. Called once, before anything else."""

    @abstractmethod
    def pull(self) -> Pulled:
        """The newest parameters and statistics; the same object as before where both are the same."""

    def gradient_memory(self) -> FlatVector | None:
        """Where the next gradient is best computed, since no copy of it need be sent then: float32 [parameters] of any
        numbers, to be given to the next `push`, and then asked for anew. None where any memory is as good, and from a
        bridge that sends vectors of another length than its agent gives it.
        """
        return None

    @abstractmethod
    def push(
        self,
        gradient: FlatVector | None,
        env_steps: int,
        want_parameters: bool = True,
        *,
        loss: float | None = None,
        withheld: bool = False,
    ) -> Pushed:
        """One update, computed on the parameters of the last pull, and its answer in one round trip.

        `gradient`: float32 of shape [parameters], or None to advance the global step only.
        `env_steps`: environment steps consumed since the last push; they count even where the gradient is discarded.
        `loss`: of which it is the gradient, where `algorithm.loss_outlier_deviations` is to apply.
        `withheld`: there was a gradient, and it is kept back because its loss is an outlier: it counts as discarded.
        """

    @abstractmethod
    def scalar(self, name: str, value: float) -> None:
        """A sample of a named scalar; samples are averaged and sent in batches."""

    def sample(self, name: str, value: float) -> None:
        """A positive sample of a named quantity whose quantiles are wanted, such as a time, rather than its mean.

        A bridge that keeps no quantiles takes it for a scalar's.
        """
        self.scalar(name, value)

    def gauge(self, name: str, value: float) -> None:  # noqa: B027
        """How this worker, its server or its machine stands now (see `relaax.metrics.fleet`); the newest counts."""

    @abstractmethod
    def statistic(self, name: str, moments: Moments) -> None:
        """Samples of a statistic that the algorithm declares (`ParameterServerBase.statistics`).

        Merged with what was gathered before, and sent with the next push. They count exactly once, also where that
        push's gradient is discarded. Not in exploit mode, where nothing is pushed. Raises ValueError where they cannot
        be merged.
        """

    @abstractmethod
    def episode(self, episode_return: float, length: int) -> None:
        """A whole episode ended."""

    @abstractmethod
    def flush(self) -> None:
        """Send what was gathered now, where no push is due (exploit mode)."""

    @property
    @abstractmethod
    def global_step(self) -> int:
        """Environment steps over all workers, as last seen."""

    @abstractmethod
    def close(self) -> None:
        """Say goodbye. Never raises."""
