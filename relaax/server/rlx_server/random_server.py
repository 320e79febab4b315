"""An RLX server whose agents act at random, without a parameter server: for clients that choose their actions.

`python -m relaax.server.rlx_server.random_server SETTINGS`: the keys of `relaax-rlx-server` as JSON.
"""

from __future__ import annotations

import os

from relaax.libraries import missing_from

os.environ.update(missing_from(os.environ))  # before anything imports numpy

import json
import sys
from pathlib import Path

from relaax.configuration import ConfigurationError, RlxServerSection
from relaax.configuration.roles import RLX_SERVER
from relaax.configuration.validation import validate_section
from relaax.console import print_error, replace_unknown_characters
from relaax.server.address import AddressError
from relaax.server.command.configuration import require_private_ports
from relaax.server.command.logs import configure_logging
from relaax.server.command.role import CommandError
from relaax.server.rlx_server.main import accept
from relaax.server.rlx_server.workers.plan import RANDOM, random_plan
from relaax.server.rlx_server.workers.spawners import ForkSpawner, SpawnSpawner


def main() -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    replace_unknown_characters()
    try:
        settings = validate_section(RlxServerSection, json.loads(sys.argv[1]), RLX_SERVER.section)
        configure_logging(settings.log_level, settings.log_format)
        require_private_ports(settings)
        return _serve(settings)
    except CommandError as end:
        print_error(str(RLX_SERVER.command), end)
        return end.code
    except (ConfigurationError, AddressError) as error:
        print_error(str(RLX_SERVER.command), error)
        return 2


def _serve(settings: RlxServerSection) -> int:
    if settings.worker_start == "spawn":
        return accept(settings, lambda *shared: SpawnSpawner(settings, {}, RANDOM, Path(), *shared))
    plan = random_plan(settings)
    return accept(settings, lambda *shared: ForkSpawner(plan, *shared))


if __name__ == "__main__":
    sys.exit(main())
