"""The trainings of a Ray cluster. A detached actor owns the controller of each training."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Mapping
from typing import Any, Protocol

import ray
from ray.exceptions import AuthenticationError, RayError
from ray.util import list_named_actors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from relaax.cluster.keeper import PANEL, REQUESTED, STATUS, ProcessSnapshot
from relaax.cluster.machines import PlacedKeeper
from relaax.configuration import ConfigurationError, unknown
from relaax.configuration.roles import TOKENS
from relaax.server.address import AddressError, split_address

NAMESPACE = "relaax"
_PREFIX = "training-"
_SECONDS = 60.0
CONNECT_SECONDS = 10.0


class HasCommand(Protocol):
    """An object with a command line."""

    def command(self) -> list[str]:
        """Return the command line."""


class Training:
    """One training: the actor that owns its controller."""

    def __init__(self, name: str, keeper: Any) -> None:
        self.name = name
        self._keeper = keeper

    def snapshot(self, log_end: int) -> ProcessSnapshot:
        """Return the controller's state and its log after `log_end`. Raises ConfigurationError if the actor is gone."""
        snapshot: ProcessSnapshot = self._answer(self._keeper.snapshot.remote(log_end))
        return snapshot

    @property
    def status(self) -> str:
        """Processes and machines as JSON, empty before the start. Raises ConfigurationError if the actor is gone."""
        return self._read(STATUS)

    @property
    def panel(self) -> str:
        """Text of the panel; empty before the first start. Raises ConfigurationError if the actor is gone."""
        return self._read(PANEL)

    def scale(self, numbers: Mapping[str, int]) -> None:
        """Request other numbers of processes, by role. Earlier requests for other roles stay.

        Raises ConfigurationError if the actor is gone.
        """
        text = json.dumps({**json.loads(self._read(REQUESTED) or "{}"), **numbers})
        self._answer(self._keeper.put.remote({REQUESTED: text}))

    def terminate(self) -> None:
        """Stop the training after a last checkpoint. Raises ConfigurationError if the actor is gone."""
        self._answer(self._keeper.terminate.remote())

    def _read(self, name: str) -> str:
        text: str = self._answer(self._keeper.read.remote(name))
        return text

    def _answer(self, asked: Any) -> Any:
        try:
            return ray.get(asked, timeout=_SECONDS)
        except RayError as error:
            raise ConfigurationError(f"{self.name}: its actor does not respond: {_first_line(error)}") from None

    def close(self) -> None:
        """Remove the actor."""
        ray.kill(self._keeper)


class Trainings:
    """Access to the trainings of a cluster. Raises ConfigurationError if the connection fails."""

    def __init__(self, address: str) -> None:
        try:
            _check_listening(address)
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, AddressError, AuthenticationError, RuntimeError, ValueError) as error:
            raise ConfigurationError(
                f"no Ray cluster at {address}: {_first_line(error)}; `ray start --head` starts one, and with "
                "RAY_AUTH_MODE=token each machine needs its token"
            ) from None

    def names(self) -> list[str]:
        """Return the names of all trainings."""
        found = list_named_actors(all_namespaces=True)
        ours = [each["name"] for each in found if each["namespace"] == NAMESPACE]
        return sorted(name.removeprefix(_PREFIX) for name in ours if name.startswith(_PREFIX))

    def cores(self) -> int:
        """Return the number of processors of all machines."""
        nodes = ray.nodes()  # type: ignore[no-untyped-call]
        return int(sum(node["Resources"].get("CPU", 0) for node in nodes if node["Alive"]))

    def find(self, name: str) -> Training:
        """Return a training by its name. Raises ConfigurationError if it does not exist."""
        try:
            return Training(name, ray.get_actor(_PREFIX + name))
        except ValueError:
            raise ConfigurationError(unknown("training", name, self.names())) from None

    def start(self, name: str, options: HasCommand) -> Training:
        """Start a training's controller on this machine. Raises ConfigurationError if the name is in use."""
        if name in self.names():
            training = self.find(name)
            if training.snapshot(0).exit_code is None:
                raise ConfigurationError(
                    f"{name} is running: relaax cluster attach {name}, or --name to start another training"
                )
            training.close()
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        keeper: Any = (
            ray.remote(PlacedKeeper)
            .options(name=_PREFIX + name, lifetime="detached", num_cpus=0, scheduling_strategy=here, max_restarts=0)
            .remote("controller", False, _tokens())
        )
        ray.get(keeper.start.remote(options.command(), {}), timeout=_SECONDS)
        return Training(name, keeper)


def _check_listening(address: str) -> None:
    """Raise OSError if the address does not accept connections. Ray itself would retry for minutes."""
    if address != "auto":
        socket.create_connection(split_address(address), CONNECT_SECONDS).close()


def _tokens() -> Mapping[str, str]:
    return {name: os.environ[name] for name in TOKENS if name in os.environ}


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
