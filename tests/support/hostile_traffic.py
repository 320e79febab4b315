"""Connections of hostile clients to a CartPole service: valid, invalid, floods and incomplete messages."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from relaax import rlx
from relaax.rlx import Autoreset, Box, Discrete, Hello, Mode, Sender
from relaax.rlx.messages import MAX_ENVIRONMENTS, MAX_NUMBER, MAX_REWARD
from relaax.rlx.wire.codecs import codec_named
from support.connection_floods import connect_to
from support.fuzz_cases import case
from support.rlx_vector_recorder import framed

NUMBERS = (
    *(0.0, -0.0, 1.0, -1.0, 0.1, MAX_REWARD, -MAX_REWARD, 1e12, -3e14, 5e-324, -1e-310),
    *(np.nextafter(MAX_REWARD, np.inf), 1e30, 2.0**63, 3.5e38, 1e153, 1e308, -1.7e308, np.nan, np.inf, -np.inf),
)
VALID = 11  # the first VALID numbers are valid rewards
EXTREMES = (MAX_REWARD, -MAX_REWARD, 1e153, -1e153, 1.7e308, -1.7e308)  # finite numbers that make sums very large
ENVIRONMENTS = (1, 1, 1, 2, 2, 8, 64, 300, 2000, MAX_ENVIRONMENTS, MAX_ENVIRONMENTS + 1, 2**31)
NAMES = ("a", "a/b", "reward", "../x", "", "a b", "é", "x" * 128, "x" * 129, "client/a", "episode/return", "1st")
PATIENCE = 10.0  # seconds to wait for an answer
LONGEST = 8.0  # maximum seconds of one connection


def run_connection(address: str, seed: int, number: int) -> str:
    """Run one connection, or a flood of connections. Return its kind. Raises OSError.

    The seed and the number determine the messages.
    """
    rng = random.Random(f"{seed} {number}")
    kind = rng.choice(tuple(_KINDS))
    _KINDS[kind](address, rng)
    return kind


def _play(address: str, rng: random.Random) -> None:
    """Send a hello and episodes with valid or invalid numbers. Each step waits for its answer."""
    hello = _hello(rng, rng.choice(ENVIRONMENTS))
    valid = rng.random() < 0.6
    always = rng.choice(EXTREMES) if rng.random() < 0.4 else None
    pause = rng.choice((0.0, 0.0, 0.001, 0.05, 0.5))
    until = time.monotonic() + rng.uniform(0.5, LONGEST)
    codec = codec_named(rng.choice(("protobuf", "json")))
    with connect_to(address, PATIENCE) as sock:
        reader = _AnswerReader(sock)
        for message in _messages(rng, hello, valid, always):
            sock.sendall(framed(codec.encode(message, Sender.CLIENT)))
            if not isinstance(message, rlx.Metrics | rlx.Ping | rlx.Pong) and not reader.read_answer():
                return
            if time.monotonic() > until:
                break
            time.sleep(pause)
        _end(sock, rng)


def _flood(address: str, rng: random.Random) -> None:
    """Send many hellos, and do not read the welcomes."""
    flood = [connect_to(address, PATIENCE) for _ in range(rng.randrange(2, 30))]
    session = f"flood{rng.randrange(3)}"
    try:
        for sock in flood:
            hello = _hello(rng, rng.choice(ENVIRONMENTS[:8]))
            hello = replace(hello, session_id=rng.choice((session, f"s{rng.getrandbits(60)}", "")))
            sock.sendall(framed(codec_named("protobuf").encode(hello, Sender.CLIENT)))
        time.sleep(rng.uniform(0.0, 2.0))
    finally:
        for sock in flood:
            sock.close()


def _half(address: str, rng: random.Random) -> None:
    """Send a part of a message, and then nothing."""
    message = codec_named(rng.choice(("protobuf", "json"))).encode(_hello(rng, 1), Sender.CLIENT)
    data = framed(message) if rng.random() < 0.7 else struct.pack(">I", rng.choice((2**32 - 1, 65_536, 10))) + b"\x0a"
    with connect_to(address, PATIENCE) as sock:
        sock.sendall(data[: rng.randrange(1, len(data))])
        time.sleep(rng.uniform(0.0, 3.0))
        _end(sock, rng)


def _fuzz_case(address: str, rng: random.Random) -> None:
    """Send a case of the fuzz test."""
    sent = case(rng.getrandbits(30), rng.getrandbits(30))
    with connect_to(address, PATIENCE) as sock:
        for frame in sent.frames[:200]:
            sock.sendall(frame)
        time.sleep(rng.uniform(0.0, 1.0))
        _end(sock, rng)


_KINDS: dict[str, Callable[[str, random.Random], None]] = {
    "play": _play,
    "plays": _play,
    "more plays": _play,
    "flood": _flood,
    "half": _half,
    "fuzz case": _fuzz_case,
}


class _AnswerReader:
    """A reader of answers that checks only their kinds."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data = b""

    def read_answer(self) -> bool:
        """Read an answer. Return False if the server ended the connection instead. Raises TimeoutError."""
        while True:
            while len(self._data) < 4 or len(self._data) < 4 + int.from_bytes(self._data[:4], "big"):
                piece = self._sock.recv(1 << 16)
                if not piece:
                    return False
                self._data += piece
            end = 4 + int.from_bytes(self._data[:4], "big")
            payload, self._data = self._data[4:end], self._data[end:]
            if payload.startswith((b"\x22", b'{"error"', b"\x2a", b'{"trainingFinished"')):
                return False
            if not payload.startswith((b"\x32", b'{"ping"')):
                return True


def _hello(rng: random.Random, environments: int) -> Hello:
    return Hello(
        Box(shape=(4,)) if rng.random() < 0.95 else Box(shape=(rng.choice((1, 3, 5)),)),
        Discrete(2) if rng.random() < 0.97 else Discrete(3),
        environments,
        (rng.choice(list(Autoreset)),),
        mode=Mode.EXPLOIT if rng.random() < 0.1 else Mode.TRAIN,
        environment=rng.choice((*["CartPole-v1"] * 8, "x" * 200, "\u2028")),
        session_id=rng.choice(("", f"s{rng.getrandbits(60)}", f"again{rng.randrange(4)}")),
        reports_episodes=rng.random() < 0.3,
        frame_skip=rng.choice((1, 1, 4, 1000)),
        out_of_step=rng.random() < 0.3,
    )


def _messages(rng: random.Random, hello: Hello, valid: bool, always: float | None) -> Iterator[rlx.Message]:
    """Yield the messages of a client without end.

    `valid`: all numbers are valid, except possibly `always`. `always`: the only reward; None for random ones.
    """
    yield hello
    n = min(hello.environments, MAX_ENVIRONMENTS)
    while True:
        away = _idle(rng, hello, n, valid)
        yield rlx.Init(_observation(rng, n, valid), _mask(rng, n) if rng.random() < 0.2 else None, away)
        for _ in range(rng.randrange(1, 60)):
            if rng.random() < 0.1:
                yield _metrics(rng, valid)
            step, away = _step(rng, hello, n, away, valid)
            if always is not None:
                step.reward = np.full(n, always)
            yield step
        truncated = _mask(rng, n) & ~away
        rewards = _numbers(rng, n, valid) if always is None else np.full(n, always)
        yield rlx.Reset(rewards, truncated, _observation(rng, n, valid), _episodes(rng, hello, n, valid))


def _step(rng: random.Random, hello: Hello, n: int, away: np.ndarray, valid: bool) -> tuple[rlx.Step, np.ndarray]:
    idle = _idle(rng, hello, n, valid)
    may_end = ~away & (hello.autoreset[0] != Autoreset.DISABLED) & (rng.random() < 0.3)
    ended, truncated = _mask(rng, n) & may_end, _mask(rng, n) & may_end
    either = ended | truncated
    same = hello.autoreset[0] == Autoreset.SAME_STEP and bool(either.any())
    step = rlx.Step(
        _numbers(rng, n if valid or rng.random() < 0.95 else n + 1, valid),
        _observation(rng, n, valid),
        ended,
        truncated,
        _observation(rng, n, valid) if same else None,
        away & ~idle if valid or rng.random() < 0.95 else _mask(rng, n),
        _episodes(rng, hello, n, valid) if either.any() else (),
        idle if valid or rng.random() < 0.95 else _mask(rng, n + 1),
    )
    return step, (away | either) & idle | either & (hello.autoreset[0] == Autoreset.NEXT_STEP)


def _idle(rng: random.Random, hello: Hello, n: int, valid: bool) -> np.ndarray:
    asks = hello.out_of_step or (not valid and rng.random() < 0.02)
    return _mask(rng, n) & (asks and rng.random() < 0.5)


def _numbers(rng: random.Random, n: int, valid: bool) -> np.ndarray:
    numbers = NUMBERS[:VALID] if valid or rng.random() < 0.9 else NUMBERS
    return np.array(rng.choices(numbers, k=min(n, 16)))[np.arange(n) % min(n, 16)]


def _observation(rng: random.Random, n: int, valid: bool) -> rlx.Leaves:
    dtype: Any = np.float32 if valid or rng.random() < 0.95 else np.float64
    width = 4 if valid or rng.random() < 0.95 else 3
    largest = float(np.finfo(np.float32).max)
    numbers = (0.0, -0.1, 1.0, 1e-45, 1e10, -1e20, largest, -largest)
    if not valid and rng.random() < 0.1:
        numbers = (*numbers, np.nan, np.inf)
    return [np.array(rng.choices(numbers, k=width), dtype)[None].repeat(n, 0)]


def _mask(rng: random.Random, n: int) -> np.ndarray:
    return np.array(rng.choices((True, False), k=min(n, 16)))[np.arange(n) % min(n, 16)]


def _episodes(rng: random.Random, hello: Hello, n: int, valid: bool) -> tuple[rlx.Episode, ...]:
    if not hello.reports_episodes:
        return ()
    returns = (0.0, 1e15, -1e15, MAX_NUMBER, -MAX_NUMBER)
    if not valid and rng.random() < 0.2:
        returns = (1.7e308, np.nan, 2e30)  # type: ignore[assignment]
    return (rlx.Episode(rng.randrange(n), rng.choice(returns), rng.choice((1, 500, 2**32 - 1))),)


def _metrics(rng: random.Random, valid: bool) -> rlx.Metrics:
    names = [f"n{rng.randrange(300)}" for _ in range(20)] if valid else list(NAMES)
    values = (0.0, 1.0, -MAX_NUMBER, MAX_NUMBER) if valid else NUMBERS
    return rlx.Metrics(tuple((rng.choice(names), float(rng.choice(values))) for _ in range(rng.randrange(1, 20))))


def _end(sock: socket.socket, rng: random.Random) -> None:
    """End a connection with a bye, a half frame, a reset, or a close."""
    how = rng.choice(("bye", "half", "reset", "close"))
    if how == "bye":
        sock.sendall(framed(codec_named("protobuf").encode(rlx.Bye("enough"), Sender.CLIENT)))
    elif how == "half":
        sock.sendall(struct.pack(">I", 100) + b"\x1a")
    elif how == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
