"""Check that the parameter server of this configuration's workers is reachable, serving and configured alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import grpc

from relaax import __version__
from relaax.cli.doctor.finding import Finding, Subject, ok, warning, wrong
from relaax.configuration import ConfigurationError
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters import parameter_server_pb2_grpc as pb_grpc

if TYPE_CHECKING:
    from relaax.parameters.channel import Target

SECONDS = 5.0


def who_is_at(target: Target) -> str | None:
    """Return a description of the server at `target`, with its progress if it tells; None if none answers."""
    try:
        return f"a RELAAX parameter server, at global step {_status(target).global_step},"
    except grpc.RpcError as error:
        strange = error.code() is grpc.StatusCode.UNAUTHENTICATED
        return "a server that requires another token" if strange else None


def parameter_server(subject: Subject) -> Iterator[Finding]:
    """Check each shard that the workers would use; there is none if they act from checkpoints."""
    if subject.configuration.rlx_server.checkpoint is not None:
        return
    from relaax.server.access import targets

    try:
        all_targets = targets(subject.configuration.rlx_server)
    except ConfigurationError:
        return  # reported by the checks of tokens and certificates
    shards = subject.configuration.parameter_server.shards
    if 1 < shards != len(all_targets):
        yield warning(
            f"relaax-parameter-server.shards is {shards}, relaax-rlx-server.parameter_server names {len(all_targets)}",
            "name them all, shard 0 first; `relaax run` does so automatically",
        )
    for target in all_targets:
        yield from _one(subject, target)


def _one(subject: Subject, target: Target) -> Iterator[Finding]:
    from relaax.parameters.channel import authentication_error

    where = f"parameter server {target.address}"
    if target.address.endswith(":0"):
        yield ok(f"{where}: its port is not picked yet")
        return
    try:
        status = _status(target)
    except grpc.RpcError as error:
        refused = authentication_error(error, target)
        if refused is not None:
            yield wrong(str(refused), "both servers need the same token, and certificates of one authority")
        elif error.code() is grpc.StatusCode.UNAVAILABLE:
            yield warning(
                f"{where} is unreachable: {_short(error)}", "start it, or use `relaax run`, which starts its own"
            )
        else:
            yield wrong(f"{where} answers {error.code().name}: {_short(error)}", "is it a parameter server?")
        return
    yield from _agreement(subject, where, status)
    if not _serves(target):
        yield warning(f"{where} is not serving", "see its log: it is stopping, or waits for another shard")


def _agreement(subject: Subject, where: str, status: pb.GetStatusResponse) -> Iterator[Finding]:
    from relaax.algorithm_base import first_difference
    from relaax.server.command.configuration import description

    if status.version and status.version != __version__:
        yield wrong(
            f"{where} is relaax {status.version}, this is {__version__}", "servers of one run need the same version"
        )
    difference = None
    if status.description and subject.config is not None:
        ours = description(subject.algorithm.name, subject.config)
        difference = first_difference(status.description, ours, "at the server", "in this configuration")
    if difference is not None:
        yield wrong(
            f"{where} is configured differently: {difference}", "start both servers with the same section `algorithm`"
        )
    else:
        yield ok(f"{where} answers, at global step {status.global_step}, with {status.workers} workers")


def _status(target: Target) -> pb.GetStatusResponse:
    """Return the server's status. Raises grpc.RpcError."""
    from relaax.parameters.channel import open_channel

    with open_channel(target) as channel:
        stub = pb_grpc.ParameterServerServiceStub(channel)
        status: pb.GetStatusResponse = stub.GetStatus(pb.GetStatusRequest(), timeout=SECONDS)
        return status


def _serves(target: Target) -> bool:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from relaax.parameters.channel import open_channel

    with open_channel(target) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        except grpc.RpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _short(error: grpc.RpcError) -> str:
    details = str(error.details() or "no details")
    return details.rpartition("Failed to connect to remote host: ")[2] or details
