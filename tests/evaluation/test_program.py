"""The player of evaluations, in the process of an environment."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import TextIO

import numpy as np

from relaax.algorithm_base import Box, Discrete
from relaax.evaluation.program import EvaluationPlayer
from support.policy_files import bundled, write

LIFE = 30


def assign(lines: TextIO, games: list[dict[str, int]]) -> None:
    """Answer each request for an episode."""
    for game in [*games, None]:
        while "next" not in json.loads(lines.readline()):
            pass
        lines.write(json.dumps(game) + "\n")
        lines.flush()


def test_lives_of_a_game_share_a_stream_and_games_repeat_it(tmp_path: Path) -> None:
    algorithm = bundled("da3c")
    file, *_ = write(tmp_path, algorithm, Box(shape=(3,)), Discrete(4), noise=0.0)
    options = {"file": str(file), "algorithm": str(algorithm.source), "greedy": False, "seed": 0}
    here, there = socket.socketpair()
    with here, there, here.makefile("rw", encoding="utf-8") as lines, there.makefile("rw", encoding="utf-8") as asked:
        assigned = [{"number": number, "seed": seed} for number, seed in enumerate((5, 6, 5))]
        thread = threading.Thread(target=assign, args=(asked, assigned))
        thread.start()
        player = EvaluationPlayer(options, lines)
        games = []
        for _ in player.games():
            taken = [int(player.act(np.zeros(3, np.float32), step % LIFE == 0, 0)) for step in range(2 * LIFE)]
            games.append((taken[:LIFE], taken[LIFE:]))
        thread.join()
    first, other, again = games
    assert first == again
    assert len({tuple(life) for life in (*first, *other)}) == 4
