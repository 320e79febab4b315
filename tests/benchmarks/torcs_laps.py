"""A lap of a trained policy on each track of TORCS, by `relaax eval`: `torcs_laps.py RUN CSV [TRACK...]`

The policy of the run's best checkpoint drives greedily from the start line. Without arguments TRACK, it drives on all
asphalt tracks. If the environment variable LAPS names a folder, the positions of the car on each track are kept there,
for `environments/TORCS/draw`.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from environments.TORCS.race import program  # noqa: E402
from support.service import RELAAX  # noqa: E402

COLUMNS = ("track", "kind", "metres", "driven", "seconds", "km_per_h", "finished")


def main() -> None:
    """Drive a lap on each track, and write its row."""
    run, target, *names = sys.argv[1:]
    tracks = sorted(path for kind in ("oval", "road") for path in (program()[1] / "tracks" / kind).iterdir())
    with tempfile.TemporaryDirectory() as folder, Path(target).open("w", encoding="ascii", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(COLUMNS)
        for track in tracks:
            if not names or track.name in names:
                row = lap(run, track, Path(os.environ.get("LAPS", folder)) / track.name)
                lines.writerow(row)
                file.flush()
                print(*row, flush=True)


def lap(run: str, track: Path, record: Path) -> tuple[str | float | bool, ...]:
    """Drive a lap and return its row: the track, the distance driven and the time."""
    record.mkdir(parents=True, exist_ok=True)
    where = ("--set", f"run.name={track.name}", "--set", f"run.arguments=[--record, {record}]")
    once = ("--best", "--episodes", "1", "--jobs", "1", "--no-progress", "--greedy")
    subprocess.run([*RELAAX, "eval", run, *once, *where], check=True, stdout=subprocess.DEVNULL)
    return measured(track, record)


def measured(track: Path, record: Path) -> tuple[str | float | bool, ...]:
    """Return the row of a recorded lap."""
    path = [row for row in rows(record / "path.csv") if row["episode"] == "1"]
    edges = [float(row["along"]) for row in rows(record / "track.csv")]
    length = 2 * edges[-1] - edges[-2]
    driven = 0.0
    for before, after in pairwise(float(row["along"]) for row in path):
        driven += (
            after - before + length / 2
        ) % length - length / 2  # a crossing of the start line counts in both directions
    seconds = float(path[-1]["seconds"])
    finished = driven > length - 2  # 2 m: the accuracy of the edges
    return track.name, track.parent.name, round(length), round(driven), seconds, round(3.6 * driven / seconds), finished


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="ascii", newline="") as lines:
        return list(csv.DictReader(lines))


if __name__ == "__main__":
    main()
