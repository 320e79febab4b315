from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from relaax.algorithm_base.testing import FakeParameters
from relaax.hosting.gradient_filters import (
    AVERAGED_LOSSES,
    WARM_UP,
    FilteredParameters,
    GradientFilter,
    LossOutliers,
    RunningLoss,
)
from relaax.parameters.interfaces import Registration


def warmed_up(deviations: float = 3.0) -> RunningLoss:
    """Return a RunningLoss after losses of 1 and -3 in turn: the mean of |loss| is 2, its deviation 1."""
    losses = RunningLoss(deviations)
    for i in range(WARM_UP):
        assert not losses.is_outlier((1.0, -3.0)[i % 2])
    return losses


def test_loss_beyond_the_deviations_is_an_outlier() -> None:
    for loss, expected in ((4.99, False), (-4.99, False), (5.01, True), (-5.01, True), (0.0, False)):
        assert warmed_up().is_outlier(loss) is expected


def test_no_loss_is_an_outlier_before_warm_up_ends() -> None:
    losses = RunningLoss(3.0)
    assert [losses.is_outlier(10.0**i) for i in range(WARM_UP)] == [False] * WARM_UP


def test_first_losses_have_equal_weight() -> None:
    random = np.random.default_rng(0)
    seen = np.abs(random.standard_normal(AVERAGED_LOSSES)).tolist()
    low, high = (RunningLoss(3.0), RunningLoss(3.0))
    for loss in seen:
        low.is_outlier(min(loss, 2.0))
        high.is_outlier(min(loss, 2.0))
    cut = [min(loss, 2.0) for loss in seen]
    limit = statistics.fmean(cut) + 3.0 * statistics.pstdev(cut)
    assert not low.is_outlier(limit * (1 - 1e-9))
    assert high.is_outlier(limit * (1 + 1e-9))


def test_outlier_after_a_huge_loss_is_detected() -> None:
    losses = warmed_up()
    assert losses.is_outlier(1e30)
    assert losses.is_outlier(10.0)
    assert not losses.is_outlier(3.0)


@pytest.mark.parametrize("level", [8.0, 1e12])
def test_permanently_higher_loss_is_accepted_after_a_while(level: float) -> None:
    losses = warmed_up()
    withheld = [losses.is_outlier(level) for _ in range(100)]
    assert withheld[0]
    assert sum(withheld) <= WARM_UP
    assert not any(withheld[WARM_UP:])


def test_change_after_constant_losses_is_accepted() -> None:
    losses = RunningLoss(3.0)
    for _ in range(WARM_UP):
        losses.is_outlier(0.0)
    assert sum(losses.is_outlier(1.0) for _ in range(100)) <= WARM_UP


def test_nan_loss_does_not_change_the_statistics() -> None:
    losses = warmed_up()
    for _ in range(2 * WARM_UP):
        assert not losses.is_outlier(math.nan)
    assert losses.is_outlier(5.01)


@pytest.mark.parametrize("loss", [math.inf, -math.inf, 1e200])
def test_infinite_loss_never_enters_the_statistics(loss: float) -> None:
    losses = RunningLoss(3.0)
    assert not losses.is_outlier(loss)
    for i in range(WARM_UP):
        assert not losses.is_outlier((1.0, -3.0)[i % 2])
    assert losses.is_outlier(loss)
    assert losses.is_outlier(6.0)
    assert not losses.is_outlier(3.0)


def test_outlier_gradient_is_discarded_but_its_steps_count() -> None:
    parameters_client = FakeParameters(np.zeros(2, np.float32))
    guarded = FilteredParameters(parameters_client, [LossOutliers(3.0)])
    parameters_client.register(Registration("x"))
    guarded.pull()
    gradient = np.ones(2, np.float32)
    for _ in range(WARM_UP):
        assert guarded.push(gradient, 5, loss=1.0).discarded is None
    pushed = guarded.push(gradient, 5, loss=7.0)
    assert (pushed.discarded, pushed.global_step) == ("loss", 5 * (WARM_UP + 1))
    assert pushed.pulled is not None
    assert parameters_client.pushes[-1].gradient is None
    later = guarded.push_later(gradient, 5, loss=7.0)()
    assert (later.discarded, later.global_step) == ("loss", 5 * (WARM_UP + 2))
    # A push without a loss or without a gradient is never discarded as an outlier.
    assert guarded.push(gradient, 5).discarded is None
    assert guarded.push(None, 5).discarded is None


class Remembering(GradientFilter):
    """Counts the gradients since the model was rolled back."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, gradient: np.ndarray, loss: float | None, global_step: int) -> np.ndarray:
        self.seen += 1
        return gradient * self.seen

    def reset(self) -> None:
        self.seen = 0


@pytest.mark.parametrize("later", [False, True])
def test_filters_are_reset_after_a_rollback(later: bool) -> None:
    parameters_client, remembering = FakeParameters(np.zeros(2, np.float32)), Remembering()
    filtered = FilteredParameters(parameters_client, [remembering])
    parameters_client.register(Registration("x"))
    filtered.pull()
    gradient = np.ones(2, np.float32)

    def push() -> str | None:
        return (filtered.push_later(gradient, 1)() if later else filtered.push(gradient, 1)).discarded

    assert [push(), push()] == [None, None]
    parameters_client.discard.append("stale")
    assert push() == "stale"
    parameters_client.discard.append("incarnation")
    assert push() == "incarnation"
    assert push() is None
    assert [float(sent.gradient[0]) for sent in parameters_client.pushes if sent.gradient is not None] == [
        1,
        2,
        3,
        4,
        1,
    ]
