"""A parameter server within the test, strict about what it was promised."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from relaax.algorithm_base.declarations import TargetInterval
from relaax.parameters.interfaces import (
    FlatVector,
    MetricsRecorder,
    ParameterClientBase,
    Parameters,
    Pulled,
    Pushed,
    Registered,
    Registration,
    TrainingEnded,
)
from relaax.parameters.moments import Moments

_SCALAR = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")


class ContractBroken(AssertionError):
    """An agent did what its contract forbids. The message says what."""


@dataclass(frozen=True, slots=True)
class RecordedPush:
    """A push as it came. `base` is what the gradient was computed on, `statistics` what was gathered for it.

    `loss` is that of the gradient, if the agent said it.
    """

    gradient: FlatVector | None
    env_steps: int
    base: Pulled
    discarded: str | None
    statistics: Mapping[str, Moments] = field(default_factory=dict)
    loss: float | None = None


class FakeParameters(ParameterClientBase, Parameters):
    """Holds the parameters itself and applies gradients by plain gradient descent, in numpy.

    Raises ContractBroken for a call out of order, a gradient of another dtype or shape or with NaN in it, a push or a
    statistic in exploit mode, a statistic that is not among `statistics` (name to length) or of another length, a
    negative count. What is pulled is read-only, so that an agent that writes to it is caught.

    `pushes`, `scalars`, `episodes`, `pulls` and `flushes` record what was called. `discard` is a queue of reasons for
    which the next gradients are not applied ("incarnation" rolls everything else back, as a real server does), and
    `failures` a queue of exceptions that the next pulls and pushes raise. Override `apply` for another optimizer.

    `target` is how often the target network is renewed (`ParameterServerBase.target_interval`): right after the push
    that completes an interval. A worker pushes `frame_skip` frames with each step. `actor_count` actors train, or those
    up to the registered ones. `first_actor` is the index and the rank of the first registered one.
    """

    def __init__(
        self,
        parameters: FlatVector,
        *,
        learning_rate: float = 0.01,
        max_global_step: int | None = None,
        statistics: Mapping[str, int] = MappingProxyType({}),
        target: TargetInterval | None = None,
        frame_skip: int = 1,
        actor_count: int = 0,
    ) -> None:
        self.metrics = FakeMetrics(self)
        self.pushes: list[RecordedPush] = []
        self.scalars: list[tuple[str, float]] = []
        self.episodes: list[tuple[float, int]] = []
        self.pulls = 0
        self.flushes = 0
        self.discard: deque[str] = deque()
        self.failures: deque[Exception] = deque()
        self.registration: Registration | None = None
        self.closed = False
        self.learning_rate = learning_rate
        self._max_global_step = max_global_step
        self._initial = np.array(parameters, np.float32)
        self._global_step = 0
        self._lengths = dict(statistics)
        self._gathered: dict[str, Moments] = {}
        self._merged = self._no_samples()
        self._interval = target
        self._frame_skip = frame_skip
        self.first_actor = 0
        self._actor_count = actor_count
        self._intervals = 0
        self._newest = self._frozen(self._initial, 0)
        self._renew(first=True)
        self._base: Pulled | None = None
        self._memory: FlatVector = np.full(len(self._initial), np.nan, np.float32)

    @property
    def parameters(self) -> FlatVector:
        """The parameters now, float32 [P], read-only."""
        return self._newest.parameters

    @property
    def statistics(self) -> Mapping[str, Moments]:
        """The merged statistics of what was pushed."""
        return self._newest.statistics

    @property
    def global_step(self) -> int:
        """The sum of what was pushed."""
        return self._global_step

    def apply(self, gradient: FlatVector) -> FlatVector:
        """Return the parameters after an update along `gradient`, both float32 [P]."""
        updated: FlatVector = self.parameters - np.float32(self.learning_rate) * gradient
        return updated

    def publish(self, parameters: FlatVector, samples: Mapping[str, Moments] = MappingProxyType({})) -> None:
        """New parameters and further samples of statistics, as if other workers had pushed."""
        self._merge(samples)
        self._newest = self._frozen(np.array(parameters, np.float32), self._newest.version + 1)
        self._renew()

    def register(self, registration: Registration) -> Registered:
        """Actors are numbered from `first_actor`; one that only acts has no target network. Once, before anything
        else.
        """
        _demand(self.registration is None, "register was called twice")
        acts = registration.purpose.acts
        _demand(acts == (registration.environments >= 1), "a connection has at least one environment, a learner none")
        self.registration = registration
        end = self.first_actor + registration.environments
        self._actor_count = max(self._actor_count, end)
        self._newest = replace(self._newest, actor_count=self._actor_count, actor_rank=self.first_actor)
        if not registration.purpose.may_update:
            self._interval = None
            self._newest = replace(self._newest, target=None)
        return Registered(len(self._initial), tuple(range(self.first_actor, end)), self._global_step)

    def pull(self) -> Pulled:
        """Return the same object as long as parameters, statistics, target network and frames are the same."""
        self._enter("pull")
        self._stop()
        self.pulls += 1
        return self._hand_out()

    def gradient_memory(self) -> FlatVector:
        """Full of NaN, also after each push: whatever is not written anew is caught."""
        return self._memory

    def push(
        self,
        gradient: FlatVector | None,
        env_steps: int,
        want_parameters: bool = True,
        *,
        loss: float | None = None,
        withheld: bool = False,
    ) -> Pushed:
        """Recorded, then applied if `discard` is empty."""
        registration = self._enter("push")
        _demand(registration.purpose.may_update, "push in exploit mode")
        _demand(self._base is not None, "push before the first pull")
        _demand(type(env_steps) is int, f"env_steps is {env_steps!r}; an int is needed")
        _demand(env_steps >= 0, f"env_steps is {env_steps}; it is never negative")
        _demand(gradient is None or not withheld, "a gradient that is withheld is not sent")
        _demand(loss is None or isinstance(loss, float), f"loss is {loss!r}; a float is needed")
        if gradient is not None:
            self._check(gradient)
        self._stop()
        assert self._base is not None
        base, discarded = self._base, "loss" if withheld else None
        if gradient is not None and self.discard:
            discarded = self.discard.popleft()
        copy = None if gradient is None else gradient.copy()
        self._memory.fill(np.nan)
        gathered, self._gathered = self._gathered, {}
        self.pushes.append(RecordedPush(copy, env_steps, base, discarded, gathered, loss))
        staleness = self._newest.version - base.version
        self._global_step += env_steps
        if discarded == "incarnation":
            self._merged = self._no_samples()
        self._merge(gathered)
        self._newest = replace(self._newest, frames=self._frames) if env_steps else self._newest
        if discarded == "incarnation":
            self.publish(self._initial)
            self._renew(first=True)
        elif copy is not None and discarded is None:
            self.publish(self.apply(copy))
        else:
            self._renew()
        pulled = self._hand_out() if want_parameters or discarded == "incarnation" else None
        return Pushed(discarded, self._global_step, self._newest.version, staleness, pulled)

    def push_later(
        self,
        gradient: FlatVector | None,
        env_steps: int,
        want_parameters: bool = True,
        *,
        loss: float | None = None,
        withheld: bool = False,
    ) -> Callable[[], Pushed]:
        """As `push`, at once."""
        pushed = self.push(gradient, env_steps, want_parameters, loss=loss, withheld=withheld)
        return lambda: pushed

    def flush(self) -> None:
        """Counted."""
        self._enter("flush")
        self.flushes += 1

    def close(self) -> None:
        """The end: every later call breaks the contract."""
        self.closed = True

    def _enter(self, call: str) -> Registration:
        _demand(not self.closed, f"{call} after close")
        if self.registration is None:
            raise ContractBroken(f"{call} before register")
        return self.registration

    def _stop(self) -> None:
        if self.failures:
            raise self.failures.popleft()
        if self._max_global_step is not None and self._global_step >= self._max_global_step:
            raise TrainingEnded(self._global_step)

    def _check(self, gradient: FlatVector) -> None:
        _demand(isinstance(gradient, np.ndarray), f"a gradient is an array, not {type(gradient).__name__}")
        _demand(gradient.dtype == np.float32, f"a gradient is float32, not {gradient.dtype}")
        _demand(
            gradient.shape == self._initial.shape, f"a gradient of shape {gradient.shape}, not {self._initial.shape}"
        )
        _demand(bool(np.isfinite(gradient).all()), "a gradient that is not finite")

    def _no_samples(self) -> dict[str, Moments]:
        return {name: Moments.zeros(length) for name, length in self._lengths.items()}

    def _merge(self, gathered: Mapping[str, Moments]) -> None:
        if gathered:
            merged = {name: self._merged[name].merged(moments) for name, moments in gathered.items()}
            self._merged = {**self._merged, **merged}
            self._newest = replace(self._newest, statistics=MappingProxyType(self._merged))

    def _hand_out(self) -> Pulled:
        self._base = self._newest
        return self._newest

    def _frozen(self, parameters: FlatVector, version: int) -> Pulled:
        frozen = parameters.copy()
        frozen.flags.writeable = False
        target = self._newest.target if version else None
        merged = MappingProxyType(self._merged)
        count, rank = self._actor_count, self.first_actor
        return Pulled(frozen, version, self._global_step, merged, self._frames, target, count, rank)

    @property
    def _frames(self) -> int:
        return self._global_step * self._frame_skip

    def _renew(self, first: bool = False) -> None:
        """Make the parameters the target network if an interval is complete, or it is the `first` one."""
        if self._interval is None:
            return
        intervals = self._interval.counted(self._frames, self._newest.version) // self._interval.length
        if first or intervals > self._intervals:
            self._newest = replace(self._newest, target=self._newest.parameters)
        self._intervals = intervals


class FakeMetrics(MetricsRecorder):
    """Records what it is given in `FakeParameters`, and raises ContractBroken as that does."""

    def __init__(self, parameters: FakeParameters) -> None:
        self._parameters = parameters

    def scalar(self, name: str, value: float) -> None:
        """Recorded."""
        self._parameters._enter("scalar")
        _demand(_SCALAR.fullmatch(name) is not None, f"{name!r} is no name of a scalar")
        _demand(math.isfinite(value), f"scalar {name} is {value}")
        self._parameters.scalars.append((name, float(value)))

    def statistic(self, name: str, moments: Moments) -> None:
        """Keep samples of a statistic until the next push."""
        registration = self._parameters._enter("statistic")
        _demand(registration.purpose.may_update, "statistic in exploit mode")
        lengths = self._parameters._lengths
        _demand(name in lengths, f"{name!r} is no statistic that the algorithm declares: {sorted(lengths)}")
        _demand(isinstance(moments, Moments), f"a statistic is Moments, not {type(moments).__name__}")
        length = lengths[name]
        _demand(moments.size == length, f"statistic {name} has {length} numbers, not {moments.size}")
        gathered = self._parameters._gathered
        gathered[name] = gathered[name].merged(moments) if name in gathered else moments

    def episode(self, episode_return: float, length: int) -> None:
        """Recorded. The worker counts episodes: an agent that does so too counts them twice."""
        self._parameters._enter("episode")
        self._parameters.episodes.append((float(episode_return), int(length)))


def _demand(condition: bool, sentence: str) -> None:
    if not condition:
        raise ContractBroken(sentence)
