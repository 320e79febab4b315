"""The trainings of a Ray cluster: each has a detached actor that owns its controller."""

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

from relaax.cluster.keeper import ASKED, PANEL, STATUS, Look
from relaax.cluster.machines import PlacedKeeper
from relaax.configuration import ConfigurationError, unknown
from relaax.configuration.roles import TOKENS
from relaax.server.address import AddressError, split_address

NAMESPACE = "relaax"
_PREFIX = "training-"
_SECONDS = 60.0
CONNECT_SECONDS = 10.0


class Commanded(Protocol):
    """What has a command."""

    def command(self) -> list[str]:
        """Return it."""


class Training:
    """One training: the actor that owns its controller."""

    def __init__(self, name: str, keeper: Any) -> None:
        self.name = name
        self._keeper = keeper

    def look(self, log_end: int) -> Look:
        """Return how its controller does, and what it has said since. Raises ConfigurationError if it is gone."""
        look: Look = self._answer(self._keeper.look.remote(log_end))
        return look

    @property
    def status(self) -> str:
        """Its processes and machines, as JSON; empty before any is started. Raises ConfigurationError if it is gone."""
        return self._read(STATUS)

    @property
    def panel(self) -> str:
        """What a terminal would show; empty before any process is started. Raises ConfigurationError if it is gone."""
        return self._read(PANEL)

    def ask(self, numbers: Mapping[str, int]) -> None:
        """Ask it for other numbers of processes, by role; earlier ones of other roles stay.

        Raises ConfigurationError if it is gone.
        """
        text = json.dumps({**json.loads(self._read(ASKED) or "{}"), **numbers})
        self._answer(self._keeper.put.remote({ASKED: text}))

    def terminate(self) -> None:
        """Ask it to end with a last checkpoint. Raises ConfigurationError if it is gone."""
        self._answer(self._keeper.terminate.remote())

    def _read(self, name: str) -> str:
        text: str = self._answer(self._keeper.read.remote(name))
        return text

    def _answer(self, asked: Any) -> Any:
        try:
            return ray.get(asked, timeout=_SECONDS)
        except RayError as error:
            raise ConfigurationError(f"{self.name} cannot be asked: {_first_line(error)}") from None

    def close(self) -> None:
        """Remove the actor."""
        ray.kill(self._keeper)


class Trainings:
    """Connects to a cluster. Raises ConfigurationError with a sentence if that fails."""

    def __init__(self, address: str) -> None:
        try:
            _require_somebody(address)
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

    def find(self, name: str) -> Training:
        """Return a training. Raises ConfigurationError if there is none of this name."""
        try:
            return Training(name, ray.get_actor(_PREFIX + name))
        except ValueError:
            raise ConfigurationError(unknown("training", name, self.names())) from None

    def begin(self, name: str, options: Commanded) -> Training:
        """Start a training's controller on this machine. Raises ConfigurationError if one of its name is there."""
        if name in self.names():
            training = self.find(name)
            if training.look(0).exit_code is None:
                raise ConfigurationError(
                    f"{name} is running: relaax cluster attach {name}, or --name for another beside it"
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


def _require_somebody(address: str) -> None:
    """Raise OSError if nobody listens: Ray would try for minutes."""
    if address != "auto":
        socket.create_connection(split_address(address), CONNECT_SECONDS).close()


def _tokens() -> Mapping[str, str]:
    return {name: os.environ[name] for name in TOKENS if name in os.environ}


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
