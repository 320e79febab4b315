"""The loop that runs a gymnasium environment against a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from relaax.client.client import Client
from relaax.client.failure import TrainingFinished
from relaax.client.tally import RunSummary, Tally
from relaax.client.vector_client import Autoreset, VectorClient
from relaax.rlx import Episode

WholeEpisodes = Callable[[dict[str, Any]], Sequence[Episode]]


def run(
    env: Any,
    address: str,
    *,
    episodes: int | None = None,
    steps: int | None = None,
    seed: int | None = None,
    on_episode: Callable[[Episode], None] | None = None,
    whole_episodes: WholeEpisodes | None = None,
    environment: str | None = None,
    **settings: Any,
) -> RunSummary:
    """Run a gymnasium environment against the RLX server at `address`, until training ends or there was enough of it.

    `env`: an Env, a VectorEnv of any autoreset mode, a function that makes one, or an id for `gymnasium.make`. What
    this call made it also closes.
    `episodes`, `steps`: how many are enough, over all environments; None for no end. Episodes are shared out evenly
    among the environments of a vector.
    `seed`: given to the first reset.
    `on_episode`: told of each whole episode that counts.
    `whole_episodes`: finds the whole episodes that ended in a step's infos, for environments where what ends for
    learning is no whole episode (the loss of a life); their returns are then the ones that the server reports.
    `environment`: the name that the server is told; by default the environment's id.
    `settings`: the other arguments of `relaax.client.Client`, such as `mode` and `retry_seconds`.

    Raises Failure where the agent's side fails for good. The end of training is no failure: the summary says so.
    """
    with ExitStack() as stack:
        made = _made(env)
        if made is not env:
            stack.callback(made.close)
        if environment is None:
            spec = getattr(made, "spec", None)
            environment = str(spec.id) if spec is not None else ""
        settings = {"environment": environment, "reports_episodes": whole_episodes is not None} | settings
        is_vector = hasattr(made, "single_observation_space")
        tally = Tally(made.num_envs if is_vector else 1, episodes=episodes, steps=steps, on_episode=on_episode)
        start = time.monotonic()
        finished = None
        try:
            (_run_vector if is_vector else _run_single)(made, address, tally, seed, whole_episodes, settings)
        except TrainingFinished as end:
            finished = end.message
        return RunSummary(tally.episodes, tally.steps, tuple(tally.returns), time.monotonic() - start, finished)


def _made(env: Any) -> Any:
    if isinstance(env, str):
        import gymnasium  # only an id needs it

        return gymnasium.make(env)
    return env() if isinstance(env, type) or not hasattr(env, "step") else env


def _run_single(
    env: Any,
    address: str,
    tally: Tally,
    seed: int | None,
    whole_episodes: WholeEpisodes | None,
    settings: dict[str, Any],
) -> None:
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    with Client(address, **spaces, **settings) as client:
        while not tally.enough:
            state, _ = env.reset(seed=seed)
            seed = None  # a generator is seeded once; the same seed again would repeat the episode
            action = client.init(state)
            ended = False
            while not ended and not tally.enough:
                state, reward, terminated, truncated, infos = env.step(action)
                ended = bool(terminated or truncated)
                over = tally.step(np.array([reward], np.float64), np.array([ended]), None)
                whole: Sequence[Episode] = whole_episodes(infos) if whole_episodes else ()
                tally.count(whole if whole_episodes else over)
                if ended:
                    cut = not terminated
                    client.reset(reward, truncated=cut, state=state if cut else None, episodes=whole)
                else:
                    action = client.send(reward, state, episodes=whole)


def _run_vector(
    env: Any,
    address: str,
    tally: Tally,
    seed: int | None,
    whole_episodes: WholeEpisodes | None,
    settings: dict[str, Any],
) -> None:
    mode = autoreset_of(env)
    spaces = {"observation_space": env.single_observation_space, "action_space": env.single_action_space}
    # An environment that does not reset by itself is reset here, in the step that ended its episode.
    habit: Autoreset = "next_step" if mode == "next_step" else "same_step"
    with VectorClient(address, environments=env.num_envs, autoreset=habit, **spaces, **settings) as client:
        states, _ = env.reset(seed=seed)
        actions = client.init(states)
        first = np.zeros(env.num_envs, np.bool_)
        while not tally.enough:
            states, rewards, terminated, truncated, infos = env.step(actions)
            terminated, truncated = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
            ended = terminated | truncated
            begins = first if mode == "next_step" and first.any() else None
            over = tally.step(np.asarray(rewards, np.float64), ended, begins)
            whole: Sequence[Episode] = whole_episodes(infos) if whole_episodes else ()
            tally.count(whole if whole_episodes else over)
            final = infos.get("final_obs")
            if mode == "disabled" and ended.any():
                final = states
                states, _ = env.reset(options={"reset_mask": ended})
            actions = client.step(
                rewards, states, terminated, truncated, final_states=final, first=begins, episodes=whole
            )
            first = ended


def autoreset_of(env: Any) -> Autoreset:
    """How a VectorEnv passes from one episode to the next. Raises ValueError where it does not say."""
    # Some environments write the mode into metadata that all instances of their class share: ask the instance first.
    mode = getattr(getattr(env, "unwrapped", env), "autoreset_mode", None) or env.metadata.get("autoreset_mode")
    name = str(getattr(mode, "value", mode)).replace("_", "").lower()
    match name:
        case "nextstep":
            return "next_step"
        case "samestep":
            return "same_step"
        case "disabled":
            return "disabled"
    raise ValueError(
        f"the vector environment says {mode!r} for metadata['autoreset_mode']:"
        " set it to gymnasium.vector.AutoresetMode.NEXT_STEP, SAME_STEP or DISABLED, whichever it does"
    )
