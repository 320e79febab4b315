#!/usr/bin/env python3
"""How long a checkpoint of a long vector holds up pushes.

A real parameter server with a synthetic model writes checkpoints to the local disk, again and again, while one worker
pushes gradients one after the other and takes the parameters with every answer. Pushes that overlap a checkpoint are
compared with those that do not. Prints a table; exit code 1 if a push during a checkpoint took longer than the
median outside by more than the bar.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from relaax.cli.bench.results import percentile
from relaax.parameters.client import ParameterClient
from relaax.parameters.interfaces import Registration
from support.long_vector import configuration, fingerprint_of
from support.processes import Processes

BAR_MS = 100.0
_SAVED = re.compile(r"^(\S+ \S+) .*checkpoint \S+ at global step \d+, in ([\d.]+) s", re.MULTILINE)
_WAITED = re.compile(r"pushes waited for a snapshot for ([\d.]+) ms")


@dataclass(frozen=True)
class Push:
    """Seconds since 1970 at which it began, and how long it took."""

    begin: float
    seconds: float

    def overlaps(self, begin: float, end: float) -> bool:
        return self.begin < end and self.begin + self.seconds > begin


def main() -> int:
    parser = argparse.ArgumentParser(description="How long a checkpoint of a long vector holds up pushes.")
    parser.add_argument("--parameters", type=int, default=50_000_000, help="length of the vector (%(default)s)")
    parser.add_argument("--optimizer", default="rms_prop", help="of the model (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of pushing (%(default)s)")
    parser.add_argument("--interval", type=float, default=8.0, help="seconds between checkpoints (%(default)s)")
    parser.add_argument("--folder", type=Path, help="on the disk that is measured (one for temporary files)")
    parser.add_argument("--list", action="store_true", help="print every push")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, Processes(Path(folder)) as processes:
        pushes, checkpoints, waits = measured(processes, Path(folder), options)
    during = [push for push in pushes if any(push.overlaps(*checkpoint) for checkpoint in checkpoints)]
    outside = [push for push in pushes if push not in during]
    if options.list:
        for push in pushes:
            print(f"{push.begin - pushes[0].begin:8.3f} {push.seconds * 1e3:8.1f} ms {'*' if push in during else ''}")
    lengths = ", ".join(f"{end - begin:.1f}" for begin, end in checkpoints)
    print(f"{options.parameters:,} parameters, {options.optimizer}; {len(checkpoints)} checkpoints of {lengths} s")
    if not during or not outside:
        print("there were no pushes of both kinds: measure for longer")
        return 1
    print(f"{'ms of a push':<24} {'count':>6} {'p50':>8} {'p99':>8} {'longest':>8}")
    for name, kind in (("outside checkpoints", outside), ("during checkpoints", during)):
        ms = [push.seconds * 1e3 for push in kind]
        print(f"{name:<24} {len(ms):>6} {percentile(ms, 0.5):>8.1f} {percentile(ms, 0.99):>8.1f} {max(ms):>8.1f}")
    print(f"by the server's own clock, pushes waited for {', '.join(f'{ms:.0f}' for ms in waits)} ms")
    typical = percentile([push.seconds * 1e3 for push in outside], 0.5)
    worst = max(push.seconds * 1e3 for push in during) - typical
    print(f"a checkpoint holds a push up by {worst:.0f} ms at most; the bar is {BAR_MS:.0f} ms")
    return int(worst > BAR_MS)


def measured(
    processes: Processes, folder: Path, options: argparse.Namespace
) -> tuple[list[Push], list[tuple[float, float]], list[float]]:
    """All pushes; when checkpoints were taken and written; milliseconds for which each of them kept pushes waiting."""
    path = configuration(folder, options.parameters, options.optimizer, options.interval)
    server, address = processes.start_server("relaax-parameter-server", "--config", path)
    bridge = ParameterClient(address, timeout=120.0)
    registered = bridge.register(Registration(fingerprint_of(path)))
    bridge.pull()
    gradient = np.full(registered.parameters, 1e-3, np.float32)
    pushes: list[Push] = []
    ends = time.monotonic() + options.seconds
    while time.monotonic() < ends:
        now, begin = time.time(), time.perf_counter()
        bridge.push(gradient, 1)
        pushes.append(Push(now, time.perf_counter() - begin))
    bridge.close()
    waits = [float(ms) for ms in _WAITED.findall(server.stderr)]
    return pushes[2:], checkpoints_of(server.stderr), waits


def checkpoints_of(log: str) -> list[tuple[float, float]]:
    """Begin and end of each checkpoint, as the server's log has them; both are exact to 0.1 s."""
    found = [
        (datetime.fromisoformat(at.replace(",", ".")).timestamp(), float(seconds))
        for at, seconds in _SAVED.findall(log)
    ]
    return [(end - seconds - 0.1, end + 0.1) for end, seconds in found]


if __name__ == "__main__":
    sys.exit(main())
