"""The command `ray`, whose `start` waits two minutes for the new node.

Ray itself waits 30 s (ray 2, `ray._private.node.Node`), which is too short on a busy machine.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from ray._private import services
from ray.scripts.scripts import main

SECONDS = 120.0
_get_node = services.get_node


def get_node(*arguments: Any) -> Any:
    """Return the description of a node as soon as it is registered. Raises RuntimeError after two minutes."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return _get_node(*arguments)
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)


services.get_node = get_node
sys.exit(main())
