"""The command `relaax cluster`: a training on the machines of a Ray cluster."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relaax.cli.run.resilient_output import resilient
from relaax.configuration import ConfigurationError
from relaax.extras import named
from relaax.server.options import SetOption, command_app

if TYPE_CHECKING:
    from relaax.cluster.keeper import Look

cluster = command_app(
    no_args_is_help=True,
    help="Train on the machines of a Ray cluster: start, watch and stop a training there. Ray places the ordinary "
    "processes of RELAAX; no step goes through it.",
)

AddressOption = Annotated[
    str,
    typer.Option(help="The cluster: HOST:PORT of its head, or auto for the one that this machine belongs to."),
]
NameArgument = Annotated[str, typer.Argument(help="The training: the name of its configuration, or what --name said.")]
POLL_SECONDS = 0.5


@cluster.command()
def start(
    config: Annotated[str, typer.Argument(help="The YAML file of the experiment, or the name of a bundled one.")],
    address: AddressOption = "auto",
    name: Annotated[
        str | None, typer.Option(help="What to call the training; by default as its configuration.")
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Its directory, on storage that all machines share. [default: runs/NAME]")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew; a previous run is moved aside.")] = False,
    set_: SetOption = None,
    attach_: Annotated[
        bool, typer.Option("--attach", help="Watch it at once, as `relaax cluster attach` does.")
    ] = False,
) -> None:
    """Start a training that goes on when this command has ended. An unfinished run in the same directory is resumed."""
    with _reported():
        from relaax.cli.cluster.controller import Options
        from relaax.cli.run.plan import make_plan

        overrides = list(set_ or [])
        plan = make_plan(config, overrides)
        called = name or plan.name
        place = run_dir or Path("runs") / called
        training = _connected(address).begin(
            called,
            Options(
                str(Path(config).resolve()) if Path(config).is_file() else config,
                overrides,
                str(place.resolve()),
                fresh,
                address,
            ),
        )
        print(f"{called} is started; its directory is {place}", flush=True)
        if attach_:
            raise typer.Exit(_follow(training, called))
        print(f"relaax cluster attach {called} shows how it goes, relaax cluster stop {called} ends it")


@cluster.command()
def attach(name: NameArgument, address: AddressOption = "auto") -> None:
    """Show how a training goes until it ends. Ctrl-C ends this command, and not the training."""
    with _reported():
        raise typer.Exit(_follow(_connected(address).find(name), name))


@cluster.command()
def status(address: AddressOption = "auto") -> None:
    """List the trainings of a cluster, with their last line."""
    with _reported():
        trainings = _connected(address)
        for name in trainings.names():
            look = trainings.find(name).look(0)
            lines = look.log.decode(errors="replace").splitlines()
            how = "running" if look.exit_code is None else f"ended ({look.exit_code})"
            print(f"{name}: {how}: {lines[-1].strip() if lines else 'nothing said yet'}")


@cluster.command()
def stop(name: NameArgument, address: AddressOption = "auto") -> None:
    """End a training with a last checkpoint."""
    with _reported():
        training = _connected(address).find(name)
        training.terminate()
        code = _follow(training, name)
        training.close()
        raise typer.Exit(0 if code in (0, 130) else code)


def _connected(address: str) -> Any:
    """Return the trainings of a cluster. Raises ConfigurationError if there is none."""
    from relaax.cluster.trainings import Trainings

    return Trainings(address)


def _follow(training: Any, name: str) -> int:
    """Print what a training says until it ends; return its exit code."""
    end = 0
    try:
        while True:
            look: Look = training.look(end)
            sys.stdout.write(look.log.decode(errors="replace"))
            sys.stdout.flush()
            moved, end = look.log_end > end, look.log_end
            if not moved and look.exit_code is not None:
                return look.exit_code
            if not moved:
                time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        print(f"\n{name} goes on; relaax cluster stop {name} ends it", flush=True)
        return 130


class _reported:  # noqa: N801 - a context manager
    """Turns errors of the configuration and the cluster into a sentence and exit code 2."""

    def __enter__(self) -> None:
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
        self._named = named("relaax cluster")
        self._named.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, ConfigurationError):
            print(f"relaax cluster: {error}", file=resilient(sys.stderr))
            raise typer.Exit(2) from None
        self._named.__exit__(kind, error, trace)
