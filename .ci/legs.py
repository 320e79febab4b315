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
_INNER = ("PYTEST_XDIST_WORKER", "SECOND_TRY_ALONE")
"""Variables of a pytest whose outcomes another one reports."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests to be run, before pytest selects by marks."""
    names = set(_lines(ALSO))
    for item in items:
        if item.nodeid in names:
            item.add_marker(pytest.mark.slow)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write down a skipped test."""
    if report.skipped and not hasattr(report, "wasxfail"):
        _add(SKIPPED, report.nodeid)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, object, object]:
    """Write that the summary has been printed: this hook encloses the terminal's."""
    result = yield
    _add(CLOSED, f"{session.testscollected} tests")
    return result


def _lines(variable: str) -> list[str]:
    return Path(os.environ[variable]).read_text("utf-8").splitlines() if variable in os.environ else []


def _add(variable: str, line: str) -> None:
    if variable in os.environ and not any(map(os.environ.get, _INNER)):
        with Path(os.environ[variable]).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
