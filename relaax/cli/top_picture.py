"""What `relaax top` shows to a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from relaax.number_format import shown
from relaax.plain_console import visible


def picture(seen: Mapping[str, Any]) -> Any:
    """Return the tables of what `ServiceWatcher.look` has seen, for rich."""
    replay = [_replay_table(seen), *_errors(seen["replay"])] if seen["replay"] else []
    return Group(_shard_table(seen), *_errors(seen["shards"]), *replay, _server_table(seen), _worker_table(seen))


def _errors(shards: Sequence[Mapping[str, Any]]) -> list[Text]:
    return [Text(visible(f"{shard['address']}: {shard['error']}\n"), "red") for shard in shards if shard["error"]]


def _table(title: str, *columns: str, right_from: int = 1) -> Any:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, no_wrap=True, justify="right" if index >= right_from else "left")
    return table


def _shard_table(seen: Mapping[str, Any]) -> Any:
    step, speed = seen["global_step"], seen["steps_per_second"]
    title = "shards" if step is None else f"shards: global step {step:,}, {_number(speed)} steps/s"
    stale = seen["shards"][0].get("mean_actor_staleness")
    title += "" if stale is None else f", actors {_number(stale)} versions behind"
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


def _replay_table(seen: Mapping[str, Any]) -> Any:
    columns = "items", "capacity", "inserts/s", "samples/s", "per insert", "age", "overruns", "stale updates", "GB"
    table = _table("replay servers", "shard", "table", *columns, right_from=2)
    for index, shard in enumerate(seen["replay"]):
        name = f"{index}  {shard['address']}"
        if shard["error"] is not None:
            table.add_row(name, style="red")
        for one in shard["tables"]:
            several = f" x {one['tables']}" if one["tables"] != 1 else ""
            table.add_row(
                name, f"{one['name']}{several}", _count(one["size"]), _count(one["capacity"]),
                _number(one["inserts_per_second"]), _number(one["samples_per_second"]),
                _number(one["samples_per_insert"]), _count(round(one["mean_age"])), _count(one["overruns"]),
                _count(one["stale_updates"]), _number(one["bytes"] / 1e9),
            )  # fmt: skip
        if shard["error"] is None and not shard["tables"]:
            table.add_row(name, "none yet")
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
