"""Step ale-py's bare AtariVectorEnv, made as the Atari environment makes it, with random actions.

`python -m relaax.cli.bench.ale_vector MAIN ARGUMENT ...`, with the path of the environment's main.py and its arguments.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from relaax.client import command
from relaax.client.program.measuring import step_alone


def main() -> None:
    """Run until a signal arrives."""
    path = Path(sys.argv[1])
    sys.path.insert(0, str(path.parent))  # find the modules beside the program as when it runs
    spec = importlib.util.spec_from_file_location("ale_main", path)
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    command.execute(program.parser(), lambda arguments: _run(program, arguments), sys.argv[2:])


def _run(program: Any, arguments: Any) -> Any:
    emulator = program.make(arguments).emulator
    try:
        step_alone(emulator, arguments.seed, arguments.measure)
    finally:
        emulator.close()


if __name__ == "__main__":
    main()
