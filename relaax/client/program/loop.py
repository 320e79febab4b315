"""Run a gymnasium environment against a server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from relaax.client.connection.address import CHECK, LOCAL, PROBE, RANDOM
from relaax.client.connection.client import Client, ClientBase
from relaax.client.connection.failure import Failure, TrainingFinished, require_known
from relaax.client.connection.values import values_of
from relaax.client.connection.vector_client import Autoreset, VectorClient
from relaax.client.program.agents import CheckingAgent, Game, LocalClient, RandomAgent, current_player
from relaax.client.program.checked_env import autoreset_of, checked
from relaax.client.program.control import Form, ServerParameters, TakenActions
from relaax.client.program.measuring import Measured, Paced, step_alone
from relaax.client.program.summary import GameTally, Reports, RunSummary, Tally, reporter
from relaax.libraries import explained
from relaax.rlx import Episode, space_to_dict

if TYPE_CHECKING:  # imported only if the environment is watched
    from relaax.client.program.watching import Watch, Watching

WholeEpisodes = Callable[[dict[str, Any]], Sequence[Episode]]
Report = Callable[[dict[str, Any]], None]


def run(
    env: Any,
    address: str,
    *,
    episodes: int | None = None,
    steps: int | None = None,
    seed: int | None = None,
    on_episode: Callable[[Episode], None] | None = None,
    whole_episodes: WholeEpisodes | None = None,
    metrics: Reports | None = None,
    environment: str | None = None,
    taken_action: str | None = None,
    parameters: Form | None = None,
    measure: str | Path | None = None,
    rate: float | None = None,
    watching: Watching | None = None,
    **settings: Any,
) -> RunSummary:
    """Run a gymnasium environment against the RLX server at `address`, until training or a given limit ends the run.

    Four words replace an address, and use no server:

    - "random": actions are drawn at random. If `measure` is given, and none of `episodes`, `steps`, `on_episode` and
      `rate`, the environment is stepped alone at full speed, until an exception such as KeyboardInterrupt.
    - "check": random episodes are played and the environment is closed. The summary's `report` contains its faults.
    - "probe": one step is taken. The summary contains the spaces.
    - "local": only for `relaax eval`, whose player acts in this process. One environment plays the episodes that the
      player names, each from its own seed.

    `env`: an Env, a VectorEnv with any autoreset mode, a function that returns one, or an id for `gymnasium.make`. An
    environment that this call creates is also closed by it. An Env, and each environment of a SyncVectorEnv, becomes a
    CheckedEnv. If a vector has an attribute `out_of_step` that is true, its mode is SAME_STEP, and `infos["idle"]`,
    bool [N], of `reset` and `step` marks the environments that want no action, as `VectorClient` describes. For
    `relaax eval`, `infos["game_over"]` is true when the game that all of them play has ended. If a vector has an
    attribute `game_number`, `relaax eval` sets it to the episode's number before each reset.
    `episodes`, `steps`: limits over all environments; None for no limit. Episodes are shared evenly among the
    environments of a vector.
    `seed`: seed of the first reset.
    `on_episode`: called with each whole episode that counts.
    `whole_episodes`: a function that returns the whole episodes that ended in a step, from the step's infos. It is for
    environments whose training episodes are parts of whole ones (such as one life). The server then reports the returns
    of whole episodes.
    `metrics`: names of entries of a step's infos, such as "lives": the mean over the environments that have the entry
    is sent as a metric. Or a function that takes the infos and returns names and numbers. They appear under client/.
    `environment`: name of the environment for the server; by default its id.
    `taken_action`: name of the entry of a step's infos with the action that a person or a script took instead of the
    agent's. The agent learns from it (`chosen_actions` of `Client`).
    `parameters`: how an environment gets the server's parameters (`environment_parameters` of `Client`) before each
    episode: "options", as `reset(options={NAME: VALUE})`, or "attributes" of the environment without wrappers.
    `measure`: file for speed measurements, as JSON lines (see `relaax.client.program.measuring`).
    `rate`: maximum steps per second of each environment; None for no limit.
    `watching`: what to show or record of the first environment.
    `settings`: other arguments of `relaax.client.Client`, such as `mode` and `retry_seconds`.

    Returns at the end of training. Raises Failure if the agent or its server fails permanently, UnsupportedSpace for
    spaces that cannot be sent, ValueError for metrics that cannot be sent, EnvironmentFault for an invalid outcome of
    the environment, and EnvironmentExit if the environment calls sys.exit().
    """
    require_known(run, settings, ClientBase.__init__)
    with ExitStack() as stack:
        made = _make_env(env)
        if environment is None:
            spec = getattr(made, "spec", None)
            environment = str(spec.id) if spec is not None else ""
        bounds = (episodes, steps, on_episode, rate)
        if address == RANDOM and measure is not None and all(bound is None for bound in bounds):
            if made is not env:
                stack.callback(made.close)
            step_alone(made, seed, measure)
        if address == CHECK:
            from relaax.client.program.check import check

            report = check(made, seed, episodes, steps)
            return RunSummary(report.episodes, report.steps, (), 0.0, report=report)
        used = _used_infos(metrics, whole_episodes, taken_action)
        given, made = made, checked(made, environment, used)
        if given is not env:
            stack.callback(made.close)
        settings = {
            "environment": environment,
            "reports_episodes": whole_episodes is not None,
            "chosen_actions": taken_action is not None,
            "environment_parameters": parameters is not None,
        } | settings
        is_vector = hasattr(made, "single_observation_space")
        if address == PROBE:
            return _probe(made, is_vector, seed)
        tally = Tally(made.num_envs if is_vector else 1, episodes=episodes, steps=steps, on_episode=on_episode)
        start = time.monotonic()
        finished = None
        try:
            hooks = _StepHooks(_single_spaces(made, is_vector)[1], taken_action, whole_episodes)
            hooks.parameters = ServerParameters(parameters, made, is_vector)
            if watching is not None:
                from relaax.client.program.watching import Watch

                hooks.watch = stack.enter_context(Watch(watching, made, environment))
            if address == LOCAL:
                return _play(made, is_vector, hooks, settings)
            agent = _agent(made, is_vector, address, seed, settings)
            hooks.report = reporter(metrics, agent.metrics() if isinstance(agent, ClientBase) else None)
            if measure is not None:
                agent = Measured(agent, made.num_envs if is_vector else 1, measure)
            if rate is not None:
                agent = Paced(agent, rate)
            (_run_vector if is_vector else _run_single)(made, agent, tally, seed, hooks)
        except TrainingFinished as end:
            finished = end.message
        return RunSummary(tally.episodes, tally.steps, tuple(tally.returns), time.monotonic() - start, finished)


def _make_env(env: Any) -> Any:
    if isinstance(env, str):
        with explained("gym"):
            import gymnasium  # only an id needs it
        return gymnasium.make(env)
    return env() if isinstance(env, type) or not hasattr(env, "step") else env


def _used_infos(
    metrics: Reports | None, whole_episodes: WholeEpisodes | None, taken_action: str | None
) -> Sequence[str] | None:
    """Return the names of the infos to keep; None for all, because functions may read any."""
    if callable(metrics) or whole_episodes is not None:
        return None
    return [*(metrics or ()), *([] if taken_action is None else [taken_action])]


def _probe(env: Any, is_vector: bool, seed: int | None) -> RunSummary:
    """Reset, take one step with a random action, and return a summary with the spaces as JSON.

    Raises UnsupportedSpace and EnvironmentFault.
    """
    observe, act = _single_spaces(env, is_vector)
    spaces = json.dumps([space_to_dict(values_of(space).space) for space in (observe, act)])
    agent = CheckingAgent(observe, act, env.num_envs if is_vector else None, seed)
    tally = Tally(env.num_envs if is_vector else 1, steps=1)
    (_run_vector if is_vector else _run_single)(env, agent, tally, seed, _StepHooks(act))
    return RunSummary(0, 0, (), 0.0, spaces=spaces)


def _single_spaces(env: Any, is_vector: bool) -> tuple[Any, Any]:
    """Return the observation space and the action space of one environment."""
    if is_vector:
        return env.single_observation_space, env.single_action_space
    return env.observation_space, env.action_space


def _agent(env: Any, is_vector: bool, address: str, seed: int | None, settings: dict[str, Any]) -> Any:
    """Return the agent of `env`: a client of the server at `address`, or a RandomAgent."""
    observe, act = _single_spaces(env, is_vector)
    if address == RANDOM:
        return RandomAgent(observe, act, env.num_envs if is_vector else None, seed)
    settings = settings | {"observation_space": observe, "action_space": act}
    if not is_vector:
        return Client(address, **settings)
    # In mode DISABLED, `_run_vector` resets an environment in the step that ended its episode.
    mode: Autoreset = "next_step" if autoreset_of(env) == "next_step" else "same_step"
    apart = {"out_of_step": True} if _is_out_of_step(env) else {}
    return VectorClient(address, environments=env.num_envs, autoreset=mode, **apart, **settings)


def _is_out_of_step(env: Any) -> bool:
    return bool(getattr(env, "out_of_step", False))


class _StepHooks:
    """The work of each step besides acting: whole episodes, metrics, images, and actions of the environment."""

    def __init__(
        self, action_space: Any, taken_action: str | None = None, whole_episodes: WholeEpisodes | None = None
    ) -> None:
        self.taken = TakenActions(taken_action, values_of(action_space))
        self.parameters = ServerParameters(None, None, False)
        self.report: Report = lambda infos: None
        self.watch: Watch | None = None
        self._whole_episodes = whole_episodes

    def count(self, tally: Tally, infos: dict[str, Any], over: list[Episode]) -> Sequence[Episode]:
        """Count the episodes that a step ended. Return the whole episodes to send to the server."""
        tally.is_over |= bool(infos.get("game_over", False))
        whole: Sequence[Episode] = self._whole_episodes(infos) if self._whole_episodes else ()
        ended = whole if self._whole_episodes else over
        tally.count(ended)
        if self.watch is not None and any(episode.environment == 0 for episode in ended):
            self.watch.end_episode()
        return whole

    def show(self) -> None:
        """Show or record the current image of the first environment."""
        if self.watch is not None:
            self.watch.frame()


def _play(env: Any, is_vector: bool, hooks: _StepHooks, settings: Mapping[str, Any]) -> RunSummary:
    """Play the episodes that the player of `relaax eval` names, each from its own seed. Raises Failure."""
    count = env.num_envs if is_vector else 1
    if count != 1 and not _is_out_of_step(env):
        raise Failure(f"{count} environments: an evaluation needs exactly one")
    player = current_player()
    spaces = _single_spaces(env, is_vector)
    by_step = is_vector and autoreset_of(env) == "next_step"
    agent = LocalClient(player, *spaces, count if is_vector else None, settings.get("frame_skip", 1), by_step)
    start, returns, steps = time.monotonic(), [], 0
    for game in player.games():
        agent.game = game
        if hooks.watch is not None:
            hooks.watch.set_episode(game.number)
        episode, taken, cut = _game(env, agent, is_vector, game, hooks)
        player.record_game(game, episode, taken, cut)
        returns.append(episode.episode_return)
        steps += taken
    return RunSummary(len(returns), steps, tuple(returns), time.monotonic() - start)


def _game(env: Any, agent: LocalClient, is_vector: bool, game: Game, hooks: _StepHooks) -> tuple[Episode, int, bool]:
    """Return the episode from the game's seed, its number of steps, and whether it was cut off at `max_steps`.

    If several agents play, the return is the mean of theirs.
    """
    if hasattr(env, "game_number"):
        env.game_number = game.number
    if is_vector and env.num_envs > 1:
        together = GameTally(env.num_envs, game.max_steps)
        _run_vector(env, agent, together, game.seed, hooks)
        return together.game(), together.steps, not together.is_over
    played: list[Episode] = []
    tally = Tally(1, episodes=1, steps=game.max_steps, on_episode=played.append)
    (_run_vector if is_vector else _run_single)(env, agent, tally, game.seed, hooks)
    return (played[0] if played else tally.unfinished(0)), tally.steps, not played


def _run_single(env: Any, agent: Any, tally: Tally, seed: int | None, hooks: _StepHooks) -> None:
    with agent as client:
        while not tally.is_complete:
            hooks.parameters.update(client)
            state, _ = env.reset(seed=seed)
            seed = None  # only the first reset is seeded: the same seed would repeat the episode
            hooks.show()
            action = client.init(state)
            ended = False
            while not ended and not tally.is_complete:
                state, reward, terminated, truncated, infos = env.step(action)
                hooks.show()
                hooks.report(infos)
                ended = bool(terminated or truncated)
                taken = hooks.taken.of_one(infos)
                over = tally.step(np.array([reward], np.float64), np.array([ended]), None)
                whole = hooks.count(tally, infos, over)
                if ended:
                    cut = not terminated
                    client.reset(reward, truncated=cut, state=state if cut else None, episodes=whole, **taken)
                else:
                    action = client.send(reward, state, episodes=whole, **taken)


def _run_vector(env: Any, agent: Any, tally: Tally, seed: int | None, hooks: _StepHooks) -> None:
    mode = autoreset_of(env)
    seen = values_of(env.single_observation_space)
    turns = _Turns() if _is_out_of_step(env) else None
    with agent as client:
        hooks.parameters.update(client)
        states, infos = env.reset(seed=seed)
        hooks.show()
        actions = client.init(states, **(turns.init(infos) if turns else {}))
        hooks.parameters.update(client)
        first = np.zeros(env.num_envs, np.bool_)
        while not tally.is_complete:
            states, rewards, terminated, truncated, infos = env.step(actions)
            hooks.report(infos)
            # Copies, because the environment may reuse its arrays, at the latest in the reset below.
            terminated, truncated = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
            ended = terminated | truncated
            some = np.count_nonzero(ended) > 0
            begins = first if mode == "next_step" and np.count_nonzero(first) else None
            rewards = np.array(rewards, np.float64)
            void = turns.step(infos, ended) if turns else begins
            over = tally.step(rewards, ended, void)
            if mode != "same_step":
                hooks.show()  # the last image of an episode
            whole = hooks.count(tally, infos, over)
            taken = hooks.taken.of_many(infos, ended, actions, void)
            final = infos.get("final_obs")
            if mode == "disabled" and some:
                final = seen.from_leaves(iter(seen.to_leaves(states, 1)), False)
                states, _ = env.reset(options={"reset_mask": ended.copy()})
            if (mode == "same_step" or (mode == "disabled" and ended[0])) and not tally.is_complete:
                hooks.show()
            ends = (terminated, truncated) if some else ()  # in most steps no episode ends
            marks = {"idle": turns.idle} if turns else {"first": begins}
            actions = client.step(rewards, states, *ends, final_states=final, episodes=whole, **marks, **taken)
            hooks.parameters.update(client)
            first = ended


class _Turns:
    """Masks of a vector out of step: idle environments, and environments between two episodes."""

    def init(self, infos: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the client's `init`."""
        self.idle = self._away = np.array(infos["idle"], np.bool_)
        return {"idle": self.idle}

    def step(self, infos: Mapping[str, Any], ended: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Store the masks of a step. Return where it was no step of an episode."""
        self.idle = np.array(infos["idle"], np.bool_)
        void: npt.NDArray[np.bool_] = self._away | (self.idle & ~ended)
        self._away = (self._away | ended) & self.idle
        return void
