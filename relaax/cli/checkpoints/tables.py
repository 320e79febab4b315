"""Output of `relaax checkpoints`: a table, JSON, and a progress bar."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from relaax.cli.checkpoints.catalogue import Entry, best, newest
from relaax.console import shown

_WIDTH = 130  # without a terminal


def as_json(found: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return each checkpoint as an object; time is Unix time in seconds, size in bytes."""
    ends = {"newest": newest(found), "best": best(found)}
    return [
        {("id" if key == "checkpoint_id" else key): value for key, value in asdict(entry).items()}
        | {name: entry is one for name, one in ends.items()}
        for entry in found
    ]


def show(location: str, found: Sequence[Entry]) -> None:
    """Print the table."""
    from relaax.cli.fitting import Column, FittingTable
    from relaax.plain_console import PlainConsole

    table = FittingTable(
        location, Column("id", left=True), Column("saved", left=True, spare=1), Column("global step"),
        Column("updates", spare=3), Column("mean return"), Column("evaluation"), Column("shards", spare=4),
        Column("size", spare=2), Column("", left=True),
    )  # fmt: skip
    ends = {"newest": newest(found), "best": best(found)}
    for entry in found:
        notes = [name for name, one in ends.items() if entry is one]
        if entry.damaged is not None:
            notes.append("set aside" if entry.set_aside else "damaged")
        table.add_row(entry.checkpoint_id, *_cells(entry), ", ".join(notes), style=_style(entry))
    console = PlainConsole()
    if not console.is_terminal:
        console.width = _WIDTH
    console.print(table, highlight=False)
    for entry in found:
        if entry.damaged is not None:
            print(f"{entry.checkpoint_id} {'was set aside' if entry.set_aside else 'is damaged'}: {entry.damaged}")


@contextlib.contextmanager
def progress(what: str, wanted: Sequence[Entry]) -> Iterator[Callable[[int], None]]:
    """Show a progress bar over the bytes of the parts on a terminal; without one, show nothing."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from relaax.plain_console import PlainConsole

    console = PlainConsole(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=sum(entry.size or 0 for entry in wanted))
        yield lambda count: bar.advance(task, count)


def _cells(entry: Entry) -> list[str]:
    saved = "" if entry.time is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.time))
    means = ["" if value is None else shown(value) for value in (entry.mean_return, entry.evaluation)]
    counts = ["" if count is None else f"{count:,}" for count in (entry.global_step, entry.updates)]
    return [saved, *counts, *means, "" if entry.shards is None else str(entry.shards), _size(entry.size)]


def _size(count: int | None) -> str:
    if count is None:
        return ""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _style(entry: Entry) -> str:
    return "red" if entry.damaged is not None else ""
