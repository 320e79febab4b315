"""Cars of TORCS for `relaax.client.run`, for agents that the robots cannot reach over RLX themselves."""

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
TIMEOUT = 60.0  # seconds until TORCS connects or responds
Floats = npt.NDArray[np.float32]


class RaceProcess(Protocol):
    """A process of TORCS."""

    def close(self) -> None:
        """End the process."""


StartRace = Callable[[str, str, int], RaceProcess]
"""A function that starts a race, given the address that its robot connects to, a token and a seed."""


class Car:
    """One race and its robot. This object is the RLX server of the robot.

    `is_driving`: whether an episode has begun with a step and has not ended.
    """

    def __init__(self, start: StartRace, seed: int) -> None:
        self.is_driving = False
        self._initial: Floats | None = None  # observation of an episode without an action so far
        token = secrets.token_hex(16)  # any program on this machine can connect
        self._connection = rlx.ServerConnection()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(TIMEOUT)
            self._race = start(f"127.0.0.1:{listener.getsockname()[1]}", token, seed)
            try:
                self._socket = self._accept(listener, token)
            except BaseException:
                self._race.close()
                raise

    def reset(self) -> Floats:
        """Start an episode and return the observation, [OBSERVED]."""
        if self._initial is None:
            self._initial = self._observation(self._receive(rlx.Init).observation)
        return self._initial

    def step(self, action: Floats) -> tuple[Floats | None, float, bool, bool]:
        """Apply an action, [2]. Return observation (None after a termination), reward, terminated, truncated."""
        self._initial = None
        self._send(rlx.Actions([np.asarray(action, np.float32)[None]]))
        outcome = self._receive(rlx.Step, rlx.Reset)
        reward = float(outcome.reward[0])
        self.is_driving = isinstance(outcome, rlx.Step)
        if self.is_driving:
            return self._observation(outcome.observation), reward, False, False
        self._send(rlx.EpisodeReturns(np.zeros(1)))
        cut = outcome.truncated is not None and bool(outcome.truncated[0])
        return self._observation(outcome.final_observation) if cut else None, reward, not cut, cut

    def close(self) -> None:
        """End the race."""
        self._socket.close()
        self._race.close()

    def _accept(self, listener: socket.socket, token: str) -> socket.socket:
        """Accept the robot's connection and welcome it. Raises Failure."""
        try:
            connected, _ = listener.accept()
        except TimeoutError:
            raise Failure(f"TORCS did not connect within {TIMEOUT:g} seconds") from None
        connected.settimeout(TIMEOUT)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        try:
            if not secrets.compare_digest(self._receive(rlx.Hello).token, token):
                raise Failure("a program other than the robot of TORCS connected to this one")
            self._send(rlx.Welcome(session_id="car", algorithm="", limits=self._connection.limits))
        except BaseException:
            connected.close()
            raise
        return connected

    def _receive(self, *kinds: type[Any]) -> Any:
        """Return the robot's next message that is not a metric. Raises Failure if it is of another kind."""
        while True:
            event = self._connection.next_event()
            if event is rlx.NEED_DATA:
                self._connection.receive_data(self._read())
            elif isinstance(event, kinds):
                return event
            elif not isinstance(event, rlx.Metrics):
                raise Failure("TORCS ended its connection unexpectedly")

    def _read(self) -> bytes:
        try:
            return self._socket.recv(1 << 16)
        except OSError as error:
            raise Failure(f"TORCS does not respond: {error}") from error

    def _send(self, message: rlx.Message) -> None:
        try:
            self._socket.sendall(self._connection.send(message))
        except OSError as error:
            raise Failure(f"TORCS closed its connection: {error}") from error

    @staticmethod
    def _observation(leaves: Sequence[Any]) -> Floats:
        return np.array(leaves[0][0], np.float32)


class Cars:
    """A vector of N cars, each in a separate race, like a vector of gymnasium without autoreset.

    `starts`: one function for each car. `seeded`: whether a new seed needs a new race, because episodes start anywhere.
    """

    autoreset_mode = "disabled"
    single_observation_space = Box(shape=(OBSERVED,))
    single_action_space = Box(-1, 1, shape=(DONE,))

    def __init__(self, starts: Sequence[StartRace], seeded: bool) -> None:
        self.num_envs = len(starts)
        self._starts = starts
        self._seeded = seeded
        self._cars: list[Car | None] = [None] * len(starts)
        self._observations = np.zeros((len(starts), OBSERVED), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Floats, dict[str, Any]]:
        """Start an episode for all cars, or by `options["reset_mask"]`, bool [N]. Return observations, [N, 32]."""
        for i in range(self.num_envs):
            if options is None or options["reset_mask"][i]:
                self._observations[i] = self._car(i, seed).reset()
        return self._observations.copy(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Apply actions, [N, 2]. Return observations, [N, 32], and rewards, terminated, truncated, [N]."""
        outcomes = [car.step(action) for car, action in zip(self._cars, actions, strict=True) if car is not None]
        for i, outcome in enumerate(outcomes):
            if outcome[0] is not None:
                self._observations[i] = outcome[0]
        rewards, terminated, truncated = (np.array([outcome[part] for outcome in outcomes]) for part in (1, 2, 3))
        return self._observations.copy(), rewards, terminated, truncated, {}

    def close(self) -> None:
        """End the races."""
        for car in self._cars:
            if car is not None:
                car.close()
        self._cars = [None] * self.num_envs

    def _car(self, index: int, seed: int | None) -> Car:
        """Return a car. Start a new race if it has none, or for a seed that needs one or cuts off an episode."""
        car = self._cars[index]
        if car is not None and seed is not None and (self._seeded or car.is_driving):
            car.close()
            car = None
        if car is None:
            car = self._cars[index] = Car(self._starts[index], 0 if seed is None else seed + index)
        return car
