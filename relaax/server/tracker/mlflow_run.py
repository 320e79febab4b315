"""One run on an MLflow server: its parameters, metrics, files and status."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relaax import __version__
from relaax.configuration import redacted
from relaax.files import write_whole
from relaax.server.tracker.event_tail import Position, Scalar

EXPERIMENT = "relaax"
"""The experiment of runs without MLFLOW_EXPERIMENT_NAME."""
REQUEST_SECONDS = 10
LAST_REQUEST_SECONDS = 5
"""Seconds without an answer after which a request has failed, during training and after it."""
VARIABLES = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": str(REQUEST_SECONDS),
}
"""MLflow reports its use to its makers, and retries for minutes. The tracker itself retries."""
METRICS_OF_A_REQUEST = 1000
PARAMETERS_OF_A_REQUEST = 100
_LONGEST_NAME = 250
_LONGEST_VALUE = 6000
_OTHER = re.compile(r"[^\w\-. :/]", re.ASCII)
"""Characters that MLflow does not accept in names."""
_STATE = "mlflow.json"


@dataclass
class SentState:
    """The record of what the server has, a file in the folder of metrics.

    `positions`: the end of the metrics that were sent, by folder. `policies`: ids of checkpoints by the file's name.
    """

    uri: str
    run_id: str | None = None
    positions: dict[str, Position] = field(default_factory=dict)
    policies: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, uri: str) -> SentState:
        """Return the state in the file; an empty one if the file is missing or belongs to another server."""
        shown = redacted(uri)
        try:
            found = json.loads((folder / _STATE).read_text(encoding="utf-8"))
            positions = {name: Position(*position) for name, position in found["positions"].items()}
            state = cls(found["uri"], found["run_id"], positions, found["policies"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return cls(shown)
        return state if state.uri == shown else cls(shown)

    def write(self, folder: Path) -> None:
        """Write the file. Raises OSError."""
        content = {
            "uri": self.uri, "run_id": self.run_id, "positions": self.positions, "policies": self.policies
        }  # fmt: skip
        write_whole(folder / _STATE, [json.dumps(content, indent=1).encode()])


class MlflowRun:
    """The MLflow run of a training, created or resumed by `open`.

    Every method may raise MlflowException and OSError.
    """

    def __init__(self, folder: Path, uri: str, document: Mapping[str, Any]) -> None:
        """`folder`: of the metrics. `document`: the effective configuration, without secrets."""
        from mlflow import MlflowClient

        self._folder = folder
        self._document = document
        self._client = MlflowClient(tracking_uri=uri)
        self.state = SentState.of(folder, uri)
        self._is_open = False

    @property
    def is_open(self) -> bool:
        """Whether the server has the run and its parameters."""
        return self._is_open

    def open(self) -> None:
        """Create the run, or resume that of the state; send the configuration."""
        found = self._existing()
        if found is None:
            self.state = SentState(self.state.uri)
            run = self._client.create_run(self._experiment(), tags=_tags(), run_name=_name_of(self._folder))
            self.state.run_id = run.info.run_id
            self.save_state()
        else:
            self._client.update_run(found.info.run_id, status="RUNNING")
        known = {} if found is None else found.data.params
        self._send_parameters({key: value for key, value in parameters(self._document).items() if key not in known})
        self._client.log_dict(self._run_id, dict(self._document), "configuration.yaml")
        self._is_open = True

    def save_state(self) -> None:
        """Write the state after a successful request."""
        self.state.write(self._folder)

    def send_scalars(self, scalars: Sequence[Scalar]) -> None:
        """Send the values of metrics, with their times and global steps."""
        from mlflow.entities import Metric

        metrics = [Metric(_name(one.name), one.value, round(one.time * 1000), one.step) for one in scalars]
        for some in _batches(metrics, METRICS_OF_A_REQUEST):
            self._client.log_batch(self._run_id, metrics=some)

    def send_file(self, file: Path, folder: str) -> None:
        """Send a file, which replaces an earlier one with its name."""
        self._client.log_artifact(self._run_id, str(file), folder)

    def end(self, status: str) -> None:
        """Set the status: FINISHED, FAILED or KILLED."""
        self._client.set_terminated(self._run_id, status)

    @property
    def _run_id(self) -> str:
        assert self.state.run_id is not None
        return self.state.run_id

    def _existing(self) -> Any:
        """Return the run of the state; None before the first start, or if the run was deleted at the server."""
        from mlflow.exceptions import MlflowException

        if self.state.run_id is None:
            return None
        try:
            run = self._client.get_run(self.state.run_id)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        return run if run.info.lifecycle_stage == "active" else None

    def _experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        if (found := self._client.get_experiment_by_name(name)) is None:
            with contextlib.suppress(MlflowException):  # another run may create it at the same time
                return str(self._client.create_experiment(name))
            found = self._client.get_experiment_by_name(name)
        if found is None or found.lifecycle_stage != "active":
            raise OSError(f"the experiment {name!r} is deleted; set MLFLOW_EXPERIMENT_NAME to another one")
        return str(found.experiment_id)

    def _send_parameters(self, values: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        for some in _batches([Param(key, value) for key, value in values.items()], PARAMETERS_OF_A_REQUEST):
            self._client.log_batch(self._run_id, params=some)


def parameters(nested: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return a configuration as MLflow's parameters: `algorithm.episode_len`. The list [64, 64] is "64, 64"."""
    found: dict[str, str] = {}
    for key, value in nested.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= parameters(value, f"{name}.")
        elif isinstance(value, list | tuple):
            found[_name(name)] = ", ".join(map(str, value))[:_LONGEST_VALUE]
        else:
            found[_name(name)] = "none" if value is None else str(value)[:_LONGEST_VALUE]
    return found


def _name(name: str) -> str:
    return _OTHER.sub("_", name)[:_LONGEST_NAME]


def _name_of(folder: Path) -> str:
    """Return the name of a run: that of the run directory, or else of the folder of metrics."""
    folder = folder.absolute()
    return folder.parent.name if folder.name == "metrics" else folder.name


def _tags() -> dict[str, str]:
    tags = {"mlflow.source.name": "relaax", "relaax.version": __version__}
    with contextlib.suppress(OSError, KeyError):  # a container's user may have no name
        tags["mlflow.user"] = getpass.getuser()
    return tags


def _batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]


def is_refusal(error: BaseException) -> bool:
    """Return whether the server has read a request and refused its content, so that a retry is useless."""
    return getattr(error, "error_code", None) in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")


def reason_of(error: BaseException, longest: int = 300) -> str:
    """Return the innermost cause of an error in one line, without passwords: "Connection refused"."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    text = getattr(error, "strerror", None) or str(error).strip()
    return str(redacted(text.partition("\n")[0] or type(error).__name__))[:longest]
