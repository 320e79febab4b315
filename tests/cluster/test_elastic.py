"""Numbers of RLX servers and machines that follow the environments, with Ray's autoscaler and its fake provider."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.elastic import scale_up_and_down
from support.processes import Processes


@pytest.mark.slow
@pytest.mark.checks("relaax/cluster", "relaax/cli/cluster", "relaax/supervision", "tests/support/elastic.py")
@pytest.mark.timeout(3600)
def test_servers_and_machines_scale_with_environments(processes: Processes, tmp_path: Path, short: bool) -> None:
    """Admitted environments lose no episode when servers are removed."""
    programs, each = (2, 8) if short else (4, 32)
    seen = scale_up_and_down(processes, tmp_path, programs, each, 2.0, print)
    servers, machines = ([course[place] for course in seen.course] for place in (2, 3))
    assert max(servers) == programs
    assert max(machines) >= programs
    assert (servers[-1], machines[-1]) == (1, 1)
    assert seen.episodes == seen.counted
