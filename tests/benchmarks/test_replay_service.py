"""A short run of the replay service's benchmark: every table is measured."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("replay_service.py")


def test_each_transport_is_measured_in_each_round(tmp_path: Path) -> None:
    options = ["--capacity", "200", "--rounds", "2", "--seconds", "0.05", "--output", str(tmp_path)]
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "replay-service.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for name in ("table", "shared memory", "gRPC"):
        figures = [(row["round"], row["figure"]) for row in rows if row["part"] == name and float(row["value"]) > 0]
        assert figures == [(number, figure) for number in "12" for figure in ("inserts/s", "batches/s")]
        assert f"| {name} |" in done.stdout
