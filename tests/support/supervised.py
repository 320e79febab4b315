"""A supervisor of a plan's processes, without the rest of `relaax run`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relaax.cli.run.plan import Plan
from relaax.cli.run.run_directory import RunDirectory
from relaax.cli.run.run_tokens import run_tokens
from relaax.cli.run.supervisor import Supervisor


@contextmanager
def supervised(plan: Plan, folder: Path) -> Iterator[Supervisor]:
    """Start the servers of a plan; kill what is left of them when the block ends."""
    directory = RunDirectory(folder)
    directory.open(fresh=False, max_steps=1)
    directory.write_configuration(plan)
    supervisor = Supervisor(plan, directory, run_tokens(plan))
    try:
        supervisor.start_servers()
        yield supervisor
    finally:
        supervisor.kill()
        directory.close()
