"""Run policy.gd with standard input and output, as policy.c: Godot 3.2 reads and writes files only.

godot_policy.py 'WORDS THAT START GODOT' COMMAND ...
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Run the program, and exit with its exit code."""
    start, command, *words = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        given, answer = Path(folder, "given"), Path(folder, "answer")
        given.write_bytes(sys.stdin.buffer.read())
        godot = [*start.split(), "--script", "tests/policy.gd"]
        godot += [command, str(given), str(answer), *words]
        done = subprocess.run(godot, stdout=subprocess.DEVNULL, env={**os.environ, "LANG": "en"}, check=False)
        sys.stdout.buffer.write(answer.read_bytes())
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
