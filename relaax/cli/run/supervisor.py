"""Start the processes of a run, keep them alive, and stop them in order."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from relaax.cli.run.plan import Plan, RunTokens
from relaax.cli.run.run_directory import RunDirectory
from relaax.configuration import roles
from relaax.configuration.roles import CLIENT, PARAMETER_SERVER, REPLAY_SERVER, RLX_SERVER, TENSORBOARD, Restart, Role
from relaax.supervision.host import Host, ThisMachine
from relaax.supervision.process import EXIT_ENVIRONMENT, MAX_FAILURES, StartError, Supervised

_log = logging.getLogger(__name__)
_CLIENT_DONE = (0, EXIT_ENVIRONMENT)
"""Exit codes after which a client is not restarted."""

AGENT_FAILED = "the agent failed at "
"""Part of the error of a client whose agent failed. The RLX server's log has the whole error."""
MAX_SAME_FAILURES = 2
"""Consecutive quick failures with the same error of the agent after which a client is not restarted."""
START_POLL_SECONDS = 0.05
"""Pause between two checks of starting processes."""


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
        self._watched: Sequence[Role] = ()
        self._unstarted: set[Supervised] = set()
        self._exited: set[Supervised] = set()
        self._agent_errors: dict[Supervised, str] = {}
        self._terminating: list[tuple[Role, Supervised, float]] = []
        self.parameter_server = self._processes[PARAMETER_SERVER.name][0]
        """The first shard, which reports the progress of training."""
        self.rlx_server = self._processes[RLX_SERVER.name][0]
        self.clients = self._processes[CLIENT.name]
        self.stopping = threading.Event()
        """Set by a signal, to interrupt the start."""

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
        """Return the URL of TensorBoard; None if the run has none."""
        boards = self._processes[TENSORBOARD.name]
        return f"http://{boards[0].address}/" if boards else None

    @property
    def pages(self) -> list[str]:
        """Return the URLs of the pages that the environments' programs ask the user to open, each once."""
        return list(dict.fromkeys(client.page for client in self.clients if client.page is not None))

    @property
    def replay_addresses(self) -> list[str]:
        """Return HOST:PORT of every replay server, in order."""
        return self._host.actual(REPLAY_SERVER)

    def pids(self, role: Role) -> list[int | None]:
        """Return the process id of each process of a role; None for one that was not started."""
        return [process.pid for process in self._processes[role.name]]

    def start_servers(self) -> None:
        """Start all processes but the clients. Raises StartError."""
        self._start_roles(roles.relaax_roles())

    def start_parameter_server(self) -> None:
        """Start only the shards. Raises StartError."""
        self._start_roles([PARAMETER_SERVER])

    def start_replay_servers(self) -> None:
        """Start only the replay servers. Raises StartError."""
        self._start_roles([REPLAY_SERVER])

    def start_clients(self) -> None:
        """Start the environment clients. Raises StartError."""
        self._watched = roles.ROLES
        self._unstarted.update(self.clients)
        self.watch()

    def _start_roles(self, started: Sequence[Role]) -> None:
        """Start the processes of some roles, and wait until they are ready. Raises StartError."""
        self._host.prepare(self._processes)
        self._watched = started
        self._unstarted = {process for role in started for process in self._processes[role.name]}
        self.watch()
        while not all(self._is_ready(role) for role in started):
            if self.stopping.wait(START_POLL_SECONDS):
                raise StartError("the start was interrupted")
            self.watch()

    def _is_ready(self, role: Role) -> bool:
        """Return whether a role is ready. On other machines, one of several equal processes is enough."""
        ready = [process.is_ready for process in self._processes[role.name]]
        return all(ready) if self._host.reserves or role.reserved else any(ready) or not ready

    def _start(self, role: Role, number: int) -> None:
        self._processes[role.name][number].start(self._command(role, number))

    def watch(self) -> None:
        """Start, restart and end processes as needed, without blocking on any of them.

        Raises StartError if a restart does not help.
        """
        serving: set[str] = set()
        for role in self._watched:
            self._resize(role)
            has_needs = serving.issuperset(role.needs)
            for number, process in enumerate([*self._processes[role.name]]):
                try:
                    self._update_process(role, number, process, has_needs)
                except StartError as error:
                    if role.vital or self._is_new(role, process):
                        raise self._with_log(error, process) from None
                    _log.warning("training continues without %s: %s", role.title, error)
                    self._processes[role.name].remove(process)
            if has_needs and self._is_ready(role):
                serving.add(role.name)
        self._remove_terminated()
        self._host.refresh()

    def _update_process(self, role: Role, number: int, process: Supervised, has_needs: bool) -> None:
        """Start or restart a process if it is due. Raises StartError if the process is late, or fails repeatedly.

        `has_needs`: whether the roles that it needs are ready.
        """
        has_leader = number == 0 or not role.led or self._processes[role.name][0].is_ready
        if not (has_needs and has_leader):
            process.mark_blocked()
        if process in self._unstarted:
            if has_leader and (has_needs or self._host.reserves):
                self._unstarted.remove(process)
                self._start(role, number)
        elif process.exit_code() is None:
            bounded = self._is_new(role, process) or (role.vital and self._host.reserves)
            if bounded and process.is_late(self._host.start_seconds):
                raise process.late_error(self._host.start_seconds)
        elif _is_done(role, number, process):
            self._report_exit(process)
        elif process.announced or (has_needs and has_leader):
            self._restart(role, number, process)

    def _report_exit(self, process: Supervised) -> None:
        """Log once that an environment ended its program. Training may continue with the other clients."""
        if process.exit_code() == EXIT_ENVIRONMENT and process not in self._exited:
            self._exited.add(process)
            _log.warning(
                "%s: the environment ended its program, which is not restarted; see %s", process.name, process.log
            )

    def _is_new(self, role: Role, process: Supervised) -> bool:
        """Return whether a server was never ready and its role needs it: one failure then ends the run."""
        never = not (process.was_ready or process.announced)
        return never and role.module is not None and not self._is_ready(role)

    def _resize(self, role: Role) -> None:
        """Add processes to a role, or terminate its last ones, until it has the wanted number."""
        wanted, processes = self._host.wanted(role), self._processes[role.name]
        if wanted is None:
            return
        while len(processes) < wanted:
            processes.append(self._process(role, len(processes)))
            self._unstarted.add(processes[-1])
        while len(processes) > wanted:
            process = processes.pop()
            if process in self._unstarted:
                self._unstarted.remove(process)
                continue
            process.terminate()
            self._terminating.append((role, process, time.monotonic() + self._stop_seconds[role.name]))

    def _remove_terminated(self) -> None:
        """Remove terminated processes after their end, or kill them at their deadline."""
        for terminating in [*self._terminating]:
            _, process, deadline = terminating
            if process.exit_code() is not None:
                self._terminating.remove(terminating)
                self._host.retire(process)
            elif time.monotonic() > deadline:
                _log.warning("killing %s, which has not ended in time", process.name)
                process.kill()

    def _restart(self, role: Role, number: int, process: Supervised) -> None:
        code, error = process.exit_code(), process.printed_error()
        agent_error = error.partition(AGENT_FAILED)[2]  # without the address, which differs between servers
        is_known = bool(agent_error) and agent_error in self._agent_errors.values()
        attempts = 1 if self._is_new(role, process) else MAX_FAILURES
        if agent_error and self._agent_errors.get(process) == agent_error:
            attempts = MAX_SAME_FAILURES
        process.restart(self._command(role, number), attempts)
        if role.module is None:
            self._agent_errors[process] = agent_error
            reason = "the same error of the agent" if is_known else error
            why = f": {reason}; see {self._log_of(error, process)}" if error else ""
            _log.warning("%s died (%s) and was restarted%s", process.name, code, why)
            return
        several = len(self._processes[role.name]) > 1
        what = f"shard {number} of {role.title}" if several and role.reserved else role.title
        if not role.listens:
            what = process.name
        _log.warning(
            "%s has %s (%s); restarting the process", what, "died" if code and role.reserved else "ended", code
        )

    def _with_log(self, error: StartError, process: Supervised) -> StartError:
        """Return the error with the path of the log that has more about it."""
        gap = "\n" if "\n" in str(error) else "; "
        return error if error.refused else StartError(f"{error}{gap}see {self._log_of(str(error), process)}")

    def _log_of(self, error: str, process: Supervised) -> Path:
        """Return the log with the cause of an error: the RLX server's log if an agent failed."""
        return self.rlx_server.log if AGENT_FAILED in error else process.log

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
                terminating = [process for other, process, _ in self._terminating if other is role]
                self._stop(role, [*self._processes[role.name], *terminating])

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
        for process in [*(process for _, process, _ in self._terminating), *left]:
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
            *role.arguments(self._host.server_addresses(), number, len(processes)),
            *self._host.options(role),
        ]


def _is_done(role: Role, number: int, process: Supervised) -> bool:
    """Return whether a process that has ended need not be restarted."""
    if role.restart is Restart.UNTIL_DONE:
        return process.is_done
    if role is CLIENT:
        return process.exit_code() in _CLIENT_DONE
    return process.exit_code() == 0 and (role.restart is Restart.IF_FAILED or (role.led and number == 0))
