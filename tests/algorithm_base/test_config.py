from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import Box, ConfigBase, Dict, Discrete, Space
from relaax.algorithm_base.config import DEFAULT_RING, MAX_RING, size_mismatch, space_size
from relaax.configuration import ConfigurationError, validate_section
from relaax.hosting.fingerprint import fingerprint, first_difference
from relaax.optim.optimizers import AdaGrad, Adam, Add, Momentum, OptimizerSpec, RMSProp


def config(**keys: Any) -> ConfigBase:
    return validate_section(ConfigBase, {"path": "x"} | keys, "algorithm")


@pytest.mark.parametrize(
    ("size", "space"),
    [
        ([84, 84], Box(0, 255, shape=(84, 84), dtype=np.uint8)),
        (4, Box(shape=(4,))),
        ([4], Box(shape=(4,))),
        ([], Discrete(5)),
        (None, Dict({"a": Box(shape=(2,)), "b": Discrete(2)})),
    ],
)
def test_matching_state_size_is_accepted(size: Any, space: Space) -> None:
    assert size_mismatch(config(state_size=size), space, Discrete(2)) is None


@pytest.mark.parametrize(
    ("size", "space", "sentence"),
    [
        (5, Box(shape=(4,)), "algorithm.state_size is 5, the client's observation space is Box(float32, [4])"),
        (
            [84, 84],
            Box(shape=(84, 84, 3)),
            "algorithm.state_size is [84, 84], the client's observation space is Box(float32, [84, 84, 3])",
        ),
        (
            2,
            Dict({"a": Box(shape=(2,)), "b": Discrete(2)}),
            "algorithm.state_size is 2, the client's observation space is Dict(a: Box(float32, [2]), b: Discrete(2))",
        ),
    ],
)
def test_mismatched_state_size_is_reported(size: Any, space: Space, sentence: str) -> None:
    assert size_mismatch(config(state_size=size), space, Discrete(2)) == sentence


@pytest.mark.parametrize("sizes", [{"state_size": 0}, {"state_size": [84, -1]}, {"action_size": 0}])
def test_sizes_below_one_are_refused(sizes: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="greater than or equal to 1"):
        config(**sizes)


def test_action_size_is_compared_with_the_action_space() -> None:
    assert size_mismatch(config(action_size=18), Box(), Discrete(18)) is None
    assert size_mismatch(config(action_size=6), Box(), Box(shape=(2, 3))) is None
    assert size_mismatch(config(action_size=18), Box(), Discrete(6)) == (
        "algorithm.action_size is 18, the client's action space is Discrete(6)"
    )


def test_space_size_counts_numbers_of_all_parts() -> None:
    assert space_size(Discrete(7, start=3)) == 7
    assert space_size(Box(shape=(2, 3))) == 6
    assert space_size(Dict({"a": Box(shape=(2, 3)), "b": Box(shape=(4,))})) == 10


def test_optimizer_takes_its_keys_from_its_section() -> None:
    found = config(RMSProp={"decay": 0.5, "epsilon": 1e-5}).optimizer_spec()
    assert found == RMSProp(decay=0.5, epsilon=1e-5)
    sections = {"RMSProp": {"gradient_norm_clipping": 3}, "Adam": {"beta2": 0.99, "gradient_norm_clipping": None}}
    assert config(**sections).optimizer_spec() == RMSProp()
    assert config(**sections).gradient_norm_clipping == 3
    adam = config(optimizer="adam", **sections)
    assert adam.optimizer_spec() == Adam(beta1=0.9, beta2=0.99, epsilon=1e-8)
    assert adam.gradient_norm_clipping is None


@pytest.mark.parametrize(
    ("optimizer", "spec"),
    [
        ("rms_prop", RMSProp(epsilon=0.5)),
        ("adam", Adam(beta1=0.5)),
        ("momentum", Momentum(momentum=0.5)),
        ("adagrad", AdaGrad(epsilon=0.5)),
    ],
)
def test_each_optimizer_uses_only_its_own_section(optimizer: str, spec: OptimizerSpec) -> None:
    sections = {
        "RMSProp": {"epsilon": 0.5, "gradient_norm_clipping": 1},
        "Adam": {"beta1": 0.5, "gradient_norm_clipping": 2},
        "Momentum": {"momentum": 0.5, "gradient_norm_clipping": 3},
        "AdaGrad": {"epsilon": 0.5, "gradient_norm_clipping": 4},
    }
    found = config(optimizer=optimizer, **sections)
    assert found.optimizer_spec() == spec
    assert found.worker_optimizer_spec() is None
    norms = {"rms_prop": 1, "adam": 2, "momentum": 3, "adagrad": 4}
    assert found.gradient_norm_clipping == norms[optimizer]
    if optimizer in ("rms_prop", "momentum"):
        local = config(optimizer=f"worker_{optimizer}", **sections)
        assert (local.optimizer_spec(), local.worker_optimizer_spec()) == (Add(), spec)
        assert local.gradient_norm_clipping == norms[optimizer]


def test_delay_compensation_sets_a_default_staleness_bound() -> None:
    assert config().staleness_bound is None
    assert config(max_staleness=3).staleness_bound == 3
    assert config(combine="delay_compensated").staleness_bound == DEFAULT_RING
    assert config(combine="delay_compensated", max_staleness=MAX_RING).staleness_bound == MAX_RING


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            {"max_staleness": 257},
            "algorithm: with delay_compensated, max_staleness must be at most 256, not 257: a copy of the parameters "
            "is kept for each version",
        ),
        (
            {"optimizer": "worker_momentum"},
            "algorithm: with optimizer worker_momentum workers send updates, and delay_compensated needs gradients; "
            "set optimizer to momentum, or combine to fifo",
        ),
        (
            {"sync_interval": 18},
            "algorithm: with sync_interval 18 a worker's own gradients are up to 17 versions old, and max_staleness 16 "
            "would discard them; raise max_staleness, or lower sync_interval",
        ),
    ],
)
def test_impossible_delay_compensation_is_refused(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        config(combine="delay_compensated", **keys)
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    "keys",
    [
        {"optimizer": "momentum"},
        {"Momentum": {"momentum": 0.5}},
        {"AdaGrad": {"epsilon": 0.5}},
        {"combine": "delay_compensated"},
        {"delay_compensation": 0.5},
        {"loss_outlier_deviations": 3},
        {"max_staleness": 3},
    ],
)
def test_keys_of_gradient_application_change_the_fingerprint(keys: dict[str, Any]) -> None:
    spaces = Box(shape=(4,)), Discrete(2)
    one, two = (fingerprint("x", configuration, *spaces) for configuration in (config(**keys), config()))
    difference = first_difference(one, two)
    assert difference is not None
    assert next(iter(keys)) in difference


def test_gpu_key_is_not_part_of_the_model_description() -> None:
    assert config(gpu=True).model_description() == config().model_description()
    assert config(sync_interval=5).model_description() != config().model_description()


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"seed": -1}, "algorithm.seed: -1 cannot be used: input should be greater than or equal to 0"),
        ({"max_global_step": 0}, "algorithm.max_global_step: 0 cannot be used"),
        ({"initial_learning_rate": 0}, "algorithm.initial_learning_rate: 0 cannot be used"),
        ({"initial_learning_rate": float("nan")}, "algorithm.initial_learning_rate: nan cannot be used"),
        ({"initial_learning_rate": float("inf")}, "algorithm.initial_learning_rate: inf cannot be used"),
        ({"max_staleness": -1}, "algorithm.max_staleness: -1 cannot be used"),
        ({"sync_interval": 0}, "algorithm.sync_interval: 0 cannot be used"),
        ({"optimizer": "sgd"}, "algorithm.optimizer: 'sgd' cannot be used"),
        ({"Adam": {"beta1": 1}}, "algorithm.Adam.beta1: 1 cannot be used"),
        ({"Adam": {"epsilon": 0}}, "algorithm.Adam.epsilon: 0 cannot be used"),
        ({"RMSProp": {"decay": 1}}, "algorithm.RMSProp.decay: 1 cannot be used"),
        ({"RMSProp": {"epsilon": 0}}, "algorithm.RMSProp.epsilon: 0 cannot be used"),
        ({"Momentum": {"momentum": 1}}, "algorithm.Momentum.momentum: 1 cannot be used"),
        ({"AdaGrad": {"epsilon": 0}}, "algorithm.AdaGrad.epsilon: 0 cannot be used"),
        ({"delay_compensation": -1}, "algorithm.delay_compensation: -1 cannot be used"),
        ({"loss_outlier_deviations": 1}, "algorithm.loss_outlier_deviations: 1 cannot be used"),
        ({"RMSProp": {"gradient_norm_clipping": 0}}, "algorithm.RMSProp.gradient_norm_clipping: 0 cannot be used"),
    ],
)
def test_numbers_out_of_range_are_refused(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        config(**keys)
    assert str(refused.value).startswith(sentence)


def test_max_staleness_below_own_staleness_is_refused() -> None:
    assert config(sync_interval=3, max_staleness=2).sync_interval == 3
    with pytest.raises(ConfigurationError) as refused:
        config(sync_interval=3, max_staleness=1)
    assert str(refused.value) == (
        "algorithm: with sync_interval 3 a worker's own gradients are up to 2 versions old, and max_staleness 1 would"
        " discard them; raise max_staleness, or lower sync_interval"
    )
