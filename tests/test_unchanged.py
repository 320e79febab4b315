"""Tests whose files have not changed are skipped in CI, and run again after a change."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from support.machine import need
from support.unchanged import Unchanged, digest, main

pytest_plugins = ["pytester"]

TESTS = """
import pathlib
import pytest
@pytest.mark.checks("made/of", "one.txt")
@pytest.mark.parametrize("part", ["one.txt", "made/of/two.txt"])
def test_parts(part):
    assert "wrong" not in pathlib.Path(part).read_text()
def test_other(): pass
"""


OPTIONS = """
def pytest_addoption(parser):
    parser.addoption("--short", action="store_true")
    parser.addoption("--record", action="store_true")
"""


class Project:
    """A repository with one test module."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self._pytester, self.folder = pytester, pytester.path
        self.record = self.folder / "unchanged.json"
        pytester.makeini("[pytest]\nmarkers =\n  checks\n")
        pytester.makeconftest(OPTIONS)
        subprocess.run(["git", "init", "-q"], cwd=self.folder, check=True)
        for name, text in {"made/of/two.txt": "right", "one.txt": "right", "test_it.py": TESTS}.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text, encoding="utf-8")

    def run(self, *options: str, plugin: Unchanged | None = None) -> dict[str, int]:
        """Run the tests and return the numbers of passed, failed and skipped ones."""
        plugin = plugin or Unchanged(self.record, self.folder)
        arguments = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:benchmark", *options)
        return self._pytester.runpytest_inprocess(*arguments, plugins=[plugin]).parseoutcomes()


@pytest.fixture
def project(pytester: pytest.Pytester) -> Project:
    need("git")
    return Project(pytester)


def test_passed_tests_are_skipped_until_a_file_changes(project: Project) -> None:
    assert project.run("--short") == {"passed": 3}  # nothing is recorded
    assert project.run("--record") == {"passed": 3}
    assert project.run("--short") == {"passed": 1, "skipped": 2}
    assert project.run("--short", "--record") == {"passed": 3}
    assert project.run() == {"passed": 3}
    project.write("made/of/three.txt", "new")
    assert project.run("--short") == {"passed": 3}
    project.write("one.txt", "wrong")
    assert project.run("--record") == {"failed": 1, "passed": 2}
    assert project.run("--short") == {"failed": 1, "passed": 1, "skipped": 1}


def test_parallel_processes_keep_records_of_each_other(project: Project) -> None:
    processes = [Unchanged(project.record, project.folder) for _ in range(2)]
    for plugin, part in zip(processes, ("one", "two"), strict=True):
        project.run("--record", "-k", part, plugin=plugin)
    assert len(json.loads(project.record.read_text())) == 2


def test_tests_that_did_not_run_are_not_recorded(project: Project) -> None:
    assert project.run("--record", "-k", "one") == {"passed": 1, "deselected": 2}
    assert [name.rpartition("[")[2] for name in json.loads(project.record.read_text())] == ["one.txt]"]


def test_mark_with_missing_file_is_an_error(project: Project) -> None:
    with pytest.raises(ValueError, match="names nowhere, where there is no file"):
        digest(["one.txt", "nowhere"], project.folder)


def test_every_recorded_test_exists() -> None:
    """A renamed test would never be skipped."""
    root = Path(__file__).resolve().parent.parent
    for name in Unchanged()._recorded:
        file, _, function = name.partition("[")[0].partition("::")
        assert f"def {function}(" in (root / file).read_text(encoding="utf-8")


def test_command_returns_1_if_tests_must_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tests/nowhere"]) == 1
