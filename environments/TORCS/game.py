"""Cars of TORCS for `relaax.client.run`, where the agent is no RLX server that their robots can reach themselves."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from relaax import rlx
from relaax.client import Box
from relaax.client.connection.failure import Failure

OBSERVED, DONE = 32, 2
PATIENCE = 60.0  # seconds for what TORCS does in one
Floats = npt.NDArray[np.float32]


class Racing(Protocol):
    """A process of TORCS."""

    def close(self) -> None:
        """End it."""


Start = Callable[[str, str, int], Racing]
"""Starts a race, given the address that its robot is to speak to, a token, and a seed."""


class Car:
    """One race and its robot, to which this is the RLX server."""

    def __init__(self, start: Start, seed: int) -> None:
        self._first: Floats | None = None  # what is observed where an episode has begun, and nothing was done yet
        token = secrets.token_hex(16)  # any program of this machine can connect
        self._connection = rlx.ServerConnection()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(PATIENCE)
            self._race = start(f"127.0.0.1:{listener.getsockname()[1]}", token, seed)
            try:
                self._socket = self._accepted(listener, token)
            except BaseException:
                self._race.close()
                raise

    def restart(self) -> Floats:
        """Begin an episode; return what is observed, [OBSERVED]."""
        if self._first is None:
            self._first = self._observed(self._hear(rlx.Init).observation)
        return self._first

    def do(self, action: Floats) -> tuple[Floats | None, float, bool, bool]:
        """Carry out an action, [2]: what is observed (None after a termination), reward, terminated, truncated."""
        self._first = None
        self._say(rlx.Actions([np.asarray(action, np.float32)[None]]))
        outcome = self._hear(rlx.Step, rlx.Reset)
        reward = float(outcome.reward[0])
        if isinstance(outcome, rlx.Step):
            return self._observed(outcome.observation), reward, False, False
        self._say(rlx.EpisodeReturns(np.zeros(1)))
        cut = outcome.truncated is not None and bool(outcome.truncated[0])
        return self._observed(outcome.final_observation) if cut else None, reward, not cut, cut

    def close(self) -> None:
        """End the race."""
        self._socket.close()
        self._race.close()

    def _accepted(self, listener: socket.socket, token: str) -> socket.socket:
        """Return the connection of the robot, welcomed. Raises Failure."""
        try:
            connected, _ = listener.accept()
        except TimeoutError:
            raise Failure(f"TORCS has not begun within {PATIENCE:g} seconds") from None
        connected.settimeout(PATIENCE)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        try:
            if not secrets.compare_digest(self._hear(rlx.Hello).token, token):
                raise Failure("another program than the robot of TORCS has connected to this one")
            self._say(rlx.Welcome(session_id="car", algorithm="", limits=self._connection.limits))
        except BaseException:
            connected.close()
            raise
        return connected

    def _hear(self, *kinds: type[Any]) -> Any:
        """Return the robot's next message that is no metric. Raises Failure if it has ended."""
        while True:
            event = self._connection.next_event()
            if event is rlx.NEED_DATA:
                self._connection.receive_data(self._received())
            elif isinstance(event, kinds):
                return event
            elif not isinstance(event, rlx.Metrics):
                raise Failure("TORCS has ended by itself")

    def _received(self) -> bytes:
        try:
            return self._socket.recv(1 << 16)
        except OSError as error:
            raise Failure(f"TORCS does not answer: {error}") from error

    def _say(self, message: rlx.Message) -> None:
        try:
            self._socket.sendall(self._connection.send(message))
        except OSError as error:
            raise Failure(f"TORCS has ended by itself: {error}") from error

    @staticmethod
    def _observed(leaves: Sequence[Any]) -> Floats:
        return np.array(leaves[0][0], np.float32)


class Cars:
    """A vector of N cars, each in a race of its own: as gymnasium's, which does not reset by itself.

    `starts`: one for each car. `seeded`: a seed matters, because an episode begins anywhere.
    """

    autoreset_mode = "disabled"
    single_observation_space = Box(shape=(OBSERVED,))
    single_action_space = Box(-1, 1, shape=(DONE,))

    def __init__(self, starts: Sequence[Start], seeded: bool) -> None:
        self.num_envs = len(starts)
        self._starts = starts
        self._seeded = seeded
        self._cars: list[Car | None] = [None] * len(starts)
        self._seen = np.zeros((len(starts), OBSERVED), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Floats, dict[str, Any]]:
        """Begin an episode with every car, or where `options["reset_mask"]`, [N], is true; what is seen, [N, 32]."""
        for i in range(self.num_envs):
            if options is None or options["reset_mask"][i]:
                self._seen[i] = self._car(i, seed).restart()
        return self._seen.copy(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Carry out actions, [N, 2]: what is observed, [N, 32], and rewards, terminated, truncated, [N]."""
        outcomes = [car.do(action) for car, action in zip(self._cars, actions, strict=True) if car is not None]
        for i, outcome in enumerate(outcomes):
            if outcome[0] is not None:
                self._seen[i] = outcome[0]
        rewards, terminated, truncated = (np.array([outcome[part] for outcome in outcomes]) for part in (1, 2, 3))
        return self._seen.copy(), rewards, terminated, truncated, {}

    def close(self) -> None:
        """End the races."""
        for car in self._cars:
            if car is not None:
                car.close()
        self._cars = [None] * self.num_envs

    def _car(self, index: int, seed: int | None) -> Car:
        """Return a car, of a new race if it has none, or one of another seed."""
        car = self._cars[index]
        if car is not None and seed is not None and self._seeded:
            car.close()
            car = None
        if car is None:
            car = self._cars[index] = Car(self._starts[index], 0 if seed is None else seed + index)
        return car
