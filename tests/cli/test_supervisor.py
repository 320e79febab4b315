"""A supervisor watches all processes while some of them start. The processes are small but real."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from relaax.cli.run.plan import Plan, make_plan
from relaax.cli.run.supervisor import Supervisor
from relaax.configuration import roles
from relaax.configuration.roles import RLX_SERVER, Role
from relaax.supervision.host import ThisMachine
from relaax.supervision.process import StartError, Supervised
from support.processes import wait_until
from support.small_program import Gates
from support.small_role import small_roles
from support.supervised import supervised, unstarted, watch_until_ready

TESTS = Path(__file__).resolve().parent.parent
CLIENT = """
import signal, socket, sys
host, _, port = sys.argv[1].rpartition(":")
socket.create_connection((host, int(port)), 10)
signal.pause()
"""
ROLE_NAMES = ("parameter-server", "replay-server", "rlx-server", "learner", "client")


@pytest.fixture
def gates(tmp_path: Path) -> Gates:
    folder = tmp_path / "gates"
    folder.mkdir()
    return Gates(folder)


@pytest.fixture
def plan(gates: Gates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Plan:
    """Ape-X with two processes of each role that can have two. Small programs replace all roles."""
    monkeypatch.setattr(roles, "ROLES", small_roles(tmp_path / "gates"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
    (tmp_path / "mine.py").write_text(CLIENT)
    document = {
        "relaax-parameter-server": {"shards": 2},
        "relaax-replay-server": {"shards": 2},
        "relaax-learner": {"learners": 2},
        "relaax-run": {"environment": str(tmp_path / "mine.py"), "name": "mine", "clients": 1},
        "algorithm": {"path": "apex"},
    }
    file = tmp_path / "small.yaml"
    file.write_text(json.dumps(document))  # JSON is YAML
    return make_plan(str(file), [])


@pytest.fixture
def running(plan: Plan, tmp_path: Path) -> Iterator[Supervisor]:
    with supervised(plan, tmp_path / "run") as supervisor:
        supervisor.start_clients()
        yield supervisor


def process(running: Supervisor, name: str) -> Supervised:
    return next(each for each in all_processes(running) if each.name == name)


def all_processes(running: Supervisor) -> list[Supervised]:
    return [each for processes in running._processes.values() for each in processes]


def servers(running: Supervisor) -> list[Supervised]:
    return [each for each in all_processes(running) if each not in running.clients]


def kill(*victims: Supervised) -> None:
    pids = [victim.pid for victim in victims]
    for pid in pids:
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    for victim, pid in zip(victims, pids, strict=True):  # a supervisor in another thread may have restarted it
        wait_until(lambda v=victim, p=pid: v.pid != p or v.exit_code() is not None, "it has ended")  # type: ignore[misc]


def watch_until_ended(running: Supervisor, watched: Supervised) -> None:
    """Watch until a process has ended, and once more."""
    wait_until(lambda: (running.watch(), watched.exit_code() is not None)[1], "it has ended")
    running.watch()


@contextmanager
def in_background(act: Callable[[], None], afterwards: Callable[[], None]) -> Iterator[None]:
    """Run `act`, then `afterwards`, in another thread during the block.

    The block stays in the main thread, because a process ends with the thread that started it.
    """
    with ThreadPoolExecutor(1) as pool:

        def run() -> None:
            try:
                act()
            finally:
                afterwards()

        acted = pool.submit(run)
        yield
        acted.result(60)


def test_shard_that_dies_while_a_learner_starts_is_restarted(running: Supervisor, gates: Gates) -> None:
    learner, shard = process(running, "learner-1"), process(running, "parameter-server-1")
    gates.close("learner-1")
    kill(learner)
    running.watch()
    assert (learner.restarts, learner.is_ready) == (1, False)
    kill(shard)
    running.watch()
    assert shard.restarts == 1
    gates.open("learner-1")
    watch_until_ready(running, servers(running))
    assert (learner.restarts, shard.restarts) == (1, 1)


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/run", "relaax/supervision")
def test_two_processes_that_die_together_are_restarted(running: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    # The test kills many processes in a row, which must not count as quick failures.
    monkeypatch.setattr("relaax.supervision.process.QUICK_FAILURE_SECONDS", 0.0)
    for first, second in itertools.combinations_with_replacement(ROLE_NAMES, 2):
        both = running._processes[first][0], running._processes[second][-1]
        victims = list(dict.fromkeys(both))
        before = [victim.restarts for victim in victims]
        kill(*victims)
        watch_until_ready(running, servers(running))
        running.watch()
        assert [victim.restarts for victim in victims] == [count + 1 for count in before], (first, second)


def test_restart_waits_for_an_unavailable_shard(running: Supervisor, gates: Gates) -> None:
    learner, shard = process(running, "learner"), process(running, "parameter-server")
    gates.close("parameter-server")
    gates.make_impatient("learner")
    kill(learner, shard)
    watch_until_ended(running, learner)
    for _ in range(5):
        running.watch()
    assert learner.restarts == 1, "the learner waits for the shard"
    gates.open("parameter-server")
    watch_until_ready(running, servers(running))
    assert (learner.restarts, learner._failures) == (2, 0)


def test_client_is_restarted_when_its_server_is_ready(running: Supervisor, gates: Gates) -> None:
    (client,) = running.clients
    server = process(running, "rlx-server")
    gates.close("rlx-server")
    kill(client, server)
    for _ in range(5):
        running.watch()
    assert (server.restarts, client.restarts) == (1, 0)
    gates.open("rlx-server")
    watch_until_ready(running, [server])
    running.watch()
    assert client.restarts == 1


def test_client_whose_environment_exits_is_logged_once(
    plan: Plan, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exits_once = "import os, sys\ntry:\n    os.mkdir('exited')\n    sys.exit(4)\nexcept FileExistsError:\n    pass\n"
    exits_once = exits_once.replace("exited", str(tmp_path / "exited"))
    (tmp_path / "mine.py").write_text(exits_once + CLIENT)
    with supervised(make_plan(str(tmp_path / "small.yaml"), ["run.clients=2"]), tmp_path / "run") as running:
        running.start_clients()
        wait_until(lambda: (running.watch(), running.exited_client)[1], "one has exited")
        for _ in range(3):
            running.watch()
        exited = running.exited_client
        assert exited is not None
        assert caplog.messages == [
            f"{exited.name}: the environment ended its program, which is not restarted; see {exited.log}"
        ]
        assert [client.restarts for client in running.clients] == [0, 0]
        assert not running.clients_have_ended


def test_shard_that_dies_before_all_have_started_is_restarted(plan: Plan, gates: Gates, tmp_path: Path) -> None:
    gates.close("rlx-server")
    with unstarted(plan, tmp_path / "run") as starting:
        shard = process(starting, "parameter-server-1")

        def kill_shard() -> None:
            wait_until(lambda: shard.is_ready, "the shard is ready")
            kill(shard)
            wait_until(lambda: shard.restarts == 1 and shard.is_ready, "the shard is ready again")
            assert not starting.rlx_server.is_ready, "the shard died before all had started"

        with in_background(kill_shard, lambda: gates.open("rlx-server")):
            starting.start_servers()
        assert all(each.is_ready for each in servers(starting))


@pytest.mark.parametrize("name", ["parameter-server", "parameter-server-1", "learner-1"])
def test_start_timeout_counts_from_ready_dependencies(plan: Plan, gates: Gates, tmp_path: Path, name: str) -> None:
    gates.close(name)
    with unstarted(plan, tmp_path / "run") as starting:
        late = process(starting, name)
        bound = late.is_late
        late.is_late = lambda seconds: bound(seconds - 89.0)  # type: ignore[method-assign]
        with pytest.raises(StartError, match=rf"^{name} did not start within 90 s"):
            starting.start_servers()
        shards, above = starting._processes["parameter-server"], starting._processes["replay-server"]
        needed = {"parameter-server": [], "parameter-server-1": shards[:1], "learner-1": [*shards, *above]}[name]
        assert all(each.is_ready for each in needed)


def test_server_that_ends_before_it_is_ready_ends_the_start(plan: Plan, gates: Gates, tmp_path: Path) -> None:
    gates.make_impatient("rlx-server")
    with unstarted(plan, tmp_path / "run") as starting:
        server_addresses, unreachable = starting._host.server_addresses, {"replay-server": ["127.0.0.1:1"]}
        starting._host.server_addresses = lambda: {**server_addresses(), **unreachable}  # type: ignore[method-assign]
        with pytest.raises(StartError, match=r"(?s)^rlx-server did not start:.*127.0.0.1:1 does not answer"):
            starting.start_servers()


def test_interrupt_ends_the_start(plan: Plan, gates: Gates, tmp_path: Path) -> None:
    gates.close("learner")
    with unstarted(plan, tmp_path / "run") as starting:
        starting.stopping.set()
        with pytest.raises(StartError, match="interrupted"):
            starting.start_servers()


class WithoutReservations(ThisMachine):
    """A host like a cluster: it reserves no addresses, and sets the number of RLX servers."""

    reserves = False
    rlx_servers_wanted = 1

    def prepare(self, processes: Mapping[str, Sequence[Supervised]]) -> None:
        self._processes = processes

    def bind(self, role: Role, number: int, process: Supervised) -> str:
        return "127.0.0.1:0"

    def wanted(self, role: Role) -> int | None:
        return self.rlx_servers_wanted if role.name == RLX_SERVER.name else None


def test_process_starts_when_its_addresses_are_known(plan: Plan, gates: Gates, tmp_path: Path) -> None:
    gates.close("replay-server-1")
    with unstarted(plan, tmp_path / "run", WithoutReservations()) as starting:
        shards = [*starting._processes["parameter-server"], process(starting, "replay-server")]

        def check_order() -> None:
            wait_until(lambda: all(shard.is_ready for shard in shards), "all shards but one are ready")
            assert process(starting, "learner").pid is None
            assert starting.rlx_server.pid is None

        with in_background(check_order, lambda: gates.open("replay-server-1")):
            starting.start_servers()
        watch_until_ready(starting, servers(starting))
        assert not any(each.restarts for each in servers(starting))


def test_one_ready_server_of_several_is_enough_on_a_cluster(plan: Plan, gates: Gates, tmp_path: Path) -> None:
    host = WithoutReservations()
    host.rlx_servers_wanted = 2
    gates.close("rlx-server-1")
    with unstarted(plan, tmp_path / "run", host) as running:
        running.start_servers()
        running.start_clients()
        assert (running.rlx_server.is_ready, process(running, "rlx-server-1").is_ready) == (True, False)
        kill(*running.clients)
        running.watch()
        assert running.clients[0].restarts == 1, "it does not wait for the second server"
        second = process(running, "rlx-server-1")
        host.rlx_servers_wanted = 1
        watch_until_ended(running, second)
        assert second not in all_processes(running)


def test_server_removed_before_its_turn_is_never_started(plan: Plan, gates: Gates, tmp_path: Path) -> None:
    host = WithoutReservations()
    host.rlx_servers_wanted = 2
    gates.close("parameter-server")
    with unstarted(plan, tmp_path / "run", host) as starting:
        of_role = starting._processes["rlx-server"]
        second: list[Supervised] = []

        def want_one() -> None:
            wait_until(lambda: len(of_role) == 2, "two servers are planned")
            second.append(of_role[1])
            host.rlx_servers_wanted = 1
            wait_until(lambda: len(of_role) == 1, "one server is planned")

        with in_background(want_one, lambda: gates.open("parameter-server")):
            starting.start_servers()
        assert (starting.rlx_server.is_ready, second[0].pid) == (True, None)


@pytest.mark.usefixtures("plan")
def test_same_error_of_the_agent_is_logged_once_and_ends_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agent_error = "the agent failed at mine.py, line 3: KeyError: 'policy'"
    (tmp_path / "mine.py").write_text(
        f"import os, sys; sys.exit(f'mine/main: 127.0.0.1:{{os.getpid()}}: ' + {agent_error!r})"
    )
    two_clients = make_plan(str(tmp_path / "small.yaml"), ["run.clients=2"])
    with supervised(two_clients, tmp_path / "run") as supervisor:
        supervisor.start_clients()
        wait_for_exits(supervisor)
        supervisor.watch()
        wait_for_exits(supervisor)
        with pytest.raises(StartError) as failed:
            supervisor.watch()
    log = tmp_path / "run" / "logs" / "rlx-server.log"
    assert re.sub(r":\d+:", ":PORT:", str(failed.value)) == (
        f"client-0 fails repeatedly: mine/main: 127.0.0.1:PORT: {agent_error}; see {log}"
    )
    first, second = [record.getMessage() for record in caplog.records if "died" in record.getMessage()]
    assert re.sub(r":\d+:", ":PORT:", first) == (
        f"client-0 died (1) and was restarted: mine/main: 127.0.0.1:PORT: {agent_error}; see {log}"
    )
    assert second == f"client-1 died (1) and was restarted: the same error of the agent; see {log}"


def wait_for_exits(supervisor: Supervisor) -> None:
    for client in supervisor.clients:
        wait_until(lambda c=client: c.exit_code() is not None, "it has ended")  # type: ignore[misc]


def test_repeated_client_error_ends_the_run_at_the_third(
    plan: Plan, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    error = "mine/main: 127.0.0.1:7001: the server has no room"
    (tmp_path / "mine.py").write_text(f"import sys; sys.exit({error!r})")
    with supervised(plan, tmp_path / "run") as supervisor:
        supervisor.start_clients()
        with pytest.raises(StartError) as failed:
            wait_until(lambda: supervisor.watch() is not None, "the client is given up")
        log = supervisor.clients[0].log
    assert str(failed.value) == f"client-0 fails repeatedly: {error}; see {log}"
    assert caplog.text.count(f"client-0 died (1) and was restarted: {error}; see {log}") == 2
