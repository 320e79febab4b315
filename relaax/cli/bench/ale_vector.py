"""Steps ale-py's AtariVectorEnv, made as the Atari environment makes it, with random actions and nothing around it.

`python -m relaax.cli.bench.ale_vector MAIN ARGUMENT ...`, with the path of the environment's main.py and its arguments.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np

from relaax.client import command
from relaax.client.measuring import Measured

DRAWN = 4096


class _Emulator:
    """What is measured in the place of a client: here the environment is what answers."""

    def __init__(self, emulator: Any, seed: int | None) -> None:
        self._emulator = emulator
        self._seed = seed

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._emulator.close()

    def init(self, _: Any) -> None:
        self._emulator.reset(seed=self._seed)

    def step(self, actions: Any) -> None:
        self._emulator.step(actions)


def main() -> None:
    """Until a signal ends it."""
    path = Path(sys.argv[1])
    sys.path.insert(0, str(path.parent))  # the modules beside a program are found as they are when it runs
    spec = importlib.util.spec_from_file_location("ale_main", path)
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    command.execute(program.parser(), lambda arguments: _run(program, arguments), sys.argv[2:])


def _run(program: Any, arguments: Any) -> Any:
    emulator = program.make(arguments).emulator
    count = arguments.environments
    drawn = np.random.default_rng(arguments.seed).integers(0, emulator.single_action_space.n, (DRAWN, count))
    with Measured(_Emulator(emulator, arguments.seed), count, arguments.measure) as measured:
        measured.init(None)
        while True:
            for actions in drawn:
                measured.step(actions)


if __name__ == "__main__":
    main()
