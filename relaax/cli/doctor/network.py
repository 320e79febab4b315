"""Check that listening addresses are free, and that the servers of workers and learners are reachable."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import urllib.error
from collections.abc import Iterator

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from relaax import __version__, rlx
from relaax.cli.doctor.finding import Finding, Subject, ok, warning, wrong
from relaax.cli.run.plan import check_replay
from relaax.cli.run.progress import ReplayShards, ReplayShardView
from relaax.configuration import Configuration, ConfigurationError
from relaax.configuration.roles import REPLAY_SERVER, RLX_SERVER, relaax_roles
from relaax.hosting.fingerprint import first_difference
from relaax.metrics.system import available_memory
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters import parameter_server_pb2_grpc as rpc
from relaax.server.access import replay_target, replay_targets, shard_target, targets
from relaax.server.address import AddressError, listen, split_address
from relaax.server.command.configuration import description
from relaax.server.replay_server.service import GIGABYTE, table_bytes
from relaax.supervision.process import open_directly
from relaax.transport.channel import Target, authentication_trouble, open_channel

SECONDS = 5.0
_INVALID_HELLO = b"\xff\xff\xff\xff"
"""An invalid length of a hello. An RLX server answers it at once, without admission."""
_BY = "`relaax run` names replay servers itself"


def ports(subject: Subject) -> Iterator[Finding]:
    """Check every address that the servers would listen on."""
    found = subject.configuration
    for role in relaax_roles():
        if not role.count(found.sections):
            continue
        for key in ("bind", "status_bind"):
            address = getattr(found.sections[role.section], key, None)
            if address is not None:
                yield _port(found, role.section, key, address)


def _port(found: Configuration, section: str, key: str, address: str) -> Finding:
    host, port = split_address(address)
    if port == 0:
        return ok(f"{section}.{key}: a free port of {host} is picked")
    try:
        listen(address).close()
    except AddressError as error:
        server = _relaax_at(found, section, key, {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)
        if server is not None:
            return ok(f"{section}.{key}: {server} answers at {address} already")
        holder = _listening_process(port)
        if holder is None:
            reason = str(error).partition("; ")[0]
            return wrong(f"{section}.{key}: {reason}", "choose another address, or port 0 for a free one")
        way_out = "stop it, or choose another port; 0 picks a free one"
        return wrong(f"{section}.{key}: {address} is in use by {holder}", way_out)
    return ok(f"{section}.{key}: {address} is free")


def _relaax_at(found: Configuration, section: str, key: str, host: str, port: int) -> str | None:
    """Return a description of the RELAAX server at a port; None if another program listens there."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if key == "status_bind":
        return _status_at(address)
    if section == RLX_SERVER.section:
        return "an RLX server" if _is_rlx_server((host, port), found.rlx_server.tls_certificate is not None) else None
    if section == REPLAY_SERVER.section:
        with contextlib.suppress(ConfigurationError):
            return _replay_server_at(replay_target(found.rlx_server).at(address))
        return None
    # Use the credentials of another shard or, if these are not set, of workers.
    with contextlib.suppress(ConfigurationError):
        return _parameter_server_at(shard_target(found.parameter_server, address))
    with contextlib.suppress(ConfigurationError):
        return _parameter_server_at(targets(found.rlx_server)[0].at(address))
    return None


def _parameter_server_at(target: Target) -> str | None:
    try:
        return f"a RELAAX parameter server, at global step {_status(target).global_step},"
    except grpc.RpcError as error:
        strange = error.code() is grpc.StatusCode.UNAUTHENTICATED
        return "a server that requires another token" if strange else None


def _replay_server_at(target: Target) -> str | None:
    (view,) = _poll([target])
    if view.refused:
        return "a server that requires another token"
    status = view.status
    return None if status is None else f"a RELAAX replay server, shard {status.shard} of {status.shards},"


def _is_rlx_server(place: tuple[str, int], tls: bool) -> bool:
    connection = rlx.ClientConnection()
    with contextlib.suppress(OSError, rlx.ProtocolError), contextlib.ExitStack() as stack:
        sock: socket.socket = stack.enter_context(socket.create_connection(place, SECONDS))
        if tls:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # no secret is sent to it
            sock = stack.enter_context(context.wrap_socket(sock))
        sock.sendall(_INVALID_HELLO)
        # This hello is not sent, but lets the connection read an answer.
        connection.send(rlx.Hello(observation_space=rlx.Discrete(1), action_space=rlx.Discrete(1)))
        while data := sock.recv(4096):
            connection.receive_data(data)
            if isinstance(connection.next_event(), rlx.Error):
                return True
    return False


def _status_at(address: str) -> str | None:
    body: bytes | None = None
    try:
        with open_directly(f"http://{address}/healthz", SECONDS) as answer:
            body = answer.read(65536)
    except urllib.error.HTTPError as error:
        with error:
            body = error.read(65536)
    except (OSError, ValueError, http.client.HTTPException):
        return None
    with contextlib.suppress(ValueError, TypeError, KeyError):
        health = json.loads(body)
        return f"{health['server']} ({'serving' if health['serving'] else 'not serving'})"
    return None


def _listening_process(port: int) -> str | None:
    """Return the process that listens on a port, if this user may see it."""
    with contextlib.suppress(psutil.Error, OSError):
        for link in psutil.net_connections("tcp"):
            if link.status == psutil.CONN_LISTEN and link.laddr and link.laddr.port == port and link.pid:
                return f"{psutil.Process(link.pid).name()} (process {link.pid})"
    return None


def parameter_server(subject: Subject) -> Iterator[Finding]:
    """Check each shard that the workers would use. Workers that act from checkpoints use none."""
    found = subject.configuration
    if found.rlx_server.checkpoint is not None:
        return
    try:
        all_targets = targets(found.rlx_server)
    except ConfigurationError:
        return  # reported by the checks of tokens and certificates
    shards, named = found.parameter_server.shards, len(all_targets)
    if 1 < shards != named:
        sentence = f"relaax-parameter-server.shards is {shards}, relaax-rlx-server.parameter_server names {named}"
        yield warning(sentence, "name them all, shard 0 first; `relaax run` does so automatically")
    for target in all_targets:
        where = f"parameter server {target.address}"
        if target.address.endswith(":0"):
            yield ok(f"{where}: its port is not known yet")
            continue
        try:
            status = _status(target)
        except grpc.RpcError as error:
            yield _status_error(where, error, target)
            continue
        yield from _compare_settings(subject, where, status)
        if not _serves(target):
            yield warning(f"{where} is not serving", "see its log: it is stopping, or waits for another shard")


def _status_error(where: str, error: grpc.RpcError, target: Target) -> Finding:
    """Return a finding about a parameter server that did not return its status."""
    refused = authentication_trouble(error, target)
    if refused is not None:
        return wrong(str(refused), "both servers need the same token, and certificates of one authority")
    details = str(error.details() or "no details")
    details = details.rpartition("Failed to connect to remote host: ")[2] or details
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return _unreachable(where, details, "start it, or use `relaax run`, which starts its own")
    return wrong(f"{where} answers {error.code().name}: {details}", "is it a parameter server?")


def _unreachable(where: str, why: str, way_out: str) -> Finding:
    return warning(f"{where} is unreachable: {why}", way_out)


def _other_version(where: str, version: str) -> Finding:
    return wrong(f"{where} is relaax {version}, this is {__version__}", "servers of one run need the same version")


def _compare_settings(subject: Subject, where: str, status: pb.GetStatusResponse) -> Iterator[Finding]:
    if status.version and status.version != __version__:
        yield _other_version(where, status.version)
    difference = None
    if status.description and subject.config is not None:
        ours = description(subject.algorithm.name, subject.config)
        difference = first_difference(status.description, ours, "at the server", "in this configuration")
    if difference is not None:
        way_out = "start both servers with the same section `algorithm`"
        yield wrong(f"{where} is configured differently: {difference}", way_out)
    else:
        yield ok(f"{where} answers, at global step {status.global_step}, with {status.workers} workers")


def _status(target: Target) -> pb.GetStatusResponse:
    """Return the server's status. Raises grpc.RpcError."""
    with open_channel(target) as channel:
        stub = rpc.ParameterServerServiceStub(channel)
        status: pb.GetStatusResponse = stub.GetStatus(pb.GetStatusRequest(), timeout=SECONDS)
        return status


def _serves(target: Target) -> bool:
    with open_channel(target) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        except grpc.RpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def replay_server(subject: Subject) -> Iterator[Finding]:
    """Check each replay server that workers and learners would use, if the algorithm has a replay memory."""
    found, algorithm = subject.configuration, subject.algorithm
    if algorithm is None or algorithm.Replay is None or subject.config is None or found.rlx_server.only_acts:
        return
    yield from _server_counts(found)
    try:
        all_targets = replay_targets(found.rlx_server)
    except ConfigurationError:
        return  # reported by the checks of tokens and certificates
    if any(target.address.endswith(":0") for target in all_targets):
        yield ok("the ports of replay servers are not known yet")
        return
    for number, view in enumerate(_poll(all_targets)):
        yield _replay_shard(f"replay server {view.address}", number, len(all_targets), view)


def _server_counts(found: Configuration) -> Iterator[Finding]:
    """Check the numbers of replay servers and learners, and the addresses of replay servers."""
    try:
        check_replay(found)
    except ConfigurationError as error:
        yield warning(str(error), "`relaax run` refuses these numbers; by hand, any number may be started")
    shards, named = found.replay_server.shards, found.rlx_server.replay_server
    if not named:
        way_out = f"set it to their addresses in the order of their shards; {_BY}"
        yield warning("relaax-rlx-server.replay_server names no replay server", way_out)
    elif shards not in (0, len(named)):
        sentence = f"relaax-replay-server.shards is {shards}, relaax-rlx-server.replay_server names {len(named)}"
        yield warning(sentence, f"name them all, shard 0 first; {_BY}")
    if named and found.learner.learners and list(named) != list(found.learner.replay_server):
        sentence = f"workers and learners name different replay servers: {', '.join(named)}; "
        yield warning(sentence + ", ".join(found.learner.replay_server), "name the same ones, in one order")


def _poll(polled: list[Target]) -> list[ReplayShardView]:
    with contextlib.closing(ReplayShards(polled)) as shards:
        return shards.poll()


def _replay_shard(where: str, number: int, count: int, view: ReplayShardView) -> Finding:
    status = view.status
    if view.refused:
        return wrong(str(view.error), "servers, workers and learners need the same token, and one authority")
    if status is None:
        why = view.error or "it does not answer"
        return _unreachable(where, why, "start it; workers and learners wait some time for it")
    if (status.shard, status.shards) != (number, count):
        sentence = f"{where} is shard {status.shard} of {status.shards}, and named as shard {number} of {count}"
        return wrong(sentence, "name all of them, in the order of their shards")
    if status.version != __version__:
        return _other_version(where, status.version)
    total = view.sum
    tables = "1 table" if total.tables == 1 else f"{total.tables} tables"
    room = f"{total.bytes / GIGABYTE:.3g} of {status.memory / GIGABYTE:.3g} GB"
    return ok(f"{where} answers, shard {number} of {count}: {total.size} items in {tables}, which reserve {room}")


def replay_memory(subject: Subject) -> Iterator[Finding]:
    """Check whether the tables fit into the memory of replay servers, if the environment's spaces are known."""
    algorithm, config, spaces = subject.algorithm, subject.config, subject.spaces
    if algorithm is None or algorithm.Replay is None or config is None or spaces is None:
        return
    found = subject.configuration
    shards = max(found.replay_server.shards, 1)
    spec = algorithm.Replay(config, *spaces).table().spec_of_shard(shards)
    tables, per_worker = 1, ""
    if algorithm.Replay.bundled(config):
        tables = found.run.clients * found.run.connections_per_client
        per_worker = f" for each of {tables} workers"
    available = available_memory()
    needed, allowed = tables * spec.bytes(), table_bytes(found.replay_server, available)
    sentence = (
        f"{spec.capacity:,} items{per_worker} take {needed / GIGABYTE:.3g} GB of each replay server ({shards}), "
        f"which may take {allowed / GIGABYTE:.3g} GB"
    )
    way_out = "choose a smaller algorithm.replay_capacity, more shards on more machines, or more replay-server.memory"
    if needed > allowed:
        yield wrong(sentence, way_out)
    elif needed * shards > available:
        yield warning(f"{sentence}; {available / GIGABYTE:.3g} GB are available on this machine", way_out)
    else:
        yield ok(sentence)
