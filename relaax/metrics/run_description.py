"""Metadata of a run beside its curves: configuration, hyperparameters, layout."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import yaml

from relaax.configuration import redacted
from relaax.metrics.layout import layout_value, text_value

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
    """Flatten to the types that TensorBoard compares: numbers, booleans and text. `network.dense` is "64, 64"."""
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
