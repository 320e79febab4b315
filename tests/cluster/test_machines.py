"""Machines of a cluster as the host of a run: placement, addresses and numbers, without Ray."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from relaax.cluster import machines as machines_module
from relaax.cluster import remote_process
from relaax.cluster.keeper import FOLDER, Control
from relaax.cluster.machines import FREE_RESOURCES_SECONDS, RayMachines, report
from relaax.cluster.remote_process import EXIT_LOST, LATE_SECONDS, RemoteProcess
from relaax.configuration import HERE, roles
from relaax.configuration.roles import (
    CLIENT,
    LEARNER,
    PARAMETER_SERVER,
    REPLAY_SERVER,
    RLX_SERVER,
    TENSORBOARD,
    Role,
)
from relaax.configuration.sections import ClusterSection
from relaax.supervision.process import Supervised
from support.local_ray import LocalRay, use_local_ray
from support.processes import wait_until

LISTENS = [sys.executable, "-c", "import signal; print('it is listening on {host}:7', flush=True); signal.pause()"]


class At:
    """A process with an address, or without one yet."""

    name, restarts = "it", 0

    def __init__(self, address: str | None = None) -> None:
        self.address = address

    def exit_code(self) -> int | None:
        return None


class Scene:
    """A run's host, and its processes by role."""

    def __init__(self, ray: LocalRay, folder: Path) -> None:
        self.ray = ray
        self.folder = folder
        (folder / "configuration.yaml").write_text(f"program: {HERE}/main.py\n")
        self.processes: dict[str, list[Any]] = {role.name: [] for role in roles.ROLES}

    def host(self, own_status: bool = False, **section: object) -> RayMachines:
        made = RayMachines(
            ClusterSection.model_validate(section),
            self.folder / "configuration.yaml",
            self.folder / "metrics",
            Control(self.folder),
            own_status,
        )
        made.prepare(self.processes)
        return made

    def started(self, host: RayMachines, role: Role, count: int) -> Sequence[RemoteProcess]:
        """Start processes of a role and return them; they need not be ready."""
        made: list[Supervised] = [
            host.process(role, number, f"{role.name}-{number}", self.folder / f"{role.name}-{number}.log", {})
            for number in range(count)
        ]
        self.processes[role.name] = made
        for process in made:
            process.start(LISTENS)
        return [process for process in made if isinstance(process, RemoteProcess)]

    def places(self, role: Role, *addresses: str | None) -> None:
        self.processes[role.name] = [At(address) for address in addresses]

    @property
    def strategies(self) -> list[Any]:
        """Return the strategy of each actor: (machine, soft), (group, bundle) or Ray's name of it."""
        found: list[Any] = []
        for each in self.ray.actor_options:
            strategy = each["scheduling_strategy"]
            if hasattr(strategy, "node_id"):
                found.append((bytes.fromhex(strategy.node_id).rstrip(b"\0").decode(), strategy.soft))
            elif hasattr(strategy, "placement_group"):
                found.append((strategy.placement_group, strategy.placement_group_bundle_index))
            else:
                found.append(strategy)
        return found


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    local = use_local_ray(monkeypatch)
    for pause in ("SNAPSHOT_SECONDS", "POLL_SECONDS", "STARTUP_SNAPSHOT_SECONDS"):
        monkeypatch.setattr(remote_process, pause, 0.01)
    monkeypatch.setattr(machines_module, "NODES_SECONDS", 0.0)
    yield Scene(local, tmp_path)
    local.end()


def book_of(host: RayMachines, role: Role) -> list[str] | None:
    """Return the listed addresses of a role; None if there is no list."""
    host.refresh()
    book = host._sent_addresses.get(role.name)
    return None if book is None else book.splitlines()


def test_first_parameter_shard_is_listed_before_the_others(scene: Scene) -> None:
    host = scene.host()
    for places, told in (
        ((None, None), None),
        ((None, "b:1"), None),
        (("a:1", None), ["a:1"]),
        (("a:1", "b:1"), ["a:1", "b:1"]),
        ((None, "b:1"), ["a:1", "b:1"]),  # shard 0 is lost: its last address stays listed
        (("a:2", None), ["a:2", "b:1"]),  # shard 0 is restarted at another address
        ((None, "b:2"), ["a:2", "b:2"]),
    ):
        scene.places(PARAMETER_SERVER, *places)
        assert book_of(host, PARAMETER_SERVER) == told, places


def test_replay_shards_are_listed_once_all_have_started(scene: Scene) -> None:
    host = scene.host()
    for places, told in (
        (("a:1", None), None),
        (("a:1", "b:1"), ["a:1", "b:1"]),
        (("a:1", None), ["a:1", "b:1"]),
    ):
        scene.places(REPLAY_SERVER, *places)
        assert book_of(host, REPLAY_SERVER) == told, places


def test_rlx_servers_with_an_address_are_listed(scene: Scene) -> None:
    host = scene.host()
    for places, told in (((None, "b:1", None), ["b:1"]), (("a:1", "b:1"), ["a:1", "b:1"]), ((None,), [])):
        scene.places(RLX_SERVER, *places)
        assert book_of(host, RLX_SERVER) == told
        assert (scene.folder / RLX_SERVER.name).read_text().splitlines() == told, "environments elsewhere read it"


def test_processes_get_files_of_addresses(scene: Scene) -> None:
    scene.places(PARAMETER_SERVER, None)
    scene.places(RLX_SERVER, None)
    host = scene.host()
    told = host.server_addresses()
    assert told[PARAMETER_SERVER.name] == [f"@{FOLDER}/parameter-server"]
    assert told[REPLAY_SERVER.name] == []
    assert host.rlx_servers() == f"@{FOLDER}/rlx-server"
    assert host.configuration(scene.folder / "configuration.yaml") == f"{FOLDER}/configuration.yaml"


def test_changed_addresses_reach_running_and_new_processes(scene: Scene) -> None:
    scene.ray.add_machine("m1", CPU=8.0)
    host = scene.host()
    first, second = scene.started(host, RLX_SERVER, 2)
    scene.places(PARAMETER_SERVER, "a:1")
    for process in (first, second):
        wait_until(lambda process=process: process.exit_code() is None and process.address, "it is ready")  # type: ignore[misc]
    host.refresh()
    for place in ("a:1", "a:2"):
        scene.places(PARAMETER_SERVER, place)
        host.refresh()
        for actor in scene.ray.actors:
            wait_until(lambda actor=actor, place=place: actor.object.read("parameter-server") == f"{place}\n", "sent")  # type: ignore[misc]
    assert scene.ray.actors[0].object.read("configuration.yaml") == f"program: {scene.folder}/main.py\n"
    scene.started(host, LEARNER, 1)
    wait_until(lambda: scene.ray.actors[-1].object.read("parameter-server") == "a:2\n", "a new process has the address")
    both = "10.1.2.3:7\n10.1.2.3:7\n"
    wait_until(
        lambda: scene.ray.actors[-1].object.read("rlx-server") == both, "a new process has the addresses of all roles"
    )


def test_shards_have_bundles_of_a_placement_group(scene: Scene) -> None:
    scene.places(PARAMETER_SERVER, None, None)
    scene.places(REPLAY_SERVER, None)
    host = scene.host(resources={"replay-server": {"CPU": 2.0, "memory": 1e9}})
    assert scene.ray.groups == [
        ([{"CPU": 1.0}] * 2, "SPREAD"),
        ([{"CPU": 2.0, "memory": 1e9}], "SPREAD"),
    ]
    scene.started(host, PARAMETER_SERVER, 2)
    scene.started(host, REPLAY_SERVER, 1)
    assert scene.strategies == [(0, 0), (0, 1), (1, 0)]
    assert [(each["num_cpus"], each["memory"]) for each in scene.ray.actor_options] == [(1.0, None)] * 2 + [(2.0, 1e9)]
    host.prepare(scene.processes)
    assert len(scene.ray.groups) == 2, "the second time there is nothing to do"
    host.release()
    assert scene.ray.groups == [None, None]
    assert all(actor.killed for actor in scene.ray.actors)


def test_each_machine_gets_one_rlx_server(scene: Scene) -> None:
    for name, cores in (("m2", 4.0), ("m1", 8.0), ("small", 0.5)):
        scene.ray.add_machine(name, CPU=cores)
    host = scene.host()
    assert host.count(RLX_SERVER, {}) == 2
    servers = scene.started(host, RLX_SERVER, 3)
    assert scene.strategies == [("m1", True), ("m2", True), "SPREAD"]
    wait_until(lambda: servers[0].exit_code() is None and servers[0].address, "it is ready")
    servers[0].release_place("its machine is gone")
    servers[0].restart(LISTENS)
    assert scene.strategies[-1] == "SPREAD"


def test_scaled_rlx_servers_use_the_default_strategy(scene: Scene) -> None:
    scene.ray.add_machine("m1", CPU=8.0)
    host = scene.host(scaling="refusals", max_rlx_servers=4)
    assert host.count(RLX_SERVER, {}) == 1
    scene.started(host, RLX_SERVER, 1)
    assert scene.strategies == ["DEFAULT"]


def test_tensorboard_runs_beside_the_run_directory(scene: Scene) -> None:
    host = scene.host()
    scene.started(host, TENSORBOARD, 1)
    assert scene.strategies == [("here", False)]
    assert scene.ray.actor_options[0]["num_cpus"] == 0.0
    assert host.options(TENSORBOARD) == ["--metrics-dir", str(scene.folder / "metrics")]


def test_clients_use_the_environments_resource_if_it_exists(scene: Scene) -> None:
    scene.ray.add_machine("m1", CPU=8.0)
    host = scene.host(clients=3)
    assert host.count(CLIENT, {}) == 3
    scene.started(host, CLIENT, 1)
    scene.ray.add_machine("m2", environments=2.0)
    scene.started(host, CLIENT, 1)
    assert [(each["num_cpus"], each["resources"]) for each in scene.ray.actor_options] == [
        (1.0, {}),
        (0.0, {"environments": 1.0}),
    ]


def test_configured_resources_are_passed_to_ray(scene: Scene) -> None:
    host = scene.host(resources={"learner": {"GPU": 1.0, "CPU": 3.0, "fast": 2.0}})
    scene.started(host, LEARNER, 1)
    (options,) = scene.ray.actor_options
    assert (options["num_cpus"], options["num_gpus"], options["resources"]) == (3.0, 1.0, {"fast": 2.0})


def test_new_machine_gets_another_rlx_server(scene: Scene) -> None:
    scene.ray.add_machine("m1", CPU=8.0)
    scene.places(RLX_SERVER, "a:1")
    host = scene.host()
    host.refresh()
    assert [host.wanted(RLX_SERVER), host.wanted(LEARNER)] == [1, None]
    scene.ray.add_machine("m2", CPU=8.0)
    assert host.wanted(RLX_SERVER) == 2
    scene.ray.machines.pop()
    scene.places(RLX_SERVER, "a:1", "b:1")
    host.prepare(scene.processes)
    assert host.wanted(RLX_SERVER) == 2, "an RLX server of a removed machine moves to another"
    assert scene.host(rlx_servers=3).wanted(RLX_SERVER) is None


def test_requested_numbers_override_the_policy(scene: Scene) -> None:
    scene.places(RLX_SERVER, "a:1")
    (scene.folder / "asked.json").write_text('{"rlx-server": 5, "client": 2}')
    host = scene.host()
    host.refresh()
    assert [host.wanted(RLX_SERVER), host.wanted(CLIENT), host.wanted(LEARNER)] == [5, 2, None]


def test_rlx_servers_serve_their_status_by_default(scene: Scene) -> None:
    assert scene.host().options(RLX_SERVER) == ["--status-bind", "127.0.0.1:0"]
    assert scene.host(own_status=True).options(RLX_SERVER) == []
    assert scene.host().options(PARAMETER_SERVER) == ["--metrics-dir", f"{FOLDER}/metrics"]
    assert scene.host().options(LEARNER) == []


def test_waiting_shard_gets_the_resources_of_a_client(scene: Scene) -> None:
    scene.ray.add_machine("m1", CPU=8.0)
    host = scene.host()
    clients = scene.started(host, CLIENT, 3)
    for client in clients:
        wait_until(lambda client=client: client.exit_code() is None and client.snapshot, "it plays")  # type: ignore[misc]
    scene.ray.placed = False
    (shard,) = scene.started(host, PARAMETER_SERVER, 1)
    host.refresh()
    assert [client.exit_code() for client in clients] == [None] * 3, "the shard is not late yet"
    shard._started_at -= LATE_SECONDS
    host.refresh()
    host.refresh()
    assert [client.exit_code() for client in clients] == [None, None, EXIT_LOST], (
        "the last client ends, and only one at a time"
    )
    host._freed_at -= FREE_RESOURCES_SECONDS
    host.refresh()
    assert [client.exit_code() for client in clients] == [None, EXIT_LOST, EXIT_LOST]
    scene.ray.actors[-1].place()
    wait_until(lambda: shard.exit_code() is None and not shard.is_waiting_for_place, "it is placed", 60)
    host._freed_at -= FREE_RESOURCES_SECONDS
    host.refresh()
    assert clients[0].exit_code() is None, "the shard has a place"


def test_report_has_the_state_of_each_process(scene: Scene) -> None:
    scene.ray.add_machine("m1", CPU=8.0)
    host = scene.host()
    running, lost = scene.started(host, RLX_SERVER, 2)
    wait_until(lambda: running.exit_code() is None and running.address, "it is ready")
    lost.release_place("gone")
    scene.ray.placed = False
    scene.started(host, LEARNER, 1)
    found = report(scene.processes, scene.ray.nodes(), "fixed")
    states = {each["name"]: each["state"] for each in found["processes"]}
    assert states == {"rlx-server-0": "runs", "rlx-server-1": "ended (-9)", "learner-0": "waits for a machine"}
    first = found["processes"][0]
    assert running.snapshot is not None
    expected = {"machine": "10.1.2.3", "address": "10.1.2.3:7", "pid": running.snapshot.pid, "restarts": 0}
    assert first | expected == first
    assert first["connections"] is None, "it serves no status"
    assert found["machines"] == [{"address": "m1", "cpus": 8.0}]
