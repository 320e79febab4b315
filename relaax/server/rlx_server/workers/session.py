"""Conversion of a connection's messages for its agent, and measurements of latency. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from relaax import rlx
from relaax.algorithm_base import AgentBase, Leaves, StepResult
from relaax.hosting.errors import describe_error, place_of
from relaax.metrics.names import CLIENTS
from relaax.metrics.system import Sampler
from relaax.parameters.interfaces import MetricsRecorder
from relaax.parameters.pictures import image_part, picture_of
from relaax.rlx.metric_names import normalize_name
from relaax.server.rlx_server.workers.episode_parameters import EpisodeParameters
from relaax.server.rlx_server.workers.episodes import EpisodeCounter, ReportedStarts
from relaax.server.rlx_server.workers.void_rows import ValidObservations, void_actions

if TYPE_CHECKING:
    from relaax.demonstrations.recorder import EpisodeRecorder

Mask = npt.NDArray[np.bool_]
ACT, TURNAROUND = "latency/act_ms", "latency/turnaround_ms"
CHOSEN = "actions/chosen"
"""The share of the actions of a step that the client chose."""
REPORT_SECONDS = 0.5
"""Minimum time between two reports, in seconds. Each report wakes a thread."""


class AgentSession:
    """The agent of a connection. Messages of all autoreset modes are converted to `algorithm_base.StepResult`.

    `connection` must have received each message before this object does. It records which environments are between
    episodes. With `Welcome.out_of_step` the agent gets no message in which all rows are void: its first `reset` waits
    until an environment plays.
    """

    def __init__(
        self,
        connection: rlx.ServerConnection,
        agent: AgentBase,
        metrics: MetricsRecorder,
        clock: Callable[[], float] = time.perf_counter,
        parameters: EpisodeParameters | None = None,
        recorder: EpisodeRecorder | None = None,
        opponent_of: Callable[[int], str] | None = None,
    ) -> None:
        """`parameters`: of the environments; None without `Welcome.environment_parameters`.

        `recorder`: a recorder of their episodes; None without `relaax-rlx-server.record`.
        `opponent_of`: returns the id of the checkpoint that plays an environment's episode, or "" for none; None if the
        agent does not act with checkpoints.
        """
        hello, welcome = connection.hello, connection.welcome
        assert hello is not None and welcome is not None, "a session begins after the handshake"
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
        self._has_next_step = bool(self._next_step.any())
        self._parameters, self._recorder, self._opponent_of = parameters, recorder, opponent_of
        self._episodes = EpisodeCounter(hello.environments)
        self._reported_starts = ReportedStarts(hello.environments)
        self._was_reset = False  # whether the agent was
        self._ended_by_reset: tuple[rlx.Reset, Mask] | None = None
        """The last reset, and the environments that were between episodes at that time."""
        self._valid: ValidObservations | None = None
        self.void_answer: rlx.Actions | None = None
        """The answer to messages that the agent does not get; None without `Welcome.out_of_step`."""
        self._records_chosen = welcome.chosen_actions
        self._image = image_part([(element.shape, element.dtype) for element in hello.observation_space.elements()])
        if welcome.out_of_step:
            self._valid = ValidObservations()
            self.void_answer = rlx.Actions(void_actions(hello.action_space, hello.environments))
        self.episode_ended = False
        """Whether the last init, step or reset ended an episode."""

    def init(self, message: rlx.Init) -> rlx.Actions:
        """Start an episode in every environment that is not idle, and return the first actions.

        The transition before a reset needs this observation, so the agent gets the reset and this init as one step.
        """
        self.episode_ended = False
        now, idle = self._clock(), _none_if_empty(message.idle)
        self._episodes.start(message.partial, now)
        if self._client_reports_episodes:
            self._reported_starts.init(message.partial, idle, now)
        observations = message.observation
        if self._valid is not None:
            observations = self._valid.replace(observations, idle)
        if self._recorder is not None:
            self._recorder.begin(message.partial)
        if self._ended_by_reset is None:
            return self._reset_agent(observations, idle)
        (reset, between), self._ended_by_reset = self._ended_by_reset, None
        first = between if idle is None else between & ~idle
        return self._step_agent(self._last_step(reset, between, observations, first, idle))

    def _last_step(
        self, reset: rlx.Reset, between: Mask, observations: Leaves, first: Mask, idle: Mask | None
    ) -> StepResult:
        """Return the step that a reset ends. `between`: the environments that were between episodes, bool [N]."""
        truncated = self._none if reset.truncated is None else reset.truncated
        step = StepResult(reset.reward, observations, ~(truncated | between), truncated, first, unwanted=idle)
        step.final_observations = reset.final_observation
        _add_chosen(step, reset)
        return step

    def step(self, message: rlx.Step) -> rlx.Actions:
        """Pass the outcome of the last actions to the agent and return its next actions."""
        unmarked = message.terminated is message.truncated is message.first is message.idle is message.chosen is None
        if unmarked and not self._client_reports_episodes:
            return self._plain_step(message)
        terminated = self._none if message.terminated is None else message.terminated
        truncated = self._none if message.truncated is None else message.truncated
        first = self._none if message.first is None else message.first
        idle = _none_if_empty(message.idle)
        unwanted = idle
        if self._has_next_step and terminated is not truncated:
            waiting = (terminated | truncated) & self._next_step
            unwanted = _none_if_empty(waiting if idle is None else waiting | idle)
        step = StepResult(message.reward, message.observation, terminated, truncated, first, unwanted=unwanted)
        _add_chosen(step, message)
        self._record_chosen(message)
        if self._valid is not None:
            # The observation of a NEXT_STEP environment that leaves is its final one.
            step.observations = self._valid.replace(
                step.observations, None if idle is None else _none_if_empty(idle & ~(step.ended & self._next_step))
            )
        if first is self._none and step.held is None:
            self._episodes.count(message.reward, None)
        else:
            self._episodes.count(message.reward, step.acted)
            now = self._clock()
            self._episodes.set_start(first, now)
            if self._client_reports_episodes:
                self._reported_starts.begin(first, now)
        self.episode_ended = bool(step.ended.any())
        if self._client_reports_episodes or self.episode_ended:
            self._report_episodes(step.ended, message.episodes, self._none if unwanted is None else unwanted)
        if self.episode_ended:
            step.final_observations = self._final_observations(message, step)
        if self._recorder is not None:
            self._recorder.step(step)
        if self._was_reset:
            return self._step_agent(step)
        return self._reset_agent(step.observations, idle)

    def _plain_step(self, message: rlx.Step) -> rlx.Actions:
        """Handle a step without episode starts or ends, and without idle environments, as most steps are."""
        none = self._none
        self.episode_ended = False
        self._episodes.count(message.reward, None)
        if self._records_chosen:
            self._metrics.scalar(CHOSEN, 0.0)
        if self._valid is not None:
            self._valid.latest = message.observation
        step = StepResult(message.reward, message.observation, none, none, none)
        if self._recorder is not None:
            self._recorder.step(step)
        return self._acted(self._agent.step(step), step.observations, None)

    def _acted(self, actions: Leaves, observations: Leaves, unwanted: Mask | None) -> rlx.Actions:
        """Return the agent's actions as an answer. `unwanted`: where they are ignored."""
        if self._recorder is not None:
            self._recorder.act(observations, actions, None if unwanted is None else ~unwanted)
        return rlx.Actions(actions)

    def _record_chosen(self, message: rlx.Step | rlx.Reset) -> None:
        """Record the share of the actions that the client chose."""
        acted = env_steps_of(message, len(self._none), self._connection) if self._records_chosen else 0
        if acted:
            chosen = 0 if message.chosen is None else np.count_nonzero(message.chosen)
            self._metrics.scalar(CHOSEN, chosen / acted)

    def _reset_agent(self, observations: Leaves, idle: Mask | None) -> rlx.Actions:
        """Begin the agent's first episodes, once an environment is not idle."""
        if idle is not None and idle.all():
            assert self.void_answer is not None, "only connections out of step have idle environments"
            return self.void_answer
        self._was_reset = True
        return self._acted(self._agent.reset(observations), observations, idle)

    def _step_agent(self, step: StepResult) -> rlx.Actions:
        """Pass the step to the agent, unless all rows are held: then there is no outcome, and no action is needed."""
        if step.held is not None:
            if step.held.all():
                assert self.void_answer is not None, "only connections out of step have held rows"
                return self.void_answer
            step.rewards = np.where(step.held, 0.0, step.rewards)
        return self._acted(self._agent.step(step), step.observations, step.unwanted)

    def reset(self, message: rlx.Reset) -> rlx.EpisodeReturns:
        """End the episode of every environment and return their returns."""
        marked = self._connection.between_episodes
        between = self._none if marked is None else marked
        in_progress = ~between
        self.episode_ended = bool(in_progress.any())
        self._episodes.count(message.reward, in_progress)
        returns = self._episodes.returns.copy()
        self._report_episodes(in_progress, message.episodes, ~self._none)
        self._record_chosen(message)
        if self._recorder is not None:
            self._recorder.step(self._last_step(message, between, [], between, None))
        if self._was_reset:
            self._ended_by_reset = message, between
        return rlx.EpisodeReturns(returns)

    @property
    def must_reconnect(self) -> bool:
        """Whether the parameters of the environments have other names than in the welcome."""
        return self._parameters is not None and self._parameters.renamed

    def is_void(self, answer: rlx.Actions) -> bool:
        """Return whether the agent did not get the message of this answer."""
        return self.void_answer is not None and answer.action is self.void_answer.action

    def answer(self, message: rlx.Message) -> rlx.ServerMessage | None:
        """Return the answer to a message; None for messages without an answer, such as metrics."""
        if isinstance(message, rlx.Step):
            if self._metrics.wants_picture:
                self._record_picture(message.observation)
            return self._with_parameters(self.step(message), message)
        if isinstance(message, rlx.Init):
            return self._with_parameters(self.init(message), message)
        if isinstance(message, rlx.Reset):
            return self.reset(message)
        if isinstance(message, rlx.Metrics):
            record_client_metrics(message, self._metrics)
            return None
        return rlx.Pong(message.nonce) if isinstance(message, rlx.Ping) else None

    def _record_picture(self, observation: Leaves) -> None:
        """Record the observation of the first environment as a picture, or that it has no image."""
        if self._image is None:
            self._metrics.picture(0, 0, b"")
            return
        index, axes = self._image
        first = observation[index][0]
        self._metrics.picture(*picture_of(first if axes is None else first.transpose(axes)))

    def _with_parameters(self, answer: rlx.Actions, message: rlx.Init | rlx.Step) -> rlx.Actions:
        """Return an answer with new parameters. They are drawn where the message begins an episode."""
        if self._parameters is None:
            return answer
        if self.is_void(answer):  # it is used again
            answer = rlx.Actions(answer.action)
        if isinstance(message, rlx.Init):
            started = ~self._none if message.idle is None else ~message.idle
            self._parameters.begin(started, message.partial)
        else:
            self._parameters.begin(self._begun(message))
        self._parameters.add_to(answer)
        return answer

    def _begun(self, step: rlx.Step) -> Mask:
        """Return where the observation of a step begins an episode."""
        begun = self._none if step.first is None else step.first
        for ended in (step.terminated, step.truncated):
            if ended is not None:
                begun = begun | (ended & ~self._next_step)
        return begun if step.idle is None else begun & ~step.idle

    def _report_episodes(self, ended: Mask, own: Sequence[rlx.Episode], wait: Mask) -> None:
        """Record the episodes that ended. `wait`: where the next episode may start later, bool [N]."""
        for episode in own if self._client_reports_episodes else ():
            at = episode.environment
            seconds = self._reported_starts.end(at, bool(wait[at]), self._clock())
            self._record_episode(at, episode.episode_return, episode.length, seconds)
        if self.episode_ended:
            for environment, episode_return, length, seconds in self._episodes.end(ended, self._clock()):
                if not self._client_reports_episodes:
                    self._record_episode(environment, episode_return, length, seconds)

    def _record_episode(self, environment: int, episode_return: float, length: int, seconds: float | None) -> None:
        """Record a whole episode. Exploit mode uses separate scalars, because it does not measure training."""
        if self._exploit:
            self._metrics.scalar("exploit/episode_return", episode_return)
            self._metrics.scalar("exploit/episode_length", length)
            if self._opponent_of is not None and (checkpoint_id := self._opponent_of(environment)):
                self._metrics.game(checkpoint_id, episode_return)
        else:
            drawn = self._parameters.of(environment) if self._parameters else None
            self._metrics.episode(episode_return, length, drawn)
        if seconds:
            prefix = "exploit/episode_" if self._exploit else "episode/"
            self._metrics.scalar(f"{prefix}seconds", seconds)
            self._metrics.scalar(f"{prefix}reward_per_second", episode_return / seconds)

    def _final_observations(self, message: rlx.Step, step: StepResult) -> Leaves:
        """Return the final observations: those sent with the step or, with NEXT_STEP, the observation itself."""
        if message.final_observation is None:
            return step.observations
        here = step.ended & self._next_step
        if not here.any():
            return message.final_observation
        final = [leaf.copy() for leaf in message.final_observation]
        for leaf, observation in zip(final, step.observations, strict=True):
            leaf[here] = observation[here]
        return final


def _add_chosen(step: StepResult, message: rlx.Step | rlx.Reset) -> None:
    chosen = _none_if_empty(message.chosen)
    if chosen is not None:
        step.chosen, step.actions = chosen, message.action


def _none_if_empty(mask: Mask | None) -> Mask | None:
    return mask if mask is not None and mask.any() else None


def env_steps_of(message: rlx.Message, environments: int, connection: rlx.ServerConnection) -> int:
    """Return the number of completed actions whose outcome is in `message`, which `connection` received last."""
    if type(message) is rlx.Reset:
        between = connection.between_episodes
        return environments if between is None else environments - int(np.count_nonzero(between))
    if type(message) is not rlx.Step:
        return 0
    first, idle = message.first, message.idle
    if first is idle is None:
        return environments
    void = 0 if first is None else int(np.count_nonzero(first))
    if idle is not None:
        held = idle
        for ended in (message.terminated, message.truncated):
            held = held if ended is None else held & ~ended
        void += int(np.count_nonzero(held))
    return environments - void


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

    def record_answer(
        self, message: rlx.Message, answer: rlx.ServerMessage, read_at: float, now: float, void: bool = False
    ) -> None:
        """Record that `message`, read completely at `read_at`, was answered at `now` (seconds of one clock).

        `void`: whether the agent did not get the message. Such a step is not measured.
        """
        if type(message) is rlx.Step and not void:
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
