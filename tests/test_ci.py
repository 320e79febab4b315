"""`.ci/run` on a small project with targets of its own.

It gives a failed test one more try. The path of its first leg has no program but Python, make and the usual tools.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.checks(".ci", "Makefile", "tests/conftest.py", "tests/support/machine.py")]

ROOT = Path(__file__).resolve().parent.parent
MAKEFILE = f"""
PYTEST := {sys.executable} -m pytest -p xdist -p no:cacheprovider --timeout 60 -p pytest_timeout -c pytest.ini
check:
	@echo "a check" $(CHECK)
	@$(CHECK)
test: check
	@$(PYTEST) -n $(WORKERS) -m "not slow" $(PYTEST_ARGS)
test-slow-short:
	@$(PYTEST) -n $(WORKERS) -m slow $(PYTEST_ARGS)
"""
# Every test counts its tries in a file: it can tell the first from the second.
CONFTEST = """
import os
import pathlib

import pytest


@pytest.fixture
def tries(request):
    file = pathlib.Path(request.config.rootpath, request.node.name.encode().hex() + ".tries")
    count = int(file.read_text()) + 1 if file.exists() else 1
    file.write_text(str(count))
    return count
"""
PASSES = "def test_passes(): pass\n"
FAILS_ONCE = "def test_fails_once(tries): assert tries == 2\n"
FAILS_TWICE = "def test_fails_twice(tries): assert tries == 3\n"
OTHER_ENDS = """
@pytest.fixture
def broken_before(tries):
    assert tries == 2
@pytest.fixture
def broken_after(tries):
    yield
    assert tries == 2
def test_setup(broken_before): pass
def test_teardown(broken_after): pass
@pytest.mark.timeout(1)
def test_timeout(tries):
    if tries == 1:
        time.sleep(60)
@pytest.mark.parametrize("value", ["a b", "c::d/e"])
def test_values(tries, value): assert tries == 2
"""
SLOW = "pytestmark = pytest.mark.slow\n"


@dataclass
class Run:
    code: int
    lines: list[str]

    @property
    def last_lines(self) -> list[str]:
        """What comes after the last closing line of a pytest or message of make."""
        last = max(i for i, line in enumerate(self.lines) if " in " in line or line.startswith("make"))
        return self.lines[last + 1 :]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".ci").mkdir()
    for name in ("run", "second_try.py", "legs.py"):
        shutil.copy(ROOT / ".ci" / name, tmp_path / ".ci")
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\naddopts = -ra\n")
    write(tmp_path, "test_fast.py", PASSES)
    write(tmp_path, "test_slow.py", SLOW + PASSES)
    return tmp_path


def write(project: Path, name: str, text: str) -> None:
    (project / name).write_text(f"import os, time\nimport pytest\n{text}")


def run(project: Path, *, workers: int = 0, check: str = "true", arguments: str = "", **variables: str) -> Run:
    outer = ("SECOND_TRY", "MAKE", "LEG_")  # of the run that this test is part of
    environment = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    environment |= {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1",
        "WORKERS": str(workers), "CHECK": check, "PYTEST_ARGS": arguments, **variables,
    }  # fmt: skip
    done = subprocess.run(
        [".ci/run"], cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    print(done.stdout)
    return Run(done.returncode, [line.strip() for line in done.stdout.splitlines()])


def closing(result: Run) -> list[str]:
    """pytest's closing lines, without times and ornaments."""
    return [line.strip("= ").rsplit(" in ", 1)[0] for line in result.lines if " in " in line and line.startswith("=")]


def test_nothing_fails(project: Path) -> None:
    result = run(project)
    assert result.code == 0
    assert closing(result) == ["1 passed, 1 deselected"] * 2
    assert result.last_lines == []


def test_what_passes_at_the_second_try_is_named_last_and_the_run_is_green(project: Path) -> None:
    write(project, "test_fast.py", FAILS_ONCE + PASSES)
    write(project, "test_slow.py", SLOW + FAILS_ONCE.replace("once", "once_slowly"))
    result = run(project)
    assert result.code == 0
    # Each leg closes with what it found; the second try comes after all others and says so itself.
    assert closing(result) == ["1 failed, 1 passed, 1 deselected", "1 passed", "1 failed, 2 deselected", "1 passed"]
    assert result.last_lines == [
        "passed at the second try: test_fast.py::test_fails_once",
        "passed at the second try: test_slow.py::test_fails_once_slowly",
    ]


def test_setup_teardown_and_a_timeout_are_tried_again_like_any_other(project: Path) -> None:
    write(project, "test_fast.py", PASSES + OTHER_ENDS)
    result = run(project)
    assert result.code == 0
    names = ("setup", "teardown", "timeout", "values[a b]", "values[c::d/e]")
    assert result.last_lines == [f"passed at the second try: test_fast.py::test_{name}" for name in names]


def test_a_test_whose_process_died_is_tried_again(project: Path) -> None:
    dies = "def test_dies(tries):\n    if tries == 1: os._exit(3)\n"
    write(project, "test_fast.py", PASSES + FAILS_ONCE + dies)
    result = run(project, workers=2)
    assert result.code == 0
    names = ("dies", "fails_once")
    assert result.last_lines == [f"passed at the second try: test_fast.py::test_{name}" for name in names]


@pytest.mark.parametrize(("leg", "mark"), [("test_fast.py", ""), ("test_slow.py", SLOW)])
def test_two_failures_are_a_failure_in_either_leg(project: Path, leg: str, mark: str) -> None:
    write(project, leg, mark + FAILS_TWICE + FAILS_ONCE)
    result = run(project)
    assert result.code == 1
    assert result.last_lines == [
        f"failed at both tries: {leg}::test_fails_twice",
        f"passed at the second try: {leg}::test_fails_once",
    ]


def test_a_test_that_skips_itself_at_the_second_try_has_not_passed(project: Path) -> None:
    write(project, "test_fast.py", "def test_skips(tries):\n    if tries == 2: pytest.skip()\n    assert False\n")
    result = run(project)
    assert result.code == 1
    assert result.last_lines == ["failed at both tries: test_fast.py::test_skips"]


@pytest.mark.parametrize(("leg", "workers"), [("test_fast.py", 1), ("test_slow.py", 0)])
def test_a_module_that_cannot_be_collected_fails_the_run(project: Path, leg: str, workers: int) -> None:
    write(project, leg, "raise RuntimeError('no such thing')\n")
    assert run(project, workers=workers).code == 1


def test_processes_that_die_before_any_test_fail_the_run(project: Path) -> None:
    write(project, "test_fast.py", "os._exit(3)\n")
    assert run(project, workers=1).code == 1


def test_a_pytest_that_breaks_fails_the_run(project: Path) -> None:
    (project / "conftest.py").write_text("def pytest_collection_modifyitems(): raise RuntimeError\n")
    assert run(project).code == 1


def test_a_failed_check_fails_the_run_whatever_the_tests_say(project: Path) -> None:
    write(project, "test_fast.py", FAILS_ONCE)
    assert run(project, check="false").code == 1


def test_a_run_that_stopped_early_is_no_second_try_away_from_green(project: Path) -> None:
    write(project, "test_fast.py", FAILS_ONCE + FAILS_TWICE)
    result = run(project, arguments="-x")
    assert (result.code, result.last_lines) == (1, [])


def test_too_many_failures_are_no_chance(project: Path) -> None:
    write(project, "test_fast.py", "@pytest.mark.parametrize('i', range(21))\ndef test_of_many(i): assert False\n")
    result = run(project)
    assert result.code == 1
    assert "21 tests failed: too many for a second try" in result.lines
    assert result.last_lines == []


@pytest.fixture
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A path with a program that a machine with only Python and make lacks."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "a-program").write_text("#!/bin/sh\n")
    (folder / "a-program").chmod(0o755)
    return os.pathsep.join([str(folder), os.environ["PATH"]])


@pytest.mark.parametrize("workers", [0, 2])
def test_what_the_first_leg_skips_for_want_of_a_program_runs_in_the_second(
    project: Path, program: str, workers: int
) -> None:
    needing = """
import shutil
@pytest.mark.parametrize("value", ["a b", "c::d"])
def test_needs_a_program(value, request):
    if shutil.which("a-program") is None: pytest.skip("it is not installed")
    file = request.config.rootpath / value.encode().hex()
    file.touch(exist_ok=False)  # once
"""
    write(project, "test_fast.py", PASSES + needing)
    result = run(project, workers=workers, PATH=program)
    assert result.code == 0
    if not workers:
        assert closing(result) == ["1 passed, 2 skipped, 1 deselected", "3 passed, 1 deselected"]
    assert len([file for file in project.iterdir() if file.name in ("612062", "633a3a64")]) == 2


def test_what_is_skipped_in_both_legs_is_no_failure(project: Path) -> None:
    write(project, "test_fast.py", PASSES + "def test_skips(): pytest.skip()\n")
    result = run(project)
    assert (result.code, closing(result)) == (0, ["1 passed, 1 skipped, 1 deselected"] * 2)


def test_the_first_leg_is_that_of_a_bare_machine(project: Path, program: str) -> None:
    bare = """
import shutil, signal, subprocess, sys
def test_bare():
    assert [shutil.which(name) for name in ("a-program", "git", "node", "mount", "apt-get", "curl")] == [None] * 6
    assert all(map(shutil.which, ("python3", "make", "bash", "env", "grep")))
    assert subprocess.run(["python3", "-c", "import venv"]).returncode == 0
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert "LANG" not in os.environ
"""
    write(project, "test_fast.py", bare)
    assert run(project, PATH=program, LANG="C.UTF-8").code == 0


@pytest.mark.parametrize("leg", ["test_fast.py", "test_slow.py"])
def test_a_leg_without_tests_fails_the_run(project: Path, leg: str) -> None:
    write(project, leg, "")
    result = run(project)
    assert result.code == 1


@pytest.mark.parametrize(("leg", "mark"), [("test", ""), ("test-slow-short", SLOW)])
def test_a_pytest_that_ends_without_its_summary_fails_the_run(project: Path, leg: str, mark: str) -> None:
    write(project, "test_slow.py" if mark else "test_fast.py", mark + "def test_ends(): os._exit(0)\n")
    result = run(project)
    assert result.code == 1
    assert f"make {leg}: pytest did not finish" in result.lines
