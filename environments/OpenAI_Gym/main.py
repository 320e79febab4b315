#!/usr/bin/env python3
"""Run environments of gymnasium against an RLX server: `main HOST:PORT NAME [N]`.

N environments are stepped together over one connection. NAME is an id, MODULE:ID as for gymnasium.make, or
MODULE:CLASS. Atari ids get the usual preprocessing: grayscale 84x84, frame skip 4 with the maximum over the last two
frames, up to 30 no-op starts. The ids of MinAtar (MinAtar/Breakout-v1) are available if the package minatar is
installed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import warnings
from collections.abc import Sequence
from typing import Any

try:
    from relaax.client import RunSummary, command, run
    from relaax.client.program import modules, process
except ModuleNotFoundError as error:
    if error.name != "relaax":
        raise
    raise SystemExit(
        "this Python has no relaax: activate its environment, or pip install '.[gym]' in a checkout"
    ) from None

ATARI_FRAME_SKIP = 4
VECTOR_PAYS = 4
"""Number of environments from which an environment's own vector form is used. CartPole's takes 33 us per step for any
number; gymnasium's SyncVectorEnv takes 7 us plus 7 us for each environment.
"""
PROGRAM = "OpenAI_Gym/main"


def main(arguments: argparse.Namespace) -> RunSummary:
    """Create the environments, run them and close them."""
    settings = command.settings(arguments)
    spec = find(arguments)
    atari = is_atari(spec)
    if not atari:
        for option in ("life_loss", "sticky", "protocol"):
            if getattr(arguments, option):
                raise command.UsageError(f"--{option.replace('_', '-')} is for Atari games, which {spec.id} is not")
    if arguments.protocol == command.NOOP:
        arguments.life_loss = False
        arguments.sticky = arguments.sticky or 0.0
    wrapping = command.sibling_module(__package__, "wrapping")
    wrappers = [wrapping.wrapper_of(name, kwargs) for name, kwargs in arguments.wrapper]
    env = make(spec, atari, wrappers, arguments)

    whole_episodes = command.sibling_module(__package__, "life_loss").whole_games if arguments.life_loss else None

    def play() -> RunSummary:
        wrapping.require_sendable(env.single_observation_space)
        return run(
            env,
            environment=spec.id,
            frame_skip=(ATARI_FRAME_SKIP if atari else 1) * wrapping.frame_skip(wrappers),
            whole_episodes=whole_episodes,
            **settings,
        )

    return process.run_then_close(env, play)


def find(arguments: argparse.Namespace) -> Any:
    """Return gymnasium's specification of the environment. Raises command.UsageError if there is no such one."""
    naming = command.sibling_module(__package__, "naming")
    if (
        arguments.register
        or arguments.imports
        or "." in arguments.name  # a module, written with a dot instead of the colon
        or any(":" in name for name in (arguments.name, *(name for name, _ in arguments.wrapper)))
    ):
        modules.add_search_path(arguments.path)
    return naming.find(arguments.name, arguments.register, arguments.imports)


def is_atari(spec: Any) -> bool:
    """Return whether an id belongs to the Arcade Learning Environment."""
    return str(spec.entry_point).startswith("ale_py")


def make(spec: Any, atari: bool, wrappers: Sequence[Any], arguments: argparse.Namespace) -> Any:
    """Return the environments as one vector, each with these wrappers, in order.

    Raises command.UsageError if one cannot be made with the arguments.
    """
    import gymnasium

    naming = command.sibling_module(__package__, "naming")
    kwargs = dict(arguments.kwarg)
    count = arguments.environments
    around: list[Any] = []
    options: dict[str, Any] = {}
    observe = command.sibling_module(__package__, "observe").Observe(arguments.observe) if arguments.observe else None
    mask = arguments.action_mask
    _import_box2d(spec)
    try:
        mode = _mode(spec, atari or bool(wrappers or mask or arguments.parameters), kwargs, arguments)
        if mode == "vector_entry_point":
            if atari:
                raise command.UsageError(f"{spec.id} has a vector form with other preprocessing: use environments/ALE")
            if wrappers or mask:
                option = "--wrapper wraps" if wrappers else "--action-mask reads"
                raise command.UsageError(f"{option} each environment: use --vectorization sync or async")
            made = gymnasium.make_vec(spec, count, mode, **kwargs)
            return made if observe is None else observe.vector(made)
        if command.watching(arguments) is not None and "render_mode" not in kwargs:
            options["render_mode"] = "rgb_array"
        if atari:
            around, more = _atari(arguments)
            options |= more
            for name in options.keys() & kwargs.keys():
                raise command.UsageError(f"--kwarg {name}: the preprocessing of Atari games and --sticky set it")
        around += wrappers
        if observe is not None:
            around.append(observe)
        if mask is not None:
            masking = command.sibling_module(__package__, "action_mask")
            around.append(lambda env: masking.SendMask(env, mask))
        if mode == "async":
            names = [*(arguments.metric or ()), *([arguments.taken_action] if arguments.taken_action else ())]
            around.append(process.child_wrapper(None if arguments.life_loss else names))
        # The step that ends an episode also resets, so no step is wasted on a reset.
        same_step: dict[str, Any] = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
        if mode == "async":
            same_step["context"] = process.start_method()
        if mode == "sync":
            same_step["copy"] = False  # observations are copied out of each environment, and sent before the next step
        return gymnasium.make_vec(spec, count, mode, same_step, around, **options, **kwargs)
    except naming.USAGE_ERRORS as error:  # its message may name a missing library
        given = f" with {', '.join(f'{name}={value!r}' for name, value in kwargs.items())}" if kwargs else ""
        raise command.UsageError(f"cannot make {spec.id}{given}: {modules.error_text(error)}") from error


def _mode(spec: Any, wrapped: bool, kwargs: dict[str, Any], arguments: argparse.Namespace) -> str:
    """Return the vectorization mode: as requested, or the environment's own vector form if available and faster."""
    wrapping = command.sibling_module(__package__, "wrapping")
    if kwargs:
        wrapping.check_environment(spec, kwargs)
    if command.watching(arguments) is not None and arguments.vectorization is None:
        return "sync"  # one environment can be rendered without the others
    if arguments.vectorization is not None:
        return str(arguments.vectorization)
    own = spec.vector_entry_point is not None and not spec.additional_wrappers and not wrapped
    pays = own and arguments.environments >= VECTOR_PAYS and wrapping.accepts(spec.vector_entry_point, kwargs)
    return "vector_entry_point" if pays else "sync"


def _import_box2d(spec: Any) -> None:
    """Import Box2D without warnings: as errors, the deprecations of its SWIG classes would crash the interpreter."""
    if str(spec.entry_point).startswith("gymnasium.envs.box2d"):
        with warnings.catch_warnings(), contextlib.suppress(ImportError):  # gymnasium names the package to install
            warnings.simplefilter("ignore", DeprecationWarning)
            importlib.import_module("Box2D")


def _atari(arguments: argparse.Namespace) -> tuple[list[Any], dict[str, Any]]:
    import ale_py
    import cv2
    from gymnasium.wrappers import AtariPreprocessing, TimeLimit

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    cv2.setNumThreads(1)  # the images are small, and other processes need the cores
    wrappers: list[Any] = [lambda env: AtariPreprocessing(env, noop_max=30, frame_skip=ATARI_FRAME_SKIP)]
    if arguments.life_loss:
        wrappers.append(command.sibling_module(__package__, "life_loss").LifeLoss)
    options: dict[str, Any] = {"frameskip": 1}
    if (
        arguments.protocol == command.NOOP
    ):  # counted from the agent's first action: the emulator would count no-ops, too
        wrappers.append(lambda env: TimeLimit(env, command.NOOP_FRAMES // ATARI_FRAME_SKIP))
    if arguments.sticky is not None:
        options["repeat_action_probability"] = arguments.sticky
    return wrappers, options


def _positions(text: str) -> tuple[int, ...]:
    """Parse positions in a vector, separated by commas, for argparse."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of positions, counted from 0, as in 0,2")
    positions = tuple(int(part) for part in parts)
    if len(set(positions)) < len(positions):
        raise argparse.ArgumentTypeError(f"{text!r} names a position twice")
    return positions


def parser() -> argparse.ArgumentParser:
    """Return the parser of the program's arguments."""
    result = command.parser(
        PROGRAM,
        "Run gymnasium environments against an RLX server.",
        "an id, such as CartPole-v1, MODULE:ID or MODULE:CLASS",
    )
    wrapping = command.sibling_module(__package__, "wrapping")
    add: Any = result.add_argument
    text = (
        "vector_entry_point: the environment's own vector form. sync: all environments in this process. async: one"
        f" process each (vector_entry_point if there is one and N is at least {VECTOR_PAYS}, otherwise sync)"
    )
    add("--vectorization", choices=("vector_entry_point", "sync", "async"), help=text)
    text = "send only these elements of the observation, counted from 0"
    add("--observe", type=_positions, metavar="I,J,...", help=text)
    text = (
        "send the action mask as a part of the observation. info: info['action_mask'] of reset and step. method: the"
        " method action_masks(), as in SB3-contrib"
    )
    add("--action-mask", choices=("info", "method"), help=text)
    text = "an argument of the environment's constructor, as for gymnasium.make, such as is_slippery=false; repeatable"
    add("--kwarg", metavar="NAME=VALUE", type=modules.kwarg, action="append", default=[], help=text)
    text = (
        "wrap each environment in this class of gymnasium.wrappers, or MODULE:CLASS, with these arguments, such as"
        " GrayscaleObservation, 'ResizeObservation={\"shape\": [84, 84]}'; repeatable, in order"
    )
    add("--wrapper", metavar="NAME[={...}]", type=wrapping.wrapper, action="append", default=[], help=text)
    text = "call this function first, for packages that register their ids in one, such as minatar.gym:register_envs"
    add("--register", metavar="MODULE:FUNCTION", help=text)
    text = "import this module first, for packages that register their ids on import, such as highway_env; repeatable"
    add("--import", dest="imports", metavar="MODULE", action="append", default=[], help=text)
    text = (
        "folder to search for the modules of NAME, --wrapper, --register and --import, before the working directory;"
        " repeatable"
    )
    add("--path", metavar="FOLDER", action="append", default=[], help=text)
    add("--life-loss", action="store_true", help="Atari: end an episode with each life")
    text = "Atari: repeat the last action with probability P"
    add("--sticky", type=command.probability, metavar="P", help=text)
    command.add_atari_protocol(result)
    return result


if __name__ == "__main__":
    command.execute(parser(), main)
