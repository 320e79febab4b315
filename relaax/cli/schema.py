"""The command `relaax schema`: print the configuration keys as JSON schema or as Markdown tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from relaax.bundled import bundled_folder, bundled_names
from relaax.cli import completion
from relaax.cli.reporting import exit_with_error
from relaax.configuration import ConfigurationError, unknown

BEGIN, END = "<!-- keys: written by `make docs` -->", "<!-- end of keys -->"


def schema(
    what: Annotated[
        str | None,
        typer.Argument(
            autocompletion=completion.algorithms_and_configurations,
            help="A configuration, or an algorithm: a name, a directory or a .py file.",
        ),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown tables instead.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write to this file. In a page, replace only the tables."),
    ] = None,
) -> None:
    """Print the JSON schema of configuration files.

    An editor uses it to complete, explain and check keys. Without WHAT, it covers all bundled algorithms. The first
    line of a configuration refers to it: # yaml-language-server: $schema=schema.json
    """
    try:
        text = _tables(what) if markdown else json.dumps(_schema(what), indent=1, ensure_ascii=False) + "\n"
        if output is None:
            print(text, end="")
        else:
            output.write_text(_page_with(output, text) if markdown else text, encoding="utf-8")
    except (ConfigurationError, OSError) as error:
        exit_with_error("relaax schema", error)


def _schema(what: str | None) -> dict[str, object]:
    from relaax.algorithm_base import ConfigBase
    from relaax.configuration.reference import schema_of

    return schema_of(_configs(what), ConfigBase)


def _tables(what: str | None) -> str:
    from relaax.algorithm_base import ConfigBase
    from relaax.configuration.reference import tables

    return tables(ConfigBase, _configs(what))


def _configs(what: str | None) -> dict[str, type]:
    """Return the Config of one algorithm, or of each bundled one, by name. Raises ConfigurationError."""
    if what is None:
        folder = bundled_folder("algorithms")
        return {name: _config(name, folder) for name in bundled_names("algorithms")}
    path, folder = what, Path.cwd()
    if Path(what).suffix == ".yaml" or what in bundled_names("config", ".yaml"):
        from relaax.configuration import find_configuration, load_configuration

        configuration = load_configuration(find_configuration(what))
        path, folder = configuration.algorithm_path, configuration.folder
    elif what not in bundled_names("algorithms") and not Path(what).exists():
        known = [*bundled_names("algorithms"), *bundled_names("config", ".yaml")]
        raise ConfigurationError(unknown("algorithm or configuration", what, known))
    return {Path(path).name.removesuffix(".py"): _config(path, folder)}


def _config(path: str, folder: Path) -> type:
    from relaax.hosting.loader import load_config
    from relaax.server.command.hardware import load_tensorflow_quietly

    load_tensorflow_quietly()  # if the algorithm's module loads it
    return load_config(path, folder)


def _page_with(page: Path, text: str) -> str:
    """Return the page with `text` between its two marks; if the page does not exist, return a new one."""
    if not page.exists():
        return f"{BEGIN}\n\n{text}\n{END}\n"
    old = page.read_text(encoding="utf-8")
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ConfigurationError(f"{page} must have the lines {BEGIN} and {END}: the tables are written between them")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"
