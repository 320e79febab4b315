"""The loss of a network that estimates action values, and its derivative by the network's outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.value_targets import values_of
from relaax.nn.action_values import ActionValues

Array = npt.NDArray[np.float32]
Errors = Literal["squared", "huber"]


def squared(errors: Array) -> tuple[Array, Array]:
    """Compute e^2 and its derivative 2 e, float32 [B] each (Mnih et al. 2016, Algorithm 1)."""
    return errors * errors, 2 * errors


def huber(errors: Array) -> tuple[Array, Array]:
    """Compute Huber's loss and its derivative, float32 [B] each: e^2 / 2 up to 1, then |e| - 1/2.

    Its derivative is the error, cut to plus and minus 1, as Mnih et al. 2015 cut it.
    """
    size = np.abs(errors)
    inner = np.minimum(size, 1)
    return inner * (size - np.float32(0.5) * inner), np.clip(errors, -1, 1)


LOSSES = {"squared": squared, "huber": huber}


class ValueLoss:
    """The sum over a batch of w_i * loss(Q(s_i, a_i) - y_i). The targets y_i are constants.

    An engine calls it with the outputs of some examples (head -> float32 [B, width]), and goes on with the derivative
    by them that it returns, in the same form.

    `a_t`: int64 [B], from 0. `targets`, `weights`: float32 [B]; a weight says how much an example counts: 0 if it is
    void, the importance weight if it was drawn with another probability than others, 1 / environments for a mean
    over them.
    """

    def __init__(
        self, values: ActionValues, errors: Errors, a_t: npt.NDArray[Any], targets: Array, weights: Array
    ) -> None:
        self._values, self._loss = values, LOSSES[errors]
        self._a_t, self._targets, self._weights = a_t, targets, weights
        self.errors: Array = np.zeros(len(targets), np.float32)
        """Q(s_i, a_i) - y_i of the examples so far, float32 [B]: the sizes are what prioritised replay needs."""
        self._sum = 0.0
        self._chosen = 0.0

    def __call__(self, outputs: Mapping[str, Array], part: slice) -> dict[str, Array]:
        values, a_t, weights = self._values.values(outputs), self._a_t[part], self._weights[part]
        chosen = values_of(values, a_t)
        self.errors[part] = errors = chosen - self._targets[part]
        losses, by_chosen = self._loss(errors)
        self._sum += float(np.dot(weights, losses))
        self._chosen += float(np.dot(weights, chosen))
        by_values = np.zeros_like(values)
        np.put_along_axis(by_values, a_t[:, None], (weights * by_chosen)[:, None], axis=1)
        return self._values.gradient(by_values)

    @property
    def means(self) -> dict[str, float]:
        """The loss, the size of the errors and Q(s, a), as weighted means of the examples so far."""
        count = max(float(self._weights.sum()), 1e-9)
        size = float(np.dot(self._weights, np.abs(self.errors)))
        return {"loss": self._sum / count, "loss/td_error": size / count, "q/chosen": self._chosen / count}
