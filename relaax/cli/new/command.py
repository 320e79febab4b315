"""The commands `relaax new algorithm` and `relaax new environment`."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.resources
import importlib.util
import keyword
import re
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer

from relaax.bundled import EXAMPLES, bundled_folder, bundled_names
from relaax.cli import completion
from relaax.cli.reporting import exit_on_errors
from relaax.configuration import unknown
from relaax.server.command.options import command_app

RELAAX, TORCH = "relaax", "torch"
PROGRAMS = {RELAAX: ".py", TORCH: "_torch.py"}
"""The suffix of the algorithm's template, by framework."""

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
    framework: Annotated[
        str,
        typer.Option(metavar="[relaax|torch]", help="What computes the network and its gradients; torch: PyTorch."),
    ] = RELAAX,
) -> None:
    """Write your own algorithm, which trains CartPole.

    NAME.py is REINFORCE (Williams 1992) in one file: a Config, a network, a ParameterServer that defines the model, and
    an Agent that acts and computes gradients. `relaax docs write-an-algorithm` explains it line by line. Change it as
    you like. `relaax run NAME.yaml` trains it, test_NAME.py tests it with pytest, and NAME.Procfile is for honcho.
    With --framework torch, the network is a torch.nn.Module, and autograd differentiates the loss.

    With --from, NAME/ is a copy of the bundled algorithm's directory, and NAME.yaml trains it: Pendulum with
    da3c_cont, sac and apex_dpg, CartPole with the others.

    Existing files are never overwritten. Exit code 2: no file was written, for the reason in the message.
    """
    with exit_on_errors("relaax new algorithm", (ScaffoldError,)):
        check_name(name, "algorithms")
        if framework not in PROGRAMS:
            raise ScaffoldError(unknown("framework", framework, PROGRAMS))
        if source is not None and framework != RELAAX:
            raise ScaffoldError("bundled algorithms have no version for PyTorch: omit --from, or --framework")
        if source is None:
            where, test = f"{name}.py", f"test_{name}.py"
            suffixes = {".py": PROGRAMS[framework], ".yaml": ".yaml", ".Procfile": ".Procfile"}
            files = {Path(f"{name}{end}"): fill_template(ALGORITHM, suffix, name) for end, suffix in suffixes.items()}
            write({**files, Path(test): fill_template(ALGORITHM, "_test.py", name)})
            written, more = f"{where}, {test}", {f"python -m pytest {test}": "tests it: pip install pytest"}
        else:
            where, more = f"{name}/", {}
            write(copy_algorithm(source, name))
            written = where
    print(f"wrote {written}, {name}.yaml and {name}.Procfile")
    if importlib.util.find_spec("gymnasium") is None:
        print("it needs gymnasium, which is not installed:\n  pip install 'relaax[gym]'")
    if framework == TORCH and importlib.util.find_spec("torch") is None:
        print("it needs PyTorch, which is not installed; for a CPU:")
        print("  pip install torch --index-url https://download.pytorch.org/whl/cpu")
    _print_next_steps(name, "the algorithm", where, more=more)


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
    NAME.yaml` serves it at http://localhost:8900/ to browsers of this computer, and it learns while you watch.

    Existing files are never overwritten. Exit code 2: no file was written, for the reason in the message.
    """
    folder = Path(name)
    with exit_on_errors("relaax new environment", (ScaffoldError,)):
        check_name(name, "environments")
        if browser:
            write(browser_game(name), executables=[folder / "main.py"])
            print(f"wrote {name}/, {name}.yaml and {name}.Procfile")
            _print_next_steps(
                name, "the game", f"{name}/game.js", "trains the game that is played at http://localhost:8900/: open it"
            )
            return
        files = {folder / "main.py": fill_template(ENVIRONMENT, ".py", name)}
        files |= {
            Path(f"{name}{suffix}"): fill_template(ENVIRONMENT, suffix, name) for suffix in (".yaml", ".Procfile")
        }
        write(files, executables=[folder / "main.py"], links={folder / "main": "main.py"})
    print(f"wrote {name}/main.py, {name}.yaml and {name}.Procfile")
    more = {
        f"relaax check {name}.yaml": "plays it at random and reports its faults and mean return",
        f"relaax eval runs/{name}": "scores the newest checkpoint of a run",
    }
    _print_next_steps(name, "the environment", f"{name}/main.py", more=more)


def _print_next_steps(
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


ALGORITHM = "reinforce"
ENVIRONMENT = "docking"
GAME = "orchard"
"""Names of the templates, which also occur in their text."""
_SHARED = {
    "_value_based.agent": ("agent.py", "model.py"),
    "da3c.agent": ("agent.py", "episodes.py", "loss.py", "model.py"),
}
"""Files of other packages to copy with an algorithm, by the module that the algorithm imports."""


class ScaffoldError(Exception):
    """No file was written. The message has the reason and a remedy."""


def check_name(name: str, kind: str) -> None:
    """Raise ScaffoldError if `name` cannot or should not be used. `kind`: algorithms or environments."""
    if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name):
        guess = re.sub(r"\W", "_", name, flags=re.ASCII).lstrip("_0123456789")
        hint = f"; try {guess!r}" if guess and not keyword.iskeyword(guess) else ""
        raise ScaffoldError(
            f"{name!r} cannot be a name: use letters, digits and _, without a digit at the start, and no keyword"
            f" of Python{hint}"
        )
    if name in bundled_names(kind):
        copy = f"`relaax new algorithm my_{name} --from {name}`"
        if kind == "environments":
            copy = f"`cp -r {bundled_folder(kind) / name} .`"
        raise ScaffoldError(
            f"{name!r} is one of the bundled {kind}, which the new one would hide: choose another name, or copy it"
            f" with {copy}"
        )
    if name in sys.stdlib_module_names or _is_installed(name):
        raise ScaffoldError(f"{name!r} is a module of Python, which the new file would hide: choose another name")


def _exists_error(paths: Sequence[str]) -> ScaffoldError:
    return ScaffoldError(f"already exists: {' and '.join(paths)}; nothing is overwritten: choose another name")


def fill_template(template: str, suffix: str, name: str) -> str:
    """Return the text of a template with `name` inserted."""
    file = importlib.resources.files("relaax.cli.new.templates") / f"{template}{suffix}"
    return re.sub(rf"\b{template}\b", name, file.read_text(encoding="utf-8"))


def copy_algorithm(algorithm: str, name: str) -> dict[Path, str]:
    """Return the files of a bundled algorithm in a directory `name`, with a configuration and a Procfile for the copy.

    Raises ScaffoldError if there is no such algorithm, or the directory's path is taken.
    """
    from relaax.configuration.yaml_file import parse_yaml

    if algorithm not in EXAMPLES:
        raise ScaffoldError(unknown("bundled algorithm", algorithm, EXAMPLES))
    if Path(name).exists():
        raise _exists_error([name])
    source = bundled_folder("algorithms") / algorithm
    paths = sorted(path for path in source.rglob("*") if path.suffix in (".py", ".md"))
    files = {Path(name) / path.relative_to(source): path.read_text(encoding="utf-8") for path in paths}
    for shared, needed in _SHARED.items():
        if any(f"from ..{shared} import" in text for text in files.values()):
            folder = shared.partition(".")[0]
            copies = [source.parent / folder / file for file in needed]
            files |= {Path(name) / path.name: path.read_text(encoding="utf-8") for path in copies}
            files = {path: text.replace(f"..{folder}.", ".") for path, text in files.items()}

    example = EXAMPLES[algorithm]
    text = (bundled_folder("config") / f"{example}.yaml").read_text(encoding="utf-8")
    text = re.sub(r"^# yaml-language-server: .*\n", "", text)  # the schema is not in the folder of the copy
    text = re.sub(r"(?m)^  path: .*$", f"  path: {name}", text).replace(example, name)
    environment = parse_yaml(text, example)["relaax-run"]["name"]
    procfile = fill_template(ALGORITHM, ".Procfile", name).replace("CartPole-v1", environment)
    servers = (bundled_folder("config") / f"{example}.Procfile").read_text(encoding="utf-8")
    procfile = re.sub(r"(?m)(^\S*server: .*\n)+", servers.replace(f"config/{example}.yaml", f"{name}.yaml"), procfile)
    return {**files, Path(f"{name}.yaml"): text, Path(f"{name}.Procfile"): procfile}


def browser_game(name: str) -> dict[Path, str]:
    """Return the files of a game in a browser tab: page, client for JavaScript, configuration and Procfile."""
    folder = Path(name)
    client = sorted((bundled_folder("protocol") / "clients" / "javascript" / "src").iterdir())
    return {
        folder / "index.html": fill_template(GAME, ".html", name),
        folder / "game.js": fill_template(GAME, ".game.js", name),
        folder / "page.js": fill_template(GAME, ".page.js", name),
        folder / "main.py": fill_template(GAME, ".py", name),
        **{folder / "rlx" / file.name: file.read_text(encoding="utf-8") for file in client},
        Path(f"{name}.yaml"): fill_template(GAME, ".yaml", name),
        Path(f"{name}.Procfile"): fill_template(GAME, ".Procfile", name),
    }


def write(files: Mapping[Path, str], executables: Sequence[Path] = (), links: Mapping[Path, str] | None = None) -> None:
    """Write new files and links. If one of them exists, none is written. Raises ScaffoldError."""
    links = links or {}
    taken = [str(path) for path in (*files, *links) if path.exists() or path.is_symlink()]
    if taken:
        raise _exists_error(taken)
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        for path in executables:
            path.chmod(path.stat().st_mode | 0o111)
        for path, target in links.items():
            path.symlink_to(target)
    except OSError as error:
        raise ScaffoldError(f"cannot write the file {error.filename}: {error.strerror}") from None


def _is_installed(name: str) -> bool:
    """Return whether a library has a module of this name. Python 3.10 finds only libraries that list their modules."""
    places = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    listed = name in importlib.metadata.packages_distributions()
    return listed or importlib.machinery.PathFinder.find_spec(name, places) is not None
