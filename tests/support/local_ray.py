"""A substitute for Ray in this process. An actor is an object with a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError

from relaax.cluster.keeper import Keeper


class LocalActor:
    """An actor. Its calls wait until it is placed, and fail after it is lost."""

    def __init__(self, make: Callable[[], Any], placed: bool = True) -> None:
        self._make = make
        self.object: Any = None
        self.killed = self.unavailable = False
        self.calls = 0
        """Number of calls that were answered or failed."""
        self._lost = threading.Event()
        self._decided = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        if placed:
            self.place()

    def place(self) -> None:
        self.object = self._make()
        self._decided.set()

    def lose(self) -> None:
        """Fail all later calls, as Ray does after the loss of a machine."""
        self._lost.set()
        self._decided.set()

    def call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        self._decided.wait(60)
        self.calls += 1
        if self._lost.is_set():
            raise RayActorError
        if self.unavailable:
            raise ActorUnavailableError("its machine does not answer", None)
        try:
            return getattr(self.object, method)(*arguments)
        except Exception as error:
            raise RayTaskError(method, "", error) from None

    def __getattr__(self, name: str) -> Any:
        return _Method(self, name)

    def end(self) -> None:
        """End the actor's object and its thread."""
        self.lose()
        self._thread.shutdown()
        if self.object is not None:
            self.object.close()


class _Method:
    def __init__(self, actor: LocalActor, name: str) -> None:
        self._actor, self._name = actor, name

    def remote(self, *arguments: Any) -> Future[Any]:
        return self._actor._thread.submit(self._actor.call, self._name, arguments)


def node_id(name: str) -> str:
    """Return the id of a machine with this name, in the format that Ray requires."""
    return name.encode().hex().ljust(56, "0")


class LocalRay:
    """A substitute for the module `ray`, with records of `machines`. `placed`: whether actors are placed at once."""

    def __init__(self) -> None:
        self.machines: list[dict[str, Any]] = []
        self.placed = True
        self.actors: list[LocalActor] = []
        self.actor_options: list[dict[str, Any]] = []
        """The options of each actor."""
        self.groups: list[Any] = []
        """The bundles and the strategy of each placement group; None after it was removed."""

    def add_machine(self, name: str, **resources: float) -> None:
        self.machines.append(
            {"NodeID": node_id(name), "NodeManagerAddress": name, "Alive": True, "Resources": resources}
        )

    def remote(self, _: type[Keeper]) -> LocalRay:
        return self

    def options(self, **options: Any) -> Any:
        self.actor_options.append(options)
        return SimpleNamespace(remote=self._make)

    def _make(self, name: str, server: bool, secrets: dict[str, str]) -> LocalActor:
        self.actors.append(LocalActor(lambda: Keeper(name, "10.1.2.3", server, secrets), self.placed))
        return self.actors[-1]

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: node_id("here"))

    def placement_group(self, bundles: list[dict[str, float]], strategy: str) -> int:
        self.groups.append((bundles, strategy))
        return len(self.groups) - 1

    def remove_placement_group(self, group: int) -> None:
        self.groups[group] = None

    def end(self) -> None:
        for actor in self.actors:
            actor.end()

    def nodes(self) -> list[dict[str, Any]]:
        return self.machines

    def wait(self, futures: Sequence[Future[Any]], timeout: float) -> tuple[list[Future[Any]], list[Future[Any]]]:
        return [future for future in futures if future.done()], [future for future in futures if not future.done()]

    def get(self, future: Future[Any], timeout: float = 60.0) -> Any:
        return future.result(timeout)

    def kill(self, actor: LocalActor) -> None:
        actor.killed = True
        actor.lose()


def use_local_ray(monkeypatch: pytest.MonkeyPatch) -> LocalRay:
    """Replace Ray in the modules of `relaax.cluster`."""
    local = LocalRay()
    for name in ("placement_group", "remove_placement_group"):
        monkeypatch.setattr(f"relaax.cluster.machines.{name}", getattr(local, name))
    for module in ("machines", "remote_process"):
        monkeypatch.setattr(f"relaax.cluster.{module}.ray", local)
    return local
