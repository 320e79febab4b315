"""A supervisor of a plan's processes, without the rest of `relaax run`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from relaax.cli.run.plan import Plan, run_tokens
from relaax.cli.run.run_directory import RunDirectory
from relaax.cli.run.supervisor import Supervisor
from relaax.supervision.host import Host
from relaax.supervision.process import Supervised
from support.processes import wait_until


@contextmanager
def unstarted(plan: Plan, folder: Path, host: Host | None = None) -> Iterator[Supervisor]:
    """Make a supervisor that has started nothing; kill what it has started when the block ends."""
    directory = RunDirectory(folder)
    directory.open(fresh=False, max_steps=1)
    directory.write_configuration(plan)
    supervisor = Supervisor(plan, directory, run_tokens(plan), host)
    try:
        yield supervisor
    finally:
        supervisor.kill()
        directory.close()


@contextmanager
def supervised(plan: Plan, folder: Path) -> Iterator[Supervisor]:
    """Start the servers of a plan; kill what is left of them when the block ends."""
    with unstarted(plan, folder) as supervisor:
        supervisor.start_servers()
        yield supervisor


def watch_until_ready(supervisor: Supervisor, processes: Iterable[Supervised], timeout: float = 120.0) -> None:
    """Watch until all of them have announced themselves, as `relaax run` does several times a second."""
    waited_for = list(processes)

    def ready() -> bool:
        supervisor.watch()
        return all(process.is_ready for process in waited_for)

    wait_until(ready, "all are ready", timeout)
