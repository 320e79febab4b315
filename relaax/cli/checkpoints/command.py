"""The command `relaax checkpoints`."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
import typer.core

from relaax.cli import completion
from relaax.configuration import ConfigurationError, nearest
from relaax.console import log_to_stderr, print_error
from relaax.files import write_whole
from relaax.server.command.options import command_app

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
    from relaax.cli.checkpoints import catalogue, tables

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
    from relaax.cli.checkpoints import catalogue, tables, transfer

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
    from relaax.cli.checkpoints import catalogue, tables, transfer

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
    from relaax.cli.checkpoints import catalogue, tables, transfer

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
    from relaax.policy.file import description_of, policy_of

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
        content = policy_of(checkpoint)
        if file.suffix == ".onnx":
            content = [_onnx(content, algorithm)]
        try:
            write_whole(file, content)
        except OSError as error:
            _give_up(f"{file} cannot be written: {error.strerror or error}", 1)
        described = description_of(checkpoint)
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
