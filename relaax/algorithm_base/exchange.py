"""Exchange gradients and steps for parameters with the parameter server."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from relaax.algorithm_base.agent import AgentContext
from relaax.algorithm_base.config import ConfigBase
from relaax.algorithm_base.learner import LearnerContext
from relaax.optim.clipping import clip_by_norm
from relaax.parameters.interfaces import FlatVector, Pulled, Pushed

EXPLOIT_PULL_SECONDS = 1.0
_NOTHING: Mapping[str, float] = MappingProxyType({})


class Exchange:
    """What an agent or a learner sends to the parameter server, and when it gets parameters.

    A gradient is clipped to the norm `gradient_norm_clipping`, in place. Every `sync_interval`-th push returns what it
    pulled, for the caller to use. `env_steps`: steps that are to be counted with the next push.
    """

    def __init__(self, config: ConfigBase, context: AgentContext | LearnerContext) -> None:
        self._parameters, self._metrics = context.parameters, context.metrics
        self._longest, self._interval = config.gradient_norm_clipping, config.sync_interval
        self._pushes = 0  # since parameters were pulled
        self._pulled_at = 0.0
        self._answer: Callable[[], Pushed] | None = None  # to the last `push_later`
        self.env_steps = 0
        self.global_step = 0
        """The newest that is known."""

    def pull(self) -> Pulled:
        """Return the newest parameters."""
        pulled = self._parameters.pull()
        self._pulled_at = time.monotonic()
        return self.fetched(pulled)

    def pull_if_old(self) -> Pulled | None:
        """Return the newest parameters if the last ones are older than a second: for agents in exploit mode."""
        return self.pull() if time.monotonic() - self._pulled_at > EXPLOIT_PULL_SECONDS else None

    def fetched(self, pulled: Pulled) -> Pulled:
        """Count from here on: this was pulled, here or by a learner beside an agent."""
        self._pushes, self.global_step = 0, pulled.global_step
        return pulled

    def push(
        self, gradient: FlatVector | None, loss: float | None = None, scalars: Mapping[str, float] = _NOTHING
    ) -> Pulled | None:
        """Send a gradient, or None, and the steps since the last one; record `scalars` and the gradient's norm.

        `loss`: that of the gradient, as a mean over its examples.
        """
        fetch = self._prepare(gradient, scalars)
        steps, self.env_steps = self.env_steps, 0
        return self._heard(self._parameters.push(gradient, steps, want_parameters=fetch, loss=loss))

    def push_later(self, gradient: FlatVector, loss: float, scalars: Mapping[str, float]) -> None:
        """Do as `push`, but without waiting for the answer: see `finish`."""
        fetch = self._prepare(gradient, scalars)
        steps, self.env_steps = self.env_steps, 0
        self._answer = self._parameters.push_later(gradient, steps, want_parameters=fetch, loss=loss)

    def finish(self) -> Pulled | None:
        """Wait for the answer to the last `push_later`, if it has not been waited for."""
        answer, self._answer = self._answer, None
        return None if answer is None else self._heard(answer())

    def _prepare(self, gradient: FlatVector | None, scalars: Mapping[str, float]) -> bool:
        """Clip the gradient, record, and return whether it is time to fetch parameters."""
        if gradient is not None:
            norm = clip_by_norm(gradient, self._longest)
            for name, value in (*scalars.items(), ("gradient/norm", norm)):
                self._metrics.scalar(name, value)
        self._pushes += 1
        return self._pushes >= self._interval

    def _heard(self, pushed: Pushed) -> Pulled | None:
        self.global_step = pushed.global_step
        return None if pushed.pulled is None else self.fetched(pushed.pulled)
