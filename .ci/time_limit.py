"""A pytest plugin that skips the tests that are left SLOW_SECONDS after the first one, so that CI ends with a report.

Modules run in an order that depends on SLOW_ORDER, such as a commit, so that other tests are left each time.
`make test-slow-short` has no limit. The file named by SECOND_TRY_REPORT receives the number of tests that were left.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from pathlib import Path

import pytest

SECONDS, ORDER, REPORT = "SLOW_SECONDS", "SLOW_ORDER", "SECOND_TRY_REPORT"
REASON = "no time left in CI"


class Limit:
    """The limit of this process, and in the main process the number of tests that were left."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._end = seconds, math.inf
        self._left: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        if self._end == math.inf:
            self._end = time.monotonic() + self._seconds
        elif time.monotonic() > self._end:
            pytest.skip(REASON)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and REASON in str(report.longrepr):
            self._left.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._left and not hasattr(session.config, "workerinput"):
            with Path(os.environ[REPORT]).open("a", encoding="utf-8") as file:
                file.write(f"not run, because the time was over: {len(self._left)} slow tests\n")


def pytest_configure(config: pytest.Config) -> None:
    """Register the limit, if there is one. A second try has none."""
    if SECONDS in os.environ and not os.environ.get("SECOND_TRY_ALONE"):
        config.pluginmanager.register(Limit(float(os.environ[SECONDS])))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order modules by their names and SLOW_ORDER. Tests of a module stay together."""
    order = os.environ.get(ORDER, "")
    if SECONDS in os.environ:
        items.sort(key=lambda item: hashlib.sha256(f"{order} {item.path}".encode()).digest())
