"""An RLX server that follows the protocol except for one fault, which `relaax conformance` must find.

It answers with the smallest action, sums rewards, and accepts any spaces. Four values are not faults: "", "impatient"
(a short idle timeout), "token" (the token "secret" is required), and "earlier" (a server of an earlier version, which
ignores `out_of_step` and `idle`).
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from dataclasses import replace
from typing import Any

import numpy as np

from relaax import rlx
from relaax.rlx import rlx_pb2
from relaax.rlx.wire.encoding import CAPABILITIES
from relaax.rlx.wire.framing import frame
from support.acceptor import PATIENCE, Acceptor
from support.rlx_peer import least_action

LIMITS = rlx.Limits(max_frame_bytes=2**20, idle_timeout_seconds=60, heartbeat_seconds=5)
IMPATIENT = replace(LIMITS, idle_timeout_seconds=0.4)
SERVER_NAMES = {"protobuf": b"\x92\x3f", "json": b"colour"}  # bytes of unknown fields


class _Connection:
    """One connection. `protocol` checks the client; the fault is applied between it and the socket."""

    hello: rlx.Hello

    def __init__(self, sock: socket.socket, fault: str) -> None:
        self.sock, self.fault = sock, fault
        sock.settimeout(PATIENCE)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.limits = IMPATIENT if fault in ("impatient", "patient") else LIMITS
        self.token = "secret" if fault == "token" else ""
        self.protocol = rlx.ServerConnection(LIMITS)
        self.returns = np.zeros(0)
        self.segments = 0  # received segments with data
        self.incomplete = b""  # of a server that ignores `idle`

    def serve(self) -> None:
        try:
            self.run()
        except rlx.RemoteProtocolError as error:
            self.refuse(rlx.Error.of(error))

    def run(self) -> None:
        while True:
            event = self.protocol.next_event()
            if event is rlx.NEED_DATA:
                try:
                    self.read()
                except TimeoutError:
                    self.refuse(rlx.Error(rlx.ErrorCode.TIMEOUT, "the client sent nothing within the idle timeout"))
                    return
            elif isinstance(event, rlx.ConnectionClosed | rlx.Bye):
                if self.fault == "stays_after_bye":
                    threading.Event().wait(1.5)  # the client has ended its stream and waits for 1 s
                self.end()
                return
            else:
                self.answer(event)

    def read(self) -> None:
        welcomed = self.protocol.welcome is not None
        self.sock.settimeout(self.limits.idle_timeout_seconds if welcomed and self.fault != "patient" else PATIENCE)
        data = self.sock.recv(1 << 16)
        if self.fault == "waits_for_body" and len(data) >= 4 and struct.unpack(">I", data[:4])[0] > 65536:
            self.sock.recv(1)
        if self.fault == "drops_the_rest" and data:
            data = data[: 4 + struct.unpack(">I", data[:4])[0]]
        if self.fault == "packets_are_frames":
            before, self.segments = self.segments, _segments(self.sock)
            if data and (self.segments - before > 1 or len(data) < 4):
                data = b"\xff\xff\xff\xff"
        if self.fault == "known_fields_only" and any(mark in data for mark in SERVER_NAMES.values()):
            data = b"\0\0\0\0"
        if self.fault == "blind_to_nan":
            data = data.replace(struct.pack("<d", np.nan), struct.pack("<d", 1))
        ignored = self.fault == "earlier" or (self.fault == "accepts_idle" and welcomed and not self.hello.out_of_step)
        if not (ignored and data):
            self.protocol.receive_data(data)
        elif whole := self.without_idle(data):
            self.protocol.receive_data(whole)

    def without_idle(self, data: bytes) -> bytes:
        """Return whole frames in Protobuf without `idle`, `chosen` and the capabilities that they need."""
        self.incomplete += data
        whole = b""
        while len(self.incomplete) >= 4 + (length := int.from_bytes(self.incomplete[:4], "big")):
            message = rlx_pb2.ClientMessage.FromString(self.incomplete[4 : 4 + length])
            self.incomplete = self.incomplete[4 + length :]
            fields = [("hello", capability) for capability in CAPABILITIES] + [("init", "idle"), ("step", "idle")]
            fields += [(kind, field) for kind in ("step", "reset") for field in ("chosen", "action")]
            for kind, field in fields:
                if message.HasField(kind):  # type: ignore[arg-type]
                    getattr(message, kind).ClearField(field)
            whole += frame(message.SerializeToString(), 2**31)
        return whole

    def answer(self, event: Any) -> None:
        if isinstance(event, rlx.Hello):
            self.hello = event
            if event.token != self.token:
                self.refuse(rlx.Error(rlx.ErrorCode.UNAUTHENTICATED, "the token is not valid"))
                return
            limits = replace(LIMITS, heartbeat_seconds=0.0) if self.fault == "no_heartbeat" else self.limits
            session_id = "a/b" if self.fault == "bad_session_id" else "s1"
            version = 2 if self.fault == "welcome_version" else 1
            asked: dict[str, Any] = {capability: getattr(event, capability) for capability in CAPABILITIES}
            if event.environment_parameters:
                asked |= {"parameter_names": ("size",), "parameters": np.ones(event.environments)}
            said = dict(asked)
            if self.fault.startswith("unasked_"):
                said[self.fault.removeprefix("unasked_")] = True
            if self.fault == "short_parameters" and event.environment_parameters:
                said["parameter_names"] = ("size", "mass")
            correct = rlx.Welcome("s1", "none", LIMITS, **asked)
            self.send(correct, rlx.Welcome(session_id, "none", limits, version, **said))
        elif isinstance(event, rlx.Init):
            self.returns = np.zeros(self.hello.environments)
            self.act(event)
        elif isinstance(event, rlx.Step):
            if self.fault == "checks_void_rows" and np.isnan(event.observation[0]).any():
                self.refuse(rlx.Error(rlx.ErrorCode.INVALID_VALUE, "an observation is NaN"))
                return
            self.count(event)
            self.act(event)
        elif isinstance(event, rlx.Reset):
            between = self.protocol.between_episodes
            returns = np.where(False if between is None else between, 0, self.returns + event.reward)
            faulty = returns + 1 if self.fault == "wrong_returns" else returns
            self.send(rlx.EpisodeReturns(returns), rlx.EpisodeReturns(faulty))
        elif isinstance(event, rlx.Ping):
            self.send(rlx.Pong(event.nonce), rlx.Pong(5 if self.fault == "wrong_nonce" else event.nonce))

    def count(self, step: rlx.Step) -> None:
        none = np.zeros(self.hello.environments, np.bool_)
        ended = (none if step.terminated is None else step.terminated) | (
            none if step.truncated is None else step.truncated
        )
        void = none if step.first is None else step.first
        if step.idle is not None and self.fault != "counts_void_rewards":
            void = void | step.idle & ~ended
        self.returns = np.where(void, self.returns, self.returns + step.reward)
        self.returns[ended] = 0

    def act(self, event: rlx.Message) -> None:
        action = least_action(event, self)  # type: ignore[arg-type]
        faulty = {
            "illegal_action": [leaf - 1 for leaf in action],
            "wrong_dtype": [a.astype(np.float16) for a in action],
        }
        self.send(rlx.Actions(action), rlx.Actions(faulty.get(self.fault, action)))

    def send(self, correct: rlx.Message, faulty: rlx.Message) -> None:
        """Send `faulty`, but change the state of the protocol as if `correct` had been sent."""
        data = self.protocol.send(correct)
        if faulty is not correct:
            from relaax.rlx.wire.codecs import codec_named

            name = "protobuf" if self.fault == "protobuf_only" else self.protocol.codec or "protobuf"
            data = frame(codec_named(name).encode(faulty, rlx.Sender.SERVER), 2**31)
        self.sock.sendall(data)

    def refuse(self, error: rlx.Error) -> None:
        code = rlx.ErrorCode.AGENT_FAILED if self.fault == "wrong_code" else error.code
        self.send(error, replace(error, code=code, message="" if self.fault == "no_sentence" else error.message))
        if self.fault == "speaks_on":
            self.sock.sendall(frame(b"\x32\x00", 100))
        if self.fault == "never_ends":
            self.drain()
        elif self.fault == "abrupt":
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            self.end()

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
            self.drain()

    def drain(self) -> None:
        self.sock.settimeout(PATIENCE)
        while self.sock.recv(1 << 16):
            pass


def _segments(sock: socket.socket) -> int:
    """Return the number of received segments with data: tcpi_data_segs_in of Linux's struct tcp_info.

    One `recv` may read several segments.
    """
    (count,) = struct.unpack_from("=I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160), 152)
    assert isinstance(count, int)
    return count


class FaultyServer(Acceptor):
    """A faulty server on a free port."""

    def __init__(self, fault: str = "") -> None:
        self._fault = fault
        super().__init__()

    def _accepted(self, sock: socket.socket) -> None:
        self._start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            _Connection(sock, self._fault).serve()
