"""Starting a new Python process that inherits descriptors of this one."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

NONE = -1
"""Placeholder for a descriptor that a process is not given."""
GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals that terminals and process managers send to the whole process group. Only the server acts on them: a child
ignores them, and a new process has them blocked until it does.
"""


def program_of(module: str) -> str:
    """Return a program for `python -c` that calls `main` of a module."""
    # Remove the working directory, which -c puts first on the path unless PYTHONSAFEPATH is set.
    return f"""
import sys
if sys.path[0] == "":
    del sys.path[0]
from {module} import main; main()
"""


@contextlib.contextmanager
def inheritable(descriptors: list[int]) -> Iterator[None]:
    """Make descriptors inheritable by processes started in the block. No other thread may start processes."""
    own = [descriptor for descriptor in descriptors if descriptor != NONE]
    for descriptor in own:
        os.set_inheritable(descriptor, True)
    try:
        yield
    finally:
        for descriptor in own:
            os.set_inheritable(descriptor, False)
