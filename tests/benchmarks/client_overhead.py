#!/usr/bin/env python3
"""The client's processor time in an environment's program: python tests/benchmarks/client_overhead.py [CONFIG]

Prints the client's processor time per message and per step, in microseconds of one core. The loop of
`relaax.client.run` is measured with an environment that takes no time and a server that answers at once. The server is
this script, started with `serve`. Between two messages no other code runs, so the client's code and data stay in the
processor's caches. In a program that emulates games between two messages, the same work takes several times as long.
"""

from __future__ import annotations

import os
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from relaax import rlx
from relaax.cli.run.environment_check import EnvironmentCheck
from relaax.cli.run.plan import make_plan
from relaax.client import run
from relaax.server.rlx_server.connection.channel import PeerDisconnected
from relaax.server.rlx_server.connection.peer import Peer
from relaax.supervision.process import Process, StartError

START_SECONDS = 60.0
PATIENCE_SECONDS = 60.0
PARTS = 5


class ConstantEnvironments:
    """A vector of constant environments. `cpu`: processor seconds of this thread, read before every `part`-th step."""

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
        """Return the constant observation."""
        return self._outcome[0], {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        """Return zero rewards; episodes never end."""
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

    The spaces describe one environment. `messages` is the total number of messages. The server's log is in `folder`.
    Raises StartError.
    """
    part = max(1, messages // (PARTS + 1))
    env = ConstantEnvironments(observation_space, action_space, environments, part)
    server = Process("answering-server", folder / "answering-server.log", server=True, secrets={})
    server.start([sys.executable, __file__, "serve"])
    try:
        while not server.is_ready:
            if server.exit_code() is not None or server.is_late(START_SECONDS):
                raise server.start_error("did not start")
            time.sleep(0.01)
        address = server.address or ""
        steps = environments * ((PARTS + 1) * part + 1)
        run(env, address, steps=steps, report_latency=None, token="", retry_seconds=0.0)
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


def serve(listener: socket.socket) -> None:
    """Accept one client and answer every step with the same actions, until the client disconnects."""
    accepted, _ = listener.accept()
    lifeline, _held = os.pipe()  # stays open: only the client ends this server
    peer = Peer(accepted, rlx.ServerConnection(), lifeline)
    try:
        hello = peer.receive(PATIENCE_SECONDS)
        assert isinstance(hello, rlx.Hello)
        peer.send(rlx.Welcome("benchmark", "none", peer.connection.limits))
        n = hello.environments
        answer = rlx.Actions([np.zeros((n, *e.shape), e.dtype) for e in hello.action_space.elements()])
        while not isinstance(message := peer.receive(PATIENCE_SECONDS), rlx.Bye):
            if isinstance(message, rlx.Init | rlx.Step):
                peer.answer(answer)
            elif isinstance(message, rlx.Ping):
                peer.send(rlx.Pong(message.nonce))
    except PeerDisconnected:
        pass
    finally:
        peer.close()


def main(config: str = "da3c_gym_cartpole") -> None:
    if config == "serve":
        with socket.create_server(("127.0.0.1", 0)) as listener:
            print(f"the answering server is listening on 127.0.0.1:{listener.getsockname()[1]}", flush=True)
            serve(listener)
        return
    plan = make_plan(config, [])
    with EnvironmentCheck(plan) as check:
        spaces = check.wait()
    assert spaces is not None, "the environment did not report its spaces in time"
    with tempfile.TemporaryDirectory() as folder:
        print(client_overhead(*spaces, plan.run.envs_per_client, Path(folder)))


if __name__ == "__main__":
    main(*sys.argv[1:])
