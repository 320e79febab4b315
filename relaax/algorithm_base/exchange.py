"""Pushes to and pulls from the parameter server, with gradient clipping and a sync interval."""

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
_NO_SCALARS: Mapping[str, float] = MappingProxyType({})


class Exchange:
    """The pushes and pulls of an agent or a learner.

    Gradients are clipped in place to the norm `gradient_norm_clipping`; with synchronous updates, the parameter server
    clips their mean instead. Every `sync_interval`-th push also pulls parameters and returns them. `env_steps`:
    environment steps that the next push counts.
    """

    def __init__(self, config: ConfigBase, context: AgentContext | LearnerContext) -> None:
        self._parameters, self._metrics = context.parameters, context.metrics
        self._max_norm = config.gradient_norm_clipping if config.update_patience is None else None
        self._interval = config.sync_interval
        self._pushes = 0  # since the last pull
        self._pulled_at = 0.0
        self._pending_reply: Callable[[], Pushed] | None = None  # of the last `push_later`
        self.env_steps = 0
        self.global_step = 0
        """The newest known global step."""

    def pull(self) -> Pulled:
        """Return the newest parameters."""
        pulled = self._parameters.pull()
        self._pulled_at = time.monotonic()
        return self.record_pull(pulled)

    def pull_if_old(self) -> Pulled | None:
        """Return the newest parameters if the last pull was over a second ago, else None. For exploit mode."""
        return self.pull() if time.monotonic() - self._pulled_at > EXPLOIT_PULL_SECONDS else None

    def record_pull(self, pulled: Pulled) -> Pulled:
        """Restart the sync interval after a pull by this exchange or by a bundled learner. Return `pulled`."""
        self._pushes, self.global_step = 0, pulled.global_step
        return pulled

    def push(
        self, gradient: FlatVector | None, loss: float | None = None, scalars: Mapping[str, float] = _NO_SCALARS
    ) -> Pulled | None:
        """Push a gradient, or only steps if it is None. Return the pulled parameters, or None without a pull.

        With a gradient, record `scalars` and the gradient's norm. `loss`: the mean loss of the gradient's examples.
        """
        wants_parameters = self._prepare(gradient, scalars)
        steps, self.env_steps = self.env_steps, 0
        return self._record_reply(self._parameters.push(gradient, steps, want_parameters=wants_parameters, loss=loss))

    def push_later(self, gradient: FlatVector, loss: float, scalars: Mapping[str, float]) -> None:
        """Push without waiting for the reply (see `finish`)."""
        wants_parameters = self._prepare(gradient, scalars)
        steps, self.env_steps = self.env_steps, 0
        self._pending_reply = self._parameters.push_later(gradient, steps, want_parameters=wants_parameters, loss=loss)

    def finish(self) -> Pulled | None:
        """Wait for the reply to the last `push_later`, if one is pending. Return the pulled parameters or None."""
        reply, self._pending_reply = self._pending_reply, None
        return None if reply is None else self._record_reply(reply())

    def _prepare(self, gradient: FlatVector | None, scalars: Mapping[str, float]) -> bool:
        """Clip the gradient, record the scalars, and return whether this push pulls parameters."""
        if gradient is not None:
            norm = clip_by_norm(gradient, self._max_norm)
            for name, value in (*scalars.items(), ("gradient/norm", norm)):
                self._metrics.scalar(name, value)
        self._pushes += 1
        return self._pushes >= self._interval

    def _record_reply(self, pushed: Pushed) -> Pulled | None:
        self.global_step = pushed.global_step
        return None if pushed.pulled is None else self.record_pull(pushed.pulled)
