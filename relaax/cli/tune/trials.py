"""The trials of a study: each is a training in a process of its own, which may be pruned."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relaax.cli.own_command import read_result
from relaax.cli.plot import find_curve
from relaax.cli.tune.places import Place
from relaax.cli.tune.space import suggest
from relaax.configuration import ConfigurationError
from relaax.configuration.tune_section import SearchRange
from relaax.supervision.process import EXIT_REFUSED

RETURN, EVALUATION = "episode/mean_return_100", "evaluation/mean_return"
"""The scalars that can be maximised."""
_READ_SECONDS = 2.0
_READ_SHARE = 0.05
"""Largest share of its time that a thread spends on reading the curve of its trial, which is read whole each time."""
STAGES = 10
"""Number of times that a trial is compared with others."""


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """The settings of all trials.

    config, overrides: as for `relaax run`. steps: of each trial. scalar: what is maximised. seed: of trial 0; each
    further trial has the next one.
    """

    config: str
    overrides: list[str]
    steps: int
    scalar: str
    seed: int

    def overrides_of(self, number: int, values: Mapping[str, Any]) -> list[str]:
        """Return the overrides of a trial with these values."""
        chosen = {"algorithm.seed": self.seed + number, "run.max_steps": self.steps, **values}
        return [*self.overrides, *(f"{key}={json.dumps(value)}" for key, value in chosen.items())]


class TrialRunner:
    """A runner of the trials of one study, in several threads.

    `wanted`: number of trials; earlier starts count. `report` receives a line for each start, stage and end.
    After `stopping` is set, no trial starts, and running trainings are terminated with a checkpoint: their trials
    continue at the next start.
    """

    def __init__(
        self,
        study: Any,
        space: Mapping[str, SearchRange],
        settings: TrialSettings,
        folder: Path,
        place: Place,
        wanted: int,
        report: Callable[[str], None],
    ) -> None:
        self._study, self._space, self._settings = study, space, settings
        self._folder, self._place, self._wanted, self._report = folder, place, wanted, report
        self._lock = threading.Lock()
        self._unfinished = running_trials(study)
        self.stopping = threading.Event()
        self.solved: int | None = None
        """Number of the trial that reached the target of the configuration."""

    def run(self, at_once: int) -> None:
        """Run trials until there are enough, or one reaches the target. Raises ConfigurationError if one is refused."""
        with ThreadPoolExecutor(at_once) as pool:
            working = [pool.submit(self._work) for _ in range(at_once)]
        for one in working:
            one.result()

    def _work(self) -> None:
        try:
            while (trial := self._next()) is not None:
                self._train(trial)
        except BaseException:
            self.stopping.set()
            raise

    def _next(self) -> Any:
        """Return the next trial; None if there are enough."""
        with self._lock:
            if self.stopping.is_set() or self.solved is not None:
                return None
            if self._unfinished:
                return self._unfinished.pop(0)
            if len(self._study.get_trials(deepcopy=False)) >= self._wanted:
                return None
            trial = self._study.ask()
            suggest(trial, self._space)
            return trial

    def _train(self, trial: Any) -> None:
        from optuna.trial import TrialState

        run = self._folder / f"trial-{trial.number}"
        values = ", ".join(
            f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in trial.params.items()
        )
        self._report(f"trial {trial.number}: {values}")
        pruned, curve = threading.Event(), _Stages(trial, run, self._settings, self._report)

        def shall_end() -> bool:
            if curve.is_worse():
                pruned.set()
            return pruned.is_set() or self.stopping.is_set() or self.solved is not None

        overrides = self._settings.overrides_of(trial.number, trial.params)
        code, output = self._place.train(self._settings.config, overrides, run, shall_end)
        if code == EXIT_REFUSED:
            raise ConfigurationError(output)
        value = curve.last()
        with self._lock:
            if read_result(run / "summary.json").get("status") == "target_reached":
                self.solved = trial.number
            elif pruned.is_set() or self.solved is not None:
                self._study.tell(trial, state=TrialState.PRUNED)
                why = "below the median of the others" if pruned.is_set() else "another trial reached the target"
                self._report(f"trial {trial.number}: ended early: {why}")
                return
            elif self.stopping.is_set():
                return
        if code not in (0, 3) or value is None:
            self._study.tell(trial, state=TrialState.FAIL)
            self._report(f"trial {trial.number}: failed, see {run}.log")
            return
        self._study.tell(trial, value)
        self._report(f"trial {trial.number}: {value:g}")


def running_trials(study: Any) -> list[Any]:
    """Return the trials that an earlier start has left unfinished."""
    from optuna.trial import Trial, TrialState

    found = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    return [Trial(study, trial._trial_id) for trial in found]


class _Stages:
    """The comparison of a running trial with earlier ones, at equal parts of its steps."""

    def __init__(self, trial: Any, run: Path, settings: TrialSettings, report: Callable[[str], None]) -> None:
        self._trial, self._settings, self._report = trial, settings, report
        self._metrics = run / "metrics"
        self._next_read = time.monotonic() + _READ_SECONDS
        self._reported = max(trial.study.trials[trial.number].intermediate_values, default=0)

    def is_worse(self) -> bool:
        """Report new stages, and return whether the trial shall end."""
        if (began := time.monotonic()) < self._next_read:
            return False
        length = self._settings.steps / STAGES
        for step, _, value in self._curve():
            stage = int(step / length)
            if stage > self._reported:
                self._trial.report(value, stage)
                self._reported = stage
                self._report(f"trial {self._trial.number}: {value:g} after {step:,} steps")
                if self._trial.should_prune():
                    return True
        ended = time.monotonic()
        self._next_read = ended + max(_READ_SECONDS, (ended - began) / _READ_SHARE)
        return False

    def last(self) -> float | None:
        """Return the newest value, or None without values."""
        curve = self._curve()
        return curve[-1][2] if curve else None

    def _curve(self) -> list[tuple[int, float, float]]:
        found = find_curve(self._metrics, self._settings.scalar) if self._metrics.is_dir() else ()
        return found if isinstance(found, list) else []
