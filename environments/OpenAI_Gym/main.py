#!/usr/bin/env python3
"""Run environments of gymnasium against an RLX server: `main HOST:PORT NAME [N]`.

N environments are stepped together over one connection. An id of the Atari games gets the usual preprocessing:
grayscale 84x84, frame skip 4 with the maximum over the last two frames, up to 30 no-op starts. The ids of MinAtar
(MinAtar/Breakout-v1) are there if the package minatar is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib.util
import threading
import warnings
from typing import Any

try:
    from relaax.client import RunSummary, command, run
except ModuleNotFoundError as error:
    if error.name != "relaax":
        raise
    raise SystemExit("this Python has no relaax: activate its environment, or pip install 'relaax[gym]'") from None

ATARI_FRAME_SKIP = 4
VECTOR_PAYS = 4
"""Environments from which on an environment's own vector form is used. CartPole's takes 33 us a step however many there
are, those of gymnasium's SyncVectorEnv 7 us and 7 us more for each."""
MINATAR = "MinAtar/"
PROGRAM = "OpenAI_Gym/main"
_REGISTERING = threading.Lock()  # connections of one program find their environments side by side


def main(arguments: argparse.Namespace) -> RunSummary:
    """Make the environments, run them, close them."""
    settings = command.settings(arguments)
    spec = find(arguments.name)
    atari = is_atari(spec)
    if not atari:
        for option in ("life_loss", "sticky"):
            if getattr(arguments, option):
                raise command.UsageError(f"--{option.replace('_', '-')} is for Atari games, which {spec.id} is not")
    env = make(spec, arguments.environments, atari, arguments)
    try:
        summary = run(
            env,
            environment=spec.id,
            frame_skip=ATARI_FRAME_SKIP if atari else 1,
            whole_episodes=command.beside(__package__, "life_loss").whole_games if arguments.life_loss else None,
            **settings,
        )
    except BaseException:
        command.abandon(env)
        raise
    env.close()
    return summary


def find(name: str) -> Any:
    """Gymnasium's description of an environment. Raises command.UsageError where there is none of this name."""
    import gymnasium

    if importlib.util.find_spec("ale_py") is not None:
        import ale_py

        gymnasium.register_envs(ale_py)
    elif name.startswith("ALE/") or "NoFrameskip-v" in name:
        raise command.UsageError("ale-py is not installed; pip install 'relaax[atari]'")
    if name.startswith(MINATAR):
        _register_minatar()
    try:
        return gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError) as error:
        near = difflib.get_close_matches(name, gymnasium.registry, n=1, cutoff=0.5)
        if isinstance(error, gymnasium.error.UnregisteredEnv) and near:
            raise command.UsageError(f"gymnasium has no environment {name!r}; the nearest is {near[0]!r}") from None
        raise command.UsageError(f"cannot find the environment {name!r}: {error}") from error


def _register_minatar() -> None:
    """Tell gymnasium the ids of MinAtar, which importing the package alone does not. Once: a second time it would warn.

    Raises ModuleNotFoundError if it is not installed.
    """
    import gymnasium
    import minatar.gym

    with _REGISTERING:
        if not any(name.startswith(MINATAR) for name in gymnasium.registry):
            minatar.gym.register_envs()


def is_atari(spec: Any) -> bool:
    """Whether an id is one of the Arcade Learning Environment's."""
    return str(spec.entry_point).startswith("ale_py")


def make(spec: Any, count: int, atari: bool, arguments: argparse.Namespace) -> Any:
    """`count` environments in one vector: the environment's own fast form where it has one, and they are many."""
    import gymnasium

    mode = arguments.vectorization
    if mode is None:
        own = spec.vector_entry_point is not None and not spec.additional_wrappers and not atari
        mode = "vector_entry_point" if own and count >= VECTOR_PAYS else "sync"
    wrappers: list[Any] = []
    options: dict[str, Any] = {}
    if atari:
        if mode == "vector_entry_point":
            raise command.UsageError(f"{spec.id} has a vector form with other preprocessing: use environments/ALE")
        wrappers, options = _atari(arguments)
    observe = command.beside(__package__, "observe").Observe(arguments.observe) if arguments.observe else None
    if observe is not None and mode != "vector_entry_point":
        wrappers.append(observe)
    if mode == "async":
        wrappers.append(command.quiet_child())
    _import_box2d(spec)
    try:
        if mode == "vector_entry_point":
            made = gymnasium.make_vec(spec, count, mode)
            return made if observe is None else observe.vector(made)
        same_step = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}  # no step is wasted on a reset
        return gymnasium.make_vec(spec, count, mode, same_step, wrappers, **options)
    except (gymnasium.error.Error, ImportError) as error:
        raise command.UsageError(f"cannot make {spec.id}: {error}") from error  # which may say what is not installed


def _import_box2d(spec: Any) -> None:
    """Its classes, made by SWIG, raise warnings of deprecation; turned into errors, those crash the interpreter."""
    if str(spec.entry_point).startswith("gymnasium.envs.box2d"):
        with warnings.catch_warnings(), contextlib.suppress(ImportError):  # gymnasium says what to install
            warnings.simplefilter("ignore", DeprecationWarning)
            importlib.import_module("Box2D")


def _atari(arguments: argparse.Namespace) -> tuple[list[Any], dict[str, Any]]:
    import ale_py
    import cv2
    from gymnasium.wrappers import AtariPreprocessing

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    cv2.setNumThreads(1)  # the images are small, and there are other processes
    wrappers: list[Any] = [lambda env: AtariPreprocessing(env, noop_max=30, frame_skip=ATARI_FRAME_SKIP)]
    if arguments.life_loss:
        wrappers.append(command.beside(__package__, "life_loss").LifeLoss)
    options: dict[str, Any] = {"frameskip": 1}
    if arguments.sticky is not None:
        options["repeat_action_probability"] = arguments.sticky
    return wrappers, options


def _positions(text: str) -> tuple[int, ...]:
    """Positions in a vector, separated by commas, for argparse."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of positions; they count from 0, as in 0,2")
    positions = tuple(int(part) for part in parts)
    if len(set(positions)) < len(positions):
        raise argparse.ArgumentTypeError(f"{text!r} names a position twice")
    return positions


def parser() -> argparse.ArgumentParser:
    """The program's arguments."""
    result = command.parser(PROGRAM, "Run gymnasium environments against an RLX server.", "an id, such as CartPole-v1")
    result.add_argument(
        "--vectorization",
        choices=("vector_entry_point", "sync", "async"),
        help="the environment's own vector form, all in this process, or one process each"
        f" (its own where it has one and N is at least {VECTOR_PAYS}, else sync)",
    )
    result.add_argument(
        "--observe",
        type=_positions,
        metavar="I,J,...",
        help="send only these elements of the observation, counted from 0",
    )
    result.add_argument("--life-loss", action="store_true", help="Atari: the loss of a life ends an episode")
    result.add_argument(
        "--sticky", type=command.probability, metavar="P", help="Atari: repeat the last action with probability P"
    )
    return result


if __name__ == "__main__":
    command.execute(parser(), main)
