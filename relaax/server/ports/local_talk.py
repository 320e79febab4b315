"""Connections through shared memory, whatever is said over them: their offer, introduction, requests and errors."""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from relaax.parameters.frames import HELLO, PROOF_BYTES, WORKER_ID_BYTES, BrokenFrame, Frame, FrameSocket
from relaax.parameters.interfaces import FlatVector
from relaax.server.ports.shared_budget import Loan, SharedBudget
from relaax.server.service_errors import ServiceError, status_code

_log = logging.getLogger(__name__)


class MemoryOffer(NamedTuple):
    """The socket, and what each side proves itself by."""

    socket: bytes
    worker_proof: bytes
    shard_proof: bytes


class SharedMemoryOffers:
    """Names the socket, and derives the proofs of worker and shard from a secret of this process.

    The socket's name can be read by every user of the host, the proofs by nobody: they go to a worker, or a learner,
    that was let in, as part of the answer to its registration.
    """

    def __init__(self) -> None:
        self.socket = b"relaax-" + secrets.token_hex(16).encode()
        self.open = False
        """Whether the socket is served. Otherwise nothing is offered."""
        self.connected: Callable[[], int] = lambda: 0
        """Returns how many workers are connected."""
        self._secret = secrets.token_bytes(PROOF_BYTES)

    def offer(self, worker_id: str) -> MemoryOffer | None:
        """Return the offer for this worker and no other."""
        if not self.open:
            return None
        return MemoryOffer(self.socket, self._proof(b"worker", worker_id), self._proof(b"shard", worker_id))

    def accepted(self, worker_id: str, worker_proof: bytes) -> bytes | None:
        """Return the shard's proof for this worker; None if the worker's own proof is wrong."""
        if not hmac.compare_digest(worker_proof, self._proof(b"worker", worker_id)):
            return None
        return self._proof(b"shard", worker_id)

    def _proof(self, role: bytes, worker_id: str) -> bytes:
        return hmac.digest(self._secret, role + worker_id.encode(), "sha256")


class Refusal(NamedTuple):
    """The reason why a request is refused."""

    code: grpc.StatusCode
    sentence: str


class Introduced(NamedTuple):
    """Who has shown its proof, what it is answered by, and how many bytes of memory it asks for."""

    worker_id: str
    proof: bytes
    wanted: int


def introduction(frames: FrameSocket, offers: SharedMemoryOffers, deadline: float) -> Introduced:
    """Authenticate who connects. It has until `deadline`, by the monotonic clock.

    Raises OSError, and BrokenFrame if it does not show the proof that it was given.
    """
    frame, _ = frames.receive(WORKER_ID_BYTES + PROOF_BYTES, deadline)
    if frame.kind != HELLO or len(frame.message) != WORKER_ID_BYTES + PROOF_BYTES:
        raise BrokenFrame("the first frame is no introduction")
    worker_id = frame.message[:WORKER_ID_BYTES].decode("ascii", "replace")
    proof = offers.accepted(worker_id, frame.message[WORKER_ID_BYTES:])
    if proof is None:
        raise BrokenFrame("it did not prove to be a worker")
    return Introduced(worker_id, proof, frame.vector)


class SharedVector(NamedTuple):
    """Memory that a worker writes to, float32 [size], and the budget that its loan is of."""

    memory: FlatVector
    loan: Loan
    budget: SharedBudget

    def give_back(self) -> None:
        """End the server's use of the memory."""
        self.budget.give_back(self.loan)


def hand_over_memory(frames: FrameSocket, who: Introduced, size: int, budget: SharedBudget) -> SharedVector:
    """Answer an introduction by memory that both sides may write to, float32 [size]. Raises OSError and BrokenFrame."""
    try:
        loan, memory = budget.lend(size, read_only=False, user=frames)
    except OSError as error:
        sentence = f"it has no more memory to share: {error.strerror}"
        raise told(frames, grpc.StatusCode.RESOURCE_EXHAUSTED, sentence) from None
    shared = SharedVector(memory, loan, budget)
    try:
        frames.send(Frame(0, who.proof, who.wanted), loan.handed)
    except OSError:
        shared.give_back()
        raise
    finally:
        os.close(loan.handed)
    return shared


def told(frames: FrameSocket, code: grpc.StatusCode, sentence: str) -> BrokenFrame:
    """Tell the other side why it is refused."""
    frames.send(Frame(code.value[0], sentence.encode()))
    return BrokenFrame(sentence)


class LocalTalk(ABC):
    """Answers the requests of one process, one after the other, in the thread that calls `serve`."""

    def __init__(self, frames: FrameSocket) -> None:
        self.frames = frames

    @abstractmethod
    def serve(self) -> None:
        """Answer requests until the other side leaves. Raises BrokenFrame and OSError."""

    def ask_no_more(self) -> None:
        """Let `serve` end once it has answered the present request."""
        self.frames.shut(socket.SHUT_RD)

    def close(self) -> None:
        """Let `serve` end now; called by any thread."""
        self.frames.shut()

    def _asked(self, method: Callable[[Frame], Any], frame: Frame) -> tuple[Any, Refusal | None]:
        """Return the service's answer, or its refusal."""
        try:
            return method(frame), None
        except ServiceError as error:
            return None, Refusal(status_code(error), str(error))
        except DecodeError as error:
            return None, Refusal(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Exception as error:
            _log.exception("a question of a local worker failed")
            return None, Refusal(grpc.StatusCode.UNKNOWN, f"{type(error).__name__}: {error}")

    def _refuse(self, why: Refusal) -> None:
        self.frames.send(Frame(why.code.value[0], why.sentence.encode()))
