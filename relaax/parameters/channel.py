"""Open channels to a server: over TLS if an authority is known, and with a token if there is one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import grpc

from relaax.parameters.diagnosis import connection_trouble
from relaax.parameters.grpc_options import MESSAGE_OVERHEAD, client_options
from relaax.parameters.interfaces import ParameterServerUnauthenticated
from relaax.parameters.moving import FollowingChannel, Moving

AUTHORIZATION = "authorization"
"""The metadata key under which the token goes, as `Bearer TOKEN`."""

_NO_CONNECTION = "failed to connect"  # in contrast to one that was there and broke


@dataclass(frozen=True, slots=True)
class Target:
    """The address of a server, with the credentials to connect to it.

    `ca`: the authority (PEM) that its certificate is checked by; TLS is used if it is given. `certificate` and `key`
    (PEM): what this side shows, if the server asks for it. None of the secrets appears in `repr`. `service`: what kind
    of server it is, for messages; `keys`: what the keys of this side's configuration for it begin with. `moving`: where
    it is at each moment, if it may move; `address` is where it was.
    """

    address: str
    token: str = field(default="", repr=False)
    ca: bytes | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    service: str = field(default="parameter server", repr=False)
    keys: str = field(default="relaax-rlx-server.parameter_server", repr=False)
    moving: Moving | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.service} {self.address}"

    def at(self, address: str) -> Target:
        """Return a copy for another address."""
        return replace(self, address=address)

    def following(self, moving: Moving) -> Target:
        """Return a copy for a server that may move."""
        return replace(self, address=moving.now(), moving=moving)


def open_channel(target: Target, longest: int = MESSAGE_OVERHEAD) -> grpc.Channel:
    """Return a channel for messages of up to so many bytes. Every call over it shows the target's token.

    Made in the process that uses it: a channel does not survive a fork. It connects with its first call.
    """
    if target.moving is not None:
        return FollowingChannel(target.moving.now, lambda address: _opened(target.at(address), longest))
    return _opened(target, longest)


def _opened(target: Target, longest: int) -> grpc.Channel:
    options = client_options(longest)
    if target.ca is None:
        channel = grpc.insecure_channel(target.address, options)
    else:
        credentials = grpc.ssl_channel_credentials(target.ca, target.key, target.certificate)
        channel = grpc.secure_channel(target.address, credentials, options)
    return grpc.intercept_channel(channel, _Shown(target.token)) if target.token else channel


def authentication_error(error: BaseException, target: Target) -> ParameterServerUnauthenticated | None:
    """Return the error to raise if a call to a parameter server failed as `authentication_trouble` says; else None."""
    trouble = authentication_trouble(error, target)
    return None if trouble is None else ParameterServerUnauthenticated(trouble)


def authentication_trouble(error: BaseException, target: Target) -> str | None:
    """Return a sentence if a call failed because one side could not prove its identity, or speaks no gRPC.

    A retry does not help. None if it failed for another reason. If the connection itself failed, it is dialled once
    more to find out.
    """
    if not isinstance(error, grpc.RpcError):
        return None
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
        return f"{target}: {error.details() or ''}"
    trouble = connection_trouble(target) if never_arrived(error) else None
    return None if trouble is None else f"{target}: {trouble}"


def never_arrived(error: grpc.RpcError) -> bool:
    """Return whether a call failed before it left: there was no connection."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and _NO_CONNECTION in (error.details() or "")


class _Details(NamedTuple):
    method: str
    timeout: float | None
    metadata: list[tuple[str, str]]
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class _Shown(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[type-arg]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[type-arg]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[type-arg]
    grpc.StreamStreamClientInterceptor,  # type: ignore[type-arg]
):
    """Adds a token to every call."""

    def __init__(self, token: str) -> None:
        self._pair = (AUTHORIZATION, f"Bearer {token}")

    def _details(self, call: Any) -> Any:
        metadata = [*(call.metadata or ()), self._pair]
        return _Details(call.method, call.timeout, metadata, call.credentials, call.wait_for_ready, call.compression)

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(self._details(client_call_details), request)

    def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(self._details(client_call_details), request)

    def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return continuation(self._details(client_call_details), request_iterator)

    def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return continuation(self._details(client_call_details), request_iterator)
