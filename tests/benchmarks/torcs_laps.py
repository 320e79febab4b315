"""Let what was learned drive a lap on each track of TORCS: `torcs_laps.py RUN CSV [TRACK...]`, beside `relaax eval`.

From the start line, greedily, with the best checkpoint of the run. Without tracks it is all that have asphalt. With the
variable LAPS, a folder, where the car was on each track stays there (`environments/TORCS/draw`).
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
    """Drive, and write a line for each track."""
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
    """Return a line: the track, what was driven of it, and in what time."""
    record.mkdir(parents=True, exist_ok=True)
    where = ("--set", f"run.name={track.name}", "--set", f"run.arguments=[--record, {record}]")
    once = ("--best", "--episodes", "1", "--jobs", "1", "--no-progress", "--greedy")
    subprocess.run([*RELAAX, "eval", run, *once, *where], check=True, stdout=subprocess.DEVNULL)
    return measured(track, record)


def measured(track: Path, record: Path) -> tuple[str | float | bool, ...]:
    """Return the line of a record."""
    path = [row for row in rows(record / "path.csv") if row["episode"] == "1"]
    edges = [float(row["along"]) for row in rows(record / "track.csv")]
    length = 2 * edges[-1] - edges[-2]
    driven = 0.0
    for before, after in pairwise(float(row["along"]) for row in path):
        driven += (after - before + length / 2) % length - length / 2  # also over the line, in both directions
    seconds = float(path[-1]["seconds"])
    finished = driven > length - 2  # as exactly as edges are known
    return track.name, track.parent.name, round(length), round(driven), seconds, round(3.6 * driven / seconds), finished


def rows(file: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with file.open(encoding="ascii", newline="") as lines:
        return list(csv.DictReader(lines))


if __name__ == "__main__":
    main()
