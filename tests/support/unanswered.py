"""A call whose answer is lost on the way."""

from __future__ import annotations

import grpc


class Unanswered(grpc.RpcError):
    """What gRPC raises if a connection breaks before the answer is there."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "the answer was lost"
