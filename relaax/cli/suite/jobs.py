"""The jobs of a suite: their record in one file, and the processes that run them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from relaax.cli.own_command import read_result, run_command
from relaax.configuration import ConfigurationError
from relaax.files import write_whole
from relaax.supervision.process import EXIT_REFUSED

FILE = "suite.json"
TRAINED = ("target_reached", "max_steps", "max_time", "environments_done")


class JobFailed(Exception):
    """A job's process failed. The message has the end of its output."""


@dataclass(frozen=True, slots=True)
class SuitePlan:
    """The settings that determine the scores: configuration, environments, seeds, limits and evaluation."""

    config: str
    environments: list[str]
    seeds: list[int]
    overrides: list[str]
    max_steps: float | None
    max_seconds: float | None
    episodes: int
    evaluation: list[str]

    def names(self) -> dict[str, tuple[str, int]]:
        """Return environment and seed of each job, by the name of its run directory, in order."""
        return {
            f"{environment.replace('/', '-')}-seed-{seed}": (environment, seed)
            for environment in self.environments
            for seed in self.seeds
        }


@dataclass(slots=True)
class JobRecord:
    """The state of a job.

    `seconds`: time of training so far. `trained`: whether training is complete. `checkpoint`: the checkpoint in the
    last summary that was counted. `result`: of `relaax eval`.
    """

    seconds: float = 0.0
    trained: bool = False
    checkpoint: str | None = None
    result: dict[str, Any] | None = None


@dataclass(slots=True)
class SuiteRecord:
    """The file `suite.json` of a suite's folder, from which the same command resumes."""

    path: Path
    plan: SuitePlan
    jobs: dict[str, JobRecord] = field(default_factory=dict)

    def save(self) -> None:
        """Write the file atomically."""
        jobs = {name: asdict(job) for name, job in self.jobs.items()}
        write_whole(self.path, [json.dumps({"plan": asdict(self.plan), "jobs": jobs}, indent=1).encode()])

    def count_summary(self, name: str, summary: Mapping[str, Any]) -> None:
        """Count the summary of a training once. If the suite was killed, its next start counts it."""
        job = self.jobs[name]
        if summary and summary["checkpoint"] != job.checkpoint:
            job.seconds += summary["seconds"]
            job.checkpoint = summary["checkpoint"]
            job.trained = summary["status"] in TRAINED
            self.save()


def open_record(folder: Path, plan: SuitePlan) -> SuiteRecord:
    """Return the record in a folder, or a new one. Raises ConfigurationError for the record of another plan.

    A plan may add environments and seeds to the record. Finished jobs are kept.
    """
    path = folder / FILE
    jobs = {name: JobRecord() for name in plan.names()}
    if path.exists():
        try:
            there = json.loads(path.read_text(encoding="utf-8"))
            before, done = SuitePlan(**there["plan"]), {k: JobRecord(**job) for k, job in there["jobs"].items()}
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigurationError(f"{path} cannot be read: {error!r}; --fresh starts over") from None
        for key, value in asdict(plan).items():
            was, may_grow = getattr(before, key), key in ("environments", "seeds")
            if was != value and not (may_grow and set(was) <= set(value)):
                raise ConfigurationError(
                    f"{folder} holds a suite with other {key.replace('_', ' ')}: {_shown(was)}, not {_shown(value)}; "
                    + ("to resume it, name all of them and more if you like; " if may_grow else "")
                    + "--dir names another folder, --fresh starts over and moves that one aside"
                )
        jobs |= done
    return SuiteRecord(path, plan, jobs)


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


class JobRunner:
    """A runner of jobs. Each job is `relaax run`, then `relaax eval`, in processes of their own.

    `report` receives the start and the result of each step, and its progress every minute. `on_result` is called after
    each result. `share`: cores for the evaluation of one job. After `stopping` is set, no job starts, and running
    processes are terminated.
    """

    def __init__(
        self,
        record: SuiteRecord,
        folder: Path,
        share: int,
        report: Callable[[str], None],
        on_result: Callable[[], object] = lambda: None,
    ) -> None:
        self._record, self._folder, self._share = record, folder, share
        self._report, self._on_result = report, on_result
        self._plan = record.plan
        self._lock = threading.Lock()
        self.stopping = threading.Event()

    def run(self, names: Sequence[str], at_once: int) -> list[str]:
        """Run the jobs; return a sentence for each failed job. Raises ConfigurationError if a job is refused."""
        failures: list[str] = []
        refused: list[ConfigurationError] = []

        def one(name: str) -> None:
            try:
                self._job(name)
            except JobFailed as failure:
                failures.append(f"{name}: {failure}")
                self._report(f"{name} failed")
            except ConfigurationError as error:
                refused.append(error)
                self.stopping.set()

        with ThreadPoolExecutor(at_once) as pool:
            for done in [pool.submit(one, name) for name in names]:
                done.result()
        if refused:
            raise refused[0]
        return failures

    def _job(self, name: str) -> None:
        job = self._record.jobs[name]
        run = self._folder / name
        self._count(name, run)
        if not job.trained and not self.stopping.is_set():
            self._report(f"{name}: training{f', {job.seconds:.0f} s so far' if job.seconds else ''}")
            code, output = self._run_process(name, *self._training(name, run, job.seconds))
            self._count(name, run)
            if not job.trained:
                self._fail(code, output)
        if job.trained and job.result is None and not self.stopping.is_set():
            self._report(f"{name}: evaluating")
            file = self._folder / f"{name}.json"
            options = ("--episodes", str(self._plan.episodes), "--jobs", str(self._share), "--json", str(file))
            code, output = self._run_process(name, "eval", str(run), *options, *self._plan.evaluation)
            if code != 0:
                self._fail(code, output)
                return
            with self._lock:
                job.result = read_result(file)
                self._record.save()
                self._on_result()
            self._report(f"{name}: mean return {job.result['mean']:g} of {job.result['episodes']} episodes")

    def _training(self, name: str, run: Path, seconds: float) -> list[str]:
        plan = self._plan
        environment, seed = plan.names()[name]
        overrides = ["run.target_return=null", "run.target_evaluation=null", *plan.overrides, f"run.name={environment}"]
        command = ["run", plan.config, "--run-dir", str(run), "--seed", str(seed)]
        command += [word for text in overrides for word in ("--set", text)]
        if plan.max_steps is not None:
            command += ["--max-steps", str(plan.max_steps)]
        if plan.max_seconds is not None:
            command += ["--max-time", str(max(1.0, plan.max_seconds - seconds))]
        return command

    def _run_process(self, name: str, *arguments: str) -> tuple[int, str]:
        """Run a command with its output in NAME.log; return its exit code and the end of the output."""
        log = self._folder / f"{name}.log"
        return run_command(log, list(arguments), self.stopping.is_set, lambda line: self._report(f"{name}: {line}"))

    def _fail(self, code: int, output: str) -> None:
        """Raise an error for a process that ended with this code, unless the suite is stopping."""
        if self.stopping.is_set():
            return
        if code == EXIT_REFUSED:
            raise ConfigurationError(output)
        raise JobFailed(f"ended with exit code {code}:\n{output}")

    def _count(self, name: str, run: Path) -> None:
        with self._lock:
            self._record.count_summary(name, read_result(run / "summary.json"))
