"""The directory of a run.

configuration.yaml   the configuration of the servers
logs/                one log per process
checkpoints/         the parameter server's
replay/              the replay servers', if they keep their memory
metrics/             the TensorBoard run
summary.json         the result of the run; missing while it is running
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from relaax.checkpoint import Store, lease
from relaax.checkpoint.local import BUSY
from relaax.checkpoint.location import open_location
from relaax.cli.run.plan import Plan, construction_of
from relaax.configuration import (
    HERE,
    Configuration,
    ConfigurationError,
    ParameterServerSection,
    Section,
    format_configuration,
)
from relaax.configuration.roles import relaax_roles
from relaax.configuration.yaml_file import read_yaml
from relaax.files import move_aside, write_whole
from relaax.server.tracker.launch import OUTCOME

ORIGIN = "relaax run"
_TLS_KEYS = (
    *("tls_certificate", "tls_key", "tls_client_ca", "tls_ca"),
    *("parameter_server_ca", "parameter_server_certificate", "parameter_server_key"),
    *("replay_server_ca", "replay_server_certificate", "replay_server_key"),
)


class SummaryNotWritten(Exception):
    """The summary could not be written. The message has the paths and the reasons."""


class RunDirectory:
    """The directory of a run, locked while the run is active."""

    def __init__(self, path: Path, s3: ParameterServerSection | None = None) -> None:
        """`s3`: the section with the S3 location of checkpoints, if they are not in the directory."""
        self.path = path.absolute()
        self._s3 = s3
        self.configuration = self.path / "configuration.yaml"
        self.logs = self.path / "logs"
        self.checkpoints = self.path / "checkpoints"
        self.replay = self.path / "replay"
        self.metrics = self.path / "metrics"
        self.summary = self.path / "summary.json"
        self._lock: Any = None
        self._resumed: dict[Path, bytes] = {}  # files of the run that is resumed

    @property
    def location(self) -> str:
        """Return the location of checkpoints: a folder or s3://BUCKET/KEY."""
        if self._s3 is None or self._s3.checkpoint_aws_s3 is None:
            return str(self.checkpoints)
        return "s3://" + "/".join(self._s3.checkpoint_aws_s3)

    def store(self) -> Store:
        """Return the store of the checkpoints. Raises ConfigurationError and StoreError."""
        keys = (None, None) if self._s3 is None else (self._s3.aws_keys, self._s3.aws_endpoint)
        return open_location(self.location, *keys)

    @property
    def eval_arguments(self) -> list[str]:
        """Return the arguments of `relaax eval` for its checkpoints."""
        if self._s3 is None:
            return [str(self.path)]
        words = [self.location, "--config", str(self.configuration)]
        options = {"--aws-keys": self._s3.aws_keys, "--aws-endpoint": self._s3.aws_endpoint}
        return [*words, *(word for name, value in options.items() if value for word in (name, value))]

    def open(self, fresh: bool, max_steps: int, task: Mapping[str, str] | None = None) -> str:
        """Resume an unfinished run in the directory, or move a finished run aside. With `fresh`, move any run aside.

        A run that stopped at its step limit is unfinished if `max_steps`, this run's limit, is higher. A run that
        stopped at its time limit is always unfinished, because each start has its own time. A run without a checkpoint
        cannot be resumed and is replaced. `task`: the task of this run (`Plan.task`), compared with the existing run.

        Returns a sentence for the user. Raises ConfigurationError if another run uses the directory, or if it holds an
        unfinished run of another task.
        """
        self._acquire_lock()
        sentence = f"run directory {self.path}"
        try:
            if self.configuration.exists():
                if fresh or self._is_finished(max_steps):
                    self._check_checkpoints_are_local()
                    sentence = f"{sentence} (the previous run is now {self._move_aside()})"
                    self._acquire_lock()
                elif self._has_checkpoint():
                    self._check_same_task(task or {})
                    sentence = f"{sentence} (resuming)"
                    files = (self.configuration, self.summary)
                    self._resumed = {path: path.read_bytes() for path in files if path.exists()}
                else:
                    shutil.rmtree(self.replay, ignore_errors=True)
            for folder in (self.logs, self.checkpoints, self.metrics):
                folder.mkdir(parents=True, exist_ok=True)
            self.summary.unlink(missing_ok=True)
        except OSError as error:
            self.close()
            raise ConfigurationError(
                f"run directory {self.path} cannot be prepared: {error.strerror or error}; --run-dir names another"
            ) from None
        return sentence

    def restore_resumed(self) -> bool:
        """Restore configuration and summary of the run that could not be resumed. Return whether there was one."""
        for path, content in self._resumed.items():
            write_whole(path, [content], 0o600 if path == self.configuration else 0o666)
        return bool(self._resumed)

    def _acquire_lock(self) -> None:
        """Acquire a file lock, which the operating system releases when the process ends, even by SIGKILL."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            # Do not follow a link that another user may have made, and do not wait for a pipe.
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
            self._lock = os.fdopen(os.open(self.path / ".lock", flags, 0o666), "w")
        except OSError as error:
            raise ConfigurationError(
                f"run directory {self.path} cannot be opened: {error.strerror}; --run-dir names another"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            if error.errno in BUSY:
                raise ConfigurationError(
                    f"run directory {self.path} is in use by another run; --run-dir names another"
                ) from None
            raise ConfigurationError(
                f"run directory {self.path}: its file system has no file locks ({error.strerror}): mount it with "
                "locks, such as NFS with its lock service, or --run-dir names a directory elsewhere"
            ) from None

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()

    def _has_checkpoint(self) -> bool:
        """Return whether there is a file other than a lease. The parameter server decides whether it is damaged."""
        if self._s3 is not None:
            return any(name != lease.KEY for name in self.store().list())
        return self.checkpoints.is_dir() and any(path.name != lease.KEY for path in self.checkpoints.iterdir())

    def _is_finished(self, max_steps: int) -> bool:
        try:
            summary = json.loads(self.summary.read_text(encoding="utf-8"))
            if summary["status"] == "max_steps":
                return int(summary["env_steps"]) >= max_steps
            return bool(summary["status"] == "target_reached")
        except (OSError, ValueError, TypeError, KeyError):
            return False

    def _check_same_task(self, task: Mapping[str, str]) -> None:
        """Raise ConfigurationError for a run of another task: its returns may already exceed this task's target."""
        try:
            before = read_yaml(self.configuration)
            run, algorithm = before["relaax-run"], before["algorithm"]
            there = {"environment": run["environment"], "name": run["name"], "algorithm": Path(algorithm["path"]).name}
            there |= construction_of(run.get("kwargs", {}), run.get("wrappers", []))
        except (ConfigurationError, TypeError, KeyError):
            return  # the parameter server compares the checkpoint itself
        different = [key for key, here in task.items() if there[key] != here]
        if different:
            self.close()
            holds, wanted = (", ".join(f"{key} {of[key]}" for key in different) for of in (there, task))
            raise ConfigurationError(
                f"run directory {self.path} holds an unfinished run of {holds}, not of {wanted}: --run-dir names "
                "another directory, --fresh starts over and moves that one aside"
            )

    def _check_checkpoints_are_local(self) -> None:
        if self._s3 is not None:
            self.close()
            raise ConfigurationError(
                f"checkpoints at {self.location} are not moved aside: to start a new run, name another key with "
                "relaax-parameter-server.checkpoint_aws_s3, and another directory with --run-dir"
            )

    def _move_aside(self) -> Path:
        self.close()
        inner = next((lock.parent for lock in self.path.glob("*/.lock") if _is_locked(lock)), None)
        if self.path.resolve() in (Path.cwd(), *Path.cwd().parents):
            inner = Path.cwd()
        if inner is not None:
            what = "the working directory" if inner == Path.cwd() else f"the active run {inner.name}"
            raise ConfigurationError(
                f"run directory {self.path} holds a finished run and {what}, so it is not moved aside: --run-dir names "
                "another"
            )
        return move_aside(self.path)

    def effective_configuration(self, plan: Plan) -> Configuration:
        """Return the plan's configuration with the keys that a run sets itself, marked in `origins`."""
        given = plan.configuration
        # Traffic stays on this machine: TLS would need certificates without protecting anything.
        sections: dict[str, dict[str, Any]] = {
            role.section: {
                **({"bind": "127.0.0.1:0"} if role.listens else {}),
                **_cleared_tls_keys(given.sections[role.section]),
            }
            for role in relaax_roles()
        }
        keeps = given.replay_server.is_persistent
        sections["relaax-replay-server"] |= {
            "shard": 0,
            "checkpoint_dir": str(self.replay) if keeps and self._s3 is None else None,
            "checkpoint_aws_s3": given.replay_server.checkpoint_aws_s3 if self._s3 is not None else None,
        }
        sections["relaax-tensorboard"] |= {"metrics_dir": None}  # the parameter server's
        sections["relaax-parameter-server"] |= {
            "shard": 0,
            "checkpoint_dir": str(self.checkpoints) if self._s3 is None else None,
            "checkpoint_aws_s3": None if self._s3 is None else self._s3.checkpoint_aws_s3,
            "metrics_dir": str(self.metrics),
            "checkpoint_interval": plan.run.checkpoint_interval,
            "checkpoint_steps": plan.run.eval_every,
        }
        # An evaluation reads this configuration in another folder, and must find the same modules.
        found_in = dict.fromkeys(str(folder.absolute()) for folder in (*plan.search_path, Path.cwd()))
        sections["relaax-run"] = {"path": list(found_in)}
        path = {"path": str(plan.algorithm)}
        return replace(
            given.with_keys(sections, ORIGIN),
            algorithm={**given.algorithm, **path},
            algorithm_config=given.algorithm_config and given.algorithm_config.model_copy(update=path),
        )

    def write_configuration(self, plan: Plan) -> None:
        """Write the effective configuration for the servers. It may hold secrets: only the user may read it.

        Paths within this directory are written relative to it, so that a moved or copied run uses its own. Raises
        ConfigurationError.
        """
        effective = self.effective_configuration(plan)
        document, path = effective.as_dict(), self.path.resolve()
        if self._s3 is None:
            document["relaax-parameter-server"]["checkpoint_dir"] = f"{HERE}/{self.checkpoints.name}"
        if effective.replay_server.checkpoint_dir is not None:
            document["relaax-replay-server"]["checkpoint_dir"] = f"{HERE}/{self.replay.name}"
        document["relaax-parameter-server"]["metrics_dir"] = f"{HERE}/{self.metrics.name}"
        if plan.algorithm.is_relative_to(path):  # it is resolved relative to the file
            document["algorithm"]["path"] = str(plan.algorithm.relative_to(path))
        try:
            write_whole(self.configuration, [format_configuration(document, effective.origins).encode()], 0o600)
        except OSError as error:
            raise ConfigurationError(f"{self.configuration} cannot be written: {error.strerror}") from None

    def check_summary_writable(self, path: Path) -> None:
        """Ensure, before the run, that its summary can be written there. Raises ConfigurationError."""
        is_new = not path.exists()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("a").close()
            if is_new:  # an empty file would look like a summary
                path.unlink()
        except OSError as error:
            raise ConfigurationError(f"--summary {path}: {error.strerror}") from None

    def write_outcome(self, status: str) -> None:
        """Write the status for the tracker, which cannot know why the parameter server is stopped."""
        with contextlib.suppress(OSError):
            write_whole(self.metrics / OUTCOME, [status.encode()])

    def write_summary(self, summary: dict[str, Any], also: Path | None) -> None:
        """Write `summary.json`, and a copy if requested. Raises SummaryNotWritten after trying both."""
        text = (json.dumps(summary, indent=2) + "\n").encode()
        missing = []
        for path in (self.summary, *([] if also is None else [also])):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, [text])
            except OSError as error:
                missing.append(f"the summary cannot be written to {path}: {error.strerror}")
        if missing:
            raise SummaryNotWritten("; ".join(missing))


def _is_locked(lock: Path) -> bool:
    """Return whether the run with this lock file is active."""
    with contextlib.suppress(OSError), lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in BUSY
    return False


def _cleared_tls_keys(section: Section) -> dict[str, None]:
    """Return the TLS keys that are set, with None as their values."""
    return {key: None for key in _TLS_KEYS if getattr(section, key, None) is not None}
