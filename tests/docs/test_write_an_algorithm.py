"""The algorithm of docs/write-an-algorithm.md works, and equals the template of `relaax new`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from relaax.cli.new.command import ALGORITHM, fill_template
from support.pages import DOCS, parts
from support.run import Runs

pytestmark = pytest.mark.checks("docs/write-an-algorithm.md", "relaax/algorithm_base", "relaax/cli/run")

PAGE = DOCS / "write-an-algorithm.md"


def listing(name: str) -> str:
    """Return the blocks with this name of the page, joined with blank lines."""
    first, *others = parts(PAGE, name)
    return first + "".join(("\n" if text.startswith(" ") else "\n\n") + text for text in others)


@pytest.fixture
def extracted(tmp_path: Path) -> Path:
    """A folder with the algorithm of the page."""
    for name in ("reinforce.py", "reinforce.yaml"):
        (tmp_path / name).write_text(listing(name), encoding="utf-8")
    return tmp_path


def test_algorithm_of_page_has_at_most_120_lines() -> None:
    assert len(listing("reinforce.py").splitlines()) <= 120


@pytest.mark.parametrize("suffix", [".py", ".yaml"])
def test_algorithm_of_page_equals_template(suffix: str) -> None:
    assert listing(f"reinforce{suffix}") == fill_template(ALGORITHM, suffix, "reinforce")


def test_test_of_page_equals_template() -> None:
    assert listing("test_reinforce.py") == fill_template(ALGORITHM, "_test.py", "reinforce")


def test_tests_of_page_pass_without_tensorflow(extracted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    (extracted / "test_reinforce.py").write_text(listing("test_reinforce.py"), encoding="utf-8")
    suite = runpy.run_path(str(extracted / "test_reinforce.py"))["TestAlgorithm"]()
    names = [name for name in dir(suite) if name.startswith("test_")]
    assert len(names) > 10
    for name in names:
        getattr(suite, name)()


@pytest.mark.slow
def test_algorithm_of_page_learns_cartpole(extracted: Path, runs: Runs) -> None:
    """A random agent returns 20."""
    options = ("--target-return", "150", "--max-steps", "2e5", "--seed", "1", "--no-progress")
    run = runs.start(*options, config=extracted / "reinforce.yaml")
    assert run.running.wait(240) == 0, run.running.report()
    assert run.summary["mean_return_100"] >= 150
