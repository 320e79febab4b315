"""Conversion of a connection's messages for its agent, and measurements of episodes and latency. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from relaax import rlx
from relaax.algorithm_base import AgentBase, Leaves, StepResult
from relaax.hosting.errors import describe_error, place_of
from relaax.metrics.names import CLIENTS
from relaax.metrics.system import Sampler
from relaax.parameters.interfaces import MetricsRecorder
from relaax.rlx.metric_names import normalize_name

Mask = npt.NDArray[np.bool_]
ACT, TURNAROUND = "latency/act_ms", "latency/turnaround_ms"
REPORT_SECONDS = 0.5
"""Minimum time between two reports, in seconds. Each report wakes a thread."""


class EpisodeCounter:
    """The current episodes of N environments: return, length and start time (in seconds of one clock)."""

    def __init__(self, environments: int) -> None:
        self.returns = np.zeros(environments, np.float64)
        self._steps = 0
        self._before = np.zeros(environments, np.int64)  # steps before the episode
        self._started_at = np.zeros(environments, np.float64)
        self._partial = np.zeros(environments, np.bool_)

    def start(self, partial: Mask | None, now: float = 0.0) -> None:
        """Start an episode in every environment. Where `partial` (bool [N]), the episode was already in progress."""
        self._started_at[:] = now
        self.returns[:] = 0
        self._before[:] = self._steps
        self._partial[:] = False if partial is None else partial

    def count(self, rewards: npt.NDArray[np.float64], valid: Mask | None) -> None:
        """Add the rewards of a step, float64 [N], where `valid` (bool [N]); everywhere if `valid` is None.

        Rewards of RLX are at most `MAX_REWARD`: a sum needs 10^15 of them to exceed `MAX_NUMBER`.
        """
        if valid is not None:
            rewards = np.where(valid, rewards, 0.0)
            self._before += ~valid
        self._steps += 1
        self.returns += rewards

    def set_start(self, first: Mask, now: float) -> None:
        """Set the start time of episodes where `first` (bool [N]), which start after the previous ones have ended."""
        self._started_at[first] = now

    def end(self, ended: Mask, now: float = 0.0) -> Iterator[tuple[float, int, float]]:
        """Yield return, length and seconds of each ended episode that is not partial. Reset all ended episodes."""
        for index in np.flatnonzero(ended).tolist():
            if not self._partial[index]:
                length = self._steps - int(self._before[index])
                yield float(self.returns[index]), length, now - float(self._started_at[index])
        self.returns[ended] = 0
        self._before[ended] = self._steps
        self._started_at[ended] = now
        self._partial[ended] = False


class AgentSession:
    """The agent of a connection. Messages of both autoreset modes are converted to `algorithm_base.StepResult`.

    `connection` must have received each message before this object does. It records which environments are between
    episodes.
    """

    def __init__(
        self,
        connection: rlx.ServerConnection,
        agent: AgentBase,
        metrics: MetricsRecorder,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        hello = connection.hello
        assert hello is not None, "a session begins after the handshake"
        self._connection = connection
        self._agent = agent
        self._metrics = metrics
        self._clock = clock
        self._exploit = hello.mode == rlx.Mode.EXPLOIT
        self._client_reports_episodes = hello.reports_episodes
        self._none: Mask = np.zeros(hello.environments, np.bool_)
        self._none.flags.writeable = False  # shared by steps without marked environments
        modes = np.broadcast_to(np.asarray(hello.autoreset, np.int64), hello.environments)
        self._next_step: Mask = modes == rlx.Autoreset.NEXT_STEP
        self._episodes = EpisodeCounter(hello.environments)
        self._reported_starts: list[float | None] = [None] * hello.environments
        self._ended_by_reset: tuple[rlx.Reset, Mask] | None = None
        """The last reset, and the environments that were between episodes at that time."""
        self.episode_ended = False
        """Whether the last init, step or reset ended an episode."""

    def init(self, message: rlx.Init) -> rlx.Actions:
        """Start an episode in every environment and return its first actions.

        The transition before a reset needs this observation, so the agent gets the reset and this init as one step.
        """
        self.episode_ended = False
        self._episodes.start(message.partial, self._clock())
        if self._client_reports_episodes:
            self._set_reported_starts(message.partial)
        if self._ended_by_reset is None:
            return rlx.Actions(self._agent.reset(message.observation))
        (reset, between), self._ended_by_reset = self._ended_by_reset, None
        truncated = self._none if reset.truncated is None else reset.truncated
        step = StepResult(reset.reward, message.observation, ~(truncated | between), truncated, between)
        step.final_observations = reset.final_observation
        return rlx.Actions(self._agent.step(step))

    def step(self, message: rlx.Step) -> rlx.Actions:
        """Pass the outcome of the last actions to the agent and return its next actions."""
        if message.terminated is message.truncated is message.first is None and not self._client_reports_episodes:
            return self._plain_step(message)
        terminated = self._none if message.terminated is None else message.terminated
        truncated = self._none if message.truncated is None else message.truncated
        if message.first is None:
            first = self._none
            self._episodes.count(message.reward, None)
        else:
            first = message.first
            self._episodes.count(message.reward, ~first)
            self._episodes.set_start(first, self._clock())
        step = StepResult(message.reward, message.observation, terminated, truncated, first)
        self.episode_ended = bool(step.ended.any())
        if self._client_reports_episodes or self.episode_ended:
            self._report_episodes(step.ended, message.episodes)
        if self.episode_ended:
            step.final_observations = self._final_observations(message, step.ended)
        return rlx.Actions(self._agent.step(step))

    def _plain_step(self, message: rlx.Step) -> rlx.Actions:
        """Handle a step without episode starts or ends, as most steps are."""
        none = self._none
        self.episode_ended = False
        self._episodes.count(message.reward, None)
        return rlx.Actions(self._agent.step(StepResult(message.reward, message.observation, none, none, none)))

    def reset(self, message: rlx.Reset) -> rlx.EpisodeReturns:
        """End the episode of every environment and return their returns."""
        marked = self._connection.between_episodes
        between = self._none if marked is None else marked
        in_progress = ~between
        self.episode_ended = bool(in_progress.any())
        self._episodes.count(message.reward, in_progress)
        returns = self._episodes.returns.copy()
        self._report_episodes(in_progress, message.episodes)
        self._ended_by_reset = message, between
        return rlx.EpisodeReturns(returns)

    def answer(self, message: rlx.Message) -> rlx.ServerMessage | None:
        """Return the answer to a message; None for messages without an answer, such as metrics."""
        if isinstance(message, rlx.Step):
            return self.step(message)
        if isinstance(message, rlx.Init):
            return self.init(message)
        if isinstance(message, rlx.Reset):
            return self.reset(message)
        if isinstance(message, rlx.Metrics):
            record_client_metrics(message, self._metrics)
            return None
        return rlx.Pong(message.nonce) if isinstance(message, rlx.Ping) else None

    def _report_episodes(self, ended: Mask, own: Sequence[rlx.Episode]) -> None:
        for episode in own if self._client_reports_episodes else ():
            now, started = self._clock(), self._reported_starts[episode.environment]
            self._reported_starts[episode.environment] = now
            self._record_episode(episode.episode_return, episode.length, None if started is None else now - started)
        if self.episode_ended:
            for episode_return, length, seconds in self._episodes.end(ended, self._clock()):
                if not self._client_reports_episodes:
                    self._record_episode(episode_return, length, seconds)

    def _set_reported_starts(self, partial: Mask | None) -> None:
        """Set the start times of client-reported episodes where they are not set and the episode is not partial."""
        now = self._clock()
        for index, started in enumerate(self._reported_starts):
            if started is None and (partial is None or not partial[index]):
                self._reported_starts[index] = now

    def _record_episode(self, episode_return: float, length: int, seconds: float | None) -> None:
        """Record a whole episode. Exploit mode uses separate scalars, because it does not measure training."""
        if self._exploit:
            self._metrics.scalar("exploit/episode_return", episode_return)
            self._metrics.scalar("exploit/episode_length", length)
        else:
            self._metrics.episode(episode_return, length)
        if seconds:
            prefix = "exploit/episode_" if self._exploit else "episode/"
            self._metrics.scalar(f"{prefix}seconds", seconds)
            self._metrics.scalar(f"{prefix}reward_per_second", episode_return / seconds)

    def _final_observations(self, message: rlx.Step, ended: Mask) -> Leaves:
        """Return the final observations: those sent with the step or, with NEXT_STEP, the observation itself."""
        if message.final_observation is None:
            return message.observation
        here = ended & self._next_step
        if not here.any():
            return message.final_observation
        final = [leaf.copy() for leaf in message.final_observation]
        for leaf, observation in zip(final, message.observation, strict=True):
            leaf[here] = observation[here]
        return final


def agent_failure(error: Exception, source: Path) -> str:
    """Return the error text for a client whose agent raised `error`. `source`: folder of the algorithm."""
    if isinstance(error, rlx.LocalProtocolError):  # the answer cannot be sent
        why = f"{place_of(error, source)}: the agent returned actions outside its action space: {error.message}"
    else:
        why = describe_error(error, source)
    return f"the agent failed at {why}; the RLX server's log has the traceback"


def record_client_metrics(message: rlx.Metrics, metrics: MetricsRecorder) -> None:
    """Record a client's scalars, with normalized names under the prefix CLIENTS."""
    for name, value in message.scalars:
        metrics.scalar(f"{CLIENTS}{normalize_name(name)}", value)


class WorkerMetrics:
    """Measurements of a worker, recorded as metrics. Only the answering thread may use this object."""

    def __init__(self, metrics: MetricsRecorder, sampler: Sampler) -> None:
        self._metrics = metrics
        self._sampler = sampler
        self._acted_at: float | None = None
        self._acts: list[float] = []  # seconds
        self._turnarounds: list[float] = []
        self._reported_at = 0.0

    def record_answer(self, message: rlx.Message, answer: rlx.ServerMessage, read_at: float, now: float) -> None:
        """Record that `message`, read completely at `read_at`, was answered at `now` (seconds of one clock)."""
        if type(message) is rlx.Step:
            self._acts.append(now - read_at)
            if self._acted_at is not None:
                self._turnarounds.append(read_at - self._acted_at)
            self._acted_at = now
            if now - self._reported_at >= REPORT_SECONDS:
                self._reported_at = now
                self.report()
        elif not isinstance(message, rlx.Ping):
            self._acted_at = now if isinstance(answer, rlx.Actions) else None

    def report(self) -> None:
        """Report the measurements since the previous report."""
        for name, seconds in ((ACT, self._acts), (TURNAROUND, self._turnarounds)):
            for each in seconds:
                self._metrics.sample(name, 1e3 * each)
            seconds.clear()
        if self._sampler.found:
            for name, value in self._sampler.take().items():
                self._metrics.gauge(name, value)
