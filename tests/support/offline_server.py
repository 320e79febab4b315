"""The command relaax-rlx-server, with workers that have no parameter server, forked or spawned.

The environment variable OFFLINE_SERVER_CONSTANTS, a JSON object, sets constants of modules: {"MODULE.NAME": value}.
OFFLINE_SERVER_PARAMETERS is the name of a class in CLIENTS.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from relaax.server.rlx_server import main
from relaax.server.rlx_server.workers import plan, spawners
from support.offline_client import OfflineClient, OfflineClientWithNewNames, OfflineClientWithParameters

CLIENTS = {"": OfflineClient, "values": OfflineClientWithParameters, "names": OfflineClientWithNewNames}
Client = CLIENTS[os.environ.get("OFFLINE_SERVER_PARAMETERS", "")]
plan.make_client = lambda settings, servers: Client()
for constant, value in json.loads(os.environ.get("OFFLINE_SERVER_CONSTANTS", "{}")).items():
    place, _, name = constant.rpartition(".")
    module = importlib.import_module(place)
    assert hasattr(module, name), constant
    setattr(module, name, value)

if __name__ == "__main__":
    # A spawned worker also imports this module, so it runs the lines above too.
    *python, program = spawners.COMMAND
    program = program.replace("from relaax", "import support.offline_server; from relaax", 1)
    spawners.COMMAND = (*python, program)
    main.main()
