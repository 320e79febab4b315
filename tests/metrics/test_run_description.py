from __future__ import annotations

import re
from typing import Any

from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import metadata as hparams

from relaax.metrics.run_description import RunDescription, flat
from support.metrics_page import documented

DOCUMENT = {"relaax-parameter-server": {"bind": "localhost:7000"}, "algorithm": {"path": "da3c", "seed": 3}}


def values(document: dict[str, Any], hyperparameters: dict[str, Any]) -> dict[str, Any]:
    return {value.tag: value for value in RunDescription(document, hyperparameters).begun()}


def test_configuration_is_described_as_yaml() -> None:
    found = values(DOCUMENT, {})["configuration"]
    text = found.tensor.string_val[0].decode()
    assert text.startswith("```yaml\nrelaax-parameter-server:\n  bind: localhost:7000\nalgorithm:\n")
    assert found.metadata.plugin_data.plugin_name == "text"


def test_hyperparameters_and_mean_return_are_described() -> None:
    found = values({}, {"seed": 3, "gpu": False, "network": {"dense": [64, 64]}, "state_size": None})
    start = hparams.parse_session_start_info_plugin_data(
        found["_hparams_/session_start_info"].metadata.plugin_data.content
    )
    assert start.hparams["seed"].number_value == 3
    assert start.hparams["gpu"].bool_value is False
    assert start.hparams["network.dense"].string_value == "64, 64"
    assert start.hparams["state_size"].string_value == "none"
    experiment = hparams.parse_experiment_plugin_data(found["_hparams_/experiment"].metadata.plugin_data.content)
    assert {info.name for info in experiment.hparam_infos} == set(start.hparams)
    assert [info.name.tag for info in experiment.metric_infos] == ["episode/mean_return_100"]


def test_end_of_run_is_described() -> None:
    (value,) = RunDescription({}, {}).ended()
    assert hparams.parse_session_end_info_plugin_data(value.metadata.plugin_data.content).end_time_secs > 0


def test_secrets_are_omitted() -> None:
    secret = {
        "token": "hunter2",
        "s3": {"secret_access_key": "hunter2", "bucket": "s3://me:hunter2@store/b"},
        "list": [{"api-key": "hunter2"}, "https://hunter2@host/"],
        "arguments": ["--auth", "hunter2", "--pwd=hunter2"],
    }
    found = RunDescription(secret, secret).begun()
    assert all(b"hunter2" not in value.SerializeToString() for value in found)
    assert b"s3://store/b" in found[0].SerializeToString()


def test_every_curve_of_layout_is_a_metric() -> None:
    layout = layout_pb2.Layout.FromString(values({}, {})["custom_scalars__config__"].tensor.string_val[0])
    names = {name.replace("...", "height") for name in documented()}
    patterns = [tag for category in layout.category for chart in category.chart for tag in chart.multiline.tag]
    assert len(patterns) > 15
    for pattern in patterns:
        assert any(re.match(pattern, name) for name in names), pattern


def test_flat_joins_keys_with_dots() -> None:
    assert flat({"a": {"b": {"c": 1}}, "d": "e"}) == {"a.b.c": 1.0, "d": "e"}
