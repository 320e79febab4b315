"""The commands `relaax new algorithm` and `relaax new environment`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, NoReturn

import typer

from relaax.bundled import EXAMPLES
from relaax.cli import completion
from relaax.cli.new.scaffold import (
    ALGORITHM,
    ENVIRONMENT,
    ScaffoldError,
    browser_game,
    check_name,
    copied,
    filled,
    write,
)
from relaax.server.command.options import command_app

new = command_app(
    no_args_is_help=True,
    help="Write a working algorithm or environment to start from.",
)


@new.command()
def algorithm(
    name: Annotated[str, typer.Argument(help="Its name, such as my_algorithm.")],
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            autocompletion=completion.algorithms,
            metavar="ALGORITHM",
            help=f"Copy this bundled algorithm instead: {', '.join(EXAMPLES)}.",
        ),
    ] = None,
) -> None:
    """Write your own algorithm, which trains CartPole.

    NAME.py is REINFORCE (Williams 1992) in one file: a Config, a network, a ParameterServer that defines the model, and
    an Agent that acts and computes gradients. `relaax docs write-an-algorithm` explains it line by line. Change it as
    you like. `relaax run NAME.yaml` trains it, test_NAME.py tests it with pytest, and NAME.Procfile is for honcho.

    With --from, NAME/ is a copy of the bundled algorithm's directory, and NAME.yaml trains it: CartPole with da3c,
    Pendulum with da3c_cont.

    Nothing is ever overwritten. Exit code 2: nothing was written, and a message says why.
    """
    try:
        check_name(name, "algorithms")
        if source is None:
            where, test = f"{name}.py", f"test_{name}.py"
            files = {
                Path(f"{name}{suffix}"): filled(ALGORITHM, suffix, name) for suffix in (".py", ".yaml", ".Procfile")
            }
            write({**files, Path(test): filled(ALGORITHM, "_test.py", name)})
            written, more = f"{where}, {test}", {f"python -m pytest {test}": "tests it: pip install pytest"}
        else:
            where, more = f"{name}/", {}
            write(copied(source, name))
            written = where
    except ScaffoldError as refused:
        _refuse("algorithm", refused)
    print(f"wrote {written}, {name}.yaml and {name}.Procfile")
    if importlib.util.find_spec("gymnasium") is None:
        print("it needs gymnasium, which is not installed:\n  pip install 'relaax[gym]'")
    _say_next(name, "the algorithm", where, more=more)


@new.command()
def environment(
    name: Annotated[str, typer.Argument(help="Its name, such as my_world.")],
    browser: Annotated[bool, typer.Option("--browser", help="Write a game that is played in a browser tab.")] = False,
) -> None:
    """Write your own environment, ready for training.

    NAME/main.py is a small task in Python and numpy that needs only the client of RELAAX. Replace its class World by
    your simulator, game or machine: the effect of an action, the observation after it, the reward, and whether the
    episode is over. `relaax check NAME.yaml` plays it and reports its faults; `relaax run NAME.yaml` trains it by da3c;
    NAME.Procfile is for honcho; NAME/main HOST:PORT NAME connects it to running servers.

    With --browser, NAME/ is a page with a game on a canvas, NAME/game.js, and the client for JavaScript. `relaax run
    NAME.yaml` serves it at http://localhost:8900/ to browsers of this computer, and it learns while one watches.

    Nothing is ever overwritten. Exit code 2: nothing was written, and a message says why.
    """
    folder = Path(name)
    try:
        check_name(name, "environments")
        if browser:
            write(browser_game(name), executables=[folder / "main.py"])
            print(f"wrote {name}/, {name}.yaml and {name}.Procfile")
            _say_next(name, "the game", f"{name}/game.js", "learns what is played at http://localhost:8900/: open it")
            return
        files = {folder / "main.py": filled(ENVIRONMENT, ".py", name)}
        files |= {Path(f"{name}{suffix}"): filled(ENVIRONMENT, suffix, name) for suffix in (".yaml", ".Procfile")}
        write(files, executables=[folder / "main.py"], links={folder / "main": "main.py"})
    except ScaffoldError as refused:
        _refuse("environment", refused)
    print(f"wrote {name}/main.py, {name}.yaml and {name}.Procfile")
    more = {
        f"relaax check {name}.yaml": "plays it at random and reports its faults and mean return",
        f"relaax eval runs/{name}": "scores what a run has learned",
    }
    _say_next(name, "the environment", f"{name}/main.py", more=more)


def _refuse(what: str, reason: ScaffoldError) -> NoReturn:
    print(f"relaax new {what}: {reason}", file=sys.stderr)
    raise typer.Exit(2)


def _say_next(
    name: str,
    what: str,
    file: str,
    run: str = "trains it on this machine and shows the progress",
    more: Mapping[str, str] = MappingProxyType({}),
) -> None:
    lines = {
        f"relaax run {name}.yaml": run,
        f"honcho -f {name}.Procfile start": "does the same with separate servers and environment",
        f"edit {file}": f"{what} is in this {'directory' if file.endswith('/') else 'file'}",
        **more,
    }
    print("next:")
    for line, meaning in lines.items():
        print(f"  {line:{max(map(len, lines))}}  {meaning}")
