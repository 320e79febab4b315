"""Check the environments of a run before its start: make, reset and step one environment in a process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType

from relaax.bundled import bundled_folder, bundled_names
from relaax.cli.run.plan import Plan
from relaax.client.connection.address import PROBE
from relaax.configuration import ConfigurationError
from relaax.hosting.loader import open_algorithm
from relaax.rlx import Space, space_from_dict
from relaax.supervision.process import (
    EXIT_ENVIRONMENT,
    EXIT_REFUSED,
    StartError,
    Supervised,
    ending_with_parent,
    environment_of,
)

CHECK_SECONDS = 10.0
"""Timeout of the check. Its process is then ended: a run must not have more environments than configured."""
_CLOSE_SECONDS = 5.0
_LINES = 10


class EnvironmentCheck:
    """A check of one environment. It starts when the object is created, and ends with the block.

    The user's own programs are skipped: they may not support the address `probe`, and their simulators may not
    support a second start.
    """

    def __init__(self, plan: Plan) -> None:
        self._name = plan.environment_name
        self._check_command = shlex.join(["relaax", "check", *plan.check_arguments])
        self._prefix = f"{plan.environment_main.parent.name}/main: "
        self._popen: subprocess.Popen[str] | None = None
        if plan.environment_main.is_relative_to(bundled_folder("environments")):
            self._popen = subprocess.Popen(
                ending_with_parent(plan.environment_command(PROBE, 1, 0)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
                env=environment_of({}),
            )

    def __enter__(self) -> EnvironmentCheck:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._popen is None:
            return
        if self._popen.poll() is None:
            self._popen.terminate()  # the program closes the environment, which may have a simulator
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.communicate(timeout=_CLOSE_SECONDS)
        # Kill the group even if the program has ended: it does not close an environment that it is still making.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.communicate()

    @property
    def is_possible(self) -> bool:
        """Return whether the program supports the check."""
        return self._popen is not None

    def wait(self, seconds: float = CHECK_SECONDS) -> tuple[Space, Space] | None:
        """Return the spaces of observations and actions; None if the program does not report them in time.

        Raises ConfigurationError if the program refuses the environment, and StartError if the environment fails.
        """
        if self._popen is None:
            return None
        try:
            output, errors = self._popen.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        code = self._popen.returncode
        if code == EXIT_ENVIRONMENT:
            raise StartError(f"{self._name} ended its program before training: {self._refusal(errors)}")
        if code == EXIT_REFUSED:
            raise ConfigurationError(self._refusal(errors))
        if code != 0:
            words = "\n".join(f"  {line}" for line in errors.splitlines()[-_LINES:])
            raise StartError(
                f"{self._name} could not be made, reset and stepped; its program exited with code {code}; "
                f"`{self._check_command}` reports its faults:\n{words}"
            )
        return _spaces(output.strip().rpartition("\n")[2])

    def _refusal(self, text: str) -> str:
        """Return the program's message, without earlier output of libraries."""
        before, prefix, sentence = text.strip().rpartition(self._prefix)
        return f"{prefix}{sentence}" if prefix else before or sentence


def _spaces(line: str) -> tuple[Space, Space] | None:
    """Return the spaces that a program prints as JSON; None for any other line."""
    try:
        observations, actions = json.loads(line)
        return space_from_dict(observations), space_from_dict(actions)
    except (ValueError, TypeError):
        return None


def check_spaces(plan: Plan, spaces: tuple[Space, Space] | None) -> None:
    """Raise ConfigurationError if the plan's algorithm refuses these spaces; name bundled algorithms that support them.

    `spaces`: of observations and actions; None if unknown: the server then checks them.
    """
    config = plan.configuration.algorithm_config
    if spaces is None or config is None:
        return
    algorithm = open_algorithm(str(plan.algorithm), plan.configuration.folder)
    refusal = algorithm.refusal(config, *spaces)  # type: ignore[arg-type]
    if refusal is None:
        return
    able = [] if refusal.supported else [name for name in bundled_names("algorithms") if _is_able(name, spaces)]
    # If the algorithm is one of them, a key causes the refusal, and the sentence names it.
    way_out = f"; bundled algorithms that can: {', '.join(able)}" if able and algorithm.name not in able else ""
    raise ConfigurationError(f"{plan.environment_name}: {refusal.sentence}{way_out}")


def _is_able(name: str, spaces: tuple[Space, Space]) -> bool:
    algorithm = open_algorithm(name, bundled_folder("algorithms"))
    return algorithm.refusal(algorithm.Config(path=name), *spaces) is None


CONNECT_SECONDS = 30.0
"""Seconds without any connection after which the reason is logged; training may begin later."""
_CLASS = re.compile(r"^class (\w+)\((?:\w+\.)?Env\b", re.MULTILINE)


class FirstConnection:
    """The deadline for the first connection of a run's environments."""

    def __init__(self, plan: Plan, seconds: float = CONNECT_SECONDS) -> None:
        self._plan = plan
        self._seconds = seconds
        self._deadline: float | None = time.monotonic() + seconds

    def overdue(self, has_connected: bool, client: Supervised, address: str | None) -> str | None:
        """Return a message if no environment has connected in time; None otherwise, and after the first message."""
        if has_connected:
            self._deadline = None
        if self._deadline is None or time.monotonic() < self._deadline:
            return None
        self._deadline = None
        main = self._plan.environment_main
        printed = client.log_tail(1).strip()
        what = f"no environment has connected within {self._seconds:g} s"
        if not main.is_relative_to(bundled_folder("environments")):
            what += f"; {main.name} must connect to its first argument (sys.argv[1] in Python), {address}"
        return f"{what}; {f'it printed: {printed}; ' if printed else ''}see {client.log}"


def never_connected_message(main: Path) -> str:
    """Return a message about environment programs that all ended without an error and without connecting."""
    made = environment_class(main)
    way_out = f"; for the class in it, use --environment {made}" if made else ""
    return f"{main.name} ended without connecting: a program connects to its first argument, HOST:PORT{way_out}"


def environment_class(file: Path) -> str | None:
    """Return MODULE:CLASS of the first subclass of gymnasium.Env in a file of the working directory, or None."""
    try:
        found = _CLASS.search(file.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return f"{file.stem}:{found[1]}" if found and file.absolute().parent == Path.cwd() else None
