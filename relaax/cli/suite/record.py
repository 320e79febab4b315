"""What a suite is to do and has done, in one file: so that the same command goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from relaax.configuration import ConfigurationError
from relaax.files import write_whole

FILE = "suite.json"
TRAINED = ("target_reached", "max_steps", "max_time", "environments_done")


@dataclass(frozen=True, slots=True)
class SuitePlan:
    """What decides the numbers: configuration, environments, seeds, how long is trained, how it is evaluated."""

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
    """`seconds` of training so far, whether that is `trained` to its end, the `result` of `relaax eval`.

    `checkpoint`: the last one of what was counted.
    """

    seconds: float = 0.0
    trained: bool = False
    checkpoint: str | None = None
    result: dict[str, Any] | None = None


@dataclass(slots=True)
class SuiteRecord:
    """The file `suite.json` of a suite's folder."""

    path: Path
    plan: SuitePlan
    jobs: dict[str, JobRecord] = field(default_factory=dict)

    def save(self) -> None:
        """Write the file whole."""
        jobs = {name: asdict(job) for name, job in self.jobs.items()}
        write_whole(self.path, [json.dumps({"plan": asdict(self.plan), "jobs": jobs}, indent=1).encode()])

    def count(self, name: str, summary: Mapping[str, Any]) -> None:
        """Count what a training says of itself, once: also that of a suite that was killed."""
        job = self.jobs[name]
        if summary and summary["checkpoint"] != job.checkpoint:
            job.seconds += summary["seconds"]
            job.checkpoint = summary["checkpoint"]
            job.trained = summary["status"] in TRAINED
            self.save()


def opened(folder: Path, plan: SuitePlan) -> SuiteRecord:
    """Return the record in a folder, new if there is none. Raises ConfigurationError if it is that of another plan.

    Further environments and seeds may be added to a plan: what is done is kept.
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
            was = getattr(before, key)
            if was != value and not (key in ("environments", "seeds") and set(was) <= set(value)):
                raise ConfigurationError(
                    f"{folder} holds a suite with other {key.replace('_', ' ')}: {_shown(was)}, not {_shown(value)}; "
                    "--dir names another folder, --fresh starts over and moves that one aside"
                )
        jobs |= done
    return SuiteRecord(path, plan, jobs)


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
