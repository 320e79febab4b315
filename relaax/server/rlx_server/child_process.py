"""Starting a fresh process of this project with descriptors of this one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

NONE = -1
"""Stands for a descriptor that a process is not given."""


def program_of(module: str) -> str:
    """For `python -c`: calls `main` of a module."""
    # Without the working directory, which -c puts before what is installed, but for PYTHONSAFEPATH.
    return f"""
import sys
if sys.path[0] == "":
    del sys.path[0]
from {module} import main; main()
"""


@contextlib.contextmanager
def inheritable(descriptors: list[int]) -> Iterator[None]:
    """Processes started meanwhile inherit these. Nothing else of this process's starts any."""
    own = [descriptor for descriptor in descriptors if descriptor != NONE]
    for descriptor in own:
        os.set_inheritable(descriptor, True)
    try:
        yield
    finally:
        for descriptor in own:
            os.set_inheritable(descriptor, False)
