"""The fuzz test's cases at a real server, beside honest clients that it must go on serving."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relaax import rlx
from relaax.rlx import Error, ErrorCode, Message, Ping, Sender, Welcome
from relaax.rlx.wire.codecs import codec_of
from relaax.server.rlx_server.connection.channel import begins_with_http
from support.connection_floods import connect_to
from support.fuzz_cases import Case, case
from support.fuzz_memory import at_a_client, expected
from support.rlx_line import Line
from support.rlx_messages import same

TLS = b"\x16\x03"  # how a ClientHello begins

DEADLINE = 60.0  # seconds that a conversation may take on a busy machine
STEPS = 40  # of each of an honest client's connections
PAUSE = 0.01  # seconds between its steps: it is there to be served, not to load the machine


@dataclass
class Report:
    """What was sent and what came of it. Threads add to it under `lock`."""

    frames: int = 0
    read: int = 0
    at_clients: int = 0
    connections: int = 0
    resets: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class Heard:
    """What a server said, and whether TCP lost the rest: it closed while more was on its way."""

    answers: list[Message]
    reset: bool
    http: str = ""


def converse(address: str, spoken: Case, turns: list[int]) -> Heard:
    """Say all frames, then nothing more, and listen to the end. Raises TimeoutError if no end comes.

    `turns`: for the first of the frames, how many answers to hear before the next one is said.
    """
    heard, deadline = bytearray(), time.monotonic() + DEADLINE
    data, frames = memoryview(b""), iter(spoken.frames)
    due = iter(turns)
    with connect_to(address, DEADLINE) as sock:
        sock.setblocking(False)
        poll = select.poll()
        poll.register(sock, select.POLLIN | select.POLLOUT)
        saying, reset, awaited = True, False, 0
        while True:
            if saying and not len(data):
                listens = _answers(heard) < awaited
                poll.modify(sock, select.POLLIN | (0 if listens else select.POLLOUT))
                if not listens and (frame := next(frames, None)) is not None:
                    data, awaited = memoryview(frame), next(due, 0)
            left = deadline - time.monotonic()
            events = poll.poll(max(0.0, left) * 1000)
            if not events:
                raise TimeoutError(f"the server has neither answered nor closed within {DEADLINE:g} s")
            try:
                if saying and events[0][1] & select.POLLOUT:
                    if len(data):
                        data = data[sock.send(data[: spoken.piece]) :]
                    else:
                        sock.shutdown(socket.SHUT_WR)
                        saying = False
                        poll.modify(sock, select.POLLIN)
                if events[0][1] & ~select.POLLOUT:
                    piece = sock.recv(1 << 16)
                    if not piece:
                        break
                    heard += piece
            except BlockingIOError:
                continue
            except OSError:
                if reset:
                    break
                reset, saying = True, False  # what it said before may still be there to be read
                poll.modify(sock, select.POLLIN)
    if heard.startswith(b"HTTP/1.1 "):
        return Heard([], reset, heard.decode())
    return Heard(_messages(heard), reset)


def _answers(data: bytearray) -> int:
    """How many whole frames there are, but for pings."""
    count = at = 0
    while len(data) >= at + 4 and len(data) >= (end := at + 4 + int.from_bytes(data[at : at + 4], "big")):
        count += not data[at + 4 : end].startswith((b"\x32", b'{"ping"'))
        at = end
    return count


def _messages(data: bytearray) -> list[Message]:
    """The server's messages but for pings. Raises AssertionError if they are none."""
    found = []
    while data:
        length = int.from_bytes(data[:4], "big")
        payload = bytes(data[4 : 4 + length])
        assert len(payload) == length > 0, f"the server's last frame is cut: {bytes(data)!r}"
        message = codec_of(payload[0]).decode(payload, Sender.SERVER)
        if not isinstance(message, Ping):
            found.append(message)
        del data[: 4 + length]
    return found


def alike(said: Any, wanted: Any) -> bool:
    """Whether an answer is the one that was to come, but for what the server is free to say."""
    if isinstance(wanted, Welcome):
        return isinstance(said, Welcome)
    if isinstance(wanted, Error):
        return isinstance(said, Error) and said.code == wanted.code and bool(said.message)
    return same(said, wanted)


def run_case(address: str, seed: int, number: int, report: Report, websocket: bool = False) -> None:
    """One case at the server and in memory, and one of a server's at a client in memory. Failures are reported.

    `websocket`: `address` is that of a relay, where no first byte means TLS or HTTP.
    """
    client, server = case(seed, number), case(seed, number, Sender.SERVER)
    what, frames = "at a client in memory", server
    try:
        at_clients = at_a_client(server, number)
        what, frames = "at a server in memory", client
        wanted = expected(client)
        what = "at the server"
        heard = converse(address, client, wanted.turns)
        if not websocket and begins_with_http(client.data):  # it is answered, unless it ends before its header does
            assert heard.http.startswith("HTTP/1.1 4") or not (heard.http or heard.answers), heard
            wanted.answers[:], wanted.early = [], False
        elif not websocket and client.data.startswith(
            TLS
        ):  # to the state machine it is a long frame; the server says what it is
            wanted.answers[:] = [Error(ErrorCode.MALFORMED, "this port does not use TLS")]
        answers = wanted.answers[: len(heard.answers)] if heard.reset else wanted.answers
        if wanted.early and not heard.reset and isinstance(heard.answers[-1], Error):
            answers = [*answers[:-1], *heard.answers[len(answers) - 1 :]]
        if not (len(heard.answers) == len(answers) and all(map(alike, heard.answers, answers))):
            raise AssertionError(f"the server said\n  {heard.answers}\nwhere this was to come:\n  {wanted.answers}")
    except Exception as error:
        shown = " ".join(frame.hex() for frame in frames.frames)
        with report.lock:
            report.failures.append(
                f"seed {seed}, case {number}, {what}: {type(error).__name__}: {error}"
                f"\n({frames.codec}, sent {frames.piece} bytes at a time) {shown[:200_000]}"
            )
        return
    with report.lock:
        report.frames += len(client.frames)
        report.read += wanted.frames_read
        report.at_clients += at_clients
        report.connections += 1
        report.resets += heard.reset
        report.ends[wanted.error.name if wanted.error else "no error"] += 1


def bombard(
    address: str,
    seed: int,
    first: int,
    frames: int,
    report: Report,
    threads: int = 8,
    progress: Callable[[Report], None] = lambda _: None,
    connections: int = 2**62,
    websocket: bool = False,
) -> None:
    """Cases from number `first` on, until so many frames or connections were had, or ten cases have failed."""
    numbers = iter(range(first, 2**62))

    def work() -> None:
        while report.frames < frames and report.connections < connections and len(report.failures) < 10:
            with report.lock:
                number = next(numbers)
            run_case(address, seed, number, report, websocket)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        workers[0].join(0.2)
        for worker in workers:
            worker.join(0.05)
        progress(report)


class HonestClient:
    """An honest client that comes and goes until it is told to stop. Every answer is checked."""

    def __init__(self, address: str, codec: str) -> None:
        self.codec = codec
        self.steps = self.connections = 0
        self.longest = 0.0  # seconds to an answer, the start of a process included
        self.error: BaseException | None = None
        self._address = address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._connection()
        except BaseException as error:
            self.error = error

    def _connection(self) -> None:
        began = time.monotonic()
        with Line(self._address, self.codec) as line:
            line.socket.settimeout(DEADLINE)
            line.open(environments=2)
            assert line.init(1) == 1
            self._note(began)
            steps = 0
            while steps < STEPS and not self._stop.wait(PAUSE):
                began = time.monotonic()
                assert line.step(steps) == steps % 3, "the action of this observation"
                self._note(began)
                steps += 1
            self.steps += steps
            line.say(rlx.Reset(np.zeros(2)))
            assert line.expect(rlx.EpisodeReturns).episode_return.tolist() == [steps] * 2
            line.say(rlx.Bye())
            line.expect_end()
        self.connections += 1

    def _note(self, began: float) -> None:
        self.longest = max(self.longest, time.monotonic() - began)

    def stop(self) -> None:
        """Raises AssertionError if an answer was wrong or missing."""
        self._stop.set()
        self._thread.join(2 * DEADLINE)
        assert not self._thread.is_alive(), f"the {self.codec} client hangs"
        if self.error is not None:
            raise AssertionError(f"the {self.codec} client was not served: {self.error}") from self.error


@contextlib.contextmanager
def honest_clients(address: str) -> Iterator[list[HonestClient]]:
    """An honest client for each codec, beside whatever is done here."""
    served = [HonestClient(address, codec) for codec in ("protobuf", "json")]
    try:
        yield served
    finally:
        for guest in served:
            guest.stop()
