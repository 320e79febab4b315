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
from relaax.cli.options import FreshOption
from relaax.cli.reporting import console_of, exit_on_errors
from relaax.configuration import ConfigurationError
from relaax.libraries import named
from relaax.plain_console import PlainConsole
from relaax.server.command.options import SetOption, command_app

if TYPE_CHECKING:
    from relaax.cluster.trainings import Training, Trainings

POLL_SECONDS = 0.5
START_SECONDS = 120.0
"""Maximum seconds for the checks of a configuration and of one environment."""
WIDTH = 160
"""Width of tables without a terminal."""
_PROGRESS = re.compile(r"^ *\d+ s  ")

cluster = command_app(
    no_args_is_help=True,
    help="Train on the machines of a Ray cluster. The commands start, watch, resize and stop trainings. Ray places the "
    "ordinary processes of RELAAX. Steps of environments do not pass through Ray.",
)

AddressOption = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        envvar="RAY_ADDRESS",
        help="The cluster: HOST:PORT of its head, or auto for the cluster of this machine.",
    ),
]
NameArgument = Annotated[str, typer.Argument(help="Name of the training; by default the name of its configuration.")]


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
        str | None, typer.Option(help="Name of the training; by default the name of its configuration.")
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            help="Directory of logs and metrics, and of checkpoints if they are not in S3. All machines must then "
            "share it. [default: runs/NAME]"
        ),
    ] = None,
    fresh: FreshOption = False,
    set_: SetOption = None,
    attach_: Annotated[
        bool, typer.Option("--attach", help="Also show its progress, as `relaax cluster attach` does.")
    ] = False,
) -> None:
    """Start a training that continues after this command. An unfinished run in the same directory is resumed."""
    with _exit_on_errors():
        start_training(config, list(set_ or []), address, name, run_dir, fresh, attach_)


def start_training(
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
    """Start a training. If `attached`, show its progress, with its numbers if `progress`.

    Raises ConfigurationError, and typer.Exit at the end.
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
    training = _connect(address).start(called, options)
    if attached:
        raise typer.Exit(follow(training, called, progress))
    code = wait_until_started(training)
    if code is not None:
        training.close()
        raise typer.Exit(code)
    _print(f"{called} has started; its directory is {place}")
    _print(f"relaax cluster attach {called} shows its progress, relaax cluster stop {called} ends it")


@cluster.command()
def attach(name: NameArgument, address: AddressOption = "auto") -> None:
    """Show the progress of a training until it ends. Ctrl-C ends only this command."""
    with _exit_on_errors():
        raise typer.Exit(follow(_connect(address).find(name), name))


@cluster.command()
def status(
    name: Annotated[
        str | None, typer.Argument(help="The training whose processes are shown; by default all trainings are listed.")
    ] = None,
    address: AddressOption = "auto",
    json_: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """List the trainings of a cluster, or the processes of one.

    A training is listed with its last line of output, a process with its machine and its free places.
    """
    with _exit_on_errors():
        trainings = _connect(address)
        if name is None:
            show_trainings(trainings, json_)
        else:
            show_processes(trainings.find(name), json_)


@cluster.command()
def scale(
    name: NameArgument,
    rlx_servers: Annotated[int | None, typer.Option(min=1, help="New number of RLX servers.")] = None,
    clients: Annotated[int | None, typer.Option(min=0, help="New number of environment programs.")] = None,
    address: AddressOption = "auto",
) -> None:
    """Change a training's number of servers and environments.

    Surplus RLX servers and environment programs end in order: the connections of such a server move to others at the
    end of their episodes.
    """
    with _exit_on_errors():
        if rlx_servers is None and clients is None:
            raise ConfigurationError("scale needs --rlx-servers or --clients")
        training = _connect(address).find(name)
        scaling = scaling_of(training)
        if rlx_servers is not None and scaling != "fixed":
            raise ConfigurationError(
                f"the number of RLX servers of {name} follows relaax-cluster.scaling: {scaling}; --rlx-servers is for "
                "scaling: fixed"
            )
        numbers = {"rlx-server": rlx_servers, "client": clients}
        training.scale({role: number for role, number in numbers.items() if number is not None})
        _print(f"the new numbers of {name} are requested; relaax cluster status {name} shows the processes")


@cluster.command()
def stop(name: NameArgument, address: AddressOption = "auto") -> None:
    """End a training with a last checkpoint."""
    with _exit_on_errors():
        training = _connect(address).find(name)
        training.terminate()
        code = follow(training, name)
        training.close()
        raise typer.Exit(0 if code in (0, 130) else code)


def _connect(address: str) -> Trainings:
    """Connect to a cluster, and return its trainings. Raises ConfigurationError if it is not reachable."""
    from relaax.cluster.trainings import Trainings

    own_output()
    return Trainings(address)


@contextlib.contextmanager
def _exit_on_errors() -> Iterator[None]:
    """Print an error of the configuration or the cluster as one sentence, and exit with code 2."""
    with named("relaax cluster"), exit_on_errors("relaax cluster"):
        yield


@functools.cache
def own_output() -> TextIO:
    """Return standard output, and redirect other output to standard error, because Ray prints at any time."""
    ours, sys.stdout = sys.stdout, sys.stderr
    return ours


def _print(text: str, end: str = "\n") -> None:
    print(text, end=end, flush=True, file=own_output())


def follow(training: Training, name: str, progress: bool = True) -> int:
    """Print the output of a training until it ends; return its exit code. A terminal also shows its panel.

    `progress`: whether to show its numbers.
    """
    console = PlainConsole(file=own_output(), soft_wrap=True, highlight=False)
    try:
        if not progress or not console.is_terminal:
            return _follow(training, None, progress)
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            return _follow(training, live, False)
    except KeyboardInterrupt:
        _print(f"\n{name} continues; relaax cluster stop {name} ends it")
        return 130


def wait_until_started(training: Training) -> int | None:
    """Wait until a training starts its processes, and return None.

    If the training ends before that, print its log, and return its exit code.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and not training.status:
        snapshot = training.snapshot(0)
        if snapshot.exit_code is not None:
            sys.stderr.write(snapshot.log.decode(errors="replace"))
            return snapshot.exit_code
        time.sleep(POLL_SECONDS)
    return None


def _follow(training: Training, live: Live | None, numbers: bool) -> int:
    """Follow a training. `numbers`: whether to print lines with the training's numbers, which the panel also has."""
    end = 0
    while True:
        snapshot = training.snapshot(end)
        for line in snapshot.log.decode(errors="replace").splitlines(keepends=True):
            if not numbers and _PROGRESS.match(line):
                continue
            if live is None:
                _print(line, end="")
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
        _print(json.dumps(found))
        return
    for each in found:
        how = "running" if each["exit_code"] is None else f"ended ({each['exit_code']})"
        _print(f"{each['name']}: {how}: {each['said'] or 'no output yet'}")
    if not found:
        _print("no training; relaax cluster start CONFIG starts one")


def show_processes(training: Training, as_json: bool) -> None:
    """Print a training's processes and the machines. Raises ConfigurationError."""
    status = _status(training)
    if as_json:
        _print(json.dumps(status))
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
