"""Whether the environments of a run can be made: before anything is started one is, in a process that ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from types import TracebackType

from relaax.bundled import bundled_folder
from relaax.cli.run.plan import Plan
from relaax.cli.run.process import EXIT_REFUSED, StartError, environment_of, tethered
from relaax.client.address import CHECK
from relaax.configuration import ConfigurationError

CHECK_SECONDS = 10.0
"""For which it is waited for. Whoever takes longer is ended: there are never two environments where one was meant."""
_LINES = 10


class EnvironmentCheck:
    """Begins at once, and is over with the block. A program of the user's own is left alone.

    It may not know the word `check`, and its simulator may bear no second start.
    """

    def __init__(self, plan: Plan) -> None:
        self._name = plan.environment_name
        self._prefix = f"{plan.environment_main.parent.name}/main: "
        self._popen: subprocess.Popen[str] | None = None
        if plan.environment_main.is_relative_to(bundled_folder("environments")):
            self._popen = subprocess.Popen(
                tethered(plan.environment_command(CHECK, 1, 0)),
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
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.communicate()

    @property
    def is_possible(self) -> bool:
        """Whether the program is one that can be asked."""
        return self._popen is not None

    def wait(self, seconds: float = CHECK_SECONDS) -> str | None:
        """What the environment observes and does; None if that was not to be found out, or not in time.

        Raises ConfigurationError if its program refuses it, and StartError if it fails.
        """
        if self._popen is None:
            return None
        try:
            said, complained = self._popen.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        code = self._popen.returncode
        if code == EXIT_REFUSED:
            raise ConfigurationError(self._refusal(complained))
        if code != 0:
            words = "\n".join(f"  {line}" for line in complained.splitlines()[-_LINES:])
            raise StartError(f"{self._name} could not be made, its program ended with exit code {code}:\n{words}")
        return said.strip().rpartition("\n")[2]

    def _refusal(self, text: str) -> str:
        """The program's sentence, without what libraries have said before."""
        before, prefix, sentence = text.strip().rpartition(self._prefix)
        return f"{prefix}{sentence}" if prefix else before or sentence
