"""Sessions over shared memory with processes of this host: offer, authentication, requests and errors."""

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

from relaax.parameters.interfaces import FlatVector
from relaax.server.ports.shared_budget import Loan, SharedBudget, no_memory_left
from relaax.server.service_errors import ServiceError, status_code
from relaax.transport.frames import HELLO, PROOF_BYTES, WORKER_ID_BYTES, BrokenFrame, Frame, FrameSocket

_log = logging.getLogger(__name__)


class MemoryOffer(NamedTuple):
    """The name of the socket, and the proofs that authenticate the worker and the shard."""

    socket: bytes
    worker_proof: bytes
    shard_proof: bytes


class SharedMemoryOffers:
    """The name of the socket, and the proofs of workers and the shard, which are derived from a secret of this process.

    Every user of the host can read the socket's name. Proofs are sent only to a registered worker or learner, in the
    answer to its registration.
    """

    def __init__(self) -> None:
        self.socket = b"relaax-" + secrets.token_hex(16).encode()
        self.open = False
        """Whether the socket is served. Otherwise there are no offers."""
        self.connected: Callable[[], int] = lambda: 0
        """Returns how many workers are connected."""
        self._secret = secrets.token_bytes(PROOF_BYTES)

    def offer(self, worker_id: str) -> MemoryOffer | None:
        """Return the offer for this worker; None if the socket is not served."""
        if not self.open:
            return None
        return MemoryOffer(self.socket, self._proof(b"worker", worker_id), self._proof(b"shard", worker_id))

    def verify(self, worker_id: str, worker_proof: bytes) -> bytes | None:
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


class SessionHello(NamedTuple):
    """An authenticated worker: its id, the shard's proof for it, and the number of bytes of memory that it requests."""

    worker_id: str
    proof: bytes
    requested_bytes: int


def receive_hello(frames: FrameSocket, offers: SharedMemoryOffers, deadline: float) -> SessionHello:
    """Authenticate the peer of a new connection by its first frame, until `deadline` by the monotonic clock.

    Raises OSError, and BrokenFrame if the peer does not present the proof of a worker.
    """
    frame, _ = frames.receive(WORKER_ID_BYTES + PROOF_BYTES, deadline)
    if frame.kind != HELLO or len(frame.message) != WORKER_ID_BYTES + PROOF_BYTES:
        raise BrokenFrame("the first frame is not a hello")
    worker_id = frame.message[:WORKER_ID_BYTES].decode("ascii", "replace")
    proof = offers.verify(worker_id, frame.message[WORKER_ID_BYTES:])
    if proof is None:
        raise BrokenFrame("the proof in the hello is not that of the worker")
    return SessionHello(worker_id, proof, frame.vector)


class SharedVector(NamedTuple):
    """Memory that a worker writes to, float32 [size], with its loan and the budget of the loan."""

    memory: FlatVector
    loan: Loan
    budget: SharedBudget

    def give_back(self) -> None:
        """End the server's use of the memory."""
        self.budget.give_back(self.loan)


def send_memory(frames: FrameSocket, hello: SessionHello, size: int, budget: SharedBudget) -> SharedVector:
    """Send new memory, float32 [size], which both sides may write to, as the answer to a hello.

    Raises OSError and BrokenFrame.
    """
    try:
        loan, memory = budget.lend(size, read_only=False, user=frames)
    except OSError as error:
        raise send_refusal(frames, grpc.StatusCode.RESOURCE_EXHAUSTED, no_memory_left(error)) from None
    shared = SharedVector(memory, loan, budget)
    try:
        frames.send(Frame(0, hello.proof, hello.requested_bytes), loan.shared_descriptor)
    except OSError:
        shared.give_back()
        raise
    finally:
        os.close(loan.shared_descriptor)
    return shared


def send_refusal(frames: FrameSocket, code: grpc.StatusCode, sentence: str) -> BrokenFrame:
    """Send the peer the reason of a refusal. Return the exception to raise."""
    frames.send(Frame(code.value[0], sentence.encode()))
    return BrokenFrame(sentence)


class LocalSession(ABC):
    """The session of one process. The thread that calls `serve` answers its requests in order."""

    def __init__(self, frames: FrameSocket) -> None:
        self.frames = frames

    @abstractmethod
    def serve(self) -> None:
        """Answer requests until the peer disconnects. Raises BrokenFrame and OSError."""

    def stop_receiving(self) -> None:
        """Make `serve` return after the request that it is answering."""
        self.frames.shut(socket.SHUT_RD)

    def close(self) -> None:
        """Make `serve` end now. Called by any thread."""
        self.frames.shut()

    def _call_service(self, method: Callable[[Frame], Any], frame: Frame) -> tuple[Any, Refusal | None]:
        """Return the service's answer and None, or None and the refusal."""
        try:
            return method(frame), None
        except ServiceError as error:
            return None, Refusal(status_code(error), str(error))
        except DecodeError as error:
            return None, Refusal(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Exception as error:
            _log.exception("a request over shared memory failed")
            return None, Refusal(grpc.StatusCode.UNKNOWN, f"{type(error).__name__}: {error}")

    def _refuse(self, why: Refusal) -> None:
        self.frames.send(Frame(why.code.value[0], why.sentence.encode()))
