"""Families of Prometheus metrics, declared in tables that docs/metrics.md must match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

View = TypeVar("View")
Read = TypeVar("Read", contravariant=True)
Labelled = Mapping[Any, float]
"""Values by labels: tuples of text, in the order of the label names."""


@dataclass(frozen=True)
class Family(Generic[Read]):
    """One metric. `read` returns its value, or None if there is none yet; with `labels`, a value per label tuple.

    A metric whose name ends in _total is a counter, any other a gauge.
    """

    name: str
    help: str
    read: Callable[[Read], float | Labelled | None]
    labels: tuple[str, ...] = ()

    def metric(self, view: Read) -> Metric:
        """Return the metric with its current value."""
        kind = CounterMetricFamily if self.name.endswith("_total") else GaugeMetricFamily
        metric = kind(self.name, self.help, labels=self.labels)
        value = self.read(view)
        if isinstance(value, Mapping):
            for labels, number in value.items():
                metric.add_metric(labels, number)
        elif value is not None:
            metric.add_metric((), value)
        return metric


class Families(Collector, Generic[View]):
    """Read all families from one view, taken at each scrape; report nothing if it is None."""

    def __init__(self, families: Iterable[Family[View]], view: Callable[[], View | None]) -> None:
        self._families = tuple(families)
        self._view = view

    def collect(self) -> Iterator[Metric]:
        view = self._view()
        if view is not None:
            for family in self._families:
                yield family.metric(view)

    def describe(self) -> Iterator[Metric]:
        """Yield nothing; otherwise a registry would call `collect` to learn the names."""
        yield from ()


def registry_of(collector: Collector, pid: Callable[[], int] | None = None) -> CollectorRegistry:
    """Return a registry of `collector` and of process_..., the resource use of a process, by default this one."""
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry, pid=pid or (lambda: "self"))
    return registry
