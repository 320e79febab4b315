"""A client in a process of its own: introduces itself, is told what to do, says so, and waits for its end."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.rlx_line import Line

if __name__ == "__main__":
    with Line(sys.argv[1]) as line:
        line.open()
        line.init()
        print("acting", flush=True)
        signal.pause()
