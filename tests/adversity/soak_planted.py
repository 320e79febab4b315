#!/usr/bin/env python3
"""Check that the soak finds planted errors: one at a time, in a copy of the tree.

    python tests/adversity/soak_planted.py                      all errors, with both transports
    python tests/adversity/soak_planted.py cut-torn --bridge grpc

It prints a table in Markdown: the number of faults before each error was found, and the message. The exit code is 0 if
all errors were found.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from planted_errors import SOAK_ERRORS, copy_tree, plant

from support.planting import Planted

BRIDGES = ("grpc", "auto")
FAULTS = 60
_FOUND = re.compile(r"FAILED after (\d+) faults.*\n(.*)")


def soak(error: Planted, bridge: str, faults: int, seed: int) -> tuple[str, str]:
    """Return the number of faults until the error was found, and the message; "not found" if the soak passes."""
    with tempfile.TemporaryDirectory(prefix="soak-planted-") as name:
        tree = copy_tree(Path(name) / "tree")
        plant(error, tree)
        command = [sys.executable, str(tree / "tests/adversity/soak.py"), "--folder", str(Path(name) / "soak")]
        command += ["--bridge", bridge, "--faults", str(faults), "--seed", str(seed)]
        environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, cwd=tree, env=environment, **pipes) as running:
            try:
                out, errors = running.communicate()
            except BaseException:
                running.terminate()  # ends all processes of the soak
                raise
    found = _FOUND.search(out)
    if found is not None:
        return found[1], found[2]
    return ("not found", "") if running.returncode == 0 else ("not run", (errors.strip().splitlines() or ["?"])[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [error.name for error in SOAK_ERRORS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these errors, of {', '.join(names)}")
    parser.add_argument("--bridge", choices=BRIDGES, help="only with this transport")
    parser.add_argument("--faults", type=int, default=FAULTS, help="number of faults (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the soaks (%(default)s)")
    options = parser.parse_args()
    if unknown := set(options.names) - set(names):
        parser.error(f"no such error: {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    missed = 0
    print("| error | bridge | found after faults | seconds | message |\n|---|---|---|---|---|", flush=True)
    for error in SOAK_ERRORS:
        for bridge in [options.bridge] if options.bridge else BRIDGES:
            if options.names and error.name not in options.names:
                continue
            begun = time.monotonic()
            faults, sentence = soak(error, bridge, options.faults, options.seed)
            missed += not faults.isdigit()
            row = (error.what, bridge, faults, f"{time.monotonic() - begun:.0f}", sentence)
            print(f"| {' | '.join(row)} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
