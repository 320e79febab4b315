"""The client of `relaax clone`: `python -m relaax.demonstrations.program ADDRESS PATH N SEED`.

It plays the recorded episodes of PATH in N environments, repeatedly, until the training ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from relaax.client import Failure
from relaax.console import log_to_stderr, print_error
from relaax.demonstrations.columns import RecordingError
from relaax.demonstrations.player import play_forever
from relaax.demonstrations.reading import RecordedEpisodes

PROGRAM = "relaax clone"
FAILED, REFUSED = 1, 2


def main() -> int:
    """Play until the training ends; return the exit code."""
    address, path, environments, seed = sys.argv[1:]
    log_to_stderr(f"{PROGRAM}: %(message)s")
    try:
        recorded = RecordedEpisodes(Path(path))
        play_forever(address, recorded, int(environments), np.random.default_rng(int(seed)))
    except RecordingError as error:
        print_error(PROGRAM, error)
        return REFUSED
    except Failure as error:
        print_error(PROGRAM, error)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
