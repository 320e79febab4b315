"""Start the environments of one connection for a moment, to measure messages, time per step and memory."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from relaax import rlx
from relaax.cli.bench.programs import processor_seconds
from relaax.client.program.agents import RandomAgent
from relaax.configuration import ConfigurationError
from relaax.metrics.system import MEGABYTE
from relaax.server.rlx_server.connection.channel import PeerDisconnected
from relaax.server.rlx_server.connection.peer import Peer
from relaax.supervision.process import EXIT_REFUSED, Process, StartError

START_SECONDS = 90.0
POLL_SECONDS = 0.2
SILENCE_SECONDS = 60.0
WARM_UP_MESSAGES = 20


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Measurements of an environment program.

    `us`: processor time per message in microseconds. `megabytes`: memory that it does not share.
    """

    observation_space: rlx.Space
    action_space: rlx.Space
    us: float
    megabytes: float


def probe(command: Sequence[str], address: socket.socket, folder: Path, seconds: float) -> ProbeResult:
    """Start a program that connects to the listening socket `address`; answer it at random for `seconds`.

    Raises ConfigurationError if it refuses its arguments, and StartError if it ends or does not connect.
    """
    process = Process("environment", folder / "environment.log", secrets={})
    process.start(command)
    lifeline, held = os.pipe()  # stays open: only the program ends the connection
    try:
        peer = Peer(_accept(address, process), rlx.ServerConnection(), lifeline)
        try:
            return _measure(peer, process, seconds)
        except (PeerDisconnected, rlx.RemoteProtocolError) as error:
            process.wait(2.0)
            raise StartError(
                f"the environment's program closed the connection: {error}\n{process.log_tail()}"
            ) from None
        finally:
            peer.close()
    finally:
        os.close(lifeline)
        os.close(held)
        process.terminate()
        if not process.wait(2.0):
            process.kill()
            process.wait(1.0)


def _accept(listener: socket.socket, process: Process) -> socket.socket:
    deadline = time.monotonic() + START_SECONDS
    listener.settimeout(POLL_SECONDS)
    while True:
        try:
            return listener.accept()[0]
        except TimeoutError:
            code = process.exit_code()
            if code == EXIT_REFUSED:
                raise ConfigurationError(process.log_tail().strip()) from None
            if code is not None:
                raise process.start_error(f"could not be made ({code})") from None
            if time.monotonic() > deadline:
                raise StartError(
                    f"the environment did not connect within {START_SECONDS:g} s:\n{process.log_tail()}"
                ) from None


def _measure(peer: Peer, process: Process, seconds: float) -> ProbeResult:
    hello = peer.receive(SILENCE_SECONDS)
    if not isinstance(hello, rlx.Hello):
        raise StartError(f"the environment's program sent {type(hello).__name__} instead of a hello")
    peer.send(rlx.Welcome("plan", "none", peer.connection.limits))
    agent = RandomAgent(hello.observation_space, hello.action_space, hello.environments, seed=0)
    elements = list(hello.action_space.elements())
    messages, spent, ends = -WARM_UP_MESSAGES, 0.0, float("inf")
    while messages < 1 or time.monotonic() < ends:
        message = peer.receive(SILENCE_SECONDS)
        if isinstance(message, rlx.Init | rlx.Step):
            messages += 1
            if messages == 0:
                spent, ends = processor_seconds([process.pid], descendants=True), time.monotonic() + seconds
            states = hello.observation_space.unflatten(message.observation) if agent.masked else None
            drawn = zip(hello.action_space.flatten(agent.step(None, states)), elements, strict=True)
            peer.answer(rlx.Actions([np.asarray(leaf, element.dtype) for leaf, element in drawn]))
        elif isinstance(message, rlx.Ping):
            peer.send(rlx.Pong(message.nonce))
        elif isinstance(message, rlx.Bye):
            raise StartError(f"the environment's program disconnected after {messages + WARM_UP_MESSAGES} messages")
    spent = processor_seconds([process.pid], descendants=True) - spent
    memory = psutil.Process(process.pid).memory_full_info().uss / MEGABYTE
    return ProbeResult(hello.observation_space, hello.action_space, 1e6 * spent / messages, memory)
