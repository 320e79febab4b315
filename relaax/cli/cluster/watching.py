"""What `relaax cluster` shows of trainings."""

from __future__ import annotations

import functools
import json
import re
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from rich.console import Group
from rich.live import Live
from rich.text import Text

from relaax.cli.fitting import Column, FittingTable
from relaax.cluster.keeper import PANEL, STATUS, Look
from relaax.cluster.trainings import Training, Trainings
from relaax.configuration import ConfigurationError
from relaax.plain_console import PlainConsole

POLL_SECONDS = 0.5
BEGIN_SECONDS = 120.0
"""For the checks of a configuration and of one environment."""
WIDTH = 160
"""Of tables that no terminal shows."""
_PROGRESS = re.compile(r"^ *\d+ s  ")


@functools.cache
def own_output() -> TextIO:
    """Return standard output, which from then on is ours alone: Ray prints at any time, now to standard error."""
    ours, sys.stdout = sys.stdout, sys.stderr
    return ours


def follow(training: Training, name: str, progress: bool = True) -> int:
    """Print what a training says until it ends; return its exit code. A terminal gets its panel, too.

    `progress`: whether to show its numbers.
    """
    console = PlainConsole(file=own_output(), soft_wrap=True, highlight=False)
    try:
        if not progress or not console.is_terminal:
            return _followed(training, None, progress)
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            return _followed(training, live, False)
    except KeyboardInterrupt:
        print(f"\n{name} goes on; relaax cluster stop {name} ends it", flush=True, file=own_output())
        return 130


def wait_begun(training: Training) -> int | None:
    """Wait until a training places its processes, and return None; if it ends before, print why, and return its exit
    code.
    """
    deadline = time.monotonic() + BEGIN_SECONDS
    while time.monotonic() < deadline and not training.read(STATUS):
        look = training.look(0)
        if look.exit_code is not None:
            sys.stderr.write(look.log.decode(errors="replace"))
            return look.exit_code
        time.sleep(POLL_SECONDS)
    return None


def _followed(training: Training, live: Live | None, numbers: bool) -> int:
    """`numbers`: whether to print the lines with the training's numbers, which the panel has, too."""
    end = 0
    while True:
        look: Look = training.look(end)
        for line in look.log.decode(errors="replace").splitlines(keepends=True):
            if numbers or not _PROGRESS.match(line):
                _print(line, live)
        moved, end = look.log_end > end, look.log_end
        if not moved and look.exit_code is not None:
            return look.exit_code
        if live is not None:
            live.update(Text.from_ansi(training.read(PANEL)))
        if not moved:
            time.sleep(POLL_SECONDS)


def _print(line: str, live: Live | None) -> None:
    if live is None:
        print(line, end="", flush=True, file=own_output())
    else:
        live.console.print(line.rstrip("\n"))


def scaling_of(training: Training) -> str:
    """Return the policy by which the number of RLX servers follows connections. Raises ConfigurationError."""
    return str(_status(training)["scaling"])


def show_trainings(trainings: Trainings, as_json: bool) -> None:
    """Print every training with its last line."""
    found = []
    for name in trainings.names():
        training = trainings.find(name)
        look = training.look(0)
        while look.log and (more := training.look(look.log_end)).log:
            look = more
        lines = look.log.decode(errors="replace").splitlines()
        found.append({"name": name, "exit_code": look.exit_code, "said": lines[-1].strip() if lines else ""})
    if as_json:
        print(json.dumps(found), file=own_output())
        return
    for each in found:
        how = "running" if each["exit_code"] is None else f"ended ({each['exit_code']})"
        print(f"{each['name']}: {how}: {each['said'] or 'nothing said yet'}", file=own_output())
    if not found:
        print("no training; relaax cluster start CONFIG starts one", file=own_output())


def show_processes(training: Training, as_json: bool) -> None:
    """Print a training's processes and the machines. Raises ConfigurationError."""
    status = _status(training)
    if as_json:
        print(json.dumps(status), file=own_output())
        return
    console = PlainConsole(file=own_output(), highlight=False)
    if not console.is_terminal:
        console = PlainConsole(file=own_output(), highlight=False, width=WIDTH)
    console.print(status_tables(status))


def status_tables(status: Mapping[str, Any]) -> Group:
    """Return the tables of a training's processes and of the machines, for rich."""
    processes = FittingTable(
        "", Column("process", left=True), Column("state", name=True), Column("machine", name=True, spare=4),
        Column("address", name=True, keep_end=True), Column("pid", spare=3), Column("restarts", spare=2),
        Column("connections"), Column("free places"), Column("refused", spare=1),
    )  # fmt: skip
    keys = ("name", "state", "machine", "address", "pid", "restarts", "connections", "free_places", "refused")
    for each in status["processes"]:
        processes.add_row(*("" if each[key] is None else str(each[key]) for key in keys))
    on = [each["machine"] for each in status["processes"]]
    machines = FittingTable("", Column("machine", name=True, keep_end=True), Column("CPUs"), Column("processes"))
    for each in status["machines"]:
        machines.add_row(each["address"], f"{each['cpus']:g}", str(on.count(each["address"])))
    return Group(processes, Text(), machines)


def _status(training: Training) -> Any:
    text = training.read(STATUS)
    if not text:
        raise ConfigurationError(f"{training.name} has not started its processes yet")
    return json.loads(text)
