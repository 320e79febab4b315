"""Withhold gradients of outlying losses (Gorila: Nair et al. 2015, under "Stability")."""

from __future__ import annotations

import math

from relaax.algorithm_base.gradient_filters import GradientFilter
from relaax.parameters.interfaces import FlatVector

WARM_UP = 20
"""Losses before the first judgement; so many outliers in a row, and the statistics begin anew."""
MEMORY = 100
"""Losses over which mean and deviation reach back: all of them up to here, then with weights that fall by 1 %."""
_LARGEST = 1e150
"""Losses from here on, infinite ones too, are not taken in: their squares are no numbers."""


class RunningLoss:
    """Mean and standard deviation of a worker's absolute losses, and which loss is beyond them.

    An outlier is taken in as if it were at the limit. So a single one, however large, does not hide the next, and a
    loss that has risen for good is soon accepted; if it has risen very far, after `WARM_UP` outliers in a row.
    """

    def __init__(self, deviations: float) -> None:
        self._deviations = deviations
        self._mean = self._variance = 0.0
        self._count = self._outliers = 0

    def is_outlier(self, loss: float) -> bool:
        """Add a loss; return whether |loss| > mean + deviations x deviation of those before it. Never before `WARM_UP`.

        NaN is neither judged nor taken in: its gradient is NaN as well, and is discarded as not finite.
        """
        if math.isnan(loss):
            return False
        size = abs(float(loss))
        limit = self._mean + self._deviations * math.sqrt(self._variance)
        outlier = self._count >= WARM_UP and size > limit
        self._outliers = self._outliers + 1 if outlier else 0
        if self._outliers >= WARM_UP:
            self._forget()
        elif outlier or size < _LARGEST:
            self._take(min(size, limit) if outlier else size)
        return outlier

    def _forget(self) -> None:
        self._mean = self._variance = 0.0
        self._count = self._outliers = 0

    def _take(self, size: float) -> None:
        self._count += 1
        weight = max(1.0 / self._count, 1.0 / MEMORY)
        difference = size - self._mean
        self._mean += weight * difference
        self._variance = (1.0 - weight) * (self._variance + weight * difference * difference)


class LossOutliers(GradientFilter):
    """Withhold the gradients of outliers. Their steps count, and the parameter server counts one discarded.

    Each worker judges by its own losses; a new worker begins with none. Pushes that name no loss are not judged.
    """

    def __init__(self, deviations: float) -> None:
        self._losses = RunningLoss(deviations)

    def __call__(self, gradient: FlatVector, loss: float | None, global_step: int) -> FlatVector | None:
        return None if loss is not None and self._losses.is_outlier(loss) else gradient
