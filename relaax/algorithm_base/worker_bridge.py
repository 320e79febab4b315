"""What a worker does with gradients before they are sent, whichever algorithm computes them."""

from __future__ import annotations

from relaax.algorithm_base.config import ConfigBase
from relaax.algorithm_base.loss_outliers import LossOutliers
from relaax.parameters.base import BridgeBase


def worker_bridge(bridge: BridgeBase, config: ConfigBase) -> BridgeBase:
    """The bridge for an agent: outliers are withheld first, and the worker's own optimizer never sees them."""
    optimizer = config.worker_optimizer_spec()
    if optimizer is not None:
        from relaax.algorithm_base.local_optimizer import LocalOptimizer  # TensorFlow with it

        bridge = LocalOptimizer(bridge, optimizer, config.schedule)
    if config.loss_outlier_deviations is not None:
        bridge = LossOutliers(bridge, config.loss_outlier_deviations)
    return bridge
