"""Metrics of all processes of a training, written to one TensorBoard run.

Begin with `Aggregator`, which collects samples from workers, and `MetricsWriter`, which writes them.
"""

from relaax.metrics.aggregator import Aggregator
from relaax.metrics.fleet import Fleet
from relaax.metrics.histogram import Quantiles
from relaax.metrics.names import check_name
from relaax.metrics.returns import RecentReturns
from relaax.metrics.writer import MetricsWriter

__all__ = ["Aggregator", "RecentReturns", "Fleet", "MetricsWriter", "Quantiles", "check_name"]
