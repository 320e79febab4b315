"""The commands `relaax new algorithm` and `relaax new environment`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from relaax.cli.new.scaffold import ALGORITHM, ENVIRONMENT, ScaffoldError, check_name, copied, filled, write

new = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Write a working algorithm or environment of your own, to change from there.",
)


@new.command()
def algorithm(
    name: Annotated[str, typer.Argument(help="What it is called: my_algorithm.")],
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="ALGORITHM", help="Copy this bundled algorithm instead: da3c or da3c_cont."),
    ] = None,
) -> None:
    """Write an algorithm of your own, which trains CartPole.

    NAME.py is REINFORCE (Williams 1992) in one file: a Config, a network, a ParameterServer that says what the model
    is, and an Agent that acts and computes gradients. `relaax docs write-an-algorithm` explains it line by line. Change
    it into yours. `relaax run NAME.yaml` trains it; NAME.Procfile is for honcho.

    With --from, NAME/ is a copy of the bundled algorithm's directory, and NAME.yaml trains that: CartPole with da3c,
    Pendulum with da3c_cont.

    Nothing is ever overwritten. Exit code 2: nothing was written, and a sentence says why.
    """
    try:
        check_name(name, "algorithms")
        if source is None:
            where = f"{name}.py"
            write(
                {Path(f"{name}{suffix}"): filled(ALGORITHM, suffix, name) for suffix in (".py", ".yaml", ".Procfile")}
            )
        else:
            where = f"{name}/"
            write(copied(source, name))
    except ScaffoldError as refused:
        _refuse("algorithm", refused)
    print(f"wrote {where}, {name}.yaml and {name}.Procfile")
    if importlib.util.find_spec("gymnasium") is None:
        print("it trains in gymnasium, which is not installed:\n  pip install 'relaax[gym]'")
    _say_next(name, "the algorithm", where)


@new.command()
def environment(name: Annotated[str, typer.Argument(help="What it is called: my_world.")]) -> None:
    """Write an environment of your own, which is trained at once.

    NAME/main.py is a small task in Python and numpy, which needs of RELAAX the client only. Put your simulator, game
    or machine in the place of its class World: what an action does to it, what is seen then, the reward, and whether
    the episode is over. `relaax run NAME.yaml` trains it by da3c; NAME.Procfile is for honcho; NAME/main HOST:PORT
    NAME connects it to servers that are there.

    Nothing is ever overwritten. Exit code 2: nothing was written, and a sentence says why.
    """
    folder = Path(name)
    try:
        check_name(name, "environments")
        files = {folder / "main.py": filled(ENVIRONMENT, ".py", name)}
        files |= {Path(f"{name}{suffix}"): filled(ENVIRONMENT, suffix, name) for suffix in (".yaml", ".Procfile")}
        write(files, executables=[folder / "main.py"], links={folder / "main": "main.py"})
    except ScaffoldError as refused:
        _refuse("environment", refused)
    print(f"wrote {name}/main.py, {name}.yaml and {name}.Procfile")
    _say_next(name, "the environment", f"{name}/main.py")


def _refuse(what: str, reason: ScaffoldError) -> NoReturn:
    print(f"relaax new {what}: {reason}", file=sys.stderr)
    raise typer.Exit(2)


def _say_next(name: str, what: str, file: str) -> None:
    lines = {
        f"relaax run {name}.yaml": "trains it on this machine and says how that goes",
        f"honcho -f {name}.Procfile start": "the same as servers and an environment of their own",
        f"edit {file}": f"{what} is in this {'directory' if file.endswith('/') else 'file'}",
    }
    print("next:")
    for line, meaning in lines.items():
        print(f"  {line:{max(map(len, lines))}}  {meaning}")
