"""The command `relaax top`: what a running service does."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from relaax.configuration import ConfigurationError
from relaax.number_format import shown

if TYPE_CHECKING:
    import grpc

    from relaax.parameters import parameter_server_pb2 as pb
    from relaax.parameters.channel import Target

_WIDTH = 140  # without a terminal
_ANSWER_SECONDS = 5.0
_LISTENING = re.compile(r" listening on (\S+:\d+)")


@dataclass(frozen=True, slots=True)
class ShardView:
    """A shard's answer: its status and its workers, or the `error` in their place."""

    address: str
    error: str | None = None
    status: pb.GetStatusResponse | None = None
    workers: Sequence[pb.WorkerDescription] = ()


def top(
    where: Annotated[
        str,
        typer.Argument(
            metavar="HOST:PORT|CONFIG|RUN",
            help="A parameter server, or several shards with commas between; a configuration that names it, with its "
            "token and certificates; or the directory of a run that is under way.",
        ),
    ],
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Ask so often.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show it once, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one line each time.")] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the parameter server's token; else RELAAX_PARAMETER_SERVER_TOKEN."),
    ] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="File with the authority (PEM) of its certificate: connect over TLS.")
    ] = None,
) -> None:
    """Show what a running service does: shards, RLX servers, and each worker with its environment, speed and returns.

    From any terminal that reaches the parameter server; Ctrl-C ends it, and nothing else. Exit code 0: done; 1: no
    shard answers, with --once; 2: this cannot be asked.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    logging.basicConfig(level="WARNING", format="relaax top: %(message)s", stream=sys.stderr)
    try:
        asked = _targets(where, token_file, tls_ca)
    except ConfigurationError as error:
        _give_up(str(error), 2)
    watcher = ServiceWatcher(asked)
    try:
        if as_json or once:
            _print(watcher, every, once, as_json)
        else:
            _live(watcher, every)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
    finally:
        watcher.close()


class ServiceWatcher:
    """Asks all shards, and works out speeds from one answer to the next."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = targets
        self._channels: dict[str, grpc.Channel] = {}
        self._before: dict[str, tuple[float, int]] = {}

    def look(self) -> dict[str, Any]:
        """Return what the service does now, as it is printed by --json."""
        from relaax.parameters.purposes import TRAIN

        views = [self._ask(target) for target in self._targets]
        first = views[0].status
        workers = [self._worker(worker) for worker in views[0].workers]
        speed = None if first is None else self._speed("service", first.global_step)
        if speed is None and first is not None:  # the first time: what those who train say
            speed = sum(one["steps_per_second"] or 0.0 for one in workers if one["mode"] == TRAIN.mode)
        return {
            "time": time.time(),
            "global_step": None if first is None else first.global_step,
            "steps_per_second": speed,
            "shards": [self._shard(view) for view in views],
            "servers": _servers(workers),
            "workers": workers,
        }

    def close(self) -> None:
        """Close the connections."""
        for channel in self._channels.values():
            channel.close()

    def _ask(self, target: Target) -> ShardView:
        import grpc

        from relaax.parameters import parameter_server_pb2 as pb
        from relaax.parameters import parameter_server_pb2_grpc as rpc
        from relaax.parameters.channel import authentication_error, open_channel

        channel = self._channels.get(target.address)
        if channel is None:
            channel = self._channels[target.address] = open_channel(target)
        stub = rpc.ParameterServerServiceStub(channel)
        try:
            status = stub.GetStatus(pb.GetStatusRequest(), timeout=_ANSWER_SECONDS)
            workers = stub.ListWorkers(pb.ListWorkersRequest(), timeout=_ANSWER_SECONDS).workers
        except grpc.RpcError as error:
            self._channels.pop(target.address).close()  # a new one dials at once, and does not wait
            refused = authentication_error(error, target)
            return ShardView(target.address, str(refused) if refused else f"{error.code().name}: {error.details()}")
        return ShardView(target.address, None, status, workers)

    def _shard(self, view: ShardView) -> dict[str, Any]:
        status = view.status
        if status is None:
            return {"address": view.address, "error": view.error}
        return {
            "address": view.address,
            "error": None,
            "updates": status.updates,
            "updates_per_second": self._speed(f"shard {view.address}", status.updates),
            "mean_staleness": status.mean_staleness,
            "discarded": status.discarded,
            "workers": status.workers,
            "exploit_workers": status.exploit_workers,
            "learners": status.learners,
            "episodes": status.episodes,
            "mean_return_100": _optional(status, "mean_return_100"),
            "checkpoint_global_step": status.checkpoint_global_step if status.checkpoint else None,
            "checkpoint_error": status.checkpoint_error or None,
            "finished": status.finished,
            "version": status.version,
        }

    def _worker(self, worker: pb.WorkerDescription) -> dict[str, Any]:
        from relaax.parameters.purposes import PURPOSES

        purpose = PURPOSES[worker.role]
        speed = self._speed(worker.worker_id, worker.env_steps)
        if speed is None and worker.seconds > 0:  # the first time: since it came
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
        }

    def _speed(self, name: str, count: int) -> float | None:
        """Return how much was counted in a second since the last time; None the first time, or after a restart."""
        now = time.monotonic()
        then, before = self._before.get(name, (now, count))
        self._before[name] = (now, count)
        return (count - before) / (now - then) if now > then and count >= before else None


def _optional(message: Any, name: str) -> float | None:
    return float(getattr(message, name)) if message.HasField(name) else None


def _servers(workers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the RLX servers that workers belong to, in the order in which they came. Learners belong to none."""
    workers = [worker for worker in workers if worker["actor"] is not None]
    names = dict.fromkeys(worker["server"] for worker in workers)
    return [
        {
            "server": name,
            "workers": sum(worker["server"] == name for worker in workers),
            "environments": sum(worker["environments"] for worker in workers if worker["server"] == name),
            "steps_per_second": sum(one["steps_per_second"] or 0.0 for one in workers if one["server"] == name),
        }
        for name in names
    ]


def _targets(where: str, token_file: Path | None, tls_ca: Path | None) -> list[Target]:
    """Return the shards to ask. Raises ConfigurationError."""
    from relaax.configuration.sections import RlxServerSection
    from relaax.configuration.validation import validate_section
    from relaax.server.targets import targets

    run = Path(where)
    if re.search(r":\d+(,|$)", where):
        return targets(validate_section(RlxServerSection, _section(where, token_file, tls_ca), "relaax-rlx-server"))
    if run.is_dir():
        if not (run / "logs").is_dir():
            raise ConfigurationError(f"{where} is no run directory: it has no logs")
        addresses = [_listening(log) for log in sorted((run / "logs").glob("parameter-server*.log"))]
        known = ",".join(address for address in addresses if address is not None)
        if not known:
            raise ConfigurationError(f"{run / 'logs'}: no parameter server says where it listens")
        return targets(validate_section(RlxServerSection, _section(known, token_file, tls_ca), "relaax-rlx-server"))
    if token_file is not None or tls_ca is not None:
        raise ConfigurationError("--token-file and --tls-ca are for HOST:PORT; a configuration names its own")
    from relaax.server.command_configuration import configured

    return targets(configured(where, []).rlx_server)


def _section(addresses: str, token_file: Path | None, tls_ca: Path | None) -> dict[str, Any]:
    files = {"parameter_server_token_file": token_file, "parameter_server_ca": tls_ca}
    return {"parameter_server": addresses} | {key: str(file) for key, file in files.items() if file is not None}


def _listening(log: Path) -> str | None:
    """Return the address in the last line of a log that says where its server listens."""
    found = _LISTENING.findall(log.read_text(encoding="utf-8", errors="replace"))
    return str(found[-1]) if found else None


def _print(watcher: ServiceWatcher, every: float, once: bool, as_json: bool) -> None:
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH
    while True:
        seen = watcher.look()
        if as_json:
            print(json.dumps(seen), flush=True)
        else:
            console.print(_picture(seen), highlight=False)
        if once:
            if all(shard["error"] for shard in seen["shards"]):
                raise typer.Exit(1)
            return
        time.sleep(every)


def _live(watcher: ServiceWatcher, every: float) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if not console.is_terminal:
        _print(watcher, every, once=False, as_json=False)
    with Live(_picture(watcher.look()), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(every)
            live.update(_picture(watcher.look()), refresh=True)


def _picture(seen: Mapping[str, Any]) -> Any:
    from rich.console import Group
    from rich.text import Text

    errors = [Text(f"{shard['address']}: {shard['error']}\n", "red") for shard in seen["shards"] if shard["error"]]
    return Group(_shard_table(seen), *errors, _server_table(seen), _worker_table(seen))


def _table(title: str, *columns: str, right_from: int = 1) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, no_wrap=True, justify="right" if index >= right_from else "left")
    return table


def _shard_table(seen: Mapping[str, Any]) -> Any:
    step, speed = seen["global_step"], seen["steps_per_second"]
    title = "shards" if step is None else f"shards: global step {step:,}, {_number(speed)} steps/s"
    table = _table(title, "shard", "updates", "per second", "staleness", "discarded", "mean return", "checkpoint")
    for index, shard in enumerate(seen["shards"]):
        name = f"{index}  {shard['address']}"
        if shard["error"] is not None:
            table.add_row(name, style="red")
            continue
        saved = shard["checkpoint_error"] or _count(shard["checkpoint_global_step"])
        rates = _number(shard["updates_per_second"]), _number(shard["mean_staleness"])
        notes = " finished" if shard["finished"] else ""
        table.add_row(
            f"{name}{notes}", _count(shard["updates"]), *rates, _count(shard["discarded"]),
            _number(shard["mean_return_100"]), saved,
        )  # fmt: skip
    return table


def _server_table(seen: Mapping[str, Any]) -> Any:
    table = _table("RLX servers", "server", "workers", "environments", "steps/s")
    for server in seen["servers"]:
        counts = _count(server["workers"]), _count(server["environments"])
        table.add_row(server["server"] or "–", *counts, _number(server["steps_per_second"]))
    return table


def _worker_table(seen: Mapping[str, Any]) -> Any:
    here = Counter(worker["mode"] for worker in seen["workers"])
    learners = f", {here['learn']} learn" if here["learn"] else ""
    title = f"workers: {here['train']} train, {here['exploit']} exploit{learners}"
    names = (
        ("actor", "environment", "host", "mode"),
        ("N", "steps/s", "answer ms", "episodes", "mean return", "minutes"),
    )
    table = _table(title, *names[0], *names[1], right_from=len(names[0]))
    for worker in seen["workers"]:
        table.add_row(
            _count(worker["actor"]), worker["environment"] or "–", worker["host"] or "–", worker["mode"],
            _count(worker["environments"]), _number(worker["steps_per_second"]), _number(worker["act_ms_p50"]),
            _count(worker["episodes"]), _number(worker["mean_return_100"]), f"{worker['seconds'] / 60:.1f}",
        )  # fmt: skip
    return table


def _number(value: float | None) -> str:
    return "–" if value is None else shown(value)


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _give_up(sentence: str, code: int) -> NoReturn:
    print(f"relaax top: {sentence}", file=sys.stderr)
    raise typer.Exit(code) from None
