"""A pytest plugin that lets one leg of `.ci/run` run the tests that the leg before has skipped.

Variables name its files. LEG_CLOSED gets a line when pytest has printed its summary, LEG_SKIPPED the names of skipped
tests, and the tests that LEG_ALSO lists are run as if they were marked slow.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

CLOSED, SKIPPED, ALSO = "LEG_CLOSED", "LEG_SKIPPED", "LEG_ALSO"
ALONE = "SECOND_TRY_ALONE"


class Leg:
    """Reports of a leg: not of a process of xdist, and not of a second try."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            _add(SKIPPED, report.nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        result = yield  # encloses the terminal's, which prints the summary
        _add(CLOSED, f"{session.testscollected} tests")
        return result


def pytest_configure(config: pytest.Config) -> None:
    """Write about this pytest if it is that of a leg."""
    if not hasattr(config, "workerinput") and not os.environ.get(ALONE):
        config.pluginmanager.register(Leg())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests to be run, before pytest selects by marks."""
    names = set(Path(os.environ[ALSO]).read_text("utf-8").splitlines()) if ALSO in os.environ else set()
    for item in items:
        if item.nodeid in names:
            item.add_marker(pytest.mark.slow)


def _add(variable: str, line: str) -> None:
    if variable in os.environ:
        with Path(os.environ[variable]).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
