"""The machines of a Ray cluster as the host of a run's processes, and the report for `relaax cluster status`."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from relaax.cluster.keeper import FOLDER, HOST, METRICS, Control, Keeper
from relaax.cluster.remote_process import RemoteProcess
from relaax.cluster.scaling import REFUSALS, Occupancy, Scaling
from relaax.configuration import HERE, roles
from relaax.configuration.roles import (
    CLIENT,
    LEARNER,
    PARAMETER_SERVER,
    REPLAY_SERVER,
    RLX_SERVER,
    TENSORBOARD,
    Addresses,
    Role,
)
from relaax.configuration.sections import ClusterSection
from relaax.files import write_whole
from relaax.supervision.host import Host
from relaax.supervision.process import Supervised

_log = logging.getLogger(__name__)

_FIGURE = "relaax_rlx_server_{}"
_REFUSALS = tuple(f'{_FIGURE.format("refusals_total")}{{reason="{reason}"}}' for reason in REFUSALS)


def occupancy(server: Supervised) -> Occupancy | None:
    """Return the connections of an RLX server; None before its first snapshot with figures."""
    figures = server.snapshot.figures if isinstance(server, RemoteProcess) and server.snapshot is not None else {}
    if not figures:
        return None
    return Occupancy(
        int(figures[_FIGURE.format("workers")]),
        int(figures[_FIGURE.format("free_places")]),
        int(sum(figures.get(name, 0.0) for name in _REFUSALS)),
    )


def report(
    processes: Mapping[str, Sequence[Supervised]], machines: Iterable[Mapping[str, Any]], scaling: str
) -> dict[str, Any]:
    """Return the state of processes and machines for JSON. `machines`: Ray's records. `scaling`: the policy."""
    return {
        "scaling": scaling,
        "processes": [_process(each) for ours in processes.values() for each in ours],
        "machines": [
            {"address": node["NodeManagerAddress"], "cpus": node["Resources"].get("CPU", 0.0)} for node in machines
        ],
    }


def _process(process: Supervised) -> dict[str, Any]:
    snapshot = process.snapshot if isinstance(process, RemoteProcess) else None
    code = process.exit_code()
    if code is not None:
        state = f"ended ({code})"
    elif snapshot is None:
        state = "waits for a machine"
    else:
        state = "runs"
    connections = occupancy(process)
    return {
        "name": process.name,
        "state": state,
        "machine": snapshot.host if snapshot is not None else None,
        "address": process.address,
        "pid": snapshot.pid if snapshot is not None else None,
        "restarts": process.restarts,
        "connections": None if connections is None else connections.workers,
        "free_places": None if connections is None else connections.free,
        "refused": None if connections is None else connections.refused,
    }


ENVIRONMENTS = "environments"
"""Custom resource of the machines for environment programs, if any machine has it (`ray start --resources`)."""
_SPREAD = (PARAMETER_SERVER, REPLAY_SERVER)
_CONFIGURATION = "configuration.yaml"
NODES_SECONDS = 1.0
FREE_RESOURCES_SECONDS = 15.0
"""Pause between two environment programs that are killed to free resources for a shard or learner without a machine."""


class RayMachines(Host):
    """The machines of the cluster that this process is connected to (`ray.init`).

    A Ray actor, the keeper (`relaax.cluster.keeper`), starts and watches each process on its machine.
    A placement group spreads shards over machines; after the loss of a machine, Ray places its shards on another one.
    Servers listen at the address of their machine, on a free port. Files in each keeper's folder hold all addresses and
    are updated when a server moves. Logs and metrics are copied to the run directory.
    """

    start_seconds = 600.0  # a machine may have to be started first
    reserves = False

    def __init__(
        self, section: ClusterSection, configuration: Path, metrics: Path, control: Control, own_status: bool
    ) -> None:
        """`configuration`: its file in the run directory. `metrics`: the metrics folder in the run directory.
        `own_status`: whether the configuration sets the status address of RLX servers.
        """
        super().__init__()
        self._control = control
        self._section = section
        self._configuration = configuration
        self._metrics = metrics
        self._own_status = own_status
        self._scaling = None if section.scaling == "fixed" else Scaling(section)
        self._requested: Mapping[str, int] = {}
        self._freed_at = 0.0
        self._nodes: list[dict[str, Any]] = []
        self._nodes_at = -math.inf
        self._groups: dict[str, PlacementGroup] = {}
        self._sent_addresses: dict[str, str] = {}

    def count(self, role: Role, sections: roles.Sections) -> int:
        if role is RLX_SERVER:
            return self._servers()
        if role is CLIENT and self._section.clients is not None:
            return self._section.clients
        return super().count(role, sections)

    def _servers(self) -> int:
        if self._scaling is not None:
            return self._section.rlx_servers or 1
        return self._section.rlx_servers or len(self._serving(self._resources(RLX_SERVER))) or 1

    def wanted(self, role: Role) -> int | None:
        if role.name in self._requested:
            return self._requested[role.name]
        if role is not RLX_SERVER:
            return None
        servers = self._processes.get(RLX_SERVER.name, ())
        if self._scaling is None:  # one server for each new machine
            return None if self._section.rlx_servers else max(len(servers), self._servers())
        return self._scaling.wanted(time.monotonic(), [occupancy(server) for server in servers])

    def options(self, role: Role) -> list[str]:
        if role is PARAMETER_SERVER:
            return ["--metrics-dir", f"{FOLDER}/{METRICS}"]
        if role is RLX_SERVER and not self._own_status:
            return ["--status-bind", "127.0.0.1:0"]
        return ["--metrics-dir", str(self._metrics)] if role is TENSORBOARD else []

    def retire(self, process: Supervised) -> None:
        if isinstance(process, RemoteProcess):
            process.close()

    def process(self, role: Role, number: int, name: str, log: Path, secrets: Mapping[str, str]) -> Supervised:
        place = functools.partial(self._placed, role, number, name, secrets)
        return RemoteProcess(name, log, role.module is not None, place, self._files, self._metrics)

    def prepare(self, processes: Mapping[str, Sequence[Supervised]]) -> None:
        self._processes = processes
        for role in _SPREAD:
            if role.name not in self._groups and processes[role.name]:
                bundles = [self._resources(role)] * len(processes[role.name])
                self._groups[role.name] = placement_group(bundles, strategy="SPREAD")

    def release(self) -> None:
        for process in self._remote:
            process.close()
        for group in self._groups.values():
            with contextlib.suppress(RayError):
                remove_placement_group(group)
        self._groups = {}

    def bind(self, role: Role, number: int, process: Supervised) -> str:
        return f"{HOST}:0"

    def server_addresses(self) -> Addresses:
        return {
            role.name: [f"@{FOLDER}/{role.name}"] if self._processes.get(role.name) else []
            for role in roles.listening_roles()
        }

    def configuration(self, file: Path) -> str:
        return f"{FOLDER}/{_CONFIGURATION}"

    def rlx_servers(self) -> str:
        return f"@{FOLDER}/{RLX_SERVER.name}"

    def refresh(self) -> None:
        """Send changed addresses to all keepers, and free resources for a shard or learner that waits for a machine."""
        self._requested = self._control.turn(lambda: report(self._processes, self._alive(), self._section.scaling))
        self._free_resources()
        now = self._address_files()
        if now != self._sent_addresses:
            self._sent_addresses = now
            with contextlib.suppress(OSError):
                write_whole(self._configuration.parent / RLX_SERVER.name, [now.get(RLX_SERVER.name, "").encode()])
            for process in self._remote:
                process.put(now)

    def _free_resources(self) -> None:
        """Kill a client if a shard or learner waits for a machine. Training continues with fewer clients."""
        if time.monotonic() < self._freed_at or not self._resources(CLIENT).get("CPU"):
            return
        vital = (each for role in (PARAMETER_SERVER, REPLAY_SERVER, LEARNER) for each in self._processes[role.name])
        if any(isinstance(each, RemoteProcess) and each.is_waiting_for_place for each in vital):
            self._freed_at = time.monotonic() + FREE_RESOURCES_SECONDS
            for client in reversed(self._processes[CLIENT.name]):
                if isinstance(client, RemoteProcess) and client.snapshot is not None:
                    _log.warning(
                        "killing %s to free resources for a shard or learner that waits for a machine", client.name
                    )
                    client.release_place("its resources were needed for a shard or learner")
                    return

    def _files(self) -> dict[str, str]:
        text = self._configuration.read_text(encoding="utf-8")
        return {_CONFIGURATION: text.replace(HERE, str(self._configuration.parent)), **self._address_files()}

    def _address_files(self) -> dict[str, str]:
        """Return a file for each server role: the addresses of its processes, one on each line.

        The order of shards matters, so a file has all shards or is not written. An unavailable shard keeps its
        last address.
        """
        books = {}
        for role in (PARAMETER_SERVER, REPLAY_SERVER, RLX_SERVER):
            places = [process.address for process in self._processes.get(role.name, ())]
            before = self._sent_addresses.get(role.name, "").split()
            if role.reserved:
                if len(before) == len(places):
                    places = [place or last for place, last in zip(places, before, strict=True)]
                elif role is PARAMETER_SERVER and places and places[0] and not all(places):
                    places = places[:1]  # the first shard leads: the others connect to it when they start
                if not all(places):
                    continue
            books[role.name] = "".join(f"{place}\n" for place in places if place)
        return books

    def _resources(self, role: Role) -> dict[str, float]:
        asked = self._section.resources.get(role.name)
        if asked is not None:
            return dict(asked)
        if role.module is None and any(ENVIRONMENTS in node["Resources"] for node in self._alive()):
            return {ENVIRONMENTS: 1.0}
        return {"CPU": 0.0 if not role.vital else 1.0}

    @property
    def _remote(self) -> Iterator[RemoteProcess]:
        for processes in self._processes.values():
            yield from (process for process in processes if isinstance(process, RemoteProcess))

    def _alive(self) -> list[dict[str, Any]]:
        """Return Ray's records of the machines that are alive, at most one second old."""
        if time.monotonic() >= self._nodes_at + NODES_SECONDS:
            self._nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
            self._nodes_at = time.monotonic()
        return self._nodes

    def _serving(self, resources: Mapping[str, float]) -> list[str]:
        """Return the sorted ids of the machines that have these resources, free or in use."""
        return sorted(
            node["NodeID"]
            for node in self._alive()
            if all(node["Resources"].get(name, 0.0) >= amount for name, amount in resources.items())
        )

    def _placed(self, role: Role, number: int, name: str, secrets: Mapping[str, str], again: bool) -> Any:
        """Return a new keeper, which Ray places on a machine. `again`: whether the process had a keeper before."""
        resources = self._resources(role)
        machines = self._serving(resources) if role is RLX_SERVER and not again else []
        options: dict[str, Any] = {
            "num_cpus": resources.pop("CPU", 0.0),
            "num_gpus": resources.pop("GPU", 0.0),
            "memory": resources.pop("memory", None),
            "resources": resources,
            "max_restarts": 0,
        }
        if role.name in self._groups:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                placement_group=self._groups[role.name], placement_group_bundle_index=number
            )
        elif role is TENSORBOARD:  # it reads the run directory
            here = ray.get_runtime_context().get_node_id()
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(here, soft=False)
        elif role is RLX_SERVER and self._scaling is not None:
            options["scheduling_strategy"] = "DEFAULT"  # fills machines, so that idle ones can be removed
        elif number < len(machines):
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(machines[number], soft=True)
        else:
            options["scheduling_strategy"] = "SPREAD"
        return ray.remote(PlacedKeeper).options(**options).remote(name, role.module is not None, dict(secrets))


class PlacedKeeper(Keeper):
    """A keeper that gets the address of its machine from Ray."""

    def __init__(self, name: str, server: bool, secrets: Mapping[str, str]) -> None:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        with contextlib.suppress(PermissionError):  # Ray starts workers at nice 15
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        super().__init__(name, host, server, secrets)
