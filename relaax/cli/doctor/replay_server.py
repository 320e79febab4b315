"""Check that the replay servers of this configuration are reachable and in order, and have room for its tables."""

from __future__ import annotations

from collections.abc import Iterator

from relaax import __version__
from relaax.cli.doctor.finding import Finding, Subject, ok, warning, wrong
from relaax.cli.replay_shards import ReplayShards, ReplayShardView
from relaax.configuration import Configuration, ConfigurationError
from relaax.metrics.system import available_memory
from relaax.parameters.channel import Target
from relaax.server.replay_server.memory_bound import GIGABYTE, table_bytes

_BY = "`relaax run` names replay servers by itself"


def who_is_at(target: Target) -> str | None:
    """Return a description of the replay server at `target`; None if none answers."""
    view = _asked([target])[0]
    if view.refused:
        return "a server that requires another token"
    return (
        None if view.status is None else f"a RELAAX replay server, shard {view.status.shard} of {view.status.shards},"
    )


def replay_server(subject: Subject) -> Iterator[Finding]:
    """Check each replay server that workers and learners would use, if the algorithm has a replay memory."""
    found, algorithm = subject.configuration, subject.algorithm
    if algorithm is None or algorithm.Replay is None or subject.config is None or found.rlx_server.only_acts:
        return
    yield from _numbers(found)
    from relaax.server.access import replay_targets

    try:
        targets = replay_targets(found.rlx_server)
    except ConfigurationError:
        return  # reported by the checks of tokens and certificates
    if any(target.address.endswith(":0") for target in targets):
        yield ok("the ports of replay servers are not picked yet")
        return
    for number, (target, view) in enumerate(zip(targets, _asked(targets), strict=True)):
        yield _one(f"replay server {target.address}", number, len(targets), view)


def _numbers(found: Configuration) -> Iterator[Finding]:
    """Check how many replay servers and learners there are, and how many are named."""
    from relaax.cli.run.replay_roles import check_replay

    try:
        check_replay(found)
    except ConfigurationError as error:
        yield warning(str(error), "`relaax run` refuses that; by hand any number may be started")
    shards, named = found.replay_server.shards, found.rlx_server.replay_server
    if not named:
        way_out = f"set it to their addresses in the order of their shards; {_BY}"
        yield warning("relaax-rlx-server.replay_server names no replay server", way_out)
    elif shards not in (0, len(named)):
        sentence = f"relaax-replay-server.shards is {shards}, relaax-rlx-server.replay_server names {len(named)}"
        yield warning(sentence, f"name them all, shard 0 first; {_BY}")
    if named and found.learner.learners and list(named) != list(found.learner.replay_server):
        sentence = f"workers and learners name other replay servers: {', '.join(named)}; "
        yield warning(sentence + ", ".join(found.learner.replay_server), "name the same ones, in one order")


def _asked(targets: list[Target]) -> list[ReplayShardView]:
    shards = ReplayShards(targets)
    try:
        return shards.look()
    finally:
        shards.close()


def _one(where: str, number: int, count: int, view: ReplayShardView) -> Finding:
    status = view.status
    if view.refused:
        return wrong(str(view.error), "servers, workers and learners need the same token, and one authority")
    if status is None:
        why = view.error or "it does not answer"
        return warning(f"{where} is unreachable: {why}", "start it; workers and learners wait for it a while")
    if (status.shard, status.shards) != (number, count):
        sentence = f"{where} is shard {status.shard} of {status.shards}, and named as shard {number} of {count}"
        return wrong(sentence, "name all of them, in the order of their shards")
    if status.version != __version__:
        sentence = f"{where} is relaax {status.version}, this is {__version__}"
        return wrong(sentence, "servers of one run need the same version")
    held = view.sum
    tables = "1 table" if held.tables == 1 else f"{held.tables} tables"
    room = f"{held.bytes / GIGABYTE:.3g} of {status.memory / GIGABYTE:.3g} GB"
    return ok(
        f"{where} answers, shard {number} of {count}: {held.size} items in {tables}, for which {room} are set aside"
    )


def replay_memory(subject: Subject) -> Iterator[Finding]:
    """Check whether the tables fit into what replay servers may take, if the environment's spaces are known."""
    algorithm, config, spaces = subject.algorithm, subject.config, subject.spaces
    if algorithm is None or algorithm.Replay is None or config is None or spaces is None:
        return
    found = subject.configuration
    shards = max(found.replay_server.shards, 1)
    spec = algorithm.Replay(config, *spaces).table().spec_of_shard(shards)
    tables, whose = 1, ""
    if algorithm.Replay.bundled(config):
        tables = found.run.clients * found.run.connections_per_client
        whose = f" for each of {tables} workers"
    available = available_memory()
    needed, allowed = tables * spec.bytes(), table_bytes(found.replay_server, available)
    sentence = (
        f"{spec.capacity:,} items{whose} take {needed / GIGABYTE:.3g} GB of each replay server ({shards}), "
        f"which may take {allowed / GIGABYTE:.3g} GB"
    )
    way_out = "choose a smaller algorithm.replay_capacity, more shards on more machines, or more replay-server.memory"
    if needed > allowed:
        yield wrong(sentence, way_out)
    elif needed * shards > available:
        yield warning(f"{sentence}; {available / GIGABYTE:.3g} GB are available on this machine", way_out)
    else:
        yield ok(sentence)
