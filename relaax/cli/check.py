"""The command `relaax check`."""

from __future__ import annotations

import contextlib
import functools
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relaax.cli.reporting import exit_on_errors
from relaax.configuration import ConfigurationError, nearest
from relaax.console import print_error
from relaax.supervision.process import EXIT_ENVIRONMENT

if TYPE_CHECKING:
    from relaax.algorithm_base import ConfigBase
    from relaax.client.program.check_report import CheckReport
    from relaax.configuration import Configuration
    from relaax.hosting.loader import Algorithm
    from relaax.rlx import Space

_MIN_SIMILARITY = 0.75
_REPORT_SECONDS = 45.0
"""Seconds without a report after which the requirements on a program are printed. A check takes at most 30."""
EXPLAINED = (1, 2, EXIT_ENVIRONMENT)
"""Exit codes of a program that has printed the reason."""
_MOST_GENERAL = "da3c"  # supports the most kinds of spaces


def check(
    environment: Annotated[
        str,
        typer.Argument(
            help="A gymnasium id, MODULE:ID or MODULE:CLASS (CartPole-v1, room:RoomEnv); a configuration, as for "
            "`relaax run`; or a family or program followed by NAME (ALE boxing, my_world/main.py my_world)."
        ),
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME] [-- OPTIONS]", help="Write options of the environment's program after --."),
    ] = None,
    envs: Annotated[int, typer.Option(min=1, help="Number of environments, stepped as one vector.")] = 1,
    episodes: Annotated[int | None, typer.Option(min=1, help="Episodes to play, over all environments (3).")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Maximum number of steps (10,000).")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a key of a configuration, as in run.kwargs.continuous=false."
        ),
    ] = None,
) -> None:
    """Check an environment by playing episodes at random.

    No server is needed. The check covers resets, steps, ends of episodes, seeds, close() and processes that remain
    after it. It lists the algorithms that support the spaces. It takes at most 30 seconds.

    Exit code 0: no errors, perhaps warnings; 1: errors; 2: the environment does not exist or cannot be made.
    """
    limits = [] if episodes is None else ["--episodes", str(episodes)]
    limits += [] if steps is None else ["--steps", str(steps)]
    with exit_on_errors("relaax check"):
        code = _check(environment, words or [], envs, limits, set_ or [])
    raise typer.Exit(code)


def _check(environment: str, words: Sequence[str], envs: int, limits: Sequence[str], overrides: Sequence[str]) -> int:
    """Return the exit code. Raises ConfigurationError."""
    from relaax.client.program.check_report import CheckReport

    command, configuration = _command(environment, words, envs, overrides)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        code = _run([*command, *limits, "--report", str(file)])
        if not file.exists() and code == 0:
            from relaax.cli.run.environment_check import environment_class

            made = environment_class(Path(environment))
            way_out = f"; its class is {made}" if made else ""
            raise ConfigurationError(f"{environment} ended without a report: it is not an environment program{way_out}")
        if not file.exists():
            if code not in EXPLAINED:
                how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                print_error("relaax check", f"the environment's program {how}, without a report")
            return code if code in (1, 2) else 1
        report = CheckReport.read(file)
    more = [] if report.spaces is None else _check_algorithms(report, report.spaces, configuration)
    print(*report.lines(more), sep="\n")
    return 1 if report.errors else 0


def _command(
    environment: str, words: Sequence[str], envs: int, overrides: Sequence[str]
) -> tuple[list[str], Configuration | None]:
    """Return the command that checks an environment, and its configuration if it has one. Raises ConfigurationError."""
    from relaax.cli.run.plan import environment_main, make_plan
    from relaax.cli.run.without_file import named_environment
    from relaax.client.connection.address import CHECK

    if _is_configuration(environment):
        plan = make_plan(environment, overrides)
        return [*plan.environment_command(CHECK, envs, 0), *words], plan.configuration
    if overrides:
        raise ConfigurationError("--set is for configurations: give options of the environment's program after --")
    if not words or words[0].startswith("-"):
        _require_id(environment)
    named = named_environment(" ".join([environment, *map(shlex.quote, words)]))
    main = environment_main(named.program, ())
    return [sys.executable, str(main), CHECK, named.name, str(envs), *named.arguments], None


def _require_id(word: str) -> None:
    """Raise ConfigurationError for a module or a family in place of an id."""
    from relaax.bundled import bundled_names

    if Path(f"{word}.yaml").is_file():
        raise ConfigurationError(f"{word!r} is not a gymnasium id; did you mean {word}.yaml?")
    if Path(f"{word}.py").is_file() or Path(word, "__init__.py").is_file():
        raise ConfigurationError(
            f"{word!r} is a module: write {word}:CLASS for a gymnasium environment, or {word}.py for a program"
        )
    if word in bundled_names("environments"):
        raise ConfigurationError(f"{word} is a family of environments: add a name, as in `relaax check {word} NAME`")


def _is_configuration(word: str) -> bool:
    """Return whether `word` names a configuration. Raises ConfigurationError if its file is missing or misspelt."""
    from relaax.bundled import bundled_names
    from relaax.configuration import find_configuration

    path = Path(word)
    is_yaml = path.suffix in (".yaml", ".yml")
    if is_yaml or word in bundled_names("config", ".yaml"):
        find_configuration(word)
        return True
    guess = nearest(word, bundled_names("config", ".yaml"), _MIN_SIMILARITY)
    if guess is not None:
        raise ConfigurationError(f"there is no configuration {word!r}; did you mean {guess!r}?")
    return False


def _run(command: Sequence[str]) -> int:
    """Run a program and return its exit code. After Ctrl-C, wait until the program ends."""
    from relaax.supervision.process import ending_with_parent, environment_of

    process = subprocess.Popen(ending_with_parent(command), stdin=subprocess.DEVNULL, env=environment_of({}))
    try:
        _algorithms()  # imports them while the program runs
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_REPORT_SECONDS)
        print_error(
            "relaax check",
            f"{command[1]} wrote no report within {_REPORT_SECONDS:g} s: reset() or step() does not return, or the "
            "program is your own: a program must accept `check` in place of its first argument, HOST:PORT, as the "
            "programs of `relaax new environment` do; Ctrl-C ends it",
        )
        return process.wait()
    except KeyboardInterrupt:
        process.wait()
        raise


@functools.cache
def _algorithms() -> list[tuple[Algorithm, ConfigBase]]:
    """Import the bundled algorithms, and return them with their default configurations."""
    from relaax.bundled import bundled_folder, bundled_names
    from relaax.hosting.loader import open_algorithm

    found = [open_algorithm(name, bundled_folder("algorithms")) for name in bundled_names("algorithms")]
    return [(algorithm, algorithm.configure({"path": algorithm.name})) for algorithm in found if algorithm.Agent]


def _check_algorithms(
    report: CheckReport, spaces: tuple[Space, Space], configuration: Configuration | None
) -> list[str]:
    """Return a line that lists the algorithms that support these spaces.

    Add an error to the report if the configuration's algorithm refuses them; without a configuration, if every
    algorithm refuses them.
    """
    from relaax.algorithm_base import ConfigBase
    from relaax.client.program.check_report import CheckFinding
    from relaax.hosting.loader import open_algorithm

    refusals = {algorithm.name: algorithm.refusal(config, *spaces) for algorithm, config in _algorithms()}
    supporting = [name for name, refusal in refusals.items() if refusal is None]
    general = refusals[_MOST_GENERAL]
    refused = None if supporting or general is None else general.sentence
    if configuration is not None and isinstance(configuration.algorithm_config, ConfigBase):
        algorithm = open_algorithm(configuration.algorithm_path, configuration.folder)
        refusal = algorithm.refusal(configuration.algorithm_config, *spaces)
        refused = None if refusal is None else refusal.sentence
    if refused is not None:
        report.findings.append(CheckFinding("error", refused))
    return [f"algorithms that support them: {', '.join(supporting)}"] if supporting else []
