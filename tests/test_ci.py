"""`.ci/run` on a small project with its own targets.

A failed test has a second try. The PATH of the first leg has only Python, make and the usual tools.
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
# Every test counts its tries in a file.
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
        """The lines after the last summary of pytest or message of make."""
        last = max(i for i, line in enumerate(self.lines) if " in " in line or line.startswith("make"))
        return self.lines[last + 1 :]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".ci").mkdir()
    for name in ("run", "second_try.py", "legs.py", "time_limit.py"):
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
    outer = ("SECOND_TRY", "MAKE", "LEG_")  # variables of the run that includes this test
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


def summaries(result: Run) -> list[str]:
    """Return the summary lines of pytest, without times and decoration."""
    return [line.strip("= ").rsplit(" in ", 1)[0] for line in result.lines if " in " in line and line.startswith("=")]


def test_run_without_failures_exits_with_0(project: Path) -> None:
    result = run(project)
    assert result.code == 0
    assert summaries(result) == ["1 passed, 1 deselected"] * 2
    assert result.last_lines == []


def test_second_try_that_passes_is_listed_and_run_succeeds(project: Path) -> None:
    write(project, "test_fast.py", FAILS_ONCE + PASSES)
    write(project, "test_slow.py", SLOW + FAILS_ONCE.replace("once", "once_slowly"))
    result = run(project)
    assert result.code == 0
    # Each leg prints its summary; the second try runs after all others and prints its own.
    assert summaries(result) == ["1 failed, 1 passed, 1 deselected", "1 passed", "1 failed, 2 deselected", "1 passed"]
    assert result.last_lines == [
        "passed at the second try: test_fast.py::test_fails_once",
        "passed at the second try: test_slow.py::test_fails_once_slowly",
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_slow_tests_are_left_when_the_time_is_over(project: Path, workers: int) -> None:
    """The first test of each process begins in time; the failed one has its second try."""
    count = max(workers, 1)
    slow = "".join(f"def test_{n}(tries):\n    time.sleep(3)\n    assert tries == 2\n" for n in range(8))
    write(project, "test_slow.py", SLOW + slow)
    result = run(project, workers=workers, SLOW_SECONDS="2")
    assert result.code == 0
    assert result.last_lines[0] == f"not run, because the time was over: {8 - count} slow tests"
    assert len(result.last_lines) == 1 + count
    assert all(line.startswith("passed at the second try: test_slow.py::test_") for line in result.last_lines[1:])


def test_setup_teardown_and_timeout_failures_are_retried(project: Path) -> None:
    write(project, "test_fast.py", PASSES + OTHER_ENDS)
    result = run(project)
    assert result.code == 0
    names = ("setup", "teardown", "timeout", "values[a b]", "values[c::d/e]")
    assert result.last_lines == [f"passed at the second try: test_fast.py::test_{name}" for name in names]


def test_test_whose_process_died_is_retried(project: Path) -> None:
    dies = "def test_dies(tries):\n    if tries == 1: os._exit(3)\n"
    write(project, "test_fast.py", PASSES + FAILS_ONCE + dies)
    result = run(project, workers=2)
    assert result.code == 0
    names = ("dies", "fails_once")
    assert result.last_lines == [f"passed at the second try: test_fast.py::test_{name}" for name in names]


@pytest.mark.parametrize(("leg", "mark"), [("test_fast.py", ""), ("test_slow.py", SLOW)])
def test_second_failure_in_either_leg_fails_run(project: Path, leg: str, mark: str) -> None:
    write(project, leg, mark + FAILS_TWICE + FAILS_ONCE)
    result = run(project)
    assert result.code == 1
    assert result.last_lines == [
        f"failed at both tries: {leg}::test_fails_twice",
        f"passed at the second try: {leg}::test_fails_once",
    ]


def test_skip_at_second_try_counts_as_failure(project: Path) -> None:
    write(project, "test_fast.py", "def test_skips(tries):\n    if tries == 2: pytest.skip()\n    assert False\n")
    result = run(project)
    assert result.code == 1
    assert result.last_lines == ["failed at both tries: test_fast.py::test_skips"]


@pytest.mark.parametrize(("leg", "workers"), [("test_fast.py", 1), ("test_slow.py", 0)])
def test_collection_error_fails_run(project: Path, leg: str, workers: int) -> None:
    write(project, leg, "raise RuntimeError('no such thing')\n")
    assert run(project, workers=workers).code == 1


def test_process_death_before_first_test_fails_run(project: Path) -> None:
    write(project, "test_fast.py", "os._exit(3)\n")
    assert run(project, workers=1).code == 1


def test_internal_error_of_pytest_fails_run(project: Path) -> None:
    (project / "conftest.py").write_text("def pytest_collection_modifyitems(): raise RuntimeError\n")
    assert run(project).code == 1


def test_failed_check_fails_run_with_passing_tests(project: Path) -> None:
    write(project, "test_fast.py", FAILS_ONCE)
    assert run(project, check="false").code == 1


def test_run_with_maxfail_has_no_second_try(project: Path) -> None:
    write(project, "test_fast.py", FAILS_ONCE + FAILS_TWICE)
    result = run(project, arguments="-x")
    assert (result.code, result.last_lines) == (1, [])


def test_more_than_20_failures_have_no_second_try(project: Path) -> None:
    write(project, "test_fast.py", "@pytest.mark.parametrize('i', range(21))\ndef test_of_many(i): assert False\n")
    result = run(project)
    assert result.code == 1
    assert "21 tests failed: too many for a second try" in result.lines
    assert result.last_lines == []


@pytest.fixture
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH with a program that a machine with only Python and make lacks."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "a-program").write_text("#!/bin/sh\n")
    (folder / "a-program").chmod(0o755)
    return os.pathsep.join([str(folder), os.environ["PATH"]])


@pytest.mark.parametrize("workers", [0, 2])
def test_tests_skipped_in_first_leg_run_in_second(project: Path, program: str, workers: int) -> None:
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
        assert summaries(result) == ["1 passed, 2 skipped, 1 deselected", "3 passed, 1 deselected"]
    assert len([file for file in project.iterdir() if file.name in ("612062", "633a3a64")]) == 2


def test_test_skipped_in_both_legs_is_not_a_failure(project: Path) -> None:
    write(project, "test_fast.py", PASSES + "def test_skips(): pytest.skip()\n")
    result = run(project)
    assert (result.code, summaries(result)) == (0, ["1 passed, 1 skipped, 1 deselected"] * 2)


def test_first_leg_has_environment_of_bare_machine(project: Path, program: str) -> None:
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
def test_leg_without_tests_fails_run(project: Path, leg: str) -> None:
    write(project, leg, "")
    result = run(project)
    assert result.code == 1


@pytest.mark.parametrize(("leg", "mark"), [("test", ""), ("test-slow-short", SLOW)])
def test_pytest_without_summary_fails_run(project: Path, leg: str, mark: str) -> None:
    write(project, "test_slow.py" if mark else "test_fast.py", mark + "def test_ends(): os._exit(0)\n")
    result = run(project)
    assert result.code == 1
    assert f"make {leg}: pytest did not finish" in result.lines
