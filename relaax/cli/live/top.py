"""The command `relaax top`: the state of a running service."""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from relaax.cli import completion
from relaax.cli.fitting import Column, FittingTable
from relaax.cli.live.addresses import section_of_service
from relaax.cli.options import AuthorityOption, ReplayServersOption, TokenFileOption
from relaax.cli.reporting import console_of, exit_on_errors
from relaax.console import log_to_stderr, shown
from relaax.plain_console import visible

if TYPE_CHECKING:
    import grpc

    from relaax.cli.run.progress import ReplayShardView
    from relaax.parameters import parameter_server_pb2 as pb
    from relaax.transport.channel import Target

_WIDTH = 140  # without a terminal
_ANSWER_SECONDS = 5.0
_LIST_BYTES = 2**24
"""Maximum size of a list of workers. It fits 16,384 workers of 110 bytes, and as many with names of maximum length."""


def top(
    where: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.configurations_and_runs,
            metavar="HOST:PORT|CONFIG|RUN",
            help="A parameter server, or several shards separated by commas; a configuration that names it, with its "
            "token and certificates; or the directory of an active run.",
        ),
    ],
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Interval between two requests.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show the state once and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON per request.")] = False,
    replay_server: ReplayServersOption = None,
    token_file: TokenFileOption = None,
    tls_ca: AuthorityOption = None,
) -> None:
    """Show a running service: servers, workers, speeds, returns.

    It runs on any machine that can reach the parameter server. Ctrl-C ends only this command. Exit code 0: done; 1:
    with --once, no shard answers; 2: the request is invalid.
    """
    log_to_stderr("relaax top: %(message)s")
    with exit_on_errors("relaax top"):
        from relaax.server.access import replay_targets, targets

        section = section_of_service(where, replay_server, token_file, tls_ca)
        watcher = ServiceWatcher(targets(section), replay_targets(section))
    try:
        _show(watcher, every, once, as_json)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
    finally:
        watcher.close()


class ServiceWatcher:
    """A client of all shards, which computes speeds from consecutive answers."""

    def __init__(self, targets: Sequence[Target], replay: Sequence[Target] = (), window: float = 0.0) -> None:
        """`replay`: the replay servers. `window`: seconds over which speeds are averaged; 0: since the last answer."""
        from relaax.cli.run.progress import ReplayShards

        self._targets = targets
        self._replay = ReplayShards(replay)
        self._channels: dict[str, grpc.Channel] = {}
        self._window = window
        self._before: dict[str, deque[tuple[float, int]]] = {}

    def snapshot(self) -> dict[str, Any]:
        """Return the current state of the service, as --json prints it."""
        from relaax.parameters.interfaces import TRAIN

        answers = [self._ask_shard(target) for target in self._targets]
        shards = [shard for shard, _ in answers]
        workers = [self._worker(worker) for worker in answers[0][1]]
        steps = [shard.pop("global_step", None) for shard in shards]
        step = steps[0]
        speed = None if step is None else self._speed("service", step)
        if speed is None and step is not None:  # first snapshot: the sum over training workers
            speed = sum(one["steps_per_second"] or 0.0 for one in workers if one["mode"] == TRAIN.mode)
        return {
            "time": time.time(),
            "global_step": step,
            "steps_per_second": speed,
            "shards": shards,
            "replay": [self._replay_shard(view) for view in self._replay.poll()],
            "servers": _servers(workers),
            "workers": workers,
        }

    def picture(self) -> pb.GetPictureResponse | None:
        """Return the newest picture of the first environment, and ask for the next one; None without an answer.

        Called after `snapshot`.
        """
        import grpc

        from relaax.parameters import parameter_server_pb2 as pb
        from relaax.parameters import parameter_server_pb2_grpc as rpc

        channel = self._channels.get(self._targets[0].address)
        if channel is None:
            return None
        try:
            stub = rpc.ParameterServerServiceStub(channel)
            answer: pb.GetPictureResponse = stub.GetPicture(pb.GetPictureRequest(), timeout=_ANSWER_SECONDS)
        except grpc.RpcError:
            return None
        return answer

    def close(self) -> None:
        """Close the connections."""
        for channel in self._channels.values():
            channel.close()
        self._replay.close()

    def _ask_shard(self, target: Target) -> tuple[dict[str, Any], Sequence[pb.WorkerDescription]]:
        """Return the state of a shard and its workers. If the shard does not answer, the state has only the error."""
        import grpc

        from relaax.parameters import parameter_server_pb2 as pb
        from relaax.parameters import parameter_server_pb2_grpc as rpc
        from relaax.parameters.calls import authentication_error
        from relaax.transport.channel import open_channel

        address = target.address
        if address not in self._channels:
            self._channels[address] = open_channel(target, _LIST_BYTES)
        stub = rpc.ParameterServerServiceStub(self._channels[address])
        try:
            status = stub.GetStatus(pb.GetStatusRequest(), timeout=_ANSWER_SECONDS)
            workers = stub.ListWorkers(pb.ListWorkersRequest(), timeout=_ANSWER_SECONDS).workers
        except grpc.RpcError as error:
            self._channels.pop(address).close()  # a new channel connects at once, without backoff
            refused = authentication_error(error, target)
            return {"address": address, "error": str(refused or f"{error.code().name}: {error.details()}")}, ()
        return {
            "address": address,
            "error": None,
            "global_step": status.global_step,
            "updates": status.updates,
            "updates_per_second": self._speed(f"shard {address}", status.updates),
            "mean_staleness": status.mean_staleness,
            "mean_actor_staleness": _optional(status, "mean_actor_staleness"),
            "discarded": status.discarded,
            "workers": status.workers,
            "exploit_workers": status.exploit_workers,
            "learners": status.learners,
            "episodes": status.episodes,
            "mean_return_100": _optional(status, "mean_return_100"),
            "checkpoint_global_step": status.checkpoint_global_step if status.checkpoint else None,
            "checkpoint_error": status.checkpoint_error or None,
            "finished": status.finished,
            "max_global_step": status.max_global_step,
            "training_seconds": status.training_seconds,
            "learning_rate": status.learning_rate,
            "version": status.version,
            "lesson": status.lesson or None,
            "lessons": status.lessons,
            "lesson_name": status.lesson_name,
            "lesson_return": _optional(status, "lesson_return"),
            "environment_parameters": status.environment_parameters,
            "opponent_win_rate": _optional(status, "opponent_win_rate"),
            "elo": _optional(status, "elo"),
        }, workers

    def _replay_shard(self, view: ReplayShardView) -> dict[str, Any]:
        from relaax.cli.run.progress import table_row

        status, place = view.status, view.address
        if status is None:
            return {"address": place, "error": view.error or "no answer yet", "tables": []}
        tables = [
            {
                "name": name,
                **table_row(tallies),
                "inserts_per_second": self._speed(f"inserts {place} {name}", tallies.inserts),
                "samples_per_second": self._speed(f"samples {place} {name}", tallies.samples),
            }
            for name, tallies in view.tables.items()
        ]
        return {
            "address": place,
            "error": None,
            "shard": status.shard,
            "shards": status.shards,
            "memory": status.memory,
            "tables": tables,
            "version": status.version,
        }

    def _worker(self, worker: pb.WorkerDescription) -> dict[str, Any]:
        from relaax.parameters.interfaces import PURPOSES

        purpose = PURPOSES[worker.role]
        speed = self._speed(worker.worker_id, worker.env_steps)
        if speed is None and worker.seconds > 0:  # first snapshot: since it registered
            speed = worker.env_steps / worker.seconds
        return {
            "worker": worker.worker_id[:8],
            "mode": purpose.mode,
            "environment": worker.environment,
            "environments": worker.environments,
            "actor": worker.actor if purpose.acts else None,
            "host": worker.host,
            "server": worker.server,
            "seconds": worker.seconds,
            "env_steps": worker.env_steps,
            "steps_per_second": speed if purpose.acts else None,
            "act_ms_p50": _optional(worker, "act_ms_p50"),
            "episodes": worker.episodes,
            "mean_return_100": _optional(worker, "mean_return_100"),
            "silent_seconds": worker.silent_seconds,
            "staleness": _optional(worker, "staleness"),
        }

    def _speed(self, name: str, count: int) -> float | None:
        """Return the increase of a count per second; None without an earlier snapshot or after a restart."""
        now = time.monotonic()
        history = self._before.setdefault(name, deque())
        if history and history[-1][1] > count:
            history.clear()
        history.append((now, count))
        while len(history) > 2 and now - history[1][0] >= self._window:
            history.popleft()
        then, before = history[0]
        return (count - before) / (now - then) if now > then else None


def _optional(message: Any, name: str) -> float | None:
    return float(getattr(message, name)) if message.HasField(name) else None


def _servers(workers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the RLX servers of workers, in the order of their first workers. Learners have no RLX server."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for worker in workers:
        if worker["actor"] is not None:
            found.setdefault(worker["server"], []).append(worker)
    return [
        {
            "server": name,
            "workers": len(own),
            "environments": sum(worker["environments"] for worker in own),
            "steps_per_second": sum(worker["steps_per_second"] or 0.0 for worker in own),
        }
        for name, own in found.items()
    ]


def _show(watcher: ServiceWatcher, every: float, once: bool, as_json: bool) -> None:
    from rich.live import Live

    console = console_of(_WIDTH)
    if console.is_terminal and not (as_json or once):
        with Live(service_tables(watcher.snapshot()), console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                live.update(service_tables(watcher.snapshot()), refresh=True)
    while True:
        state = watcher.snapshot()
        if as_json:
            print(json.dumps(state), flush=True)
        else:
            console.print(service_tables(state), highlight=False)
        if once:
            if all(shard["error"] for shard in state["shards"]):
                raise typer.Exit(1)
            return
        time.sleep(every)


def service_tables(state: Mapping[str, Any]) -> Any:
    """Return the tables of a `ServiceWatcher.snapshot`, for rich."""
    blank = Text()
    replay = [_replay_table(state), *_errors(state["replay"]), blank] if state["replay"] else []
    shards = [
        _shard_table(state),
        *_errors(state["shards"]),
        *_parameters(state["shards"][0]),
        *_opponents(state["shards"][0]),
        blank,
    ]
    return Group(*shards, *replay, _server_table(state), blank, _worker_table(state))


def _parameters(shard: Mapping[str, Any]) -> list[Any]:
    """Return a line with the lesson and the parameters of the environments, if there are any."""
    text = visible(shard.get("environment_parameters") or "")
    if text and shard["lesson"]:
        name = f" ({visible(shard['lesson_name'])})" if shard["lesson_name"] else ""
        mean = _number(shard["lesson_return"])
        text = f"lesson {shard['lesson']} of {shard['lessons']}{name}, mean return {mean}: {text}"
    return [Text(text)] if text else []


def _opponents(shard: Mapping[str, Any]) -> list[Any]:
    """Return a line with the games against older checkpoints, if there are opponents."""
    if shard.get("elo") is None:
        return []
    share = shard["opponent_win_rate"]
    return [Text(f"opponents: {'–' if share is None else f'{share:.0%}'} won, Elo {shard['elo']:,.0f}")]


def _errors(shards: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the errors of shards that do not answer or cannot write checkpoints."""
    reports = [(shard["address"], shard["error"] or shard.get("checkpoint_error")) for shard in shards]
    return [Text(visible(f"{address}: {error}"), "red") for address, error in reports if error]


def _shard_table(state: Mapping[str, Any]) -> FittingTable:
    step, speed = state["global_step"], state["steps_per_second"]
    title = "shards" if step is None else f"shards: global step {step:,}, {_number(speed)} steps/s"
    stale = state["shards"][0].get("mean_actor_staleness")
    title += "" if stale is None else f", actors {_number(stale)} versions behind"
    title += ", finished" if state["shards"][0].get("finished") else ""
    table = FittingTable(
        title, Column("shard"), Column("address", name=True, keep_end=True), Column("updates"), Column("per second"),
        Column("staleness", spare=1), Column("discarded", spare=2), Column("mean return"), Column("checkpoint"),
    )  # fmt: skip
    for index, shard in enumerate(state["shards"]):
        name = str(index), shard["address"]
        if shard["error"] is not None:
            table.add_row(*name, style="red")
            continue
        rates = _number(shard["updates_per_second"]), _number(shard["mean_staleness"])
        table.add_row(
            *name, _count(shard["updates"]), *rates, _count(shard["discarded"]),
            _number(shard["mean_return_100"]), _count(shard["checkpoint_global_step"]),
        )  # fmt: skip
    return table


def _replay_table(state: Mapping[str, Any]) -> FittingTable:
    table = FittingTable(
        "replay servers", Column("shard"), Column("address", name=True, keep_end=True), Column("table", name=True),
        Column("items"), Column("capacity", spare=1), Column("inserts/s"), Column("samples/s"), Column("per insert"),
        Column("age", spare=2), Column("overruns", spare=3), Column("stale updates", spare=5), Column("GB", spare=4),
    )  # fmt: skip
    for index, shard in enumerate(state["replay"]):
        name = str(index), shard["address"]
        if shard["error"] is not None:
            table.add_row(*name, style="red")
        for one in shard["tables"]:
            several = f" x {one['tables']}" if one["tables"] != 1 else ""
            table.add_row(
                *name, f"{one['name']}{several}", _count(one["size"]), _count(one["capacity"]),
                _number(one["inserts_per_second"]), _number(one["samples_per_second"]),
                _number(one["samples_per_insert"]), _count(round(one["mean_age"])), _count(one["overruns"]),
                _count(one["stale_updates"]), _number(one["bytes"] / 1e9),
            )  # fmt: skip
        if shard["error"] is None and not shard["tables"]:
            table.add_row(*name, "none yet")
    return table


def _server_table(state: Mapping[str, Any]) -> FittingTable:
    table = FittingTable(
        "RLX servers", Column("server", name=True, keep_end=True), Column("workers"), Column("environments"),
        Column("steps/s"),
    )  # fmt: skip
    for server in state["servers"]:
        counts = _count(server["workers"]), _count(server["environments"])
        table.add_row(server["server"] or "–", *counts, _number(server["steps_per_second"]))
    return table


def _worker_table(state: Mapping[str, Any]) -> FittingTable:
    here = Counter(worker["mode"] for worker in state["workers"])
    learners = f", {here['learn']} learn" if here["learn"] else ""
    title = f"workers: {here['train']} train, {here['exploit']} exploit{learners}"
    table = FittingTable(
        title, Column("actor"), Column("environment", name=True), Column("host", name=True, spare=2),
        Column("mode", name=True), Column("N"), Column("steps/s"), Column("answer ms"), Column("episodes", spare=1),
        Column("mean return"), Column("minutes", spare=3),
    )  # fmt: skip
    for worker in state["workers"]:
        table.add_row(
            _count(worker["actor"]), worker["environment"] or "–", worker["host"] or "–", worker["mode"],
            _count(worker["environments"]), _number(worker["steps_per_second"]), _number(worker["act_ms_p50"]),
            _count(worker["episodes"]), _number(worker["mean_return_100"]), f"{worker['seconds'] / 60:,.1f}",
        )  # fmt: skip
    return table


def _number(value: float | None) -> str:
    return "–" if value is None else shown(value)


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"
