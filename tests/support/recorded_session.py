"""A worker's session behind a pair of connections, with an agent that records its calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from relaax.algorithm_base import AgentBase, AgentContext, Leaves, StepResult
from relaax.demonstrations.recorder import EpisodeRecorder
from relaax.rlx import (
    Actions,
    Autoreset,
    Box,
    Discrete,
    EpisodeReturns,
    Hello,
    Init,
    Metrics,
    Mode,
    Reset,
    Step,
    Welcome,
)
from relaax.server.rlx_server.workers.episode_parameters import EpisodeParameters
from relaax.server.rlx_server.workers.session import AgentSession
from support.offline_client import OfflineClient, OfflineMetrics
from support.rlx_pair import Pair

SPACES = {"observation_space": Box(shape=(1,)), "action_space": Discrete(100)}
UNUSED: Any = {"parameters": OfflineClient(), "metrics": OfflineMetrics()}


class Recorder(AgentBase):
    """An agent that records its calls; its actions are the number of calls."""

    def __init__(self, environments: int) -> None:
        super().__init__(
            None,
            AgentContext(**SPACES, environments=environments, actors=(), seed=0, exploit=False, **UNUSED),
        )
        self.calls: list[Leaves | StepResult] = []

    def reset(self, observations: Leaves) -> Leaves:
        return self._record(observations)

    def step(self, step: StepResult) -> Leaves:
        return self._record(step)

    def _record(self, argument: Leaves | StepResult) -> Leaves:
        self.calls.append(argument)
        return [np.full(self.context.environments, len(self.calls), np.int64)]

    @property
    def last(self) -> StepResult:
        step = self.calls[-1]
        assert isinstance(step, StepResult)
        return step


class LinkedSession:
    """A session behind a pair of connections: messages pass through the wire format."""

    def __init__(
        self,
        hello: Hello,
        agent: AgentBase,
        metrics: OfflineMetrics,
        clock: Callable[[], float],
        parameters: EpisodeParameters | None = None,
        recorder: EpisodeRecorder | None = None,
    ) -> None:
        self.pair = Pair()
        self.pair.greet(hello)
        capabilities: dict[str, Any] = {"out_of_step": hello.out_of_step, "chosen_actions": hello.chosen_actions}
        if parameters is not None:
            capabilities |= {"environment_parameters": True, "parameter_names": tuple(parameters.names)}
            capabilities["parameters"] = parameters.first()
        self.pair.server_sends(Welcome("session-1", "recorder", self.pair.server.limits, **capabilities))
        self.session = AgentSession(self.pair.server, agent, metrics, clock, parameters, recorder)

    @property
    def episode_ended(self) -> bool:
        return self.session.episode_ended

    def init(self, message: Init) -> Actions:
        return self._answer(message)  # type: ignore[no-any-return]

    def step(self, message: Step) -> Actions:
        return self._answer(message)  # type: ignore[no-any-return]

    def reset(self, message: Reset) -> EpisodeReturns:
        return self._answer(message)  # type: ignore[no-any-return]

    def _answer(self, message: Any) -> Any:
        answer = self.session.answer(self.pair.client_sends(message))
        assert answer is not None
        return self.pair.server_sends(answer)

    def metrics(self, message: Metrics) -> None:
        self.session.answer(self.pair.client_sends(message))


class RecordedSession:
    """A session with an agent that records its calls, and metrics that are kept."""

    def __init__(
        self,
        *autoreset: Autoreset,
        environments: int = 2,
        reports_episodes: bool = False,
        mode: Mode = Mode.TRAIN,
        out_of_step: bool = False,
        chosen_actions: bool = False,
        parameters: EpisodeParameters | None = None,
        recorder: EpisodeRecorder | None = None,
    ) -> None:
        self.agent = Recorder(environments)
        self.metrics = OfflineMetrics()
        self.now = 0.0
        hello = Hello(
            **SPACES,
            environments=environments,
            autoreset=autoreset,
            reports_episodes=reports_episodes,
            mode=mode,
            out_of_step=out_of_step,
            chosen_actions=chosen_actions,
            environment_parameters=parameters is not None,
        )
        self.session = LinkedSession(hello, self.agent, self.metrics, lambda: self.now, parameters, recorder)


def obs(*values: float) -> Leaves:
    return [np.array(values, np.float32).reshape(-1, 1)]


def values_of(leaves: Leaves | None) -> list[float]:
    assert leaves is not None
    values: list[float] = leaves[0][:, 0].tolist()
    return values


def rewards(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


def mask(*values: int) -> np.ndarray:
    return np.array(values, np.bool_)
