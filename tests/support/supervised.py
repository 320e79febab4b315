"""Supervisors of a plan's processes, without the rest of `relaax run`."""

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
    """Make a supervisor without processes, and kill all processes that it has started at the end of the block."""
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
    """Start the servers of a plan, and kill all processes at the end of the block."""
    with unstarted(plan, folder) as supervisor:
        supervisor.start_servers()
        yield supervisor


def watch_until_ready(supervisor: Supervisor, processes: Iterable[Supervised], timeout: float = 120.0) -> None:
    """Call `watch` repeatedly, as `relaax run` does, until all processes have reported that they are ready."""
    waited_for = list(processes)

    def ready() -> bool:
        supervisor.watch()
        return all(process.is_ready for process in waited_for)

    wait_until(ready, "all are ready", timeout)
