"""The command `relaax cluster`: a training on the machines of a Ray cluster."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from relaax.cli import completion
from relaax.cli.fitting import Column, FittingTable
from relaax.cli.reporting import console_of, exit_on_errors
from relaax.configuration import ConfigurationError
from relaax.libraries import named
from relaax.plain_console import PlainConsole
from relaax.server.command.options import SetOption, command_app

if TYPE_CHECKING:
    from relaax.cluster.trainings import Training, Trainings

POLL_SECONDS = 0.5
BEGIN_SECONDS = 120.0
"""Longest time for the checks of a configuration and of one environment."""
WIDTH = 160
"""Width of tables that no terminal shows."""
_PROGRESS = re.compile(r"^ *\d+ s  ")

cluster = command_app(
    no_args_is_help=True,
    help="Train on the machines of a Ray cluster. A training there is started, watched, resized and stopped. Ray "
    "places the ordinary processes of RELAAX; no step goes through it.",
)

AddressOption = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        envvar="RAY_ADDRESS",
        help="The cluster: HOST:PORT of its head, or auto for the one that this machine belongs to.",
    ),
]
NameArgument = Annotated[str, typer.Argument(help="The training: the name of its configuration, or what --name said.")]


@cluster.command()
def start(
    config: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.configurations,
            help="The YAML file of the experiment, or the name of a bundled one.",
        ),
    ],
    address: AddressOption = "auto",
    name: Annotated[
        str | None, typer.Option(help="What to call the training; by default as its configuration.")
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            help="Its directory, with logs and metrics. Checkpoints go there too, if all machines see it, or "
            "to S3. [default: runs/NAME]"
        ),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew; a previous run is moved aside.")] = False,
    set_: SetOption = None,
    attach_: Annotated[
        bool, typer.Option("--attach", help="Watch it at once, as `relaax cluster attach` does.")
    ] = False,
) -> None:
    """Start a training that goes on when this command has ended. An unfinished run in the same directory is resumed."""
    with _reported():
        begin(config, list(set_ or []), address, name, run_dir, fresh, attach_)


def begin(
    config: str,
    overrides: list[str],
    address: str,
    name: str | None,
    run_dir: Path | None,
    fresh: bool,
    attached: bool,
    summary: Path | None = None,
    progress: bool = True,
) -> None:
    """Start a training, and show how it goes if `attached`, with its numbers if `progress`.

    Raises ConfigurationError, and typer.Exit in the end.
    """
    from relaax.cli.cluster.controller import Options, plan_of

    called = name or plan_of(config, overrides).name
    place = run_dir or Path("runs") / called
    options = Options(
        str(Path(config).resolve()) if Path(config).is_file() else config,
        overrides,
        str(place.resolve()),
        fresh,
        address,
        None if summary is None else str(summary.resolve()),
    )
    training = _connected(address).start(called, options)
    if attached:
        raise typer.Exit(follow(training, called, progress))
    code = wait_begun(training)
    if code is not None:
        training.close()
        raise typer.Exit(code)
    _say(f"{called} is started; its directory is {place}")
    _say(f"relaax cluster attach {called} shows how it goes, relaax cluster stop {called} ends it")


@cluster.command()
def attach(name: NameArgument, address: AddressOption = "auto") -> None:
    """Show how a training goes until it ends. Ctrl-C ends this command, and not the training."""
    with _reported():
        raise typer.Exit(follow(_connected(address).find(name), name))


@cluster.command()
def status(
    name: Annotated[
        str | None, typer.Argument(help="A training, whose processes are shown; by default all, in short.")
    ] = None,
    address: AddressOption = "auto",
    json_: Annotated[bool, typer.Option("--json", help="Print what a program reads.")] = False,
) -> None:
    """List the trainings of a cluster, or the processes of one.

    A training is shown with its last line, a process with its machine and how full it is.
    """
    with _reported():
        trainings = _connected(address)
        if name is None:
            show_trainings(trainings, json_)
        else:
            show_processes(trainings.find(name), json_)


@cluster.command()
def scale(
    name: NameArgument,
    rlx_servers: Annotated[int | None, typer.Option(min=1, help="Number of RLX servers from now on.")] = None,
    clients: Annotated[int | None, typer.Option(min=0, help="Number of environment programs from now on.")] = None,
    address: AddressOption = "auto",
) -> None:
    """Change a training's number of servers and environments.

    RLX servers and environment programs that are too many end in order: connections of a server move to others with
    the end of their episodes.
    """
    with _reported():
        if rlx_servers is None and clients is None:
            raise ConfigurationError("scale needs --rlx-servers or --clients")
        training = _connected(address).find(name)
        scaling = scaling_of(training)
        if rlx_servers is not None and scaling != "fixed":
            raise ConfigurationError(
                f"the number of RLX servers of {name} follows relaax-cluster.scaling: {scaling}; --rlx-servers is for "
                "scaling: fixed"
            )
        numbers = {"rlx-server": rlx_servers, "client": clients}
        training.scale({role: number for role, number in numbers.items() if number is not None})
        _say(f"{name} is asked; relaax cluster status {name} shows it")


@cluster.command()
def stop(name: NameArgument, address: AddressOption = "auto") -> None:
    """End a training with a last checkpoint."""
    with _reported():
        training = _connected(address).find(name)
        training.terminate()
        code = follow(training, name)
        training.close()
        raise typer.Exit(0 if code in (0, 130) else code)


def _connected(address: str) -> Trainings:
    """Return the trainings of a cluster. Raises ConfigurationError if there is none."""
    from relaax.cluster.trainings import Trainings

    own_output()
    return Trainings(address)


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    """Turn errors of the configuration and the cluster into a sentence and exit code 2."""
    with named("relaax cluster"), exit_on_errors("relaax cluster"):
        yield


@functools.cache
def own_output() -> TextIO:
    """Return standard output, which from then on is ours alone: Ray prints at any time, now to standard error."""
    ours, sys.stdout = sys.stdout, sys.stderr
    return ours


def _say(text: str, end: str = "\n") -> None:
    print(text, end=end, flush=True, file=own_output())


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
        _say(f"\n{name} goes on; relaax cluster stop {name} ends it")
        return 130


def wait_begun(training: Training) -> int | None:
    """Wait until a training places its processes, and return None; if it ends before, print why, and return its exit
    code.
    """
    deadline = time.monotonic() + BEGIN_SECONDS
    while time.monotonic() < deadline and not training.status:
        snapshot = training.snapshot(0)
        if snapshot.exit_code is not None:
            sys.stderr.write(snapshot.log.decode(errors="replace"))
            return snapshot.exit_code
        time.sleep(POLL_SECONDS)
    return None


def _followed(training: Training, live: Live | None, numbers: bool) -> int:
    """`numbers`: whether to print the lines with the training's numbers, which the panel has, too."""
    end = 0
    while True:
        snapshot = training.snapshot(end)
        for line in snapshot.log.decode(errors="replace").splitlines(keepends=True):
            if not numbers and _PROGRESS.match(line):
                continue
            if live is None:
                _say(line, end="")
            else:
                live.console.print(line.rstrip("\n"))
        moved, end = snapshot.log_end > end, snapshot.log_end
        if not moved and snapshot.exit_code is not None:
            return snapshot.exit_code
        if live is not None:
            live.update(Text.from_ansi(training.panel))
        if not moved:
            time.sleep(POLL_SECONDS)


def scaling_of(training: Training) -> str:
    """Return the policy by which the number of RLX servers follows connections. Raises ConfigurationError."""
    return str(_status(training)["scaling"])


def show_trainings(trainings: Trainings, as_json: bool) -> None:
    """Print every training with its last line."""
    found = []
    for name in trainings.names():
        training = trainings.find(name)
        snapshot = training.snapshot(0)
        while snapshot.log and (more := training.snapshot(snapshot.log_end)).log:
            snapshot = more
        lines = snapshot.log.decode(errors="replace").splitlines()
        found.append({"name": name, "exit_code": snapshot.exit_code, "said": lines[-1].strip() if lines else ""})
    if as_json:
        _say(json.dumps(found))
        return
    for each in found:
        how = "running" if each["exit_code"] is None else f"ended ({each['exit_code']})"
        _say(f"{each['name']}: {how}: {each['said'] or 'nothing said yet'}")
    if not found:
        _say("no training; relaax cluster start CONFIG starts one")


def show_processes(training: Training, as_json: bool) -> None:
    """Print a training's processes and the machines. Raises ConfigurationError."""
    status = _status(training)
    if as_json:
        _say(json.dumps(status))
    else:
        console_of(WIDTH, file=own_output(), highlight=False).print(status_tables(status))


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
    text = training.status
    if not text:
        raise ConfigurationError(f"{training.name} has not started its processes yet")
    return json.loads(text)
