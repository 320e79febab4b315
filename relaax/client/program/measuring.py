"""Speed of environments and agents: measurements, a maximum rate, and environments stepped alone."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from relaax import rlx
from relaax.client.connection.failure import CannotWrite
from relaax.client.connection.values import values_of
from relaax.client.program.agents import RandomAgent
from relaax.client.program.checked_env import autoreset_of

Act = Callable[[Any], Any]
Work = Callable[[rlx.Space, rlx.Space, int], Callable[[], None]]
"""A function of observation space, action space and number of environments. It returns the work of a step."""

LINE_SECONDS = 0.2
DRAWN_ACTIONS = 1024


class JsonLines:
    """A file of JSON lines, one every 0.2 seconds. `due`: time of the next line, by `time.monotonic`.

    Each line has `time`: seconds of that clock, which all processes of a machine share. Raises CannotWrite.
    """

    def __init__(self, file: str | Path) -> None:
        self.due = 0.0
        self._path = Path(file)
        try:
            self._file = self._path.open("w", encoding="utf-8")
        except OSError as error:
            raise CannotWrite("--measure", self._path, error) from None

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # from a line that could not be written
            self._file.close()

    def write(self, line: dict[str, Any]) -> None:
        """Write one whole line."""
        now = time.monotonic()
        try:
            self._file.write(json.dumps({"time": now, **line}) + "\n")
            self._file.flush()
        except OSError as error:
            raise CannotWrite("--measure", self._path, error) from None
        self.due = now + LINE_SECONDS


class _Wrapper:
    """A wrapper of an agent: every call that returns actions is passed to `_call`."""

    def __init__(self, agent: Any, environments: int = 1) -> None:
        self._agent, self._environments = agent, environments

    def __enter__(self) -> Any:
        self._agent.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._agent.__exit__(*raised)

    @property
    def parameters(self) -> Any:
        """The server's parameters."""
        return self._agent.parameters

    def init(self, states: Any, **more: Any) -> Any:
        """Return the first action of an episode."""
        return self._call(self._agent.init, 0, states, **more)

    def send(self, *outcome: Any, **more: Any) -> Any:
        """Return the next action of one environment."""
        return self._call(self._agent.send, 1, *outcome, **more)

    def step(self, *outcome: Any, **more: Any) -> Any:
        """Return the next actions of N environments. Out of step, each requested action counts as a step."""
        without = more.get("idle", more.get("first"))
        void = 0 if without is None else int(without.sum())
        return self._call(self._agent.step, self._environments - void, *outcome, **more)

    def reset(self, *outcome: Any, **more: Any) -> Any:
        """End an episode: one step without an action."""
        return self._agent.reset(*outcome, **more)

    def _call(self, call: Callable[..., Any], steps: int, *outcome: Any, **more: Any) -> Any:
        raise NotImplementedError


class Measured(_Wrapper):
    """A client with timed calls. It writes JSON lines to a file, about five a second.

    The first line has `start_seconds`, the time from connecting to the first action. Each line has `time`, `steps`
    (steps so far, over all environments), and `act_ms` (milliseconds of each action since the previous line).
    """

    def __init__(self, client: Any, environments: int, file: str | Path) -> None:
        super().__init__(client, environments)
        self._lines = JsonLines(file)
        self._steps = 0
        self._act_ms: list[float] = []
        self._has_started = False

    def __exit__(self, *raised: Any) -> None:
        with self._lines:
            if self._has_started:
                self._write({})
            super().__exit__(*raised)

    def reset(self, *outcome: Any, **more: Any) -> Any:
        """End an episode: one step without an action."""
        self._steps += 1
        return super().reset(*outcome, **more)

    def _call(self, call: Callable[..., Any], steps: int, *outcome: Any, **more: Any) -> Any:
        before = time.perf_counter()
        actions = call(*outcome, **more)
        seconds = time.perf_counter() - before
        if not self._has_started:
            self._has_started = True
            self._write({"start_seconds": seconds})
            return actions
        self._act_ms.append(seconds * 1e3)
        self._steps += steps
        if time.monotonic() >= self._lines.due:
            self._write({})
        return actions

    def _write(self, more: dict[str, float]) -> None:
        act_ms = [round(value, 4) for value in self._act_ms]
        self._lines.write({"steps": self._steps, **more, "act_ms": act_ms})
        self._act_ms.clear()


class Paced(_Wrapper):
    """An agent that returns actions at most `rate` times a second.

    So each environment takes at most `rate` steps a second, also if N environments are stepped together. After a
    pause there is no burst of steps. The wait follows the agent's answer, so measured latencies exclude it.
    """

    def __init__(
        self,
        agent: Any,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not 0 < rate < float("inf"):
            raise ValueError(f"rate is {rate}: it must be above 0 (steps per second), or None for no limit")
        super().__init__(agent)
        self._period = 1.0 / rate
        self._clock, self._sleep = clock, sleep
        self._due = clock()

    def _call(self, call: Callable[..., Any], steps: int, *outcome: Any, **more: Any) -> Any:
        actions = call(*outcome, **more)
        now = self._clock()
        if now < self._due:
            self._sleep(self._due - now)
        self._due = max(self._due, now) + self._period
        return actions


_work: ContextVar[Work | None] = ContextVar("work", default=None)


@contextmanager
def working(work: Work) -> Iterator[None]:
    """Do this work after each step of `step_alone` in this block."""
    token = _work.set(work)
    try:
        yield
    finally:
        _work.reset(token)


def step_alone(env: Any, seed: int | None, file: str | Path) -> NoReturn:
    """Step an Env or a VectorEnv of gymnasium until an exception is raised, and write its progress to `file`.

    1,024 actions are drawn before the first step and used in rotation; with an action mask, each step draws. Besides
    `env.step` there are only a clock, a counter, the work of `working`, and a reset if the environment has no
    autoreset. The lines of the file have `time` and `steps`, as in `Measured`.
    """
    is_vector = hasattr(env, "single_observation_space")
    names = ("single_observation_space", "single_action_space") if is_vector else ("observation_space", "action_space")
    observation_space, action_space = (getattr(env, name) for name in names)
    agent = RandomAgent(observation_space, action_space, env.num_envs if is_vector else None, seed)
    drawn = itertools.cycle([] if agent.masked else [agent.init(None) for _ in range(DRAWN_ACTIONS)])
    act: Act = agent.init if agent.masked else lambda states: next(drawn)
    start_work = _work.get()
    spaces = values_of(observation_space).space, values_of(action_space).space
    work = None if start_work is None else start_work(*spaces, env.num_envs if is_vector else 1)
    steps = 0
    with JsonLines(file) as lines:
        try:
            states, _ = env.reset(seed=seed)
            lines.write({"steps": steps})
            for taken in (_vector if is_vector else _single)(env, act, states):
                steps += taken
                if work is not None:
                    work()
                if time.monotonic() >= lines.due:
                    lines.write({"steps": steps})
        finally:
            lines.write({"steps": steps})
    raise AssertionError("the environment is stepped for ever")


def _single(env: Any, act: Act, state: Any) -> Iterator[int]:
    """Step one environment for ever. Yield the number of steps each time: 1."""
    while True:
        state, _, terminated, truncated, _ = env.step(act(state))
        if terminated or truncated:
            state, _ = env.reset()
        yield 1


def _vector(env: Any, act: Act, states: Any) -> Iterator[int]:
    """Step N environments for ever. Yield N minus the number of environments that used the step to reset."""
    mode, begin = autoreset_of(env), 0
    while True:
        states, _, terminated, truncated, _ = env.step(act(states))
        yield env.num_envs - begin
        if mode == "next_step":
            begin = int(np.count_nonzero(np.logical_or(terminated, truncated)))
        elif mode == "disabled":
            ended = np.logical_or(terminated, truncated)
            if ended.any():
                states, _ = env.reset(options={"reset_mask": ended})
