"""The command `relaax checkpoints`."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from relaax.cli import completion
from relaax.cli.options import EndpointOption
from relaax.cli.reporting import console_of, exit_on_errors, exit_with_error
from relaax.configuration import nearest
from relaax.console import log_to_stderr, shown
from relaax.files import write_whole
from relaax.server.command.options import command_app

if TYPE_CHECKING:
    from relaax.cli.checkpoints.catalogue import Entry

COMMAND = "relaax checkpoints"
LIST = "list"
SUFFIXES = (".safetensors", ".onnx", ".rlxp")
_WIDTH = 130  # without a terminal
LocationArgument = Annotated[
    str,
    typer.Argument(
        autocompletion=completion.runs, help="A folder of checkpoints, a run directory, or s3://BUCKET/KEY."
    ),
]
IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Checkpoints; by default all.")]
KeysOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="YAML file with `access` and `secret`; by default the keys that boto3 finds."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


class CheckpointCommands(typer.core.TyperGroup):
    """Treat `relaax checkpoints LOCATION` as `relaax checkpoints list LOCATION`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in [*self.commands, *ctx.help_option_names] and not self._is_misspelt(args[0]):
            args = [LIST, *args]
        return super().parse_args(ctx, args)

    def _is_misspelt(self, word: str) -> bool:
        return not Path(word).exists() and nearest(word, self.commands, 0.75) is not None


checkpoints = command_app(
    cls=CheckpointCommands,
    no_args_is_help=True,
    help="List, verify, copy, export and remove checkpoints. They are on disk or in S3. `relaax checkpoints LOCATION` "
    "lists them. A server may write at the same time. Exit code 0: done; 1: a checkpoint is damaged, or the store "
    "failed; 2: the request cannot be carried out.",
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

    with _exit_on_errors():
        store = catalogue.open_store(location, aws_keys, aws_endpoint)
        found = catalogue.entries(store)
        ends = {"newest": catalogue.newest(found), "best": catalogue.best(found)}
        notes = [{name: entry is one for name, one in ends.items()} for entry in found]
        if as_json:  # time is Unix time in seconds, size in bytes
            rows = [asdict(entry) | noted for entry, noted in zip(found, notes, strict=True)]
            rows = [{("id" if key == "checkpoint_id" else key): value for key, value in row.items()} for row in rows]
            print(json.dumps({"location": store.location, "checkpoints": rows}, indent=1))
        elif found:
            _show(store.location, found, notes)
        else:
            print(catalogue.no_checkpoints(store))


@checkpoints.command()
def verify(
    location: LocationArgument,
    ids: IdsArgument = None,
    aws_keys: KeysOption = None,
    aws_endpoint: EndpointOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare every byte of checkpoints with their manifests.

    Exit code 1: a checkpoint is damaged.
    """
    from relaax.cli.checkpoints import catalogue

    with _exit_on_errors():
        store = catalogue.open_store(location, aws_keys, aws_endpoint)
        wanted = catalogue.select_entries(store, ids or [], False, False)
        with _progress("verifying", wanted) as advance:
            damages = catalogue.damages(store, wanted, advance)
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
        exit_with_error(COMMAND, f"damaged in {store.location}: {', '.join(bad)}", 1)


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

    Existing checkpoints are not overwritten. No server may write to TO during the copy. --aws-keys and --aws-endpoint
    apply to both sides.
    """
    from relaax.cli.checkpoints import catalogue

    with _exit_on_errors():
        source = catalogue.open_store(location, aws_keys, aws_endpoint)
        target = catalogue.open_store(to, aws_keys, aws_endpoint, new=True)
        chosen = catalogue.select_entries(source, ids or [], newest, best)
        wanted = [entry for entry in chosen if ids or not entry.set_aside]
        with _progress("copying", wanted) as advance:
            copied = catalogue.copy(source, target, wanted, advance)
    facts = {"location": source.location, "to": target.location, "copied": copied}
    print(json.dumps(facts, indent=1) if as_json else f"copied to {target.location}: {', '.join(copied)}")


@checkpoints.command()
def remove(
    location: LocationArgument,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids of the checkpoints.")],
    aws_keys: KeysOption = None,
    aws_endpoint: EndpointOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete checkpoints that no server can use.

    Such checkpoints are damaged, set aside, or of a later version. This cannot be undone. If one of them is intact, no
    checkpoint is deleted, and the exit code is 2.
    """
    from relaax.cli.checkpoints import catalogue

    with _exit_on_errors():
        store = catalogue.open_store(location, aws_keys, aws_endpoint)
        wanted = catalogue.select_entries(store, ids, False, False)
        with _progress("verifying", wanted) as advance:
            removed = catalogue.remove(store, wanted, advance)
    facts = {"location": store.location, "removed": removed}
    print(json.dumps(facts, indent=1) if as_json else f"removed from {store.location}: {', '.join(removed)}")


@checkpoints.command()
def export(
    location: LocationArgument,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to write: pong.safetensors, pong.onnx or pong.rlxp.")
    ],
    algorithm: Annotated[
        str | None, typer.Option(metavar="PATH", help="For .onnx and .rlxp: the algorithm, if it is not bundled.")
    ] = None,
    checkpoint_id: Annotated[
        str | None, typer.Option("--id", help="Id of the checkpoint; by default the newest.")
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="The best: by evaluation, or else by mean return.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    aws_keys: KeysOption = None,
    aws_endpoint: EndpointOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the parameters to a safetensors, ONNX or rlxp file.

    A safetensors file has parameters, statistics, the configuration without secrets, spaces and the algorithm's name.
    `relaax.policy.load(FILE)` returns its policy, which acts without the service. A FILE that ends with .onnx has the
    network and its normalisation, for programs without Python. The page Checkpoints documents its inputs and outputs.
    A FILE that ends with .rlxp has the same for rlx_policy.h, policy.js and policy.gd of the clients of RLX.
    """
    from relaax.cli.checkpoints import catalogue
    from relaax.policy.file import description_of, policy_of

    with _exit_on_errors():
        if checkpoint_id is not None and best:
            raise catalogue.CatalogueError("--id and --best cannot be combined")
        meant = nearest(file.suffix, SUFFIXES, cutoff=0.7)
        if meant is not None and meant != file.suffix:
            raise catalogue.CatalogueError(f"{file} has the suffix {file.suffix}; did you mean {meant}?")
        if file.exists() and not force:
            raise catalogue.CatalogueError(f"{file} already exists: --force replaces it")
        store = catalogue.open_store(location, aws_keys, aws_endpoint)
        checkpoint = catalogue.load_checkpoint(store, checkpoint_id, best)
        content = policy_of(checkpoint)
        if file.suffix in (".onnx", ".rlxp"):
            content = [_converted(content, algorithm, file.suffix)]
        try:
            write_whole(file, content)
        except OSError as error:
            exit_with_error(COMMAND, f"the policy file {file} cannot be written: {error.strerror or error}", 1)
        described = description_of(checkpoint)
    step, source = described.global_step, checkpoint.checkpoint_id
    algorithm = described.fingerprint.get("algorithm")
    facts = {"file": str(file), "checkpoint": source, "global_step": step, "algorithm": algorithm}
    text = f"{file}: {algorithm} at global step {step:,}, of checkpoint {source}"
    print(json.dumps(facts, indent=1) if as_json else text)


def _converted(policy: Sequence[memoryview], algorithm: str | None, suffix: str) -> memoryview:
    """Return a policy file's contents in the format of `suffix`.

    Raises PolicyError, and ModuleNotFoundError if the format is ONNX and the library onnx is not installed.
    """
    from relaax.policy import load

    with tempfile.TemporaryDirectory(prefix="relaax-export-") as folder:
        file = Path(folder) / "policy.safetensors"
        write_whole(file, policy)
        loaded = load(file, algorithm=algorithm)
    if suffix == ".onnx":
        from relaax.policy.onnx_export import onnx_of

        return memoryview(onnx_of(loaded))
    from relaax.policy.game_export import game_file_of

    return memoryview(game_file_of(loaded))


@contextlib.contextmanager
def _exit_on_errors() -> Iterator[None]:
    """Print an error of the block as one sentence, and exit."""
    from relaax.checkpoint import Damaged, StoreError
    from relaax.checkpoint.lease import LeaseLost
    from relaax.cli.checkpoints.catalogue import CatalogueError
    from relaax.policy import PolicyError

    log_to_stderr("relaax checkpoints: %(message)s")
    with exit_on_errors(COMMAND, (CatalogueError, PolicyError), (StoreError, LeaseLost, OSError)):
        try:
            yield
        except Damaged as error:
            exit_with_error(COMMAND, f"damaged: {error}", 1)


def _show(location: str, found: Sequence[Entry], notes: Sequence[Mapping[str, bool]]) -> None:
    """Print the table. `notes`: for each entry, whether it is the newest and the best."""
    from rich.filesize import decimal

    from relaax.cli.fitting import Column, FittingTable

    table = FittingTable(
        location, Column("id", left=True), Column("saved", left=True, spare=1), Column("global step"),
        Column("updates", spare=3), Column("mean return"), Column("evaluation"), Column("shards", spare=4),
        Column("size", spare=2), Column("", left=True),
    )  # fmt: skip
    formats: dict[str, Callable[[Any], str]] = {
        "time": lambda saved: time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(saved)),
        "global_step": "{:,}".format, "updates": "{:,}".format, "mean_return": shown, "evaluation": shown,
        "shards": str, "size": lambda size: decimal(size) if size >= 1000 else f"{size} B",
    }  # fmt: skip
    damaged = []
    for entry, noted in zip(found, notes, strict=True):
        values = ((getattr(entry, name), text) for name, text in formats.items())
        cells = ["" if value is None else text(value) for value, text in values]
        words = [name for name, is_so in noted.items() if is_so]
        if entry.damaged is not None:
            words.append("set aside" if entry.set_aside else "damaged")
            state = "was set aside" if entry.set_aside else "is damaged"
            damaged.append(f"{entry.checkpoint_id} {state}: {entry.damaged}")
        style = "" if entry.damaged is None else "red"
        table.add_row(entry.checkpoint_id, *cells, ", ".join(words), style=style)
    console_of(_WIDTH).print(table, highlight=False)
    for line in damaged:
        print(line)


@contextlib.contextmanager
def _progress(what: str, wanted: Sequence[Entry]) -> Iterator[Callable[[int], None]]:
    """Show a progress bar over the bytes of the parts on a terminal; without one, do nothing."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from relaax.plain_console import PlainConsole

    console = PlainConsole(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=sum(entry.size or 0 for entry in wanted))
        yield lambda count: bar.advance(task, count)
