"""The tables of `relaax cluster status NAME`."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.cells import cell_len

from relaax.cli.cluster.command import status_tables
from relaax.cluster.machines import report
from relaax.plain_console import PlainConsole
from relaax.supervision.process import Process

MACHINES = [{"NodeManagerAddress": f"10.0.0.{number}", "Resources": {"CPU": 8.0}} for number in (7, 8)]


@pytest.mark.parametrize("width", [60, 80, 160])
def test_status_of_real_processes_fits_the_terminal(tmp_path: Path, width: int) -> None:
    made = [Process(name, tmp_path / f"{name}.log") for name in ("parameter-server", "rlx-server-12")]
    status = report({"all": made}, MACHINES, "fixed")
    served = {"connections": 1_024, "free_places": 8, "refused": 123, "machine": "10.0.0.7", "pid": 4_123_456}
    status["processes"][1] |= {"address": "long-name-of-a-host.example.org:40123", **served}
    console = PlainConsole(width=width)
    with console.capture() as capture:
        console.print(status_tables(status), highlight=False)
    text = capture.get()
    assert max(map(cell_len, text.splitlines())) <= width
    (line,) = [line for line in text.splitlines() if line.startswith("rlx-server-12 ")]
    assert line.split()[-3:] == ["1024", "8", "123"] or (line.split()[-2:] == ["1024", "8"] and width == 60)
    assert ":40123" in line
    assert "parameter-server " in text
    assert [line.split()[1:] for line in text.splitlines() if line.startswith("10.0.0.")] == [["8", "1"], ["8", "0"]]
