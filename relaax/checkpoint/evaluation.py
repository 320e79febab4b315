"""Results of evaluations of checkpoints, stored next to their manifests as ID/evaluation.json.

An evaluator writes the file when it begins, without a result, so that the checkpoint is not deleted during the
evaluation. It writes the file again, with the result, when it ends. The file is read when old checkpoints are deleted,
and when the best one is selected.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from relaax.checkpoint.manifest import age
from relaax.checkpoint.store import InvalidValue, NotFound, Store, StoreError

EVALUATION = "evaluation.json"
WHOLE_MEAN = 100
"""Episodes of a mean return: the window of `relaax.metrics.RecentReturns`."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The mean return of `episodes` episodes, with the 95 % interval `low` to `high`; None during the evaluation.

    `time`: Unix time in seconds of the end, or of the beginning while the evaluation runs.
    """

    episodes: int
    time: float
    mean: float | None = None
    low: float | None = None
    high: float | None = None


def evaluation_key(checkpoint_id: str) -> str:
    """Return the key of a checkpoint's evaluation."""
    return f"{checkpoint_id}/{EVALUATION}"


def write_evaluation(store: Store, checkpoint_id: str, evaluation: Evaluation) -> None:
    """Write the evaluation of a checkpoint. Raises StoreError."""
    store.put(evaluation_key(checkpoint_id), json.dumps(asdict(evaluation), indent=1).encode())


def read_evaluation(store: Store, checkpoint_id: str) -> Evaluation | None:
    """Return the evaluation of a checkpoint, or None if it is missing or invalid. Raises StoreError."""
    try:
        found = Evaluation(**json.loads(store.get(evaluation_key(checkpoint_id))))
        numbers = [value for value in (found.mean, found.low, found.high) if value is not None]
        return found if all(math.isfinite(value) for value in numbers) else None
    except (NotFound, InvalidValue, ValueError, TypeError, RecursionError):
        return None


def evaluations(store: Store, keys: Collection[str], ids: Iterable[str]) -> dict[str, Evaluation]:
    """Return the readable evaluations of the checkpoints `ids`. `keys`: all keys of the store."""
    found = {}
    for checkpoint_id in ids:
        if evaluation_key(checkpoint_id) in keys:
            try:
                evaluation = read_evaluation(store, checkpoint_id)
            except StoreError:
                continue
            if evaluation is not None:
                found[checkpoint_id] = evaluation
    return found


Rank = tuple[bool, float]
"""Whether a mean is over `WHOLE_MEAN` episodes, and its value: a few lucky episodes rank below all whole means."""


def rank_of(manifest: Mapping[str, Any]) -> Rank | None:
    """Return the rank of a checkpoint by its mean return; None without one.

    Without a number of episodes in the manifest, the mean counts as one over `WHOLE_MEAN` episodes.
    """
    mean, returns = manifest.get("mean_return"), manifest.get("returns")
    episodes = returns.get("episodes") if isinstance(returns, Mapping) else None
    return None if mean is None else (not isinstance(episodes, int) or episodes >= WHOLE_MEAN, mean)


def ranked(returns: Mapping[str, Rank | None], evaluated: Mapping[str, Evaluation]) -> list[str]:
    """Return the ids of checkpoints, best first: by evaluation if any has a result, else by mean return."""
    means = {one: (True, evaluation.mean) for one, evaluation in evaluated.items() if evaluation.mean is not None}
    known = means or {one: rank for one, rank in returns.items() if rank is not None}
    return sorted(known, key=lambda one: (known[one], age(one)), reverse=True)


def in_progress(evaluated: Mapping[str, Evaluation]) -> set[str]:
    """Return the newest checkpoint with an unfinished evaluation. Older unfinished evaluations were abandoned."""
    begun = [one for one, evaluation in evaluated.items() if evaluation.mean is None]
    return set(sorted(begun, key=age)[-1:])
