"""Connect to a server of the same host by the Unix socket that it offers, and take the memory that it hands over."""

from __future__ import annotations

import enum
import hmac
import os
import socket
import time
from typing import NamedTuple

import grpc

from relaax.transport import segments
from relaax.transport.frames import HELLO, PROOF_BYTES, BrokenFrame, Frame, FrameSocket
from relaax.transport.segments import FlatVector

OK = 0
CONNECT_SECONDS = 5.0
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_SENTENCE_BYTES = 4096
_NUMBER_BYTES = 4
_UNHEARD = "nobody listens at its socket: it has ended, or is under another kernel or in another network namespace"


class Trouble(enum.Enum):
    """Reasons for no shared memory, by what helps."""

    MOMENTARY = enum.auto()
    """A later attempt may succeed."""
    UNHEARD = enum.auto()
    """Nobody listens: a new registration helps if the shard is another process now, else nothing does."""
    FORGOTTEN = enum.auto()
    """A new registration helps: the shard does not know the worker, or is of another incarnation."""
    LASTING = enum.auto()
    """Only another configuration helps."""


_TROUBLES = {
    grpc.StatusCode.NOT_FOUND.value[0]: Trouble.FORGOTTEN,
    grpc.StatusCode.FAILED_PRECONDITION.value[0]: Trouble.LASTING,
}


class NoSharedMemory(Exception):
    """Shared memory with the shard is impossible, or no longer possible. The message says why."""

    def __init__(self, why: str, trouble: Trouble = Trouble.MOMENTARY) -> None:
        super().__init__(why)
        self.trouble = trouble


class CallRefused(grpc.RpcError):
    """The shard refused a call. `code` is gRPC's, which is used here too."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self._code, self._details = code, details

    @classmethod
    def by(cls, frame: Frame) -> CallRefused:
        """Return the refusal that an answer is."""
        return cls(_CODES.get(frame.kind, grpc.StatusCode.UNKNOWN), sentence(frame))

    def code(self) -> grpc.StatusCode:
        """Return the status code."""
        return self._code

    def details(self) -> str:
        """Return the reason, as a sentence."""
        return self._details


class Introduction(NamedTuple):
    """Who connects, as the server knows it, and what each side proves itself by."""

    name: str
    own_proof: bytes
    server_proof: bytes


def connected(name: bytes, who: Introduction, size: int, timeout: float) -> tuple[FrameSocket, FlatVector]:
    """Return a connection to the socket of this name, and memory that both sides may write to: float32 [size].

    `timeout`: seconds for each of the two. Raises NoSharedMemory.
    """
    if not segments.SUPPORTED:
        raise NoSharedMemory("this system has no memory that can be handed over", Trouble.LASTING)
    try:
        frames = FrameSocket(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), descriptors=True)
    except OSError as error:
        raise NoSharedMemory(f"no socket can be had: {reason(error)}") from None
    try:
        frames.socket.settimeout(timeout)
        try:
            frames.socket.connect(b"\0" + name)
        except ConnectionRefusedError:
            raise NoSharedMemory(_UNHEARD, Trouble.UNHEARD) from None
        memory = _shake_hands(frames, who, size, time.monotonic() + timeout)
        frames.socket.settimeout(timeout)
        return frames, memory
    except (OSError, BrokenFrame, ValueError) as error:
        frames.close()
        raise NoSharedMemory(reason(error)) from None
    except NoSharedMemory:
        frames.close()
        raise


def _shake_hands(frames: FrameSocket, who: Introduction, size: int, deadline: float) -> FlatVector:
    frames.send(Frame(HELLO, who.name.encode() + who.own_proof, _NUMBER_BYTES * size))
    frame, descriptor = frames.receive(_SENTENCE_BYTES, deadline)
    if descriptor is None:
        raise refusal(frame)
    try:
        if len(frame.message) != PROOF_BYTES or not hmac.compare_digest(frame.message, who.server_proof):
            raise BrokenFrame("whoever answered did not prove to be the shard")
        return segments.map_(descriptor, size, writable=True, at_once=False)
    finally:
        os.close(descriptor)


def refusal(frame: Frame) -> NoSharedMemory:
    """Return what came without the descriptor that was asked for."""
    if frame.kind == OK:
        return NoSharedMemory("this system hands over no descriptors", Trouble.LASTING)
    return NoSharedMemory(sentence(frame), _TROUBLES.get(frame.kind, Trouble.MOMENTARY))


def sentence(frame: Frame) -> str:
    """Return what a frame says instead of an answer."""
    return frame.message.decode("utf-8", "replace")


def reason(error: Exception) -> str:
    """Return why there is no answer, in half a sentence."""
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
