"""The layout of TensorBoard's tab "Custom Scalars": which curves share a chart, the most important first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CHARTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "Does it learn?": {
        "mean return of the last 100 episodes": ("episode/mean_return_100",),
        "episode return": ("episode/return",),
        "episode length, steps": ("episode/length",),
        "reward per second": ("episode/reward_per_second",),
    },
    "Is it fast?": {
        "environment steps per second, all workers": ("speed/steps_per_second",),
        "answer and turnaround, ms: median": ("latency/act_ms/p50", "latency/turnaround_ms/p50"),
        "answer and turnaround, ms: 99 in 100 within": ("latency/act_ms/p99", "latency/turnaround_ms/p99"),
        "answer as clients see it, ms: mean": ("client/latency/.*",),
    },
    "Is it healthy?": {
        "losses": ("loss/.*",),
        "norm of the gradient": ("gradient/norm",),
        "staleness, versions": ("staleness/mean", "staleness/p95", "staleness/max", "staleness/actors"),
        "items into and out of replay memory, per second": ("replay/inserts_per_second", "replay/samples_per_second"),
        "items in replay memory, and age of samples": ("replay/size", "replay/sample_age"),
        "gradients discarded so far": ("discarded/.*",),
        "clients and returns left out as outliers": ("outliers/.*",),
        "workers": ("workers/connected",),
    },
    "What does it take?": {
        "memory, MB": ("system/.*_server_memory_mb", "system/worker_memory_mb/.*"),
        "processor, percent of one core": ("system/.*_server_processor_percent", "system/worker_processor_percent/.*"),
        "available memory of the machine, MB": ("system/available_memory_mb",),
        "steps per second of each worker": ("workers/steps_per_second/.*",),
    },
    "What the environment says": {"its own metrics": ("client/(?!latency/).*",)},
}
"""Categories, their charts, and regular expressions of the metrics in each."""


def layout_value() -> Any:
    """Return the layout as a Summary.Value."""
    from tensorboard.plugins.custom_scalar import layout_pb2, metadata

    layout = layout_pb2.Layout(
        category=[
            layout_pb2.Category(
                title=category,
                chart=[
                    layout_pb2.Chart(
                        title=title, multiline=layout_pb2.MultilineChartContent(tag=[f"^{tag}$" for tag in tags])
                    )
                    for title, tags in charts.items()
                ],
            )
            for category, charts in CHARTS.items()
        ]
    )
    return text_value(metadata.CONFIG_SUMMARY_TAG, metadata.create_summary_metadata(), layout.SerializeToString())


def text_value(tag: str, metadata: Any, text: bytes) -> Any:
    """Return a Summary.Value that holds a string."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING

    return Summary.Value(tag=tag, metadata=metadata, tensor=TensorProto(dtype=DT_STRING, string_val=[text]))
