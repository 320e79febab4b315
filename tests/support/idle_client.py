"""A client process that sends a hello and an init, prints "acting" after the answer, and waits until it is killed."""

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
