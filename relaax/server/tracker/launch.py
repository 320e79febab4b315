"""The parameter server's side of the tracker: start its process, restart it, and end it."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from relaax.configuration import Configuration, ConfigurationError, ParameterServerSection, redacted
from relaax.libraries import missing
from relaax.server.command.termination import Reason
from relaax.supervision.process import environment_of

_log = logging.getLogger(__name__)

URI_VARIABLE = "MLFLOW_TRACKING_URI"
END_SECONDS = 45.0
"""Seconds in which the process sends the last metrics and policies, after training has ended."""
RESTART_SECONDS = 60.0
_KILL_SECONDS = 5.0
"""Seconds after END_SECONDS before the process is killed."""
_STATUS = {Reason.FINISHED: "FINISHED", Reason.TERMINATED: "KILLED", Reason.INTERRUPTED: "KILLED"}
FAILED = "FAILED"
"""The status of a run whose server has died, or has ended for any other reason."""
_LIBRARY = "mlflow"
OUTCOME = ".outcome"
"""File in the folder of metrics: the status of the run if `relaax run` has stopped the training, or is empty."""


@dataclass(frozen=True, slots=True)
class Instructions:
    """The first line of the process's standard input, as JSON.

    `checkpoints`: the keys of `relaax-parameter-server` that name the store of checkpoints. `document`: the effective
    configuration, without secrets.
    """

    uri: str
    metrics_dir: str
    checkpoints: dict[str, Any]
    document: dict[str, Any]
    log_level: str
    log_format: str

    @property
    def shown_uri(self) -> str:
        """The URI without a password."""
        return str(redacted(self.uri))


def check_tracker(section: ParameterServerSection) -> None:
    """Raise ConfigurationError if the tracker is enabled and cannot work."""
    if section.tracker is None:
        return
    key = "relaax-parameter-server.tracker"
    if section.metrics_dir is None:
        raise ConfigurationError(
            f"{key}: the curves are read from metrics_dir, which is missing: set relaax-parameter-server.metrics_dir"
        )
    if not _uri(section):
        raise ConfigurationError(
            f"{key}: the MLflow server is missing: set tracker_uri, such as http://localhost:5000, or the variable "
            f"{URI_VARIABLE}"
        )
    if importlib.util.find_spec(_LIBRARY) is None:
        raise ConfigurationError(f"{key}: {missing(ModuleNotFoundError(name=_LIBRARY))}")


def _uri(section: ParameterServerSection) -> str:
    return section.tracker_uri or os.environ.get(URI_VARIABLE, "")


def instructions_of(configuration: Configuration) -> Instructions:
    """Return the instructions for the training of this configuration, which `check_tracker` has accepted."""
    section = configuration.parameter_server
    checkpoints = section.model_dump(include={"checkpoint_dir", "checkpoint_aws_s3", "aws_keys", "aws_endpoint"})
    document = json.loads(json.dumps(redacted(configuration.as_dict()), default=str))
    return Instructions(
        _uri(section), str(section.metrics_dir), checkpoints, document, section.log_level, section.log_format
    )


class TrackerProcess:
    """A process that sends the metrics and policies of this training to an MLflow server.

    It ends when its standard input is closed, so it does not outlive this process. It imports MLflow, which takes
    seconds and 180 MB, with a lower priority.
    """

    def __init__(self, instructions: Instructions) -> None:
        self._line = json.dumps(asdict(instructions)).encode() + b"\n"
        self._popen: subprocess.Popen[bytes] | None = None
        self._restart_at = 0.0

    def start(self) -> None:
        """Start the process. If that fails, training continues without it."""
        try:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "relaax.server.tracker.main"],
                stdin=subprocess.PIPE,
                stdout=2,  # standard error: supervisors parse the standard output of the server
                env=environment_of({}),
                start_new_session=True,  # Ctrl-C in a terminal ends the server, which ends the process
            )
            self._write(self._line)
        except OSError as error:
            _log.warning("the tracker cannot be started: %s; training continues without it", error)

    def watch(self) -> None:
        """Restart the process if it has ended. Call it about once a second."""
        if self._popen is None or (code := self._popen.poll()) is None:
            return
        now = time.monotonic()
        if not self._restart_at:
            _log.warning("the tracker ended (%d) and is restarted in %g s", code, RESTART_SECONDS)
            self._restart_at = now + RESTART_SECONDS
        elif now >= self._restart_at:
            self._restart_at = 0.0
            self._close()
            self.start()

    def end(self, reason: Reason) -> None:
        """Send the last metrics and policies, and the status of the run, within END_SECONDS; then end the process."""
        if self._popen is None:
            return
        self._write(f"{_STATUS.get(reason, FAILED)}\n".encode())
        self._close()
        try:
            self._popen.wait(END_SECONDS + _KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()

    def _write(self, line: bytes) -> None:
        assert self._popen is not None
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(line)
            self._popen.stdin.flush()
        except OSError as error:  # it has ended, and `watch` reports that
            _log.debug("the tracker does not read: %s", error)

    def _close(self) -> None:
        assert self._popen is not None
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.close()
        except OSError as error:  # the rest of a line that was not written
            _log.debug("the tracker does not read: %s", error)
