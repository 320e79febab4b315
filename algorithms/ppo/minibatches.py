"""Minibatches of a rollout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.rollout import Batch


def minibatches(batch: Batch, count: int, rng: np.random.Generator, *, recurrent: bool) -> Iterator[Batch]:
    """Yield minibatches that contain each unmasked step once, in random order.

    Without an LSTM the steps are independent, and a minibatch is [1, B, ...]. An LSTM (`recurrent`) needs consecutive
    steps: a minibatch has all T steps of some environments, [T, n, ...]. There are `count` minibatches, or as many as
    unmasked steps or environments with one. Their sizes differ by at most 1.
    """
    if not recurrent:
        batch = _mapped(batch, lambda array: array.reshape(1, -1, *array.shape[2:]), batch.state[:0])
    columns = np.flatnonzero(batch.mask.any(axis=0))
    rng.shuffle(columns)
    for chosen in np.array_split(columns, min(count, len(columns))):
        state = batch.state[chosen] if recurrent else np.zeros((len(chosen), 0), np.float32)
        yield _mapped(batch, partial(np.take, indices=chosen, axis=1), state)


def _mapped(batch: Batch, change: Callable[[Any], Any], state: npt.NDArray[np.float32]) -> Batch:
    """Return the batch with `change` of each array [T, N, ...], and this state."""
    changed: dict[str, Any] = {
        field.name: None if (array := getattr(batch, field.name)) is None else change(array) for field in fields(batch)
    }
    return Batch(**changed | {"state": state})
