"""Check names of new algorithms and environments, and write their files."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.resources
import keyword
import re
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from relaax.bundled import EXAMPLES, bundled_folder, bundled_names
from relaax.configuration import unknown

ALGORITHM = "reinforce"
ENVIRONMENT = "docking"
GAME = "orchard"
"""The templates, by the names that they have in their own text."""
_SHARED = "_value_based"


class ScaffoldError(Exception):
    """Nothing was written. The message gives the reason and a remedy."""


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


def filled(template: str, suffix: str, name: str) -> str:
    """Return the text of a template with `name` inserted."""
    file = importlib.resources.files("relaax.cli.new.templates") / f"{template}{suffix}"
    return re.sub(rf"\b{template}\b", name, file.read_text(encoding="utf-8"))


def copied(algorithm: str, name: str) -> dict[Path, str]:
    """Return the files of a bundled algorithm in a directory `name`, with a configuration and a Procfile for the copy.

    Raises ScaffoldError if there is no such algorithm, or the directory's path is taken.
    """
    from relaax.configuration.yaml_file import parse_yaml

    if algorithm not in EXAMPLES:
        raise ScaffoldError(unknown("bundled algorithm", algorithm, EXAMPLES))
    if Path(name).exists():
        raise ScaffoldError(f"already exists: {name}; nothing is overwritten: choose another name")
    source = bundled_folder("algorithms") / algorithm
    paths = sorted(path for path in source.rglob("*") if path.suffix in (".py", ".md"))
    files = {Path(name) / path.relative_to(source): path.read_text(encoding="utf-8") for path in paths}
    if f"{_SHARED}.agent" in files[Path(name) / "__init__.py"]:  # it is to be changed in the copy too
        shared = [source.parent / _SHARED / file for file in ("agent.py", "model.py")]
        files |= {Path(name) / path.name: path.read_text(encoding="utf-8") for path in shared}
        files = {path: text.replace(f"..{_SHARED}.", ".") for path, text in files.items()}

    example = EXAMPLES[algorithm]
    text = (bundled_folder("config") / f"{example}.yaml").read_text(encoding="utf-8")
    text = re.sub(r"^# yaml-language-server: .*\n", "", text)  # the schema is not beside the copy
    text = re.sub(r"(?m)^  path: .*$", f"  path: {name}", text).replace(example, name)
    environment = parse_yaml(text, example)["relaax-run"]["name"]
    procfile = filled(ALGORITHM, ".Procfile", name).replace("CartPole-v1", environment)
    servers = (bundled_folder("config") / f"{example}.Procfile").read_text(encoding="utf-8")
    procfile = re.sub(r"(?m)(^\S*server: .*\n)+", servers.replace(f"config/{example}.yaml", f"{name}.yaml"), procfile)
    return {**files, Path(f"{name}.yaml"): text, Path(f"{name}.Procfile"): procfile}


def browser_game(name: str) -> dict[Path, str]:
    """Return the files of a game in a browser tab: page, client for JavaScript, configuration and Procfile."""
    folder = Path(name)
    client = sorted((bundled_folder("protocol") / "clients" / "javascript" / "src").iterdir())
    return {
        folder / "index.html": filled(GAME, ".html", name),
        folder / "game.js": filled(GAME, ".game.js", name),
        folder / "page.js": filled(GAME, ".page.js", name),
        folder / "main.py": filled(GAME, ".py", name),
        **{folder / "rlx" / file.name: file.read_text(encoding="utf-8") for file in client},
        Path(f"{name}.yaml"): filled(GAME, ".yaml", name),
        Path(f"{name}.Procfile"): filled(GAME, ".Procfile", name),
    }


def write(files: Mapping[Path, str], executables: Sequence[Path] = (), links: Mapping[Path, str] | None = None) -> None:
    """Write new files and links. Raises ScaffoldError, before writing any, if one of them exists."""
    links = links or {}
    taken = [str(path) for path in (*files, *links) if path.exists() or path.is_symlink()]
    if taken:
        raise ScaffoldError(f"already exists: {' and '.join(taken)}; nothing is overwritten: choose another name")
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
        raise ScaffoldError(f"cannot write {error.filename}: {error.strerror}") from None


def _is_installed(name: str) -> bool:
    """Return whether a library has a module of this name. Python 3.10 finds only libraries that list their modules."""
    places = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    listed = name in importlib.metadata.packages_distributions()
    return listed or importlib.machinery.PathFinder.find_spec(name, places) is not None
