"""What every connection through shared memory has in common, whatever is said over it."""

from __future__ import annotations

import logging
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from relaax.parameters.interfaces import FlatVector
from relaax.server.grpc_port.status_codes import status_code
from relaax.server.local_port.offers import SharedMemoryOffers
from relaax.server.local_port.shared_budget import Loan, SharedBudget
from relaax.server.service_errors import ServiceError
from relaax.transport.frames import HELLO, PROOF_BYTES, WORKER_ID_BYTES, BrokenFrame, Frame, FrameSocket

_log = logging.getLogger(__name__)


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
