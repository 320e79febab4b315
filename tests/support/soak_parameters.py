"""A parameters client that turns gradients into updates and checks the outcome of each update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from relaax.algorithm_base import AgentContext, LearnerContext, Pulled, Pushed
from relaax.parameters.calls import Call, Calls
from relaax.parameters.interfaces import FlatVector, Parameters, ParameterServerError, ParameterServerUnavailable
from relaax.parameters.moments import Moments

from .soak_journal import Counts, Journal
from .soak_layout import Layout

STATISTIC = "soak/steps"
"""A statistic with one sample for each environment step that shard 0 has counted, whatever the outcome of a push."""


ANSWER_SECONDS = 6.0
"""Timeout of a worker of a soak for an answer: shorter than the default, so that a soak takes less time."""


class LedgerBroken(Exception):
    """An update or a sample was lost or doubled, or the values of a shard contradict each other."""


@dataclass(frozen=True)
class Inside:
    """Private state of a parameters client."""

    incarnation: int
    worker: str
    push_id: int


def inside(bridge: Any) -> Inside:
    """Return the private state of a parameters client over gRPC."""
    return Inside(bridge._incarnation, bridge._worker_id, bridge._links[0]._push_id)


class Attempts:
    """A counter of repeated calls of a parameters client, through shared memory and gRPC."""

    def __init__(self, bridge: Any) -> None:
        self.repeats = 0
        self._links = bridge._links
        self._calls: Calls = bridge._call
        self._calls._timeout = ANSWER_SECONDS
        bridge._call = self
        for link in self._links:
            link.transport.mark_lost = self._after_a_loss(link.transport.mark_lost)

    def __call__(self, calls: Sequence[Call]) -> list[Any]:
        """Return the answers. Raises the errors of the client's own calls."""
        return self._calls([replace(call, method=_Counted(call.method, self)) for call in calls])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._calls, name)

    @property
    def ways(self) -> str:
        """Transport to each shard: m for shared memory, g for gRPC."""
        return "".join("g" if link.memory is None else "m" for link in self._links)

    def _after_a_loss(self, lost: Callable[..., None]) -> Callable[..., None]:
        def lose(*why: Any) -> None:
            self.repeats += 1
            lost(*why)

        return lose


class _Counted:
    """A method of a stub. Every call after the first counts as a repeat."""

    def __init__(self, method: Any, attempts: Attempts) -> None:
        self._method = method
        self._attempts = attempts
        self._called = False

    def __call__(self, request: Any, timeout: float) -> Any:
        self._count()
        return self._method(request, timeout=timeout)

    def future(self, request: Any, timeout: float) -> Any:
        """Start the call, and return its future."""
        self._count()
        return self._method.future(request, timeout=timeout)

    def _count(self) -> None:
        self._attempts.repeats += self._called
        self._called = True


class LedgerParameters(Parameters):
    """A wrapper of an agent's parameters client that hides the counters from the agent and checks every answer.

    The shards add the updates that they receive. An update is a step of RMSProp with mean squares of this worker
    (Mnih et al. 2016, equations S2 and S3), and it adds 1 to this worker's counters. The wrapper writes to the journal
    and raises LedgerBroken unless every answer shows that
    - an applied update raised the counters of all shards by 1, and a repeated push did not raise them again,
    - a discarded update did not raise the counters of all shards,
    - the merged statistic has as many samples as there were steps.
    A refused push also raises LedgerBroken.
    """

    def __init__(self, context: AgentContext | LearnerContext, layout: Layout, journal: Journal, config: Any) -> None:
        self._parameters, self._metrics = context.parameters, context.metrics
        self._client = context.parameters._client  # type: ignore[attr-defined]
        self._attempts = Attempts(self._client)
        self._layout = layout
        self._journal = journal
        self._rate = config.initial_learning_rate
        self._rms = config.rms_prop
        self._mean_square = np.zeros(layout.network, np.float32)
        self._seen = np.zeros((layout.shards, layout.slots), np.float32)
        self._stay: Inside | None = None
        self._own: Counts = (0,) * layout.shards
        self._last: tuple[Pulled, Pulled] | None = None

    def gradient_memory(self) -> None:
        """Return None: the update that is sent is longer than the agent's gradient."""

    def pull(self) -> Pulled:
        pulled = self._parameters.pull()
        stay = inside(self._client)
        if self._stay is None or stay.incarnation != self._stay.incarnation:
            self._join(stay, pulled)
        return self._taken(pulled)

    def push(
        self,
        gradient: FlatVector | None,
        env_steps: int,
        want_parameters: bool = True,
        *,
        loss: float | None = None,
    ) -> Pushed:
        assert want_parameters, "the outcome of an update is read from the parameters: sync_interval must be 1"
        update = None
        if gradient is not None:
            update = self._layout.spread(self._update(gradient))
            self._layout.mark(update, self._journal.slot)
        before = inside(self._client)
        if self._stay is not None and before.incarnation != self._stay.incarnation:
            return self._pushed_late(update, env_steps)
        self._journal.pushing(before.push_id + 1, env_steps, update is not None, self._attempts.ways)
        self._attempts.repeats = 0
        if env_steps:
            self._metrics.statistic(STATISTIC, Moments(env_steps, np.array([self._journal.slot]), np.zeros(1)))
        try:
            pushed = self._parameters.push(update, env_steps, loss=loss)
        except ParameterServerUnavailable:
            raise
        except ParameterServerError as refusal:
            self._break(f"a push was refused: {refusal}")
        assert pushed.pulled is not None
        after = inside(self._client)
        if pushed.discarded == "incarnation":
            self._journal.refused(self._attempts.repeats)
            self._join(after, pushed.pulled)
        else:
            if after != Inside(before.incarnation, before.worker, before.push_id + 1):
                self._break(f"one push led from {before} to {after}")
            counts = self._counts(pushed.pulled)
            self._judge(counts, pushed.discarded, update is not None)
            self._own = counts
            self._journal.pushed(after.push_id, pushed.discarded or "applied", counts, self._attempts.repeats)
        return Pushed(
            pushed.discarded, pushed.global_step, pushed.version, pushed.staleness, self._taken(pushed.pulled)
        )

    def _pushed_late(self, update: FlatVector | None, env_steps: int) -> Pushed:
        """Send a push after a roll-back that was noticed between two pushes. The push must be discarded."""
        pushed = self._parameters.push(update, env_steps)
        if pushed.discarded != "incarnation" or env_steps or pushed.pulled is None:
            self._break(
                f"after a roll-back, the outcome of a push of {env_steps} steps is {pushed.discarded or 'applied'}"
            )
        self._join(inside(self._client), pushed.pulled)
        return replace(pushed, pulled=self._taken(pushed.pulled))

    def _update(self, gradient: FlatVector) -> FlatVector:
        decay = np.float32(self._rms.decay)
        self._mean_square = decay * self._mean_square + (1 - decay) * gradient * gradient
        update: FlatVector = -np.float32(self._rate) * gradient / np.sqrt(self._mean_square + self._rms.epsilon)
        return update

    def _join(self, stay: Inside, pulled: Pulled) -> None:
        """Join an incarnation. Its counters may be lower than before, and may include the push in flight."""
        self._seen[:] = 0
        counts = self._counts(pulled)
        if any(now > last + 1 for now, last in zip(counts, self._own, strict=True)):
            self._break(f"the counters were {self._own}, but a new incarnation has {counts}")
        self._stay, self._own = stay, counts
        self._journal.joined(stay.incarnation, stay.worker, stay.push_id, counts)

    def _judge(self, counts: Counts, discarded: str | None, update: bool) -> None:
        raised = [now - last for now, last in zip(counts, self._own, strict=True)]
        if not update:
            right = not any(raised)
        elif discarded is None:
            right = all(r == 1 for r in raised)
        else:  # each shard decides for itself
            right = all(r in (0, 1) for r in raised) and not all(raised)
        if not right:
            self._break(
                f"a push that was {discarded or 'applied'}, {'with' if update else 'without'} an update, raised its "
                f"counters by {raised}, from {self._own} to {counts}"
            )

    def _counts(self, pulled: Pulled) -> Counts:
        """Compare all counters with the totals and the last answer, and return this worker's counters."""
        counts, totals = self._layout.counts(pulled.parameters), self._layout.totals(pulled.parameters)
        sums = counts.sum(axis=1, dtype=np.float64)
        if (sums != totals).any() or pulled.version != totals[0]:
            self._break(f"the sums of the counters are {sums}, the totals {totals}, and the version {pulled.version}")
        samples = pulled.statistics[STATISTIC].count
        if samples != pulled.global_step:
            self._break(f"the statistic has {samples:.0f} samples of {pulled.global_step} steps")
        if (counts < self._seen).any():
            self._break(f"counters fell within an incarnation: {np.argwhere(counts < self._seen)[:8].tolist()}")
        self._seen = np.array(counts)
        return tuple(int(count) for count in counts[:, self._journal.slot])

    def _taken(self, pulled: Pulled) -> Pulled:
        if self._last is None or self._last[0] is not pulled:
            networks = {"parameters": self._layout.gather(pulled.parameters)}
            if pulled.target is not None:
                networks["target"] = self._layout.gather(pulled.target)
            self._last = pulled, replace(pulled, **networks)
        return self._last[1]

    def _break(self, sentence: str) -> NoReturn:
        self._journal.broken(sentence)
        raise LedgerBroken(sentence)
