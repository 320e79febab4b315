#!/usr/bin/env python3
"""Draw what `main --record FOLDER` wrote: `draw FOLDER PICTURE [EPISODE]`.

The picture shows the edges of the track, and the path of the car in an episode (the first), coloured by its speed.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def main() -> None:
    """Draw the picture for the command line."""
    if len(sys.argv) not in (3, 4):
        sys.exit("draw FOLDER PICTURE [EPISODE]: FOLDER is the one of --record, PICTURE ends with .png, .svg or .pdf")
    folder, picture = Path(sys.argv[1]), sys.argv[2]
    episode = sys.argv[3] if len(sys.argv) == 4 else "1"
    try:
        track, path = columns(folder / "track.csv"), columns(folder / "path.csv", "episode", episode)
    except OSError as error:
        sys.exit(f"draw: cannot read {error.filename}: {error.strerror}")
    if not len(path["x"]):
        sys.exit(f"draw: {folder / 'path.csv'} has no episode {episode}")
    draw(track, path, picture)


def columns(file: Path, name: str = "", value: str = "") -> dict[str, npt.NDArray[np.float64]]:
    """Return the columns of a CSV file. If `name` is given, use only the rows where column `name` is `value`."""
    with file.open(encoding="ascii", newline="") as lines:
        reader = csv.DictReader(lines)
        rows = [row for row in reader if not name or row[name] == value]
        return {key: np.array([float(row[key]) for row in rows]) for key in reader.fieldnames or ()}


def draw(track: dict[str, Any], path: dict[str, Any], picture: str) -> None:
    """Write a picture of a path on a track."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.collections import LineCollection

    figure, axes = plt.subplots(figsize=(9, 6), layout="constrained")
    for side in ("left", "right"):
        x, y = track[f"{side}_x"], track[f"{side}_y"]
        axes.plot(np.append(x, x[0]), np.append(y, y[0]), color="0.5", linewidth=0.6)
    points = np.stack([path["x"], path["y"]], axis=1)
    line = LineCollection(list(np.stack([points[:-1], points[1:]], axis=1)), cmap="viridis", linewidth=1.6)
    line.set_array(path["speed"][1:] * 3.6)
    axes.add_collection(line)
    figure.colorbar(line, label="km/h", shrink=0.7)
    axes.plot(*points[0], "o", color="black", markersize=5)
    axes.annotate("start", points[0], textcoords="offset points", xytext=(6, 6))
    axes.set(xlabel="m", ylabel="m", aspect="equal")
    axes.set_title(f"{path['seconds'][-1]:.1f} s, {np.mean(path['speed']) * 3.6:.0f} km/h on average", fontsize=10)
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    main()
