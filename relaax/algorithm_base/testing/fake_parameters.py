"""A fake parameters client for tests, which checks the contract of agents and learners."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from relaax.algorithm_base.declarations import TargetInterval
from relaax.lessons.values import Drawn
from relaax.optim.learning_rates import RateFactors, check_rate_factors, factor_vector
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
    """An agent or a learner violated its contract."""


@dataclass(frozen=True, slots=True)
class RecordedPush:
    """A recorded push. `base`: the last pulled parameters before it. `statistics`: the samples since the previous push.

    `loss`: the loss of the gradient, if the agent passed it.
    """

    gradient: FlatVector | None
    env_steps: int
    base: Pulled
    discarded: str | None
    statistics: Mapping[str, Moments] = field(default_factory=dict)
    loss: float | None = None


class FakeParameters(ParameterClientBase, Parameters):
    """A parameters client that holds the parameters in this process and applies gradients by gradient descent.

    Raises ContractBroken for a call out of order, a gradient of another dtype or shape or with NaN or infinity, a push
    or a statistic in exploit mode, a statistic that is not among `statistics` (name to length) or of another length,
    and a negative count. Pulled parameters are read-only, so that writing to them raises an exception.

    `pushes`, `scalars`, `episodes`, `pulls` and `flushes` record the calls. `discard`: a queue of reasons; each
    discards one of the next gradients ("incarnation" also rolls the model back, as a real server does). `failures`: a
    queue of exceptions that the next pulls and pushes raise. Override `apply` for another optimizer.

    `target`: the interval of the target network (`ParameterServerBase.target_interval`). The push that completes an
    interval renews it. `learning_rates`: those of `ParameterServerBase`. `frame_skip`: frames per step. `actor_count`:
    number of training actors, at least the registered ones. `first_actor`: index and rank of the first of these.
    """

    def __init__(
        self,
        parameters: FlatVector,
        *,
        learning_rate: float = 0.01,
        max_global_step: int | None = None,
        statistics: Mapping[str, int] = MappingProxyType({}),
        target: TargetInterval | None = None,
        learning_rates: RateFactors = (),
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
        self._pending_statistics: dict[str, Moments] = {}
        self._merged = self._no_samples()
        self._interval = target
        factors = check_rate_factors(learning_rates, len(self._initial))
        self.rate_factors: FlatVector | np.float32 = factor_vector(factors) if factors else np.float32(1)
        """Factors of the learning rate: float32 [P], or 1."""
        self._frame_skip = frame_skip
        self.first_actor = 0
        self._actor_count = actor_count
        self._intervals = 0
        self._newest = self._make_pulled(self._initial, 0)
        self._refresh_target(first=True)
        self._base: Pulled | None = None
        self._memory: FlatVector = np.full(len(self._initial), np.nan, np.float32)

    @property
    def parameters(self) -> FlatVector:
        """The current parameters, float32 [P], read-only."""
        return self._newest.parameters

    @property
    def statistics(self) -> Mapping[str, Moments]:
        """The merged statistics of all pushed samples."""
        return self._newest.statistics

    @property
    def global_step(self) -> int:
        """The sum of all pushed `env_steps`."""
        return self._global_step

    def apply(self, gradient: FlatVector) -> FlatVector:
        """Return the parameters after an update by `gradient`, both float32 [P]."""
        updated: FlatVector = self.parameters - np.float32(self.learning_rate) * self.rate_factors * gradient
        return updated

    def publish(self, parameters: FlatVector, samples: Mapping[str, Moments] = MappingProxyType({})) -> None:
        """Set new parameters and add samples of statistics, like pushes of other workers."""
        self._merge(samples)
        self._newest = self._make_pulled(np.array(parameters, np.float32), self._newest.version + 1)
        self._refresh_target()

    def register(self, registration: Registration) -> Registered:
        """Register once, before any other call. Actors get indices from `first_actor` on.

        If the purpose is not training, there is no target network.
        """
        _require(self.registration is None, "register was called twice")
        acts = registration.purpose.acts
        _require(acts == (registration.environments >= 1), "a connection has at least one environment, a learner none")
        self.registration = registration
        end = self.first_actor + registration.environments
        self._actor_count = max(self._actor_count, end)
        self._newest = replace(self._newest, actor_count=self._actor_count, actor_rank=self.first_actor)
        if not registration.purpose.may_update:
            self._interval = None
            self._newest = replace(self._newest, target=None)
        return Registered(len(self._initial), tuple(range(self.first_actor, end)), self._global_step)

    def pull(self) -> Pulled:
        """Return the newest parameters. The object changes only if parameters, statistics, target or frames do."""
        self._check_registered("pull")
        self._raise_due_error()
        self.pulls += 1
        return self._pulled_newest()

    def gradient_memory(self) -> FlatVector:
        """Return an array of NaN, filled again after each push, so that stale or missing numbers are detected."""
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
        """Record the push, and apply the gradient unless `discard` has a reason for it."""
        registration = self._check_registered("push")
        _require(registration.purpose.may_update, "push in exploit mode")
        _require(self._base is not None, "push before the first pull")
        _require(type(env_steps) is int, f"env_steps must be an int, not {env_steps!r}")
        _require(env_steps >= 0, f"env_steps must be at least 0, not {env_steps}")
        _require(gradient is None or not withheld, "a push with withheld=True must not have a gradient")
        _require(loss is None or isinstance(loss, float), f"loss must be a float, not {loss!r}")
        if gradient is not None:
            self._check(gradient)
        self._raise_due_error()
        assert self._base is not None
        base, discarded = self._base, "loss" if withheld else None
        if gradient is not None and self.discard:
            discarded = self.discard.popleft()
        copy = None if gradient is None else gradient.copy()
        self._memory.fill(np.nan)
        statistics, self._pending_statistics = self._pending_statistics, {}
        self.pushes.append(RecordedPush(copy, env_steps, base, discarded, statistics, loss))
        staleness = self._newest.version - base.version
        self._global_step += env_steps
        if discarded == "incarnation":
            self._merged = self._no_samples()
        self._merge(statistics)
        if env_steps:
            self._newest = replace(self._newest, frames=self._frames, global_step=self._global_step)
        if discarded == "incarnation":
            self.publish(self._initial)
            self._refresh_target(first=True)
        elif copy is not None and discarded is None:
            self.publish(self.apply(copy))
        else:
            self._refresh_target()
        pulled = self._pulled_newest() if want_parameters or discarded == "incarnation" else None
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
        """Push immediately; the returned function returns the result."""
        pushed = self.push(gradient, env_steps, want_parameters, loss=loss, withheld=withheld)
        return lambda: pushed

    def flush(self) -> None:
        """Count the call."""
        self._check_registered("flush")
        self.flushes += 1

    def close(self) -> None:
        """Close: each later call raises ContractBroken."""
        self.closed = True

    def _check_registered(self, call: str) -> Registration:
        _require(not self.closed, f"{call} after close")
        if self.registration is None:
            raise ContractBroken(f"{call} before register")
        return self.registration

    def _raise_due_error(self) -> None:
        if self.failures:
            raise self.failures.popleft()
        if self._max_global_step is not None and self._global_step >= self._max_global_step:
            raise TrainingEnded(self._global_step)

    def _check(self, gradient: FlatVector) -> None:
        _require(isinstance(gradient, np.ndarray), f"a gradient must be an array, not {type(gradient).__name__}")
        _require(gradient.dtype == np.float32, f"a gradient must be float32, not {gradient.dtype}")
        _require(
            gradient.shape == self._initial.shape,
            f"a gradient must have shape {self._initial.shape}, not {gradient.shape}",
        )
        _require(bool(np.isfinite(gradient).all()), "a gradient must be finite")

    def _no_samples(self) -> dict[str, Moments]:
        return {name: Moments.zeros(length) for name, length in self._lengths.items()}

    def _merge(self, statistics: Mapping[str, Moments]) -> None:
        if statistics:
            merged = {name: self._merged[name].merged(moments) for name, moments in statistics.items()}
            self._merged = {**self._merged, **merged}
            self._newest = replace(self._newest, statistics=MappingProxyType(self._merged))

    def _pulled_newest(self) -> Pulled:
        self._base = self._newest
        return self._newest

    def _make_pulled(self, parameters: FlatVector, version: int) -> Pulled:
        frozen = parameters.copy()
        frozen.flags.writeable = False
        target = self._newest.target if version else None
        merged = MappingProxyType(self._merged)
        count, rank = self._actor_count, self.first_actor
        return Pulled(frozen, version, self._global_step, merged, self._frames, target, count, rank)

    @property
    def _frames(self) -> int:
        return self._global_step * self._frame_skip

    def _refresh_target(self, first: bool = False) -> None:
        """Renew the target network if an interval is complete, or copy the parameters for the `first` time."""
        if self._interval is None:
            return
        intervals = self._interval.counted(self._frames, self._newest.version) // self._interval.length
        newest = self._newest
        if first or (intervals > self._intervals and not self._interval.is_soft):
            self._newest = replace(newest, target=newest.parameters)
        elif intervals > self._intervals and newest.target is not None:
            target = newest.target + np.float32(self._interval.tau) * (newest.parameters - newest.target)
            target.flags.writeable = False
            self._newest = replace(newest, target=target)
        self._intervals = intervals


class FakeMetrics(MetricsRecorder):
    """The metrics recorder of a `FakeParameters`, which checks the contract as well."""

    def __init__(self, parameters: FakeParameters) -> None:
        self._parameters = parameters

    def scalar(self, name: str, value: float) -> None:
        """Record a scalar."""
        self._parameters._check_registered("scalar")
        _require(_SCALAR.fullmatch(name) is not None, f"{name!r} is not a valid name of a scalar")
        _require(math.isfinite(value), f"scalar {name} must be finite, not {value}")
        self._parameters.scalars.append((name, float(value)))

    def statistic(self, name: str, moments: Moments) -> None:
        """Keep samples of a statistic until the next push."""
        registration = self._parameters._check_registered("statistic")
        _require(registration.purpose.may_update, "statistic in exploit mode")
        lengths = self._parameters._lengths
        _require(name in lengths, f"{name!r} is not among the declared statistics {sorted(lengths)}")
        _require(isinstance(moments, Moments), f"a statistic must be Moments, not {type(moments).__name__}")
        length = lengths[name]
        _require(moments.size == length, f"statistic {name} must have {length} numbers, not {moments.size}")
        statistics = self._parameters._pending_statistics
        statistics[name] = statistics[name].merged(moments) if name in statistics else moments

    def episode(self, episode_return: float, length: int, drawn: Drawn | None = None) -> None:
        """Record an episode. The worker counts episodes, so an agent must not call this."""
        self._parameters._check_registered("episode")
        self._parameters.episodes.append((float(episode_return), int(length)))


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ContractBroken(sentence)
