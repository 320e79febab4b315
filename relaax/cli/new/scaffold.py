"""Names that may be given to something new, and its files."""

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

from relaax.bundled import bundled_folder, bundled_names
from relaax.configuration import unknown
from relaax.configuration.yaml_file import parse_yaml

ALGORITHM = "reinforce"
ENVIRONMENT = "docking"
"""The templates, by the names that they have in their own text."""
EXAMPLES = {"da3c": "da3c_gym_cartpole", "da3c_cont": "da3cc_gym_pendulum"}
"""Each bundled algorithm, with the bundled configuration that a copy of it begins with."""


class ScaffoldError(Exception):
    """Nothing was written. The message says why, and what to do instead."""


def check_name(name: str, kind: str) -> None:
    """`kind`: algorithms or environments. Raises ScaffoldError where `name` cannot or should not be one of them."""
    if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name):
        guess = re.sub(r"\W", "_", name, flags=re.ASCII).lstrip("_0123456789")
        hint = f"; try {guess!r}" if guess and not keyword.iskeyword(guess) else ""
        raise ScaffoldError(
            f"{name!r} cannot be a name: it is made of letters, digits and _, begins with no digit and is no keyword"
            f" of Python{hint}"
        )
    if name in bundled_names(kind):
        copy = f"`relaax new algorithm my_{name} --from {name}`"
        if kind == "environments":
            copy = f"`cp -r {bundled_folder(kind) / name} .`"
        raise ScaffoldError(
            f"{name!r} is one of the bundled {kind}, which the new one would hide: choose another name, or take a copy"
            f" of it with {copy}"
        )
    if name in sys.stdlib_module_names or _is_installed(name):
        raise ScaffoldError(f"{name!r} is a module of Python, which the new file would hide: choose another name")


def filled(template: str, suffix: str, name: str) -> str:
    """The text of a template with `name` in it."""
    file = importlib.resources.files("relaax.cli.new.templates") / f"{template}{suffix}"
    return re.sub(rf"\b{template}\b", name, file.read_text(encoding="utf-8"))


def copied(algorithm: str, name: str) -> dict[Path, str]:
    """The files of a bundled algorithm in a directory `name`, and a configuration and a Procfile that train the copy.

    Raises ScaffoldError where there is no such algorithm, or something has the directory's place.
    """
    if algorithm not in EXAMPLES:
        raise ScaffoldError(unknown("bundled algorithm", algorithm, EXAMPLES))
    if Path(name).exists():
        raise ScaffoldError(f"there is already {name}, and nothing is overwritten: choose another name")
    source = bundled_folder("algorithms") / algorithm
    paths = sorted(path for path in source.rglob("*") if path.suffix in (".py", ".md"))
    files = {Path(name) / path.relative_to(source): path.read_text(encoding="utf-8") for path in paths}

    example = EXAMPLES[algorithm]
    text = (bundled_folder("config") / f"{example}.yaml").read_text(encoding="utf-8")
    text = re.sub(r"^# yaml-language-server: .*\n", "", text)  # the schema is not beside the copy
    text = re.sub(r"(?m)^  path: .*$", f"  path: {name}", text).replace(example, name)
    environment = parse_yaml(text, example)["relaax-run"]["name"]
    procfile = filled(ALGORITHM, ".Procfile", name).replace("CartPole-v1", environment)
    return {**files, Path(f"{name}.yaml"): text, Path(f"{name}.Procfile"): procfile}


def write(files: Mapping[Path, str], executables: Sequence[Path] = (), links: Mapping[Path, str] | None = None) -> None:
    """Write new files and links. Raises ScaffoldError, before the first, where one of them is there already."""
    links = links or {}
    taken = [str(path) for path in (*files, *links) if path.exists() or path.is_symlink()]
    if taken:
        raise ScaffoldError(f"there is already {' and '.join(taken)}, and nothing is overwritten: choose another name")
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
    """Whether a library has a module of this name. Python 3.10 knows those only that keep a list of theirs."""
    places = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    listed = name in importlib.metadata.packages_distributions()
    return listed or importlib.machinery.PathFinder.find_spec(name, places) is not None
