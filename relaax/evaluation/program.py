"""Run an environment's program with a player inside: `python -m relaax.evaluation.program FD OPTIONS MAIN [ARG ...]`.

FD is a socket to the process that evaluates, OPTIONS are those of `relaax.policy.load` as JSON, or `null` to act at
random. Each message is a line of JSON. This side sends `{"frame_skip": 4}` once, and `{"next": true}` for a game, which
is answered by `{"number": 0, "seed": 1, "max_steps": 1000}`, or by `null` if there are enough; `{"playing": 0,
"steps": 12}` once a second; then what it was, as `Played` has it.
"""

from __future__ import annotations

import json
import runpy
import socket
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from relaax.client.program.agents import Game, playing
from relaax.console import print_error
from relaax.evaluation.players import EvaluationPlayer
from relaax.policy import PolicyError, load

USAGE = 2


def main() -> None:
    """Play, as the program MAIN with its arguments."""
    descriptor, options, program, *arguments = sys.argv[1:]
    with socket.socket(fileno=int(descriptor)) as connection, connection.makefile("rw", encoding="utf-8") as lines:

        def send(message: Any) -> None:
            lines.write(json.dumps(message) + "\n")
            lines.flush()

        def next_game() -> Game | None:
            send({"next": True})
            answer = json.loads(lines.readline() or "null")
            return None if answer is None else Game(**answer)

        wanted = json.loads(options)
        try:
            policy = None if wanted is None else load(**wanted)
        except PolicyError as error:
            print_error("relaax eval", error)
            sys.exit(USAGE)
        player = EvaluationPlayer(
            policy,
            next_game,
            lambda played: send(asdict(played)),
            lambda frame_skip: send({"frame_skip": frame_skip}),
            lambda number, steps: send({"playing": number, "steps": steps}),
        )
        sys.argv = [program, *arguments]
        sys.path[0] = str(Path(program).parent)  # as if the program had been started itself
        with playing(player):
            runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
