"""Run a command that receives SIGTERM when its parent dies, even by SIGKILL.

`python end_with_parent.py PARENT_PID COMMAND [ARG ...]`. Otherwise the servers of a killed `relaax run` would continue.
"""

from __future__ import annotations

import os
import sys

PR_SET_PDEATHSIG = 1
SIGTERM = 15


def main() -> None:
    """Tie this process to its parent, then become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGTERM)
        if os.getppid() != parent:  # the parent died earlier
            sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
