"""Translation of a connection's messages for its agent, and what is measured meanwhile. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from relaax import rlx
from relaax.algorithm_base import AgentBase, Leaves, StepResult
from relaax.hosting.errors import described, place_of
from relaax.metrics.names import CLIENTS
from relaax.metrics.system import Sampler
from relaax.parameters.interfaces import MetricsRecorder
from relaax.rlx.metric_names import formed

Mask = npt.NDArray[np.bool_]
ACT, TURNAROUND = "latency/act_ms", "latency/turnaround_ms"
TELL_SECONDS = 0.5
"""Seconds between two reports, each of which wakes a thread."""


class EpisodeCounter:
    """The current episode of each of N environments: return, length and start time, in seconds of one clock."""

    def __init__(self, environments: int) -> None:
        self.returns = np.zeros(environments, np.float64)
        self._steps = 0
        self._before = np.zeros(environments, np.int64)  # steps before the episode
        self._begun = np.zeros(environments, np.float64)
        self._partial = np.zeros(environments, np.bool_)

    def start(self, partial: Mask | None, now: float = 0.0) -> None:
        """Start an episode in every environment; where `partial`, it was already in progress."""
        self._begun[:] = now
        self.returns[:] = 0
        self._before[:] = self._steps
        self._partial[:] = False if partial is None else partial

    def count(self, rewards: npt.NDArray[np.float64], valid: Mask | None) -> None:
        """Add the rewards of a step where `valid`, or everywhere if that is None.

        Rewards are those of RLX, up to `MAX_REWARD`: it takes 10^15 of these for a sum beyond `MAX_NUMBER`.
        """
        if valid is not None:
            rewards = np.where(valid, rewards, 0.0)
            self._before += ~valid
        self._steps += 1
        self.returns += rewards

    def begin(self, first: Mask, now: float) -> None:
        """Set the start time of episodes where `first`: they begin later than the previous ones ended."""
        self._begun[first] = now

    def end(self, ended: Mask, now: float = 0.0) -> Iterator[tuple[float, int, float]]:
        """Yield return, length and seconds of each ended episode that is not partial; reset all that ended."""
        for index in np.flatnonzero(ended).tolist():
            if not self._partial[index]:
                length = self._steps - int(self._before[index])
                yield float(self.returns[index]), length, now - float(self._begun[index])
        self.returns[ended] = 0
        self._before[ended] = self._steps
        self._begun[ended] = now
        self._partial[ended] = False


class AgentSession:
    """Convert both autoreset modes, and `reset`, to the one form that agents know: `algorithm_base.StepResult`.

    `connection` has received each message before it comes here, and knows which environments are between episodes.
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
        self._reports = hello.reports_episodes
        self._none: Mask = np.zeros(hello.environments, np.bool_)
        self._none.flags.writeable = False  # shared by steps in which nothing is marked
        modes = np.broadcast_to(np.asarray(hello.autoreset, np.int64), hello.environments)
        self._next_step: Mask = modes == rlx.Autoreset.NEXT_STEP
        self._episodes = EpisodeCounter(hello.environments)
        self._own_begun: list[float | None] = [None] * hello.environments
        self._ended_by_reset: tuple[rlx.Reset, Mask] | None = None
        """The reset, and the environments that were between episodes then."""
        self.episode_ended = False
        """Whether the last init, step or reset ended an episode."""

    def init(self, message: rlx.Init) -> rlx.Actions:
        """Start an episode in every environment and return its first actions.

        After a reset, whose last transition had to wait for this observation, the agent sees both as one step.
        """
        self.episode_ended = False
        self._episodes.start(message.partial, self._clock())
        if self._reports:
            self._begin_own(message.partial)
        if self._ended_by_reset is None:
            return rlx.Actions(self._agent.reset(message.observation))
        (reset, between), self._ended_by_reset = self._ended_by_reset, None
        truncated = self._none if reset.truncated is None else reset.truncated
        step = StepResult(reset.reward, message.observation, ~(truncated | between), truncated, between)
        step.final_observations = reset.final_observation
        return rlx.Actions(self._agent.step(step))

    def step(self, message: rlx.Step) -> rlx.Actions:
        """Pass the outcome of the last actions to the agent and return its next actions."""
        if message.terminated is message.truncated is message.first is None and not self._reports:
            return self._plain_step(message)
        terminated = self._none if message.terminated is None else message.terminated
        truncated = self._none if message.truncated is None else message.truncated
        if message.first is None:
            first = self._none
            self._episodes.count(message.reward, None)
        else:
            first = message.first
            self._episodes.count(message.reward, ~first)
            self._episodes.begin(first, self._clock())
        step = StepResult(message.reward, message.observation, terminated, truncated, first)
        self.episode_ended = bool(step.ended.any())
        if self._reports or self.episode_ended:
            self._report(step.ended, message.episodes)
        if self.episode_ended:
            step.final_observations = self._final(message, step.ended)
        return rlx.Actions(self._agent.step(step))

    def _plain_step(self, message: rlx.Step) -> rlx.Actions:
        """Handle a step in which nothing is marked, as in most steps."""
        none = self._none
        self.episode_ended = False
        self._episodes.count(message.reward, None)
        return rlx.Actions(self._agent.step(StepResult(message.reward, message.observation, none, none, none)))

    def reset(self, message: rlx.Reset) -> rlx.EpisodeReturns:
        """End the episode of every environment and return their returns."""
        marked = self._connection.between_episodes
        between = self._none if marked is None else marked
        under_way = ~between
        self.episode_ended = bool(under_way.any())
        self._episodes.count(message.reward, under_way)
        returns = self._episodes.returns.copy()
        self._report(under_way, message.episodes)
        self._ended_by_reset = message, between
        return rlx.EpisodeReturns(returns)

    def answer(self, message: rlx.Message) -> rlx.ServerMessage | None:
        """Return the answer to a message; None if it gets none, as a client's metrics."""
        if isinstance(message, rlx.Step):
            return self.step(message)
        if isinstance(message, rlx.Init):
            return self.init(message)
        if isinstance(message, rlx.Reset):
            return self.reset(message)
        if isinstance(message, rlx.Metrics):
            tell_metrics(message, self._metrics)
            return None
        return rlx.Pong(message.nonce) if isinstance(message, rlx.Ping) else None

    def _report(self, ended: Mask, own: Sequence[rlx.Episode]) -> None:
        for episode in own if self._reports else ():
            now, begun = self._clock(), self._own_begun[episode.environment]
            self._own_begun[episode.environment] = now
            self._episode(episode.episode_return, episode.length, None if begun is None else now - begun)
        if self.episode_ended:
            for episode_return, length, seconds in self._episodes.end(ended, self._clock()):
                if not self._reports:
                    self._episode(episode_return, length, seconds)

    def _begin_own(self, partial: Mask | None) -> None:
        """Set the start of client-reported episodes: the first observation, then the end of the last episode."""
        now = self._clock()
        for index, begun in enumerate(self._own_begun):
            if begun is None and (partial is None or not partial[index]):
                self._own_begun[index] = now

    def _episode(self, episode_return: float, length: int, seconds: float | None) -> None:
        """Record a whole episode. Episodes in exploit mode are separate scalars, as they do not measure training."""
        if self._exploit:
            self._metrics.scalar("exploit/episode_return", episode_return)
            self._metrics.scalar("exploit/episode_length", length)
        else:
            self._metrics.episode(episode_return, length)
        if seconds:
            prefix = "exploit/episode_" if self._exploit else "episode/"
            self._metrics.scalar(f"{prefix}seconds", seconds)
            self._metrics.scalar(f"{prefix}reward_per_second", episode_return / seconds)

    def _final(self, message: rlx.Step, ended: Mask) -> Leaves:
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
    """Return the sentence for the client of an agent that raised `error`. `source`: of the algorithm."""
    if isinstance(error, rlx.LocalProtocolError):  # an answer that cannot be sent
        why = f"{place_of(error, source)}: the agent returned no actions of its space: {error.message}"
    else:
        why = described(error, source)
    return f"the agent failed at {why}; the RLX server's log has the traceback"


def tell_metrics(message: rlx.Metrics, metrics: MetricsRecorder) -> None:
    """Add a client's scalars, with names in form and in the clients' namespace."""
    for name, value in message.scalars:
        metrics.scalar(f"{CLIENTS}{formed(name)}", value)


class WorkerMetrics:
    """Record measurements as metrics. Used by the answering thread, except for the sampler's beat."""

    def __init__(self, metrics: MetricsRecorder, sampler: Sampler) -> None:
        self._metrics = metrics
        self._sampler = sampler
        self._acted_at: float | None = None
        self._acts: list[float] = []  # seconds
        self._turnarounds: list[float] = []
        self._told_at = 0.0

    def answered(self, message: rlx.Message, answer: rlx.ServerMessage, read_at: float, now: float) -> None:
        """Record that `message`, read completely at `read_at`, is answered at `now`, in seconds of one clock."""
        if type(message) is rlx.Step:
            self._acts.append(now - read_at)
            if self._acted_at is not None:
                self._turnarounds.append(read_at - self._acted_at)
            self._acted_at = now
            if now - self._told_at >= TELL_SECONDS:
                self._told_at = now
                self.tell()
        elif not isinstance(message, rlx.Ping):
            self._acted_at = now if isinstance(answer, rlx.Actions) else None

    def tell(self) -> None:
        """Report the measurements since the last report."""
        for name, seconds in ((ACT, self._acts), (TURNAROUND, self._turnarounds)):
            for each in seconds:
                self._metrics.sample(name, 1e3 * each)
            seconds.clear()
        if self._sampler.found:
            for name, value in self._sampler.take().items():
                self._metrics.gauge(name, value)
