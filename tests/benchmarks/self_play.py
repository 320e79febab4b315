"""Measure a self-play training of Connect Four by its checkpoints: `self_play.py RUN_DIRECTORY CSV`, which also draws.

Each checkpoint plays against random moves, against a player that looks one move ahead, and against the newest
checkpoint. Both sides begin half of the games, and policies sample their moves. A score is the share of games won, a
draw counted as half.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from environments.ConnectFour.boards import Boards, Scripted
from relaax.algorithm_base import load_algorithm
from relaax.bundled import bundled_folder
from relaax.checkpoint import Checkpoint, CheckpointManager, LocalStore
from relaax.files import write_whole
from relaax.hosting.fingerprint import parse_fingerprint
from relaax.lessons.ratings import INITIAL
from relaax.policy import Policy, load
from relaax.policy.file import PARAMETERS, policy_of

Player = Callable[[Boards, int], npt.NDArray[Any]]
"""Returns a column for each board, integers [N], given the boards and the player's side (1 or -1)."""


def score(player: Player, other: Player, games: int) -> float:
    """Return the score of `player`. Both begin half of the `games`."""
    boards, points = Boards(games), np.full(games, 0.5)
    playing, begins = np.ones(games, np.bool_), np.arange(games) < games // 2
    turn = begins  # where the side to move is to move: in the first round, only where it begins
    while playing.any():
        for side, chooses in ((1, player), (-1, other)):
            moves = playing & turn if side == 1 else playing
            won, full = boards.drop(chooses(boards, side), side, moves)
            points[won] = side > 0
            playing &= ~(won | full)
            boards.clear(~playing)
        turn = np.ones(games, np.bool_)
    return float(points.mean())


def player_of(policy: Policy) -> Player:
    """Return the player that samples the moves of a policy."""

    def choose(boards: Boards, side: int) -> npt.NDArray[Any]:
        own, others = boards.stones == side, boards.stones == -side
        stones = np.stack([own, others], axis=1).astype(np.int8)
        columns: npt.NDArray[Any] = policy.act({"action_mask": boards.valid().astype(np.int8), "stones": stones})
        return columns

    return choose


def untrained(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with the parameters with which its training began, by its seed."""
    manifest = checkpoint.manifest
    described, *spaces = parse_fingerprint(json.dumps(manifest["fingerprint"]))
    algorithm = load_algorithm(described["algorithm"], bundled_folder("algorithms"))
    config = algorithm.configure({**described["configuration"], "path": str(algorithm.source)})
    vector = algorithm.ParameterServer(config, *spaces).initial_parameters(manifest["seed"])
    (part,) = checkpoint.parts
    begun = {**manifest, "global_step": 0, "opponents": {"rating": INITIAL}}
    return Checkpoint(checkpoint.checkpoint_id, {part: {**checkpoint.parts[part], PARAMETERS: vector}}, begun)


def measure(location: Path, games: int, every: int) -> list[dict[str, Any]]:
    """Return a row for the network before the training, for each `every`-th checkpoint of a folder, and the newest."""
    manager = CheckpointManager(LocalStore(location))
    ids = manager.published()[::-1]
    ids = [*ids[:-1:every], ids[-1]]
    players: list[Player] = []
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        first = manager.load(ids[0])
        for checkpoint in (untrained(first), *map(manager.load, ids)):
            file = Path(folder) / "policy.safetensors"
            write_whole(file, policy_of(checkpoint))
            players.append(player_of(load(file, greedy=False, seed=len(players))))
            rows.append(
                {"global_step": checkpoint.manifest["global_step"], "unix_time": checkpoint.manifest["time"]}
                | {"elo": checkpoint.manifest.get("opponents", {}).get("rating")}
            )
    newest = players[-1]
    for number, (row, player) in enumerate(zip(rows, players, strict=True)):
        for name in Scripted.NAMES:
            row[name] = score(player, Scripted(name, number).choose, games)
        row["newest_against_it"] = score(newest, player, games)
        row["seconds_before_newest"] = round(rows[-1]["unix_time"] - row["unix_time"], 1)
        print(row, flush=True)
    return [{key: value for key, value in row.items() if key != "unix_time"} for row in rows]


LINES = {
    "random": ("against random moves", "-"),
    "blocks": ("against one that looks a move ahead", "--"),
    "newest_against_it": ("the newest against it", ":"),
}
"""Labels and styles of the lines, by column."""


def draw(path: Path, rows: list[dict[str, Any]]) -> None:
    """Draw the scores against the global step."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(7, 4), layout="constrained")
    axes = picture.subplots()
    for column, (label, style) in LINES.items():
        axes.plot([row["global_step"] for row in rows], [row[column] for row in rows], style, label=label)
    axes.set(xlabel="global step of the checkpoint", ylabel="score", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend()
    picture.savefig(path, dpi=100)


def main() -> None:
    """Measure, write the rows, and draw them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--games", type=int, default=400)
    parser.add_argument("--every", type=int, default=1, help="measure each K-th checkpoint")
    arguments = parser.parse_args()
    rows = measure(arguments.run / "checkpoints", arguments.games, arguments.every)
    with arguments.csv.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    draw(arguments.csv.with_suffix(".png"), rows)


if __name__ == "__main__":
    main()
