"""Start the processes of a run, keep them alive, and stop them in order."""

from __future__ import annotations

import logging
import sys
import threading
import time

from relaax.cli.run.plan import Plan
from relaax.cli.run.run_directory import RunDirectory
from relaax.cli.run.run_tokens import RunTokens
from relaax.configuration import roles
from relaax.configuration.roles import CLIENT, PARAMETER_SERVER, REPLAY_SERVER, RLX_SERVER, TENSORBOARD, Restart, Role
from relaax.supervision.host import Host, ThisMachine
from relaax.supervision.process import EXIT_ENVIRONMENT, StartError, Supervised

_log = logging.getLogger(__name__)
_CLIENT_DONE = (0, EXIT_ENVIRONMENT)
"""Exit codes after which a client is not restarted."""


class Supervisor:
    """The processes of every role, as declared in the table of roles."""

    def __init__(self, plan: Plan, directory: RunDirectory, tokens: RunTokens, host: Host | None = None) -> None:
        """`host`: where they run; by default on this machine."""
        self._plan = plan
        self._tokens = tokens
        self._host = ThisMachine() if host is None else host
        self._directory = directory
        sections = plan.configuration.sections
        self._stop_seconds = {role.name: role.stop_seconds(sections) for role in roles.ROLES}
        self._processes = {
            role.name: [self._process(role, number) for number in range(self._host.count(role, sections))]
            for role in roles.ROLES
        }
        self._leaving: list[tuple[Role, Supervised, float]] = []
        self.parameter_server = self._processes[PARAMETER_SERVER.name][0]
        """The first shard, which reports the progress of training."""
        self.rlx_server = self._processes[RLX_SERVER.name][0]
        self.clients = self._processes[CLIENT.name]
        self.stopping = threading.Event()
        """Set by a signal: ends the wait for processes that are starting."""

    @property
    def parameter_server_address(self) -> str:
        """Return HOST:PORT of the first shard; a restart keeps it."""
        return self._host.actual(PARAMETER_SERVER)[0]

    @property
    def shard_addresses(self) -> str:
        """Return HOST:PORT of every shard, in order, separated by commas, as passed to workers."""
        return ",".join(self._host.actual(PARAMETER_SERVER))

    @property
    def tensorboard_url(self) -> str | None:
        """Return where a browser finds TensorBoard; None if the run has none."""
        boards = self._processes[TENSORBOARD.name]
        return f"http://{boards[0].address}/" if boards else None

    @property
    def replay_addresses(self) -> list[str]:
        """Return HOST:PORT of every replay server, in order."""
        return self._host.actual(REPLAY_SERVER)

    def pids(self, role: Role) -> list[int | None]:
        """Return the process id of each process of a role; None for one that was not started."""
        return [process.pid for process in self._processes[role.name]]

    def start_servers(self) -> None:
        """Start all processes but the clients, in parallel. Raises StartError."""
        self._host.prepare(self._processes)
        if not self._host.reserves:
            self._start_in_turn()
            return
        led, others = ([role for role in roles.own() if role.led is leads] for leads in (True, False))
        for role in others:
            self._start_all(role)
        for role in led:
            self._start_led(role)
        for role in others:
            self._await_all(role)

    def _start_in_turn(self) -> None:
        """Start role after role, as each must be told where those before it are. Raises StartError."""
        for role in roles.own():
            if role.led:
                self._start_led(role)
            else:
                self._start_all(role)
                self._await_all(role, 0, None if role.reserved else 1)  # those who come later find their way
            self._host.refresh()

    def start_parameter_server(self) -> None:
        """Start only the shards. Raises StartError."""
        self._host.prepare(self._processes)
        self._start_led(PARAMETER_SERVER)

    def start_replay_servers(self) -> None:
        """Start only the replay servers. Raises StartError."""
        self._host.prepare(self._processes)
        self._start_all(REPLAY_SERVER)
        self._await_all(REPLAY_SERVER)

    def _start_led(self, role: Role) -> None:
        """Start the first process, on which the others depend, then the others together."""
        self._start(role, 0)
        self._processes[role.name][0].wait_ready(self._host.start_seconds, self.stopping)
        self._start_all(role, 1)
        self._await_all(role, 1)

    def _start_all(self, role: Role, first: int = 0) -> None:
        """Start the processes from number `first` on."""
        for number in range(first, len(self._processes[role.name])):
            self._start(role, number)

    def _await_all(self, role: Role, first: int = 0, end: int | None = None) -> None:
        """Wait until those from number `first` on, and before `end`, are ready. Raises StartError."""
        for process in self._processes[role.name][first:end]:
            process.wait_ready(self._host.start_seconds, self.stopping)

    def start_clients(self) -> None:
        """Start the environment clients."""
        self._start_all(CLIENT)

    def _start(self, role: Role, number: int) -> None:
        self._processes[role.name][number].start(self._command(role, number))

    def watch(self) -> None:
        """Restart processes that have ended unexpectedly, and start or end some where the host wants more or fewer.

        Raises StartError if a restart does not help.
        """
        for role in roles.ROLES:
            self._resize(role)
            for number, process in enumerate([*self._processes[role.name]]):
                if process.exit_code() is None or _is_done(role, number, process):
                    continue
                try:
                    self._restart(role, number, process)
                except StartError as error:
                    if role.vital:
                        raise
                    _log.warning("training goes on without %s: %s", role.title, error)
                    self._processes[role.name].remove(process)
        self._take_leave()
        self._host.refresh()

    def _resize(self, role: Role) -> None:
        """Start processes after the last one, or ask the last ones to end."""
        wanted, processes = self._host.wanted(role), self._processes[role.name]
        if wanted is None:
            return
        while len(processes) < wanted:
            processes.append(self._process(role, len(processes)))
            self._start(role, len(processes) - 1)
        while len(processes) > wanted:
            process = processes.pop()
            process.terminate()
            self._leaving.append((role, process, time.monotonic() + self._stop_seconds[role.name]))

    def _take_leave(self) -> None:
        """Let go of processes that were asked to end and have, and kill those that take too long."""
        for leaving in [*self._leaving]:
            _, process, deadline = leaving
            if process.exit_code() is not None:
                self._leaving.remove(leaving)
                self._host.retire(process)
            elif time.monotonic() > deadline:
                _log.warning("%s takes too long to end, and is killed", process.name)
                process.kill()

    def _restart(self, role: Role, number: int, process: Supervised) -> None:
        code = process.exit_code()
        if role.module is None:
            process.restart(self._command(role, number))
            _log.warning("%s died (%s) and was restarted", process.name, code)
            return
        several = len(self._processes[role.name]) > 1
        what = f"shard {number} of {role.title}" if several and role.reserved else role.title
        if not role.listens:
            what = process.name
        process.restart(self._command(role, number))
        _log.warning("%s has %s (%s); restarting", what, "died" if code and role.reserved else "ended", code)
        if role.vital and self._host.reserves:
            process.wait_ready(self._host.start_seconds, self.stopping)

    @property
    def clients_have_ended(self) -> bool:
        """Return whether no client runs or will be restarted."""
        return bool(self.clients) and all(client.exit_code() in _CLIENT_DONE for client in self.clients)

    @property
    def exited_client(self) -> Supervised | None:
        """Return the first client whose environment called sys.exit(), or None."""
        return next((client for client in self.clients if client.exit_code() == EXIT_ENVIRONMENT), None)

    def stop_training(self) -> None:
        """Stop the clients, then the others in turn. The parameter server keeps running."""
        for role in reversed(roles.ROLES):
            if role is not PARAMETER_SERVER:
                leaving = [process for other, process, _ in self._leaving if other is role]
                self._stop(role, [*self._processes[role.name], *leaving])

    def stop_parameter_server(self) -> None:
        """Stop the shards last: the last checkpoint may take time. Shard 0 releases the others, which wait for it."""
        first, *others = self._processes[PARAMETER_SERVER.name]
        for shards in ([first], others):
            self._stop(PARAMETER_SERVER, shards)
        self._host.release()

    def _stop(self, role: Role, processes: list[Supervised]) -> None:
        for process in processes:
            process.terminate()
        seconds = self._stop_seconds[role.name]
        way_out = f"; {role.stop_key} gives {role.name}s longer" if role.stop_key else ""
        deadline = time.monotonic() + seconds
        for process in processes:
            if not process.wait(deadline - time.monotonic()):
                _log.warning("%s has not ended within %g s and is killed%s", process.name, seconds, way_out)
                process.kill()
                process.wait(1.0)

    def kill(self) -> None:
        """Kill all processes at once."""
        left = [process for role in reversed(roles.ROLES) for process in self._processes[role.name]]
        for process in [*(process for _, process, _ in self._leaving), *left]:
            process.kill()
            process.wait(1.0)
        self._host.release()

    def _process(self, role: Role, number: int) -> Supervised:
        name = role.name if role.module is not None and number == 0 else f"{role.name}-{number}"
        return self._host.process(role, number, name, self._directory.logs / f"{name}.log", self._tokens.of(role))

    def _command(self, role: Role, number: int) -> list[str]:
        if role.module is None:
            return self._plan.client_command(self._host.rlx_servers(), number)
        processes = self._processes[role.name]
        return [
            sys.executable,
            *("-m", role.module),
            *("--config", self._host.configuration(self._directory.configuration)),
            *(("--bind", self._host.bind(role, number, processes[number])) if role.listens else ()),
            *role.arguments(self._host.told(), number, len(processes)),
            *self._host.options(role),
        ]


def _is_done(role: Role, number: int, process: Supervised) -> bool:
    """Return whether a process that has ended need not be restarted."""
    if role.restart is Restart.UNTIL_DONE:
        return process.is_done
    if role is CLIENT:
        return process.exit_code() in _CLIENT_DONE
    return process.exit_code() == 0 and (role.restart is Restart.IF_FAILED or (role.led and number == 0))
