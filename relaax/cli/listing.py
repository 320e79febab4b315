"""The command `relaax list`: the configurations, algorithms and environments that come with RELAAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from relaax.bundled import (
    algorithm_description,
    bundled_configurations,
    bundled_folder,
    bundled_names,
    family_description,
    family_extras,
)

_README = "README.md"


def list_(
    what: Annotated[
        Literal["configurations", "algorithms", "environments"] | None,
        typer.Argument(help="configurations, algorithms or environments; omit it to list all."),
    ] = None,
) -> None:
    """List configurations, algorithms and environments."""
    sections = {"configurations": _configurations, "algorithms": _algorithms, "environments": _environments}
    for number, name in enumerate([what] if what else sections):
        if number:
            print()
        sections[name]()


def _configurations() -> None:
    print("CONFIGURATIONS: relaax run NAME")
    _print_rows([(one.name, one.description) for one in bundled_configurations()])


def _algorithms() -> None:
    print("ALGORITHMS: relaax run --algorithm NAME --environment CartPole-v1")
    _print_rows([(name, algorithm_description(name)) for name in bundled_names("algorithms")])


def _environments() -> None:
    print("ENVIRONMENTS and extras: relaax run --algorithm A --environment FAMILY/NAME")
    families = bundled_names("environments")
    _print_rows([(name, family_description(name), family_extras(name) or _README) for name in families])
    print("Ids of gymnasium need no FAMILY. An extra: pip install 'relaax[atari]'")
    print(f"{_README} of a family is in {bundled_folder('environments')}")


def _print_rows(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
