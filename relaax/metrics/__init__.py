"""Scalars of every process, written to one TensorBoard run."""

from relaax.metrics.aggregator import Aggregator
from relaax.metrics.fleet import Fleet
from relaax.metrics.histogram import Quantiles
from relaax.metrics.names import check_name
from relaax.metrics.returns import RecentReturns
from relaax.metrics.writer import MetricsWriter

__all__ = ["Aggregator", "RecentReturns", "Fleet", "MetricsWriter", "Quantiles", "check_name"]
