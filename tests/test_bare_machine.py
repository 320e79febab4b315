"""Tests on a machine that lacks their programs are skipped, and name the package to install."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.machine import need
from support.processes import Processes
from support.programs import ROOT

SKIPPED = (
    "tests/cli/test_bundled.py::test_algorithm_accepts_its_configuration_and_environment[da3c_miniwob_click_test]",
    "tests/integration/test_node_client.py::test_node_client_plays_over_websocket",
    "tests/server/parameter_server/test_server.py::test_status_has_the_error_of_a_late_checkpoint",
    "tests/test_structure.py::test_generated_code_exists_and_is_not_tracked",
)
PASSED = "tests/docs/test_links.py"


def test_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pytest.skip.Exception, match="lacks git, ss: apt-get install git; apt-get install iproute2"):
        need("git", "ss")
    with pytest.raises(pytest.skip.Exception, match="lacks chromium: tests/support/install-image-tools"):
        need("chromium")


@pytest.mark.slow
@pytest.mark.checks("tests/support/machine.py", "tests/conftest.py")
def test_tests_without_their_programs_are_skipped(processes: Processes, tmp_path: Path) -> None:
    options = ("-p", "no:cacheprovider", "-m", "slow or not slow", "--basetemp", tmp_path / "nested")
    nested = processes.start(
        sys.executable, "-m", "pytest", *options, *SKIPPED, PASSED, cwd=ROOT, env={"PATH": str(tmp_path)}
    )
    assert nested.wait(250) == 0, nested.report()
    assert f"{len(SKIPPED)} skipped" in nested.lines[-1]
