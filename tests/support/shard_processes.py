"""The shards of a parameter server as real processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from support.processes import Processes, Running


class ShardProcesses:
    """`count` processes of `relaax-parameter-server` with one configuration file, each on a fixed free port."""

    def __init__(self, processes: Processes, config: Path, count: int, arguments: Sequence[str] = ()) -> None:
        self._processes, self._config, self._count, self._arguments = processes, config, count, arguments
        first, address = processes.start_server(*self._command(0, "127.0.0.1:0"))
        self.running: list[Running] = [first]
        self.addresses: list[str] = [address]
        # Start all others at once, because most of the time is spent on imports.
        self.running += [processes.start(*self._command(index, "127.0.0.1:0")) for index in range(1, count)]
        self.addresses += [running.wait_for_address() for running in self.running[1:]]

    def restart(self, index: int) -> None:
        """Restart an ended shard at the same address."""
        self.running[index] = self._processes.start(*self._command(index, self.addresses[index]))
        self.running[index].wait_for_address()

    def signal_all(self, number: int) -> list[int]:
        """Send a signal to all at once, wait until all have ended, and return their exit codes."""
        for running in self.running:
            running.send_signal(number)
        return [running.wait(60) for running in self.running]

    def _command(self, index: int, bind: str) -> list[str | Path]:
        command: list[str | Path] = ["relaax-parameter-server", "--config", self._config, "--bind", bind]
        command += ["--shard", f"{index}/{self._count}", *self._arguments]
        return command if index == 0 else [*command, "--first-shard", self.addresses[0]]
