"""Metadata of a run, stored with its curves: configuration, hyperparameters, and layout of the charts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import yaml

from relaax.configuration import redacted

COMPARED = "episode/mean_return_100"
SHOWN_FIRST = ("entropy_beta", "episode_len", "initial_learning_rate", "run.clients", "run.envs_per_client")


class RunDescription:
    """Contents of TensorBoard's tabs Text, HParams and Custom Scalars.

    `document`: the effective configuration, as in a file. `hyperparameters`: the values by which runs are compared,
    nested. Possible secrets are removed from both (see `relaax.configuration.redacted`).
    """

    def __init__(self, document: Mapping[str, Any], hyperparameters: Mapping[str, Any]) -> None:
        self._document = redacted(document)
        self._hyperparameters = flat(redacted(hyperparameters))

    def begun(self) -> list[Any]:
        """Return the Summary values for the beginning of an event file."""
        return [self._configuration(), *self._comparison(), layout_value()]

    def ended(self) -> list[Any]:
        """Return the Summary values for the end of an event file."""
        from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

        end = plugin_data_pb2.SessionEndInfo(status=api_pb2.STATUS_SUCCESS, end_time_secs=time.time())
        return [_hparams_value(metadata.SESSION_END_INFO_TAG, plugin_data_pb2.HParamsPluginData(session_end_info=end))]

    def _configuration(self) -> Any:
        from tensorboard.plugins.text import metadata

        text = f"```yaml\n{yaml.safe_dump(self._document, sort_keys=False)}```"
        described = metadata.create_summary_metadata(display_name=None, description=None)
        return text_value("configuration", described, text.encode())

    def _comparison(self) -> list[Any]:
        from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2, summary_v2

        types = {bool: api_pb2.DATA_TYPE_BOOL, float: api_pb2.DATA_TYPE_FLOAT64, str: api_pb2.DATA_TYPE_STRING}
        experiment = api_pb2.Experiment(
            hparam_infos=[
                # TensorBoard puts columns marked as differing first, and shows only five by default.
                api_pb2.HParamInfo(name=name, type=types[type(value)], differs=name in SHOWN_FIRST)
                for name, value in self._hyperparameters.items()
            ],
            metric_infos=[
                api_pb2.MetricInfo(name=api_pb2.MetricName(tag=COMPARED), display_name="mean return of 100 episodes")
            ],
        )
        return [
            _hparams_value(metadata.EXPERIMENT_TAG, plugin_data_pb2.HParamsPluginData(experiment=experiment)),
            *summary_v2.hparams_pb(self._hyperparameters, start_time_secs=time.time()).value,
        ]


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, bool | float | str]:
    """Flatten to the types that TensorBoard compares: numbers, booleans and text. The list [64, 64] is "64, 64"."""
    result: dict[str, bool | float | str] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{prefix}{key}.")
        elif isinstance(value, bool | str):
            result[f"{prefix}{key}"] = value
        elif isinstance(value, int | float):
            result[f"{prefix}{key}"] = float(value)
        elif isinstance(value, list | tuple):
            result[f"{prefix}{key}"] = ", ".join(str(item) for item in value)
        else:
            result[f"{prefix}{key}"] = "none" if value is None else str(value)
    return result


def _hparams_value(tag: str, data: Any) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import metadata

    return Summary.Value(tag=tag, metadata=metadata.create_summary_metadata(data), tensor=metadata.NULL_TENSOR)


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
        "answer and turnaround, ms: 99th percentile": ("latency/act_ms/p99", "latency/turnaround_ms/p99"),
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
    """Return the layout of the charts as a Summary.Value."""
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
