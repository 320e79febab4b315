"""What `relaax top` shows to a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from relaax.cli.fitting import Column, FittingTable
from relaax.console import shown
from relaax.plain_console import visible


def picture(seen: Mapping[str, Any]) -> Any:
    """Return the tables of what `ServiceWatcher.look` has seen, for rich."""
    blank = Text()
    replay = [_replay_table(seen), *_errors(seen["replay"]), blank] if seen["replay"] else []
    shards = [_shard_table(seen), *_errors(seen["shards"]), blank]
    return Group(*shards, *replay, _server_table(seen), blank, _worker_table(seen))


def _errors(shards: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return what the shards report: that they do not answer, or that they cannot write checkpoints."""
    reports = [(shard["address"], shard["error"] or shard.get("checkpoint_error")) for shard in shards]
    return [Text(visible(f"{address}: {error}"), "red") for address, error in reports if error]


def _shard_table(seen: Mapping[str, Any]) -> FittingTable:
    step, speed = seen["global_step"], seen["steps_per_second"]
    title = "shards" if step is None else f"shards: global step {step:,}, {_number(speed)} steps/s"
    stale = seen["shards"][0].get("mean_actor_staleness")
    title += "" if stale is None else f", actors {_number(stale)} versions behind"
    title += ", finished" if seen["shards"][0].get("finished") else ""
    table = FittingTable(
        title, Column("shard"), Column("address", name=True, keep_end=True), Column("updates"), Column("per second"),
        Column("staleness", spare=1), Column("discarded", spare=2), Column("mean return"), Column("checkpoint"),
    )  # fmt: skip
    for index, shard in enumerate(seen["shards"]):
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


def _replay_table(seen: Mapping[str, Any]) -> FittingTable:
    table = FittingTable(
        "replay servers", Column("shard"), Column("address", name=True, keep_end=True), Column("table", name=True),
        Column("items"), Column("capacity", spare=1), Column("inserts/s"), Column("samples/s"), Column("per insert"),
        Column("age", spare=2), Column("overruns", spare=3), Column("stale updates", spare=5), Column("GB", spare=4),
    )  # fmt: skip
    for index, shard in enumerate(seen["replay"]):
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


def _server_table(seen: Mapping[str, Any]) -> FittingTable:
    table = FittingTable(
        "RLX servers", Column("server", name=True, keep_end=True), Column("workers"), Column("environments"),
        Column("steps/s"),
    )  # fmt: skip
    for server in seen["servers"]:
        counts = _count(server["workers"]), _count(server["environments"])
        table.add_row(server["server"] or "–", *counts, _number(server["steps_per_second"]))
    return table


def _worker_table(seen: Mapping[str, Any]) -> FittingTable:
    here = Counter(worker["mode"] for worker in seen["workers"])
    learners = f", {here['learn']} learn" if here["learn"] else ""
    title = f"workers: {here['train']} train, {here['exploit']} exploit{learners}"
    table = FittingTable(
        title, Column("actor"), Column("environment", name=True), Column("host", name=True, spare=2),
        Column("mode", name=True), Column("N"), Column("steps/s"), Column("answer ms"), Column("episodes", spare=1),
        Column("mean return"), Column("minutes", spare=3),
    )  # fmt: skip
    for worker in seen["workers"]:
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
