"""Offer shared memory to processes of this host when they register."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from typing import NamedTuple

from relaax.transport.frames import PROOF_BYTES


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
