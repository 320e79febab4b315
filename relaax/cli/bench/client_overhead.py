"""The client's cost to an environment's program: processor time per step beyond the environment's own.

The whole loop of `relaax.client.run` is measured with an environment that takes no time and a server that answers at
once. As nothing else runs in between, the processor caches hold all that the client needs; in a program that emulates
games between two messages, the same work takes several times as long.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from relaax import rlx
from relaax.client import run
from relaax.supervision.process import Process, StartError

START_SECONDS = 60.0
PARTS = 5


class Still:
    """A vector of environments in which nothing happens. `cpu`: this thread's seconds after every `part` steps."""

    def __init__(self, observation: rlx.Space, action: rlx.Space, environments: int, part: int) -> None:
        self.metadata = {"autoreset_mode": "same_step"}
        self.single_observation_space, self.single_action_space = observation, action
        self.num_envs = environments
        self.cpu: list[float] = []
        self._part = part
        self._messages = 0
        leaves = [np.zeros((environments, *e.shape), e.dtype) + _least(e) for e in observation.elements()]
        self._outcome: tuple[Any, ...] = (
            observation.unflatten(
                [leaf.astype(e.dtype) for leaf, e in zip(leaves, observation.elements(), strict=True)]
            ),
            np.zeros(environments),
            np.zeros(environments, np.bool_),
            np.zeros(environments, np.bool_),
            {},
        )

    def reset(self, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the state, which never changes."""
        return self._outcome[0], {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        """Return no reward and no end of an episode."""
        if self._messages % self._part == 0:
            self.cpu.append(time.thread_time())
        self._messages += 1
        return self._outcome


def _least(element: rlx.ElementarySpace) -> int:
    return element.start if isinstance(element, rlx.Discrete) else 0


def client_overhead(
    observation_space: rlx.Space, action_space: rlx.Space, environments: int, folder: Path, messages: int = 5000
) -> dict[str, float]:
    """Return `us_per_message` and `us_per_step`: microseconds of one core, medians of PARTS parts after a warm-up.

    The spaces are those of one environment; `messages` is the total number sent; `folder` holds the server's log.
    Raises StartError.
    """
    part = max(1, messages // (PARTS + 1))
    env = Still(observation_space, action_space, environments, part)
    server = Process("answering-server", folder / "answering-server.log", server=True, secrets={})
    server.start([sys.executable, "-m", "relaax.cli.bench.answering_server"])
    try:
        address = server.wait_ready(START_SECONDS, threading.Event())
        run(
            env,
            address,
            steps=environments * ((PARTS + 1) * part + 1),
            report_latency=None,
            token="",
            retry_seconds=0.0,
        )
    finally:
        server.terminate()
        if not server.wait(2.0):
            server.kill()
            server.wait(1.0)
    spent = [after - before for before, after in zip(env.cpu[1:], env.cpu[2:], strict=False)]
    if len(spent) < PARTS:
        raise StartError("the client took too few steps")
    per_message = 1e6 * statistics.median(spent) / part
    return {"us_per_message": round(per_message, 2), "us_per_step": round(per_message / environments, 2)}
