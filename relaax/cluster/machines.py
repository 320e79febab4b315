"""The machines of a Ray cluster as the host of a run's processes."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from relaax.cluster.keeper import FOLDER, HOST, Keeper
from relaax.cluster.remote_process import RemoteProcess
from relaax.configuration import HERE, roles
from relaax.configuration.roles import PARAMETER_SERVER, REPLAY_SERVER, RLX_SERVER, Addresses, Role
from relaax.configuration.sections import ClusterSection
from relaax.supervision.host import Host
from relaax.supervision.process import Supervised

_log = logging.getLogger(__name__)

ENVIRONMENTS = "environments"
"""The custom resource of machines that environment programs go to, where any has it: `ray start --resources`."""
_SPREAD = (PARAMETER_SERVER, REPLAY_SERVER)
_CONFIGURATION = "configuration.yaml"


class RayMachines(Host):
    """Keepers on the machines of a cluster that this process is connected to (`ray.init`).

    `configuration`: the file of the servers' configuration, of which each keeper gets a copy. Shards are spread over
    machines by a placement group, which Ray places anew where a machine is lost. Who listens does so at the machine's
    address, at a free port; files in each keeper's folder say where everybody is, and change when somebody moves.
    """

    start_seconds = 600.0  # a machine may have to be started first
    reserves = False

    def __init__(self, section: ClusterSection, configuration: Path) -> None:
        self._section = section
        self._configuration = configuration
        self._processes: Mapping[str, Sequence[Supervised]] = {}
        self._groups: dict[str, PlacementGroup] = {}
        self._told: dict[str, str] = {}

    def count(self, role: Role, sections: roles.Sections) -> int:
        if role is not RLX_SERVER:
            return super().count(role, sections)
        return self._section.rlx_servers or len(serving_machines(self._resources(RLX_SERVER)))

    def process(self, role: Role, number: int, name: str, log: Path, secrets: Mapping[str, str]) -> Supervised:
        return RemoteProcess(name, log, lambda: self._placed(role, number, name, secrets), self._files)

    def prepare(self, processes: Mapping[str, Sequence[Supervised]]) -> None:
        self._processes = processes
        for role in _SPREAD:
            if role.name not in self._groups and processes[role.name]:
                bundles = [self._resources(role)] * len(processes[role.name])
                self._groups[role.name] = placement_group(bundles, strategy="SPREAD", name=f"relaax-{role.name}")

    def release(self) -> None:
        for processes in self._processes.values():
            for process in processes:
                if isinstance(process, RemoteProcess):
                    process.close()
        for group in self._groups.values():
            with contextlib.suppress(RayError):
                remove_placement_group(group)
        self._groups = {}

    def bind(self, role: Role, number: int, process: Supervised) -> str:
        return f"{HOST}:0"

    def told(self) -> Addresses:
        return {
            role.name: [f"@{FOLDER}/{role.name}"] if self._processes.get(role.name) else [] for role in roles.servers()
        }

    def actual(self, role: Role) -> list[str]:
        return [process.address or "127.0.0.1:0" for process in self._processes.get(role.name, ())]

    def configuration(self, file: Path) -> str:
        return f"{FOLDER}/{_CONFIGURATION}"

    def rlx_servers(self) -> str:
        return f"@{FOLDER}/{RLX_SERVER.name}"

    def refresh(self) -> None:
        """Tell all keepers where everybody is, if that has changed."""
        now = self._books()
        if now != self._told:
            self._told = now
            for processes in self._processes.values():
                for process in processes:
                    if isinstance(process, RemoteProcess):
                        process.put(now)

    def _files(self) -> dict[str, str]:
        text = self._configuration.read_text(encoding="utf-8")
        return {_CONFIGURATION: text.replace(HERE, str(self._configuration.parent)), **self._books()}

    def _books(self) -> dict[str, str]:
        """Return the addresses of each role that others connect to, one on each line.

        Of shards all or none: their order counts, and of one that is away the last place is known.
        """
        books = {}
        for role in (PARAMETER_SERVER, REPLAY_SERVER, RLX_SERVER):
            places = [process.address for process in self._processes.get(role.name, ())]
            before = self._told.get(role.name, "").split()
            if role.reserved:
                if len(before) == len(places):
                    places = [place or last for place, last in zip(places, before, strict=True)]
                elif role is PARAMETER_SERVER and places and places[0] and not all(places):
                    places = places[:1]  # the first leads: the others connect to it as they start
                if not all(places):
                    continue
            books[role.name] = "".join(f"{place}\n" for place in places if place)
        return books

    def _resources(self, role: Role) -> dict[str, float]:
        asked = self._section.resources.get(role.name)
        if asked is not None:
            return dict(asked)
        if role.module is None and any(ENVIRONMENTS in node["Resources"] for node in alive()):
            return {ENVIRONMENTS: 1.0}
        return {"CPU": 0.0 if not role.vital else 1.0}

    def _placed(self, role: Role, number: int, name: str, secrets: Mapping[str, str]) -> Any:
        """Return a new keeper, which Ray places."""
        resources = self._resources(role)
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
        elif role is RLX_SERVER:
            machines = serving_machines(self._resources(RLX_SERVER))
            if machines:
                chosen = machines[number % len(machines)]
                options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(chosen, soft=True)
        else:
            options["scheduling_strategy"] = "SPREAD"
        return ray.remote(PlacedKeeper).options(**options).remote(name, role.module is not None, dict(secrets))


class PlacedKeeper(Keeper):
    """A keeper that knows its machine's address from Ray."""

    def __init__(self, name: str, server: bool, secrets: Mapping[str, str]) -> None:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        super().__init__(name, host, server, secrets)


def alive() -> list[dict[str, Any]]:
    """Return Ray's records of the machines that are there."""
    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def serving_machines(resources: Mapping[str, float]) -> list[str]:
    """Return the ids of the machines that have such resources at all, free or not, in a stable order."""
    return sorted(
        node["NodeID"]
        for node in alive()
        if all(node["Resources"].get(name, 0.0) >= amount for name, amount in resources.items())
    )
