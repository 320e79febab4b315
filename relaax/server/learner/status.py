"""Export a learner's metrics to Prometheus, and its health over HTTP."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from relaax import __version__
from relaax.server.address import listen
from relaax.server.learner.learning import LearnerState
from relaax.server.status import Families, Family, StatusServer, registry_of


@dataclass(frozen=True, slots=True)
class LearnerSample:
    """The values of one scrape."""

    state: LearnerState
    uptime: float

    @property
    def serving(self) -> bool:
        """Whether the parameter server has answered."""
        return self.state.phase != "starting"


_FAMILIES: tuple[Family[LearnerSample], ...] = (
    Family("serving", "1 once the parameter server has answered, else 0", lambda v: v.serving),
    Family("learning", "1 once there is a model, else 0", lambda v: v.state.phase == "learning"),
    Family("uptime_seconds", "seconds since the start of the process", lambda v: v.uptime),
    Family("updates_total", "updates that it has computed", lambda v: v.state.updates),
    Family("items_total", "items that it has learned from", lambda v: v.state.items),
    Family("wait_seconds_total", "seconds in which it has waited for samples", lambda v: v.state.waited_seconds),
    Family(
        "dropped_priorities_total",
        "new priorities that it did not send: a replay server was too slow, or away",
        lambda v: v.state.dropped_priorities,
    ),
    Family("replay_size", "items in all replay servers", lambda v: v.state.replay_size),
    Family("global_step", "environment steps of the training", lambda v: v.state.global_step),
)
FAMILIES = tuple(replace(family, name=f"relaax_learner_{family.name}") for family in _FAMILIES)


def status_server(address: str, state: LearnerState) -> StatusServer:
    """Return a status server that is bound to `address` and not started. Raises AddressError."""
    begun = time.monotonic()

    def view() -> LearnerSample:
        return LearnerSample(replace(state), time.monotonic() - begun)

    def healthy() -> tuple[bool, Mapping[str, Any]]:
        sample = view()
        return sample.serving, {
            "server": "relaax-learner",
            "version": __version__,
            "learner": sample.state.learner,
            "phase": sample.state.phase,
            "updates": sample.state.updates,
            "global_step": sample.state.global_step,
        }

    return StatusServer(listen(address), healthy, registry_of(Families(FAMILIES, view)))
