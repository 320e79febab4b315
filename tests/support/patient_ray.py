"""The command `ray`, whose `start` succeeds on a busy machine.

Ray's node does not start if it is not registered within 30 s (ray 2, `ray._private.node.Node`), or if its agents take
more than 15 s to choose their ports. It does not wait for ports that are options of `ray start`, but one of these
options does not reach the raylet.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from ray._private import services
from ray._private.ray_constants import PROCESS_TYPE_RAYLET
from ray.scripts import scripts

SECONDS = 120.0
LISTEN_PORT = "--dashboard-agent-listen-port"
_get_node: Callable[..., Any] = services.get_node
_start_process: Callable[..., Any] = services.start_ray_process
_main: Callable[[], Any] = scripts.main


def get_node(*arguments: Any) -> Any:
    """Wait until a node is registered, and return its description. After two minutes, raises RuntimeError."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return _get_node(*arguments)
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def start_process(command: list[str], kind: str, **options: Any) -> Any:
    """Start a process of Ray; a raylet also receives the port of its dashboard agent."""
    if kind == PROCESS_TYPE_RAYLET and LISTEN_PORT in sys.argv:
        command = [*command, f"--dashboard_agent_listen_port={sys.argv[sys.argv.index(LISTEN_PORT) + 1]}"]
    return _start_process(command, kind, **options)


services.get_node = get_node
services.start_ray_process = start_process
sys.exit(_main())
