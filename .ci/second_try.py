"""A pytest plugin that gives each failed test one more try, alone, after all others; `.ci/run` loads it.

The second tries begin after all tests have run and pytest has printed its summary. Each failed test runs in a separate
pytest, one after another. If all pass, pytest's exit status is 0. The exit status stays if a module could not be
collected, if pytest was interrupted or failed itself, or with --maxfail.

The file named by SECOND_TRY_REPORT receives a line for each test that was tried again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

MAX_FAILURES = 20
"""If more tests have failed, none is tried again: that number is not random."""
REPORT = "SECOND_TRY_REPORT"
PASSED = "passed at the second try"
FAILED = "failed at both tries"
_ALONE = "SECOND_TRY_ALONE"


class Outcomes:
    """The outcomes of tests: the failed ones in order, and the number of passed ones."""

    def __init__(self) -> None:
        self.failed: dict[str, None] = {}
        self.passed = 0
        self.uncollected = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:  # also in setup or teardown
            self.failed[report.nodeid] = None
        elif report.passed and report.when == "call":
            self.passed += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.uncollected = self.uncollected or report.failed


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, object, object]:
    """Run all tests, then the failed ones again, and return the exit status."""
    if hasattr(config, "workerinput"):  # an xdist worker: its parent receives all reports
        return (yield)
    outcomes = Outcomes()
    config.pluginmanager.register(outcomes)
    status = yield
    if os.environ.get(_ALONE):  # a test that skips itself has not passed
        return status if outcomes.passed else status or pytest.ExitCode.TESTS_FAILED
    stopped_early = bool(config.getoption("maxfail"))
    if status != pytest.ExitCode.TESTS_FAILED or outcomes.uncollected or stopped_early or not outcomes.failed:
        return status
    if len(outcomes.failed) > MAX_FAILURES:
        print(f"{len(outcomes.failed)} tests failed: too many for a second try")
        return status
    verdicts = {test: _passes_alone(config, test) for test in outcomes.failed}
    lines = [f"{PASSED if passed else FAILED}: {test}" for test, passed in verdicts.items()]
    with Path(os.environ[REPORT]).open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    return pytest.ExitCode.OK if all(verdicts.values()) else status


def _passes_alone(config: pytest.Config, test: str) -> bool:
    """Run one test with the same options, and return whether it passes."""
    print(f"\n== second try: {test}", flush=True)
    given = config.args if config.args_source is pytest.Config.ArgsSource.ARGS else []
    options = [argument for argument in config.invocation_params.args if argument not in given]
    command = [sys.executable, "-m", "pytest", *map(str, options), "-n", "0", test]
    return not subprocess.run(command, cwd=config.rootpath, env={**os.environ, _ALONE: "1"}, check=False).returncode
