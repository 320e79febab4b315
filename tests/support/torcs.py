"""TORCS for tests: its installation, the build of its robot, and hand-written drivers."""

from __future__ import annotations

import fcntl
import math
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from environments.TORCS import build, race
from relaax import rlx
from relaax.client.command import UsageError
from support.programs import ROOT
from support.rlx_peer import PeerConnection, serve

RANGE = 200.0  # metres of a rangefinder
DEGREES = np.array([-90, -60, -40, -25, -15, -10, -6, -3, -1, 0, 1, 3, 6, 10, 15, 25, 40, 60, 90])
ANGLE, PLACE, SPEED, RAYS = 0, 1, 2, slice(13, 32)


def lack_of_torcs() -> str | None:
    """Install TORCS and build its robot. Return the reason if that is impossible on this machine, else None.

    Only one process does so at a time, because all tests share the robot.
    """
    with (Path(tempfile.gettempdir()) / "relaax-torcs.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        script = ROOT / "tests/support/install-torcs"
        said = subprocess.run([script], capture_output=True, text=True, check=False, timeout=900)
        try:
            race.program()
            if is_stale():
                build.build()
        except UsageError as error:
            return f"{error}; tests/support/install-torcs says: {said.stdout.strip() or said.stderr.strip()}"
        except build.NotBuiltError as error:
            return f"the robot of TORCS cannot be built: {error}"
    return None


def is_stale() -> bool:
    """Return whether the robot is missing or older than its sources."""
    sources = [*build.HERE.glob("*.cpp"), *build.HERE.glob("*.h"), build.RLX / "rlx.h"]
    return not race.DRIVER.exists() or race.DRIVER.stat().st_mtime < max(path.stat().st_mtime for path in sources)


def careful(conn: PeerConnection) -> None:
    """Drive along the middle of the track in the direction with the longest view, at up to 90 km/h."""
    conn.policy = steer
    serve(conn)


def steer(message: rlx.Message, conn: PeerConnection) -> rlx.Leaves:
    """Return the action of `careful` for one car."""
    seen = observed(message)[0]
    rays = seen[RAYS] * RANGE
    target = 0.3 * math.radians(DEGREES[np.argmax(rays)]) + 0.7 * seen[ANGLE] - 0.25 * seen[PLACE]
    wanted = min(3.1 * math.sqrt(rays[7:12].max()), 25.0)
    pedal = (wanted - 50 * seen[SPEED]) / 5
    return [np.clip(np.array([[target / 0.4, pedal]], np.float32), -1, 1)]


def always(steering: float, pedal: float) -> Any:
    """Return a script of `RlxPeer` with the same action in every step."""

    def script(conn: PeerConnection) -> None:
        conn.policy = lambda message, conn: [np.array([[steering, pedal]], np.float32)]
        serve(conn)

    return script


def observed(message: rlx.Message) -> np.ndarray:
    """Return the observation of an init or a step, [1, 32]."""
    assert isinstance(message, rlx.Init | rlx.Step)
    leaf: np.ndarray = message.observation[0]
    return leaf
