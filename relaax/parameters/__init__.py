"""Worker <-> parameter server: one interface, whatever carries it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relaax.parameters.base import (
    BridgeBase,
    BridgeError,
    BridgeUnauthenticated,
    BridgeUnavailable,
    BridgeUnusable,
    FlatVector,
    Pulled,
    Pushed,
    Registered,
    Registration,
    TrainingEnded,
)
from relaax.parameters.moments import Moments

if TYPE_CHECKING:
    from relaax.parameters.grpc_bridge import GrpcBridge

__all__ = [
    "BridgeBase",
    "BridgeError",
    "BridgeUnauthenticated",
    "BridgeUnavailable",
    "BridgeUnusable",
    "FlatVector",
    "GrpcBridge",
    "Moments",
    "Pulled",
    "Pushed",
    "Registered",
    "Registration",
    "TrainingEnded",
]


def __getattr__(name: str) -> Any:
    # An algorithm imports the interface; only a worker that has forked may load gRPC.
    if name == "GrpcBridge":
        from relaax.parameters.grpc_bridge import GrpcBridge

        return GrpcBridge
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
