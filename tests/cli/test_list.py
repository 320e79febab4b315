"""`relaax list`: each bundled name has a line that fits a terminal."""

from __future__ import annotations

from importlib.metadata import metadata

import pytest
from typer.testing import CliRunner

from relaax.bundled import bundled_folder, bundled_names, family_extras
from relaax.cli.app import app

WIDTH = 80
KINDS = {"configurations": ("config", ".yaml"), "algorithms": ("algorithms", ""), "environments": ("environments", "")}


def listed(*words: str) -> list[str]:
    done = CliRunner().invoke(app, ["list", *words])
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


@pytest.mark.parametrize("kind", KINDS)
def test_each_bundled_name_has_a_description_that_fits(kind: str) -> None:
    names = bundled_names(*KINDS[kind])
    rows = listed(kind)[1 : len(names) + 1]
    assert [row.split()[0] for row in rows] == names
    width = max(map(len, names)) + 2
    for row in rows:
        assert len(row) <= WIDTH, row
        assert row[:width].strip() in names
        assert len(row[width:].split()) >= 2, f"{row}: no description"


def test_all_kinds_are_listed_without_argument() -> None:
    lines = listed()
    parts = [listed(kind) for kind in KINDS]
    assert lines == [*parts[0], "", *parts[1], "", *parts[2]]
    folder = str(bundled_folder("environments"))
    assert [line for line in lines if len(line) > WIDTH and folder not in line] == []


@pytest.mark.parametrize("family", bundled_names("environments"))
def test_extras_of_a_family_exist_in_the_package(family: str) -> None:
    extras = family_extras(family)
    assert bool(extras) == (family not in ("TORCS", "DeepMind_Lab", "Shooter", "Goofspiel", "ConnectFour", "Godot"))
    assert set(extras.split(",")) - {""} <= set(metadata("relaax").get_all("Provides-Extra") or ())


def test_unknown_kind_is_refused() -> None:
    done = CliRunner().invoke(app, ["list", "games"])
    assert done.exit_code == 2
    assert "'configurations', 'algorithms', 'environments'" in done.output
