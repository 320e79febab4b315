"""The error of a call whose answer is lost."""

from __future__ import annotations

import grpc


class Unanswered(grpc.RpcError):
    """The error that gRPC raises if a connection breaks before the answer arrives."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "the answer was lost"
