"""The command relaax-rlx-server, whole, but that its workers reach no parameter server, forked or spawned."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from relaax.server.rlx_server import main
from relaax.server.rlx_server.workers import plan, spawners
from support.offline_client import OfflineClient

plan.make_client = lambda settings, servers: OfflineClient()

if __name__ == "__main__":
    # A worker that is spawned runs this module again, as far as the line above.
    *python, program = spawners.COMMAND
    program = program.replace("from relaax", "import support.offline_server; from relaax", 1)
    spawners.COMMAND = (*python, program)
    main.main()
