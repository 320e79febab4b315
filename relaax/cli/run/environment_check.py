"""Check the environments of a run before anything is started: one is made, reset and takes a step, in a process."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
from types import TracebackType

from relaax.bundled import bundled_folder
from relaax.cli.run.plan import Plan
from relaax.client.connection.address import PROBE
from relaax.configuration import ConfigurationError
from relaax.rlx import Space, space_from_dict
from relaax.supervision.process import EXIT_ENVIRONMENT, EXIT_REFUSED, StartError, ending_with_parent, environment_of

CHECK_SECONDS = 10.0
"""Timeout of the check. The process is then ended: a run never has more environments than configured."""
_CLOSE_SECONDS = 5.0
_LINES = 10


class EnvironmentCheck:
    """A check that begins at once and ends with the block. It skips the user's own programs.

    These may not support the word `check`, and their simulators may not tolerate a second start.
    """

    def __init__(self, plan: Plan) -> None:
        self._name = plan.environment_name
        self._by_hand = shlex.join(["relaax", "check", *plan.checked_words])
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
        if self._popen is not None and self._popen.poll() is None:
            self._popen.terminate()  # it closes the environment, which may have started a simulator
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.communicate(timeout=_CLOSE_SECONDS)
            # Also after its end: an environment that was not made yet has not been closed.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.communicate()

    @property
    def is_possible(self) -> bool:
        """Return whether the program supports the check."""
        return self._popen is not None

    def wait(self, seconds: float = CHECK_SECONDS) -> tuple[Space, Space] | None:
        """Return the spaces of observations and actions; None if the program does not report them, or not in time.

        Raises ConfigurationError if its program refuses it, and StartError if it fails.
        """
        if self._popen is None:
            return None
        try:
            said, complained = self._popen.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        code = self._popen.returncode
        if code == EXIT_ENVIRONMENT:
            raise StartError(f"{self._name} ended its program before training: {self._refusal(complained)}")
        if code == EXIT_REFUSED:
            raise ConfigurationError(self._refusal(complained))
        if code != 0:
            words = "\n".join(f"  {line}" for line in complained.splitlines()[-_LINES:])
            raise StartError(
                f"{self._name} could not be made and take one step; its program exited with code {code}; "
                f"`{self._by_hand}` reports its faults:\n{words}"
            )
        return _spaces(said.strip().rpartition("\n")[2])

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
