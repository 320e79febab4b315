"""The command `relaax checkpoints`."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
import typer.core

from relaax.atomic_file import write_whole
from relaax.cli import completion
from relaax.cli.checkpoints.catalogue import Entry, best, newest
from relaax.configuration import ConfigurationError, nearest
from relaax.log_lines import log_to_stderr, print_error
from relaax.number_format import shown
from relaax.server.options import command_app

LIST = "list"
SUFFIXES = (".safetensors", ".onnx")
LocationArgument = Annotated[
    str,
    typer.Argument(
        autocompletion=completion.runs, help="A folder of checkpoints, a run directory, or s3://BUCKET/KEY."
    ),
]
IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Checkpoints; by default all.")]
KeysOption = Annotated[
    str | None, typer.Option(metavar="FILE", help="YAML file with `access` and `secret`; otherwise what boto3 finds.")
]
EndpointOption = Annotated[str | None, typer.Option(metavar="URL", help="URL of an S3 other than Amazon's.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


class CheckpointCommands(typer.core.TyperGroup):
    """Treat `relaax checkpoints LOCATION` as `relaax checkpoints list LOCATION`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in [*self.commands, *ctx.help_option_names] and not self._misspelt(args[0]):
            args = [LIST, *args]
        return super().parse_args(ctx, args)

    def _misspelt(self, word: str) -> bool:
        return not Path(word).exists() and nearest(word, self.commands, 0.75) is not None


checkpoints = command_app(
    cls=CheckpointCommands,
    no_args_is_help=True,
    help="List, verify, copy, export and remove checkpoints. They are on disk or in S3. `relaax checkpoints LOCATION` "
    "lists them. A server may write at the same time. Exit code 0: done; 1: damaged, or the store failed; 2: the "
    "request cannot be carried out.",
)


@checkpoints.command(LIST)
def list_(
    location: LocationArgument,
    aws_keys: KeysOption = None,
    aws_endpoint: EndpointOption = None,
    as_json: JsonOption = False,
) -> None:
    """List checkpoints, newest first. Only manifests are read; `verify` checks the parts."""
    from relaax.cli.checkpoints import catalogue
    from relaax.cli.checkpoints import command as tables

    with _sentences():
        store = catalogue.opened(location, aws_keys, aws_endpoint)
        found = catalogue.entries(store)
        if as_json:
            print(json.dumps({"location": store.location, "checkpoints": tables.as_json(found)}, indent=1))
        elif found:
            tables.show(store.location, found)
        else:
            print(f"there are no checkpoints in {store.location}")


@checkpoints.command()
def verify(
    location: LocationArgument,
    ids: IdsArgument = None,
    aws_keys: KeysOption = None,
    aws_endpoint: EndpointOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare every byte of checkpoints with their manifests.

    Exit code 1: one is damaged.
    """
    from relaax.cli.checkpoints import catalogue
    from relaax.cli.checkpoints import catalogue as transfer
    from relaax.cli.checkpoints import command as tables

    with _sentences():
        store = catalogue.opened(location, aws_keys, aws_endpoint)
        wanted = catalogue.chosen(store, ids or [], False, False)
        with tables.progress("verifying", wanted) as advance:
            damages = transfer.damages(store, wanted, advance)
    if as_json:
        print(json.dumps({"location": store.location, "checkpoints": damages}, indent=1))
    else:
        aside = {entry.checkpoint_id for entry in wanted if entry.set_aside}
        for checkpoint_id, damage in damages.items():
            state = "is intact" if damage is None else f"is damaged: {damage}"
            if damage is None and checkpoint_id in aside:
                state += f", but set aside: delete {store.location}/{checkpoint_id}/damaged.json to use it again"
            print(f"{checkpoint_id}  {state}")
    bad = [checkpoint_id for checkpoint_id, damage in damages.items() if damage is not None]
    if bad:
        _give_up(f"damaged in {store.location}: {', '.join(bad)}", 1)


@checkpoints.command()
def copy(
    location: LocationArgument,
    to: Annotated[str, typer.Argument(metavar="TO", help="Target: a folder, a run directory, or s3://BUCKET/KEY.")],
    ids: IdsArgument = None,
    newest: Annotated[bool, typer.Option("--newest", help="Only the newest.")] = False,
    best: Annotated[bool, typer.Option("--best", help="Only the best: by evaluation, or else by mean return.")] = False,
    aws_keys: KeysOption = None,
    aws_endpoint: EndpointOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy checkpoints between folders and S3, in any direction. Each is verified, and published once complete.

    None is overwritten; no server may write to TO during the copy. --aws-keys and --aws-endpoint apply to both sides.
    """
    from relaax.cli.checkpoints import catalogue
    from relaax.cli.checkpoints import catalogue as transfer
    from relaax.cli.checkpoints import command as tables

    with _sentences():
        source = catalogue.opened(location, aws_keys, aws_endpoint)
        target = catalogue.opened(to, aws_keys, aws_endpoint, new=True)
        chosen = catalogue.chosen(source, ids or [], newest, best)
        wanted = [entry for entry in chosen if ids or not entry.set_aside]
        with tables.progress("copying", wanted) as advance:
            copied = transfer.copy(source, target, wanted, advance)
    if as_json:
        print(json.dumps({"location": source.location, "to": target.location, "copied": copied}, indent=1))
    else:
        print(f"copied to {target.location}: {', '.join(copied)}")


@checkpoints.command()
def remove(
    location: LocationArgument,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Their ids.")],
    aws_keys: KeysOption = None,
    aws_endpoint: EndpointOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete checkpoints that no server can use.

    They are damaged, set aside, or of a later version. This cannot be undone. If any of them is intact, exit with code
    2 and delete none.
    """
    from relaax.cli.checkpoints import catalogue
    from relaax.cli.checkpoints import catalogue as transfer
    from relaax.cli.checkpoints import command as tables

    with _sentences():
        store = catalogue.opened(location, aws_keys, aws_endpoint)
        wanted = catalogue.chosen(store, ids, False, False)
        with tables.progress("verifying", wanted) as advance:
            removed = transfer.remove(store, wanted, advance)
    if as_json:
        print(json.dumps({"location": store.location, "removed": removed}, indent=1))
    else:
        print(f"removed from {store.location}: {', '.join(removed)}")


@checkpoints.command()
def export(
    location: LocationArgument,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to write, such as pong.safetensors, or pong.onnx.")
    ],
    algorithm: Annotated[
        str | None, typer.Option(metavar="PATH", help="For .onnx: the algorithm, if it does not come with RELAAX.")
    ] = None,
    checkpoint_id: Annotated[str | None, typer.Option("--id", help="Its id; by default the newest.")] = None,
    best: Annotated[bool, typer.Option("--best", help="The best: by evaluation, or else by mean return.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    aws_keys: KeysOption = None,
    aws_endpoint: EndpointOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the parameters to a safetensors or ONNX file.

    `relaax.policy.load(FILE)` acts with a safetensors file, without the service. It holds parameters, statistics, the
    configuration without secrets, spaces and the algorithm's name. A FILE that ends with .onnx holds the network and
    its normalisation, for programs without Python: the page Checkpoints says its inputs and outputs.
    """
    from relaax.cli.checkpoints import catalogue
    from relaax.policy import exporting

    with _sentences():
        if checkpoint_id is not None and best:
            raise catalogue.CatalogueError("--id or --best: only one of the two")
        meant = nearest(file.suffix, SUFFIXES, cutoff=0.7)
        if meant is not None and meant != file.suffix:
            raise catalogue.CatalogueError(f"{file} ends with {file.suffix}; did you mean {meant}?")
        if file.exists() and not force:
            raise catalogue.CatalogueError(f"{file} already exists: --force replaces it")
        store = catalogue.opened(location, aws_keys, aws_endpoint)
        checkpoint = catalogue.loaded(store, checkpoint_id, best)
        content = exporting.policy_of(checkpoint)
        if file.suffix == ".onnx":
            content = [_onnx(content, algorithm)]
        try:
            write_whole(file, content)
        except OSError as error:
            _give_up(f"{file} cannot be written: {error.strerror or error}", 1)
        described = exporting.description_of(checkpoint)
    algorithm = described.fingerprint.get("algorithm")
    if as_json:
        facts = {"checkpoint": checkpoint.checkpoint_id, "global_step": described.global_step, "algorithm": algorithm}
        print(json.dumps({"file": str(file), **facts}, indent=1))
    else:
        print(f"{file}: {algorithm} at global step {described.global_step:,}, of checkpoint {checkpoint.checkpoint_id}")


def _onnx(policy: Sequence[memoryview], algorithm: str | None) -> memoryview:
    """Return the ONNX model of a policy file's contents. Raises PolicyError, and ModuleNotFoundError without onnx."""
    from relaax.policy import load
    from relaax.policy.onnx_export import onnx_of

    with tempfile.TemporaryDirectory(prefix="relaax-export-") as folder:
        file = Path(folder) / "policy.safetensors"
        write_whole(file, policy)
        return memoryview(onnx_of(load(file, algorithm=algorithm)))


@contextlib.contextmanager
def _sentences() -> Iterator[None]:
    """Turn errors that the user can act on into a one-line message, and exit."""
    from relaax.checkpoint import Damaged, StoreError
    from relaax.checkpoint.lease import LeaseLost
    from relaax.cli.checkpoints.catalogue import CatalogueError
    from relaax.policy import PolicyError

    log_to_stderr("relaax checkpoints: %(message)s")
    try:
        yield
    except (CatalogueError, ConfigurationError, PolicyError) as error:
        _give_up(str(error), 2)
    except Damaged as error:
        _give_up(f"damaged: {error}", 1)
    except (StoreError, LeaseLost) as error:
        _give_up(str(error), 1)
    except OSError as error:
        _give_up(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _give_up(sentence: str, code: int) -> NoReturn:
    print_error("relaax checkpoints", sentence)
    raise typer.Exit(code) from None


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
