"""The fuzz test's cases at a real server, with honest clients that it must continue to serve."""

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
from relaax.rlx.wire.encoding import CAPABILITIES
from relaax.server.rlx_server.connection.channel import begins_with_http
from support.connection_floods import connect_to
from support.fuzz_cases import Case, case
from support.fuzz_memory import expected_answers, frames_read_by_client
from support.rlx_line import Line
from support.rlx_messages import same

TLS = b"\x16\x03"  # first bytes of a ClientHello

DEADLINE = 60.0  # maximum seconds of a connection on a busy machine
STEPS = 40  # per connection of an honest client
PAUSE = 0.01  # seconds between steps, so that honest clients do not load the machine


@dataclass
class Report:
    """Counts and failures of a run. Threads change it under `lock`."""

    frames: int = 0
    read: int = 0
    at_clients: int = 0
    connections: int = 0
    resets: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class Received:
    """A server's answers. `reset`: answers may be missing, as the server closed the connection with data in flight."""

    answers: list[Message]
    reset: bool
    http: str = ""


def exchange(address: str, sent: Case, turns: list[int]) -> Received:
    """Send all frames, end the stream, and read until the server closes the connection.

    `turns`: for each frame, the number of answers to receive before the next frame is sent. Raises TimeoutError if the
    server does not close the connection.
    """
    received, deadline = bytearray(), time.monotonic() + DEADLINE
    data, frames = memoryview(b""), iter(sent.frames)
    due = iter(turns)
    with connect_to(address, DEADLINE) as sock:
        sock.setblocking(False)
        poll = select.poll()
        poll.register(sock, select.POLLIN | select.POLLOUT)
        sending, reset, awaited = True, False, 0
        while True:
            if sending and not len(data):
                is_waiting = _count_answers(received) < awaited
                poll.modify(sock, select.POLLIN | (0 if is_waiting else select.POLLOUT))
                if not is_waiting and (frame := next(frames, None)) is not None:
                    data, awaited = memoryview(frame), next(due, 0)
            left = deadline - time.monotonic()
            events = poll.poll(max(0.0, left) * 1000)
            if not events:
                raise TimeoutError(f"the server has neither answered nor closed within {DEADLINE:g} s")
            try:
                if sending and events[0][1] & select.POLLOUT:
                    if len(data):
                        data = data[sock.send(data[: sent.piece]) :]
                    else:
                        sock.shutdown(socket.SHUT_WR)
                        sending = False
                        poll.modify(sock, select.POLLIN)
                if events[0][1] & ~select.POLLOUT:
                    piece = sock.recv(1 << 16)
                    if not piece:
                        break
                    received += piece
            except BlockingIOError:
                continue
            except OSError:
                if reset:
                    break
                reset, sending = True, False  # answers sent before may still be readable
                poll.modify(sock, select.POLLIN)
    if received.startswith(b"HTTP/1.1 "):
        return Received([], reset, received.decode())
    return Received(_messages(received), reset)


def _count_answers(data: bytearray) -> int:
    """Return the number of complete frames, except pings."""
    count = at = 0
    while len(data) >= at + 4 and len(data) >= (end := at + 4 + int.from_bytes(data[at : at + 4], "big")):
        count += not data[at + 4 : end].startswith((b"\x32", b'{"ping"'))
        at = end
    return count


def _messages(data: bytearray) -> list[Message]:
    """Decode the server's messages, except pings. Raises AssertionError if a frame is incomplete."""
    found = []
    while data:
        length = int.from_bytes(data[:4], "big")
        payload = bytes(data[4 : 4 + length])
        assert len(payload) == length > 0, f"the server's last frame is incomplete: {bytes(data)!r}"
        message = codec_of(payload[0]).decode(payload, Sender.SERVER)
        if not isinstance(message, Ping):
            found.append(message)
        del data[: 4 + length]
    return found


def matches(answer: Any, wanted: Any) -> bool:
    """Return whether an answer equals the expected one, except fields that the server may choose."""
    if isinstance(wanted, Welcome):
        fields = (*CAPABILITIES, "parameter_names", "parameters")
        return isinstance(answer, Welcome) and all(same(getattr(answer, f), getattr(wanted, f)) for f in fields)
    if isinstance(wanted, Error):
        return isinstance(answer, Error) and answer.code == wanted.code and bool(answer.message)
    return same(answer, wanted)


def run_case(address: str, seed: int, number: int, report: Report, websocket: bool = False) -> None:
    """Run a client's case at the server and in memory, and a server's case at a client in memory.

    A failure is added to the report. `websocket`: `address` is that of a relay, so a first byte of TLS or HTTP has no
    special meaning.
    """
    what, frames = "before the start", Case("", (), 0)
    try:
        client, server = case(seed, number), case(seed, number, Sender.SERVER)
        what, frames = "at a client in memory", server
        at_client = frames_read_by_client(server, number)
        what, frames = "at a server in memory", client
        wanted = expected_answers(client)
        what = "at the server"
        received = exchange(address, client, wanted.turns)
        if not websocket and begins_with_http(client.data):  # answered, unless it ends before the end of its header
            assert received.http.startswith("HTTP/1.1 4") or not (received.http or received.answers), received
            wanted.answers[:], wanted.early = [], False
        elif not websocket and client.data.startswith(TLS):  # in memory, this is the start of a long frame
            wanted.answers[:] = [Error(ErrorCode.MALFORMED, "this port does not use TLS")]
        answers = wanted.answers[: len(received.answers)] if received.reset else wanted.answers
        if wanted.early and not received.reset and isinstance(received.answers[-1], Error):
            answers = [*answers[:-1], *received.answers[len(answers) - 1 :]]
        if not (len(received.answers) == len(answers) and all(map(matches, received.answers, answers))):
            raise AssertionError(f"the server answered\n  {received.answers}\nexpected:\n  {wanted.answers}")
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
        report.at_clients += at_client
        report.connections += 1
        report.resets += received.reset
        report.ends[wanted.error.name if wanted.error else "no error"] += 1


def send_cases(
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
    """Run cases from number `first` on, until one of the limits `frames`, `connections` or ten failures is reached."""
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
    """An honest client that connects again and again until `stop`. It checks every answer."""

    def __init__(self, address: str, codec: str) -> None:
        self.codec = codec
        self.steps = self.connections = 0
        self.longest = 0.0  # maximum seconds to an answer, the start of the worker included
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
        begun = time.monotonic()
        with Line(self._address, self.codec) as line:
            line.socket.settimeout(DEADLINE)
            line.open(environments=2)
            assert line.init(1) == 1
            self._note(begun)
            steps = 0
            while steps < STEPS and not self._stop.wait(PAUSE):
                begun = time.monotonic()
                assert line.step(steps) == steps % 3, "the action must be that of the observation"
                self._note(begun)
                steps += 1
            self.steps += steps
            line.send(rlx.Reset(np.zeros(2)))
            assert line.expect(rlx.EpisodeReturns).episode_return.tolist() == [steps] * 2
            line.send(rlx.Bye())
            line.expect_end()
        self.connections += 1

    def _note(self, begun: float) -> None:
        self.longest = max(self.longest, time.monotonic() - begun)

    def stop(self) -> None:
        """Stop the client. Raises AssertionError if an answer was wrong or missing."""
        self._stop.set()
        self._thread.join(2 * DEADLINE)
        assert not self._thread.is_alive(), f"the {self.codec} client hangs"
        if self.error is not None:
            raise AssertionError(f"the {self.codec} client was not served: {self.error}") from self.error


@contextlib.contextmanager
def honest_clients(address: str) -> Iterator[list[HonestClient]]:
    """Run an honest client for each codec during the block."""
    served = [HonestClient(address, codec) for codec in ("protobuf", "json")]
    try:
        yield served
    finally:
        for client in served:
            client.stop()
