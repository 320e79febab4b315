"""Check whether listening addresses are free, or who holds them."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import urllib.error
from collections.abc import Iterator

import psutil

from relaax import rlx
from relaax.cli.doctor.finding import Finding, Subject, ok, warning, wrong
from relaax.configuration import Configuration, ConfigurationError
from relaax.configuration.roles import REPLAY_SERVER, own
from relaax.server.address import AddressError, listen, split_address
from relaax.supervision.process import open_directly

SECONDS = 5.0
_NO_HELLO = b"\xff\xff\xff\xff"
"""An invalid length of a hello: an RLX server answers it at once and admits nobody."""


def ports(subject: Subject) -> Iterator[Finding]:
    """Check every address that the servers would listen on."""
    found = subject.configuration
    for role in own():
        if not role.count(found.sections):
            continue
        for key in ("bind", "status_bind"):
            address = getattr(found.sections[role.section], key, None)
            if address is not None:
                yield _port(found, f"{role.section}.{key}", address)


def _port(found: Configuration, key: str, address: str) -> Finding:
    host, port = split_address(address)
    if port == 0:
        return ok(f"{key}: a free port of {host} is picked")
    try:
        listen(address).close()
    except AddressError as error:
        who = _relaax_at(found, key, address)
        if who is not None:
            return ok(f"{key}: {who} answers at {address} already")
        holder = _holder(port)
        if holder is None:
            return wrong(f"{key}: {str(error).partition('; ')[0]}", "choose another address, or port 0 for a free one")
        return wrong(f"{key}: {address} is in use by {holder}", "stop it, or choose another port; 0 picks a free one")
    return ok(f"{key}: {address} is free")


def _relaax_at(found: Configuration, key: str, address: str) -> str | None:
    host, port = split_address(address)
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port
    if key.endswith("status_bind"):
        return _status_of(reachable)
    if key.startswith("relaax-rlx-server"):
        return "an RLX server" if _is_rlx_server(reachable, found.rlx_server.tls_certificate is not None) else None
    host = f"[{reachable[0]}]" if ":" in reachable[0] else reachable[0]
    if key.startswith(REPLAY_SERVER.section):
        return _replay_server_at(found, f"{host}:{port}")
    return _parameter_server_at(found, f"{host}:{port}")


def _replay_server_at(found: Configuration, address: str) -> str | None:
    """Look for a replay server with the credentials of workers."""
    from relaax.cli.doctor.replay_server import who_is_at
    from relaax.server.access import replay_target

    with contextlib.suppress(ConfigurationError):
        return who_is_at(replay_target(found.rlx_server).at(address))
    return None


def _parameter_server_at(found: Configuration, address: str) -> str | None:
    """Look for a parameter server with the credentials of another shard or, if none are set, of workers."""
    from relaax.cli.doctor.parameter_server import who_is_at
    from relaax.server.access import shard_target, targets

    with contextlib.suppress(ConfigurationError):
        return who_is_at(shard_target(found.parameter_server, address))
    with contextlib.suppress(ConfigurationError):
        return who_is_at(targets(found.rlx_server)[0].at(address))
    return None


def _is_rlx_server(place: tuple[str, int], tls: bool) -> bool:
    connection = rlx.ClientConnection()
    with contextlib.suppress(OSError, rlx.ProtocolError), contextlib.ExitStack() as stack:
        sock: socket.socket = stack.enter_context(socket.create_connection(place, SECONDS))
        if tls:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # no secret is sent to it
            sock = stack.enter_context(context.wrap_socket(sock))
        sock.sendall(_NO_HELLO)
        connection.send(_hello())  # not sent, but lets the connection read an answer
        while data := sock.recv(4096):
            connection.receive_data(data)
            if isinstance(connection.next_event(), rlx.Error):
                return True
    return False


def _hello() -> rlx.Hello:
    return rlx.Hello(observation_space=rlx.Discrete(1), action_space=rlx.Discrete(1))


def _status_of(place: tuple[str, int]) -> str | None:
    host = f"[{place[0]}]" if ":" in place[0] else place[0]
    body: bytes | None = None
    try:
        with open_directly(f"http://{host}:{place[1]}/healthz", SECONDS) as answer:
            body = answer.read(65536)
    except urllib.error.HTTPError as error:
        with error:
            body = error.read(65536)
    except (OSError, ValueError, http.client.HTTPException):
        return None
    with contextlib.suppress(ValueError, TypeError, KeyError):
        said = json.loads(body)
        return f"{said['server']} ({'it serves' if said['serving'] else 'it does not serve'})"
    return None


def _holder(port: int) -> str | None:
    """Return the process that listens on a port, if this user may see it."""
    with contextlib.suppress(psutil.Error, OSError):
        for link in psutil.net_connections("tcp"):
            if link.status == psutil.CONN_LISTEN and link.laddr and link.laddr.port == port and link.pid:
                return f"{psutil.Process(link.pid).name()} (process {link.pid})"
    return None


def descriptors(subject: Subject) -> Iterator[Finding]:
    """Check the limit on open files: each connection of an RLX server takes some."""
    import resource

    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    workers = subject.configuration.rlx_server.max_workers
    needed = 3 * workers + 64
    way_out = f"ulimit -n {needed} (the hard limit is {most}), or a lower relaax-rlx-server.max_workers"
    if limit < needed:
        yield warning(f"{limit} open files are too few for {workers} workers, which take {needed}", way_out)
    else:
        yield ok(f"{limit} open files are enough for {workers} workers")
