"""The command `relaax cluster`: a training on the machines of a Ray cluster."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from relaax.cli import completion
from relaax.cli.run.resilient_output import resilient
from relaax.configuration import ConfigurationError
from relaax.console import print_error
from relaax.libraries import named
from relaax.server.command.options import SetOption, command_app

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
    from relaax.cli.cluster.watching import follow, own_output, wait_begun

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
    training = _connected(address).begin(called, options)
    if attached:
        raise typer.Exit(follow(training, called, progress))
    code = wait_begun(training)
    if code is not None:
        training.close()
        raise typer.Exit(code)
    print(f"{called} is started; its directory is {place}", flush=True, file=own_output())
    print(f"relaax cluster attach {called} shows how it goes, relaax cluster stop {called} ends it", file=own_output())


@cluster.command()
def attach(name: NameArgument, address: AddressOption = "auto") -> None:
    """Show how a training goes until it ends. Ctrl-C ends this command, and not the training."""
    with _reported():
        from relaax.cli.cluster.watching import follow

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
        from relaax.cli.cluster.watching import show_processes, show_trainings

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
        from relaax.cli.cluster.watching import own_output, scaling_of

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
        training.ask({role: number for role, number in numbers.items() if number is not None})
        print(f"{name} is asked; relaax cluster status {name} shows it", file=own_output())


@cluster.command()
def stop(name: NameArgument, address: AddressOption = "auto") -> None:
    """End a training with a last checkpoint."""
    with _reported():
        from relaax.cli.cluster.watching import follow

        training = _connected(address).find(name)
        training.terminate()
        code = follow(training, name)
        training.close()
        raise typer.Exit(0 if code in (0, 130) else code)


def _connected(address: str) -> Any:
    """Return the trainings of a cluster. Raises ConfigurationError if there is none."""
    from relaax.cli.cluster.watching import own_output
    from relaax.cluster.trainings import Trainings

    own_output()
    return Trainings(address)


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    """Turn errors of the configuration and the cluster into a sentence and exit code 2."""
    with named("relaax cluster"):
        try:
            yield
        except ConfigurationError as error:
            print_error("relaax cluster", error, resilient(sys.stderr))
            raise typer.Exit(2) from None
