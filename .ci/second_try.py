"""A pytest plugin that gives each failed test one more try, alone, after all others; `.ci/run` loads it.

The tests have run and pytest has said so when the second tries begin: each failed test runs in a pytest of its own, one
after another, beside nothing. If all pass, pytest's exit status is 0. Only tests are tried again: if a module could not
be collected, or pytest was interrupted, broke or was told to stop early, the exit status stays.

The file that SECOND_TRY_REPORT names gets a line for each test that was tried again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

MOST = 20
"""If more tests than this have failed, that is no chance: none is tried again."""
REPORT = "SECOND_TRY_REPORT"
PASSED = "passed at the second try"
FAILED = "failed at both tries"
_ALONE = "SECOND_TRY_ALONE"


class Outcomes:
    """What the reports say: which tests failed, in order, and how many passed."""

    def __init__(self) -> None:
        self.failed: dict[str, None] = {}
        self.passed = 0
        self.uncollected = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:  # in setup or teardown, too
            self.failed[report.nodeid] = None
        elif report.passed and report.when == "call":
            self.passed += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.uncollected = self.uncollected or report.failed


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, object, object]:
    """Let all tests run, then those that failed once more; the exit status."""
    if hasattr(config, "workerinput"):  # a process of xdist; the one that started it sees all reports
        return (yield)
    outcomes = Outcomes()
    config.pluginmanager.register(outcomes)
    status = yield
    if os.environ.get(_ALONE):  # a test that skips itself has not passed
        return status if outcomes.passed else status or pytest.ExitCode.TESTS_FAILED
    stopped_early = bool(config.getoption("maxfail"))
    if status != pytest.ExitCode.TESTS_FAILED or outcomes.uncollected or stopped_early or not outcomes.failed:
        return status
    if len(outcomes.failed) > MOST:
        print(f"{len(outcomes.failed)} tests failed: too many for a second try")
        return status
    verdicts = {test: _passes_alone(config, test) for test in outcomes.failed}
    lines = [f"{PASSED if passed else FAILED}: {test}" for test, passed in verdicts.items()]
    with Path(os.environ[REPORT]).open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    return pytest.ExitCode.OK if all(verdicts.values()) else status


def _passes_alone(config: pytest.Config, test: str) -> bool:
    """Run one test with the options of all, in this terminal."""
    print(f"\n== second try: {test}", flush=True)
    given = config.args if config.args_source is pytest.Config.ArgsSource.ARGS else []
    options = [argument for argument in config.invocation_params.args if argument not in given]
    command = [sys.executable, "-m", "pytest", *map(str, options), "-n", "0", test]
    return not subprocess.run(command, cwd=config.rootpath, env={**os.environ, _ALONE: "1"}, check=False).returncode
