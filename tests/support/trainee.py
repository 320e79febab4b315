"""A client that trains until it is stopped."""

from __future__ import annotations

import math
import threading
import time

import gymnasium

from relaax.client import Client
from support.processes import wait_until


class Training:
    """A client in its own thread that trains with the server at `address` until `stop`."""

    def __init__(self, address: str, rate: float = math.inf, response_timeout: float = 5.0) -> None:
        """`rate`: maximum steps per second."""
        self.steps = 0
        self.error: BaseException | None = None
        self._address = address
        self._response_timeout = response_timeout
        self._pause = 1 / rate
        self._due = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        env = gymnasium.make("CartPole-v1")
        try:
            spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
            with Client(self._address, **spaces, response_timeout=self._response_timeout, retry_seconds=60) as client:
                while not self._stop.is_set():
                    state, _ = env.reset()
                    action = client.init(state)
                    ended = False
                    while not ended and not self._stop.is_set():
                        self._wait()
                        state, reward, terminated, truncated, _ = env.step(action)
                        self.steps += 1
                        ended = terminated or truncated
                        if ended:
                            client.reset(float(reward), truncated=not terminated, state=state)
                        else:
                            action = client.send(float(reward), state)
        except BaseException as error:
            self.error = error
        finally:
            env.close()

    def _wait(self) -> None:
        now = time.monotonic()
        self._stop.wait(max(0.0, self._due - now))
        self._due = max(self._due, now - self._pause) + self._pause

    def expect_more(self, steps: int = 50) -> None:
        """Wait for more steps of the environment, which need actions of the server."""
        wanted = self.steps + steps

        def has_more_steps() -> bool:
            if self.error is not None:
                raise AssertionError("the client gave up") from self.error
            return self.steps >= wanted

        wait_until(has_more_steps, f"{steps} more steps", 60)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the client hangs"
        assert self.error is None, self.error
