"""A pytest plugin with which a leg of `.ci/run` runs the tests that the previous leg skipped.

Environment variables name its files. LEG_CLOSED receives a line when pytest has printed its summary. LEG_SKIPPED
receives the names of skipped tests. The tests listed in LEG_ALSO run as if they were marked slow.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

CLOSED, SKIPPED, ALSO = "LEG_CLOSED", "LEG_SKIPPED", "LEG_ALSO"
ALONE = "SECOND_TRY_ALONE"


class Leg:
    """The reports of a leg, without those of xdist workers and of second tries."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            _add(SKIPPED, report.nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        result = yield  # wraps the terminal reporter, which prints the summary
        _add(CLOSED, f"{session.testscollected} tests")
        return result


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin if this pytest is the main process of a leg."""
    if not hasattr(config, "workerinput") and not os.environ.get(ALONE):
        config.pluginmanager.register(Leg())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of LEG_ALSO slow, before pytest selects by marks."""
    names = set(Path(os.environ[ALSO]).read_text("utf-8").splitlines()) if ALSO in os.environ else set()
    for item in items:
        if item.nodeid in names:
            item.add_marker(pytest.mark.slow)


def _add(variable: str, line: str) -> None:
    if variable in os.environ:
        with Path(os.environ[variable]).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
