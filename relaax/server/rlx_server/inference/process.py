"""The inference process: it computes the waiting requests of all workers in one pass per network."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import ValidationError

from relaax.nn.devices import use_device
from relaax.nn.engine import Actor, make_actor
from relaax.parameters.interfaces import ParameterClientBase, ParameterServerUnavailable, Pulled, TrainingEnded
from relaax.rlx.messages import MAX_ENVIRONMENTS
from relaax.server.rlx_server.child_process import EXIT_DONE, GROUP_SIGNALS
from relaax.server.rlx_server.inference.exchange import (
    ANSWER,
    COMPUTED,
    DESCRIPTION,
    ENDED,
    HELLO,
    MAX_BYTES,
    REFUSED,
    REQUEST,
    UNAVAILABLE,
    ActorDescription,
    Workspace,
    workspace_size,
)
from relaax.server.rlx_server.inference.parameter_source import ParameterSource
from relaax.transport import segments
from relaax.transport.process_resources import allow_descriptors, share_one_arena

_log = logging.getLogger(__name__)

MAX_ROWS = 1024
"""Rows of a pass, unless a single request has more. They bound the memory of a pass."""
_DESCRIPTORS = 2
_CREDENTIALS = struct.Struct("3i")  # process, user, group


class BrokenRequest(Exception):
    """A message that no worker sends. The message says why."""


@dataclass(eq=False, slots=True)
class _Network:
    """A network and its parameters. `pulled`: the parameters of `actor`, with their version."""

    description: ActorDescription
    source: ParameterSource
    actor: Actor
    pulled: Pulled | None = None
    users: int = 0

    def use_newest(self) -> Pulled:
        """Set the newest parameters, and return them."""
        newest = self.source.use()
        if self.pulled is None or newest.parameters is not self.pulled.parameters:
            first, size = self.description.first, self.description.spec.layout().size
            self.actor.set_parameters(newest.parameters[first : first + size])
        self.pulled = newest
        return newest


@dataclass(eq=False, slots=True)
class _Client:
    """The connection of an actor. `rows`: number of rows of its request in progress, or 0."""

    sock: socket.socket
    network: _Network | None = None
    workspace: Workspace | None = None
    rows: int = 0


def run(serve: Callable[[], None], device: str) -> int:
    """Prepare signals, limits and device of the process, then serve. Return the exit code."""
    signal.set_wakeup_fd(-1)
    for number in (*GROUP_SIGNALS, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    share_one_arena()
    allow_descriptors()
    use_device(device)
    serve()
    return EXIT_DONE


class InferenceLoop:
    """The loop of the process. It has one thread that computes, and one for the parameters of each model.

    A pass has the requests that wait when it begins. It does not wait for more: requests that arrive meanwhile are
    computed together in the next pass. So a busy device gets large batches, and connections without a request delay no
    other one.
    """

    def __init__(
        self, listener: socket.socket, lifeline: int, make_client: Callable[[], ParameterClientBase], server: str
    ) -> None:
        """`lifeline`: a descriptor that becomes readable when the server stops. `server`: the server's address."""
        self._listener, self._lifeline = listener, lifeline
        self._make_client, self._server = make_client, server
        self._selector = selectors.DefaultSelector()
        self._networks: dict[tuple[object, ...], _Network] = {}
        self._sources: dict[str, ParameterSource] = {}
        self._waiting: list[_Client] = []
        self._woken, self._wake = socket.socketpair()
        for sock in (self._woken, self._wake, listener):
            sock.setblocking(False)
        for ready in (listener, lifeline, self._woken):
            self._selector.register(ready, selectors.EVENT_READ)

    def serve(self) -> None:
        """Serve until the lifeline closes, then deregister from the parameter server and close all connections."""
        while self._run_once():
            self._answer_waiting()
        for source in self._sources.values():
            source.close()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Client):
                self._remove(key.data)
        self._selector.close()
        self._woken.close()
        self._wake.close()

    def _run_once(self) -> bool:
        """Read the messages that have arrived. Return False if the lifeline has closed."""
        for key, _ in self._selector.select():
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._woken:
                self._woken.recv(MAX_BYTES)
            elif key.fileobj == self._lifeline:
                return False
            else:
                self._read(key.data)
        return True

    def _notify(self) -> None:
        """Wake the loop. Called by other threads."""
        with contextlib.suppress(OSError):  # it will wake anyway, or has ended
            self._wake.send(b"\0")

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            _log.warning("inference process: accepting a worker failed: %s", error.strerror)
            return
        _, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if user != os.getuid():  # every user of this host can connect
            _log.warning("inference process: refused a connection of user %d", user)
            sock.close()
            return
        sock.setblocking(False)
        self._selector.register(sock, selectors.EVENT_READ, _Client(sock))

    def _read(self, client: _Client) -> None:
        """Read the next message of a worker, or remove the connection if it has ended or is broken."""
        descriptors: list[int] = []
        try:
            if client.network is None:
                message, descriptors, _, _ = socket.recv_fds(client.sock, MAX_BYTES, _DESCRIPTORS)
            else:
                message = client.sock.recv(MAX_BYTES)
        except OSError:
            message = b""
        try:
            if not message:
                self._remove(client)
            elif message == HELLO:
                self._introduce(client, descriptors)
            else:
                self._request(client, message)
        except (BrokenRequest, ValidationError, OSError, ValueError) as error:
            _log.warning("inference process: ended the connection of a worker: %s", error)
            self._remove(client)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _introduce(self, client: _Client, descriptors: Sequence[int]) -> None:
        if client.network is not None or len(descriptors) != _DESCRIPTORS:
            raise BrokenRequest("a worker must introduce itself once, with two descriptors")
        file, memory = descriptors
        size = os.fstat(file).st_size
        description: ActorDescription = DESCRIPTION.validate_json(os.pread(file, size, 0))
        if not 1 <= description.rows <= MAX_ENVIRONMENTS:
            raise BrokenRequest(f"a request can have 1 to {MAX_ENVIRONMENTS} rows, not {description.rows}")
        mapped = segments.map_(memory, workspace_size(description), writable=True)
        client.workspace = Workspace(mapped, description)
        client.network = self._network(description)
        client.network.users += 1

    def _network(self, description: ActorDescription) -> _Network:
        """Return the network of a description, which all workers with the same one share."""
        key = _key(description)
        network = self._networks.get(key)
        if network is None:
            spec, dtype = description.spec, np.dtype(description.dtype)
            actor = make_actor(spec, dtype, compiled=True)
            network = self._networks[key] = _Network(description, self._source(description.fingerprint), actor)
        return network

    def _source(self, fingerprint: str) -> ParameterSource:
        if fingerprint not in self._sources:
            self._sources[fingerprint] = ParameterSource(fingerprint, self._make_client, self._server, self._notify)
        return self._sources[fingerprint]

    def _request(self, client: _Client, message: bytes) -> None:
        if client.workspace is None or client.rows or len(message) != REQUEST.size:
            raise BrokenRequest(f"received a message of {len(message)} bytes that is not the next request")
        (rows,) = REQUEST.unpack(message)
        if not 1 <= rows <= len(client.workspace.inputs):
            raise BrokenRequest(
                f"a request of this worker can have 1 to {len(client.workspace.inputs)} rows, not {rows}"
            )
        client.rows = rows
        self._waiting.append(client)

    def _answer_waiting(self) -> None:
        """Answer the waiting requests. A model whose first parameters have not arrived lets its requests wait."""
        waiting, self._waiting = self._waiting, []
        by_network: dict[_Network, list[_Client]] = {}
        for client in waiting:
            if client.network is None:  # it was removed
                continue
            source = client.network.source
            if source.failure is not None and (source.newest is None or not isinstance(source.failure, TrainingEnded)):
                self._refuse(client, client.network, source.failure)
            elif source.newest is None:
                self._waiting.append(client)
            else:
                by_network.setdefault(client.network, []).append(client)
        for network, clients in by_network.items():
            while clients:
                count, rows = 1, clients[0].rows
                while count < len(clients) and rows + clients[count].rows <= MAX_ROWS:
                    rows += clients[count].rows
                    count += 1
                self._compute(network, clients[:count], rows)
                del clients[:count]

    def _compute(self, network: _Network, clients: Sequence[_Client], rows: int) -> None:
        """Compute the requests of `clients` in one pass, and answer them."""
        version = network.use_newest().version
        inputs: list[Any] = []
        states: list[Any] = []
        for client in clients:
            assert client.workspace is not None, "a client with a request has a workspace"
            inputs.append(client.workspace.inputs[: client.rows])
            states.append(client.workspace.state[: client.rows])
        one = len(clients) == 1
        outputs, after = network.actor.act(
            inputs[0] if one else np.concatenate(inputs), states[0] if one else np.concatenate(states)
        )
        first = 0
        for client in clients:
            assert client.workspace is not None, "a client with a request has a workspace"
            client.workspace.write(outputs, after, first, client.rows)
            first += client.rows
            self._answer(client, ANSWER.pack(COMPUTED, rows, version))

    def _refuse(self, client: _Client, network: _Network, failure: Exception) -> None:
        """Answer with the error of the parameter server. The next request tries again with a new registration."""
        fingerprint, key = network.description.fingerprint, _key(network.description)
        if self._sources.get(fingerprint) is network.source:
            del self._sources[fingerprint]
        if self._networks.get(key) is network:
            del self._networks[key]
        if isinstance(failure, TrainingEnded):
            self._answer(client, ANSWER.pack(ENDED, 0, failure.global_step))
        else:
            kind = UNAVAILABLE if isinstance(failure, ParameterServerUnavailable) else REFUSED
            self._answer(client, ANSWER.pack(kind, 0, 0) + str(failure).encode()[: MAX_BYTES - ANSWER.size])
        self._remove(client)

    def _answer(self, client: _Client, message: bytes) -> None:
        client.rows = 0
        try:
            client.sock.send(message)
        except OSError:  # the worker has ended
            self._remove(client)

    def _remove(self, client: _Client) -> None:
        """Close a connection, and drop its network if no other connection uses it."""
        if client.sock.fileno() < 0:
            return
        self._selector.unregister(client.sock)
        client.sock.close()
        network, client.network, client.workspace = client.network, None, None
        if network is None:
            return
        network.users -= 1
        key = _key(network.description)
        if not network.users and self._networks.get(key) is network:
            del self._networks[key]


def _key(description: ActorDescription) -> tuple[object, ...]:
    spec = description.spec
    return description.fingerprint, description.dtype, description.first, repr(spec)
