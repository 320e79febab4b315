"""Run a gymnasium environment against a server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relaax.client.connection.address import CHECK, LOCAL, PROBE, RANDOM
from relaax.client.connection.client import Client, ClientBase
from relaax.client.connection.failure import Failure, TrainingFinished, require_known
from relaax.client.connection.values import values_of
from relaax.client.connection.vector_client import Autoreset, VectorClient
from relaax.client.program.agents import CheckingAgent, RandomAgent
from relaax.client.program.checked_env import autoreset_of, checked
from relaax.client.program.measuring import Measured, step_alone
from relaax.client.program.summary import Reports, RunSummary, Tally, reporter
from relaax.libraries import explained
from relaax.rlx import Episode, space_to_dict

if TYPE_CHECKING:  # a client that is not watched and has a server does without
    from relaax.client.program.agents import Game, LocalClient
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
    measure: str | Path | None = None,
    rate: float | None = None,
    watching: Watching | None = None,
    **settings: Any,
) -> RunSummary:
    """Run a gymnasium environment against the RLX server at `address`, until training ends or there was enough of it.

    The address "random" stands for no server: actions are drawn at random, in this process. With `measure` and nothing
    that asks for episodes, an end or a rate (`episodes`, `steps`, `on_episode`, `rate`), the environment is then
    stepped alone, as fast as it goes, until an exception such as KeyboardInterrupt ends it. The address "check" has no
    server either: episodes are played at random, the environment is closed, and the summary's `report` has its
    faults. The address "probe" has it take one step, and the summary says its spaces. The address "local" is for
    `relaax eval`, whose player acts in this process; one environment plays the episodes that it names, each from a
    seed.

    `env`: an Env, a VectorEnv of any autoreset mode, a function that makes one, or an id for `gymnasium.make`. What
    this call made it also closes. An Env, and each environment of a SyncVectorEnv, becomes a CheckedEnv.
    `episodes`, `steps`: how many are enough, over all environments; None for no end. Episodes are shared out evenly
    among the environments of a vector.
    `seed`: given to the first reset.
    `on_episode`: told of each whole episode that counts.
    `whole_episodes`: finds the whole episodes that ended in a step's infos, for environments in which what
    ends for learning is no whole episode (the loss of a life); their returns are then the ones that the server reports.
    `metrics`: names of entries of a step's infos, such as "lives", whose mean over the environments that say them is
    sent as a metric; or a function that takes the infos and returns names and numbers. They appear under client/.
    `environment`: the name that the server is told; by default the environment's id.
    `measure`: a file for how fast it goes, JSON lines (see `relaax.client.program.measuring`).
    `rate`: steps per second of each environment, at most; None, as by default, for as fast as it goes.
    `watching`: what to show or record of the first environment.
    `settings`: the other arguments of `relaax.client.Client`, such as `mode` and `retry_seconds`.

    Raises Failure if the agent's side fails for good, UnsupportedSpace for spaces that cannot be sent, ValueError
    for metrics that cannot be sent, EnvironmentFault for an outcome of the environment that cannot be used, and
    EnvironmentExit if it calls sys.exit(). At the end of training it returns.
    """
    require_known(run, settings, ClientBase.__init__)
    with ExitStack() as stack:
        made = _made(env)
        if environment is None:
            spec = getattr(made, "spec", None)
            environment = str(spec.id) if spec is not None else ""
        bounds = (episodes, steps, on_episode, rate)
        if address == RANDOM and measure is not None and all(bound is None for bound in bounds):
            if made is not env:
                stack.callback(made.close)
            step_alone(made, seed, measure)
        if address == CHECK:
            return _check(made, environment, episodes, steps, seed)
        given, made = made, checked(made, environment, _wanted(metrics, whole_episodes))
        if given is not env:
            stack.callback(made.close)
        settings = {"environment": environment, "reports_episodes": whole_episodes is not None} | settings
        is_vector = hasattr(made, "single_observation_space")
        if address == PROBE:
            return _probe(made, is_vector, seed)
        tally = Tally(made.num_envs if is_vector else 1, episodes=episodes, steps=steps, on_episode=on_episode)
        start = time.monotonic()
        finished = None
        try:
            watch = None if watching is None else stack.enter_context(_watch(watching, made, environment))
            turn = _Turn(whole_episodes, watch)
            if address == LOCAL:
                return _play(made, is_vector, turn, settings)
            agent = _agent(made, is_vector, address, seed, settings)
            turn.report = reporter(metrics, agent.metrics() if isinstance(agent, ClientBase) else None)
            if measure is not None:
                agent = Measured(agent, made.num_envs if is_vector else 1, measure)
            if rate is not None:
                agent = _paced(agent, rate)
            (_run_vector if is_vector else _run_single)(made, agent, tally, seed, turn)
        except TrainingFinished as end:
            finished = end.message
        return RunSummary(tally.episodes, tally.steps, tuple(tally.returns), time.monotonic() - start, finished)


def _made(env: Any) -> Any:
    if isinstance(env, str):
        with explained("gym"):
            import gymnasium  # only an id needs it
        return gymnasium.make(env)
    return env() if isinstance(env, type) or not hasattr(env, "step") else env


def _wanted(metrics: Reports | None, whole_episodes: WholeEpisodes | None) -> Sequence[str] | None:
    """Return the names of the infos that are used; None for all, if a function reads them."""
    return None if callable(metrics) or whole_episodes is not None else metrics or ()


def _check(env: Any, name: str, episodes: int | None, steps: int | None, seed: int | None) -> RunSummary:
    from relaax.client.program.check import check

    report = check(env, name, seed=seed, episodes=episodes, steps=steps)
    return RunSummary(report.episodes, report.steps, (), 0.0, report=report)


def _probe(env: Any, is_vector: bool, seed: int | None) -> RunSummary:
    """Reset once and take one step with a random action; return the spaces in the summary, as JSON.

    Raises UnsupportedSpace and EnvironmentFault.
    """
    observe, act = _single_spaces(env, is_vector)
    spaces = json.dumps([space_to_dict(values_of(space).space) for space in (observe, act)])
    agent = CheckingAgent(observe, act, env.num_envs if is_vector else None, seed)
    tally = Tally(env.num_envs if is_vector else 1, steps=1)
    (_run_vector if is_vector else _run_single)(env, agent, tally, seed, _Turn(None, None))
    return RunSummary(0, 0, (), 0.0, spaces=spaces)


def _single_spaces(env: Any, is_vector: bool) -> tuple[Any, Any]:
    """Return the spaces of one environment's observations and actions."""
    if is_vector:
        return env.single_observation_space, env.single_action_space
    return env.observation_space, env.action_space


def _agent(env: Any, is_vector: bool, address: str, seed: int | None, settings: dict[str, Any]) -> Any:
    """Return what acts in `env`: a client of the server at `address`, or nobody in particular."""
    act = env.single_action_space if is_vector else env.action_space
    if address == RANDOM:
        return RandomAgent(act, env.num_envs if is_vector else None, seed)
    if not is_vector:
        return Client(address, observation_space=env.observation_space, action_space=act, **settings)
    # An environment that does not reset by itself is reset here, in the step that ended its episode.
    habit: Autoreset = "next_step" if autoreset_of(env) == "next_step" else "same_step"
    spaces = {"observation_space": env.single_observation_space, "action_space": act}
    return VectorClient(address, environments=env.num_envs, autoreset=habit, **spaces, **settings)


def _watch(watching: Watching, env: Any, name: str) -> Watch:
    from relaax.client.program.watching import Watch

    return Watch(watching, env, name)


def _paced(agent: Any, rate: float) -> Any:
    from relaax.client.program.measuring import Paced

    return Paced(agent, rate)


class _Turn:
    """What is done beside acting, in every step."""

    def __init__(self, whole_episodes: WholeEpisodes | None, watch: Watch | None) -> None:
        self.report: Report = lambda infos: None
        self.watch = watch
        self._whole_episodes = whole_episodes

    def count(self, tally: Tally, infos: dict[str, Any], over: list[Episode]) -> Sequence[Episode]:
        """Count the episodes that a step ended; return those to send, which the server does not add up itself."""
        whole: Sequence[Episode] = self._whole_episodes(infos) if self._whole_episodes else ()
        ended = whole if self._whole_episodes else over
        tally.count(ended)
        if self.watch is not None and any(episode.environment == 0 for episode in ended):
            self.watch.over()
        return whole

    def see(self) -> None:
        """Let the first environment be watched as it is now."""
        if self.watch is not None:
            self.watch.frame()


def _play(env: Any, is_vector: bool, turn: _Turn, settings: Mapping[str, Any]) -> RunSummary:
    """Play the episodes that the player of `relaax eval` names, each from a seed of its own. Raises Failure."""
    if is_vector and env.num_envs != 1:
        raise Failure(f"{env.num_envs} environments: one at a time is evaluated")
    from relaax.client.program.agents import LocalClient, current_player

    player = current_player()
    agent = LocalClient(player, *_single_spaces(env, is_vector), is_vector, settings.get("frame_skip", 1))
    start, returns, steps = time.monotonic(), [], 0
    for game in player.games():
        if turn.watch is not None:
            turn.watch.begin(game.number)
        episode, taken, cut = _game(env, agent, is_vector, game, turn)
        player.ended(game, episode, taken, cut)
        returns.append(episode.episode_return)
        steps += taken
    return RunSummary(len(returns), steps, tuple(returns), time.monotonic() - start)


def _game(env: Any, agent: LocalClient, is_vector: bool, game: Game, turn: _Turn) -> tuple[Episode, int, bool]:
    """Return the episode from the game's seed, the steps that it took, and whether it was cut off at its most steps."""
    played: list[Episode] = []
    tally = Tally(1, episodes=1, steps=game.max_steps, on_episode=played.append)
    (_run_vector if is_vector else _run_single)(env, agent, tally, game.seed, turn)
    return (played[0] if played else tally.unfinished(0)), tally.steps, not played


def _run_single(env: Any, agent: Any, tally: Tally, seed: int | None, turn: _Turn) -> None:
    with agent as client:
        while not tally.enough:
            state, _ = env.reset(seed=seed)
            seed = None  # a generator is seeded once; the same seed again would repeat the episode
            turn.see()
            action = client.init(state)
            ended = False
            while not ended and not tally.enough:
                state, reward, terminated, truncated, infos = env.step(action)
                turn.see()
                turn.report(infos)
                ended = bool(terminated or truncated)
                over = tally.step(np.array([reward], np.float64), np.array([ended]), None)
                whole = turn.count(tally, infos, over)
                if ended:
                    cut = not terminated
                    client.reset(reward, truncated=cut, state=state if cut else None, episodes=whole)
                else:
                    action = client.send(reward, state, episodes=whole)


def _run_vector(env: Any, agent: Any, tally: Tally, seed: int | None, turn: _Turn) -> None:
    mode = autoreset_of(env)
    seen = values_of(env.single_observation_space)
    with agent as client:
        states, _ = env.reset(seed=seed)
        turn.see()
        actions = client.init(states)
        first = np.zeros(env.num_envs, np.bool_)
        while not tally.enough:
            states, rewards, terminated, truncated, infos = env.step(actions)
            turn.report(infos)
            # Copies: the environment may reuse its arrays, in the reset below at the latest.
            terminated, truncated = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
            ended = terminated | truncated
            some = np.count_nonzero(ended) > 0
            begins = first if mode == "next_step" and np.count_nonzero(first) else None
            rewards = np.array(rewards, np.float64)
            over = tally.step(rewards, ended, begins)
            if mode != "same_step":
                turn.see()  # the last image of an episode
            whole = turn.count(tally, infos, over)
            final = infos.get("final_obs")
            if mode == "disabled" and some:
                final = seen.take(iter(seen.leaves(states, 1)), False)
                states, _ = env.reset(options={"reset_mask": ended.copy()})
            if (mode == "same_step" or (mode == "disabled" and ended[0])) and not tally.enough:
                turn.see()
            ends = (terminated, truncated) if some else ()  # most steps: none, and nothing to look at again
            actions = client.step(rewards, states, *ends, final_states=final, first=begins, episodes=whole)
            first = ended
