"""The live page of a run: `relaax web` as a process of the run, and a log of the run's own warnings."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

from relaax.cli.reporting import resilient
from relaax.cli.run.plan import Plan, RunTokens
from relaax.cli.run.run_directory import RunDirectory
from relaax.configuration.roles import WEB_TOKEN
from relaax.console import LineFormatter
from relaax.server.address import require_free
from relaax.server.command.logs import TEXT_FORMAT
from relaax.server.security.tokens import read_token
from relaax.supervision.process import Process, StartError

_log = logging.getLogger(__name__)
_STOP_SECONDS = 3.0


class LivePage:
    """The process of the live page, if `run.web` asks for one. If it fails, training continues with a warning."""

    def __init__(self, plan: Plan, directory: RunDirectory, tokens: RunTokens) -> None:
        run = plan.run
        self._process: Process | None = None
        self._is_announced = False
        if run.web is None:
            return
        options = {
            "--bind": run.web,
            "--page-token-file": run.web_token_file,
            "--page-certificate": run.web_certificate,
            "--page-key": run.web_key,
        }
        self._command = [sys.executable, "-m", "relaax.cli.main", "web", str(directory.path)]
        self._command += [word for name, value in options.items() if value is not None for word in (name, value)]
        self._scheme = "http" if run.web_certificate is None else "https"
        secret = read_token(None, "run.web", WEB_TOKEN)
        secrets = {**tokens.tokens, **({} if secret is None else {WEB_TOKEN: secret})}
        self._process = Process("web", directory.logs / "web.log", server=True, secrets=secrets)

    @staticmethod
    def check(plan: Plan) -> None:
        """Raise ConfigurationError or AddressError if the page cannot be served, before anything is started."""
        run = plan.run
        if run.web is not None:
            from relaax.cli.web.access import page_access

            page_access(run.web, run.web_token_file, run.web_certificate, run.web_key, prefix="relaax-run.web_")
            require_free(run.web)

    def start(self) -> None:
        """Start the process, if there is one."""
        if self._process is not None:
            self._process.start(self._command)

    def poll(self) -> str | None:
        """Restart the process if it has ended. Return a sentence with its URL when it is ready first."""
        process = self._process
        if process is None:
            return None
        if process.exit_code() is not None:
            try:
                process.restart(self._command)
            except StartError as error:
                _log.warning("training continues without its live page: %s", error)
                self._process = None
            return None
        if self._is_announced or not process.announced:
            return None
        self._is_announced = True
        return f"live page at {self._scheme}://{process.address}/"

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.terminate()
            if not self._process.wait(_STOP_SECONDS):
                self._process.kill()


@contextlib.contextmanager
def warnings_in_file(path: Path) -> Iterator[None]:
    """Also append warnings of this process to a log file. Training continues if the file cannot be written."""
    try:
        file = path.open("a", encoding="utf-8")
    except OSError as error:
        _log.warning("%s cannot be written: %s", path, error.strerror)
        yield
        return
    handler = logging.StreamHandler(resilient(file))
    handler.setFormatter(LineFormatter(TEXT_FORMAT))
    handler.setLevel(logging.WARNING)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        with contextlib.suppress(OSError):
            file.close()
