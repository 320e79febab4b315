"""Evaluate a run's checkpoints while it trains."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from relaax.checkpoint import CheckpointManager, Damaged, StoreError
from relaax.checkpoint.evaluation import Evaluation, evaluations, write_evaluation
from relaax.cli.run.plan import Plan
from relaax.cli.run.run_directory import RunDirectory
from relaax.console import shown
from relaax.metrics.writer import EventFile, do_without_tensorflow
from relaax.supervision.process import ending_with_parent, environment_of

_log = logging.getLogger(__name__)

FOLDER = "evaluation"
"""Folder below the metrics. TensorBoard follows one file per folder, and another process writes training's file."""
_POLL_SECONDS = 2.0
_LINES = 5


class Evaluations:
    """Evaluations of the newest checkpoint by `relaax eval`, each `eval_every` steps or more after the last one.

    Only one evaluation runs at a time, with one environment, because training needs the cores. The result is written
    next to the checkpoint. If an evaluation fails, a warning is logged and training continues.
    """

    def __init__(self, plan: Plan, directory: RunDirectory) -> None:
        self._every = plan.run.eval_every
        self._episodes = plan.run.eval_episodes
        self._seed = plan.seed
        self._directory = directory
        self._store = directory.store()
        self._manager = CheckpointManager(self._store)
        self._folder = tempfile.TemporaryDirectory(prefix="relaax-eval-")
        self._process: subprocess.Popen[bytes] | None = None
        self._evaluated: tuple[str, int] = ("", 0)
        self._next_poll = 0.0
        self._last_step: int | None = None
        self._writer: Any = None
        self.latest: float | None = None
        """Mean return of the last evaluation of this run."""
        self._started = 0
        self._reason = "no process has ended"

    def is_running(self) -> bool:
        """Return whether an evaluation is running."""
        return self._process is not None

    @property
    def problem(self) -> str | None:
        """Return why no evaluation of this run has a result; None if one has, or if none was started."""
        if self.latest is not None or not self._started:
            return None
        log = self._directory.logs / "evaluation.log"
        return f"no evaluation has a result, though {self._started} began: {self._reason}; see {log}"

    def poll(self) -> str | None:
        """Start or finish an evaluation if it is due. Return a sentence about an evaluation that has ended."""
        if self._every is None:
            return None
        if self._process is not None:
            return self.finish_if_ended()
        if time.monotonic() >= self._next_poll:
            self._next_poll = time.monotonic() + _POLL_SECONDS
            self._start()
        return None

    def finish_if_ended(self) -> str | None:
        """Finish the running evaluation if its process has ended. Return a sentence about it."""
        code = None if self._process is None else self._process.poll()
        return None if code is None else self._finish(code)

    def close(self) -> None:
        """End the running evaluation, and delete its files."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5.0)
            self._process.kill()
            self._process.wait()
        if self._writer is not None:
            self._writer.close()
        self._folder.cleanup()

    def _start(self) -> None:
        assert self._every is not None
        try:
            published = self._manager.published()
            if not published:
                return
            if self._last_step is None:
                self._last_step = self._evaluated_before(published)
            newest = published[0]
            step = int(self._manager.manifest(newest)["global_step"])
            if step < self._last_step + self._every:
                return
            write_evaluation(self._store, newest, Evaluation(self._episodes, time.time()))
        except (StoreError, Damaged) as error:
            _log.warning("no checkpoint can be evaluated: %s", error)
            self._next_poll = time.monotonic() + 60.0
            return
        self._evaluated, self._last_step = (newest, step), step
        command = [
            *(sys.executable, "-m", "relaax.cli.main", "eval", *self._directory.eval_arguments),
            *("--id", newest, "--greedy"),
            *("--episodes", str(self._episodes), "--seed", str(self._seed), "--jobs", "1", "--no-progress"),
            *("--json", str(self._result)),
        ]
        self._started += 1
        with (self._directory.logs / "evaluation.log").open("ab") as log:
            self._process = subprocess.Popen(
                ending_with_parent(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment_of({}),
            )

    @property
    def _result(self) -> Path:
        return Path(self._folder.name) / "result.json"

    def _evaluated_before(self, published: list[str]) -> int:
        """Return the global step of the newest checkpoint that an earlier start evaluated, or 0."""
        done = evaluations(self._store, self._store.list(), published)
        newest = next((one for one in published if one in done and done[one].mean is not None), None)
        return 0 if newest is None else int(self._manager.manifest(newest)["global_step"])

    def _finish(self, code: int) -> str | None:
        self._process = None
        checkpoint_id, step = self._evaluated
        try:
            result = json.loads(self._result.read_text(encoding="utf-8"))
            low, high = result["interval_95"]
            found = Evaluation(result["episodes"], time.time(), result["mean"], low, high)
            write_evaluation(self._store, checkpoint_id, found)
            self._result.unlink()
        except (OSError, ValueError, KeyError, StoreError) as error:
            log = self._directory.logs / "evaluation.log"
            _log.warning("the evaluation of checkpoint %s failed (%s): see %s; %s", checkpoint_id, code, log, error)
            self._reason = f"exit code {code} for checkpoint {checkpoint_id}"
            return None
        self.latest = float(result["mean"])
        self._write(step, found)
        between = f"95 % interval {shown(low)} to {shown(high)}"
        return f"evaluation at step {step:,}: mean return {shown(self.latest)} of {found.episodes} episodes, {between}"

    def _write(self, step: int, found: Evaluation) -> None:
        """Write TensorBoard scalars."""
        do_without_tensorflow()
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        try:
            if self._writer is None:
                folder = self._directory.metrics / FOLDER
                folder.mkdir(parents=True, exist_ok=True)
                self._writer = EventFile(folder)
            values = {"mean_return": found.mean, "interval_low": found.low, "interval_high": found.high}
            scalars = [Summary.Value(tag=f"evaluation/{name}", simple_value=value) for name, value in values.items()]
            self._writer.add(Event(wall_time=found.time, step=step, summary=Summary(value=scalars)))
            self._writer.flush()
        except OSError as error:
            _log.warning("the evaluation's curve cannot be written: %s", error)
