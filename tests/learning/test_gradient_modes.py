"""da3c learns the corridors with every optimizer and every way to combine the gradients of workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relaax.algorithm_base import load_algorithm
from support.corridors import GAMMA, Corridors, best_actions, greedy_actions
from support.shard_training import train_through_a_shard
from support.slow_parameters import fast_and_slow

DA3C = load_algorithm("da3c", Path())
WORKERS, ENVIRONMENTS, UPDATES = 2, 16, 1500
RMSPROP = {"RMSProp": {"decay": 0.99, "epsilon": 0.01}, "initial_learning_rate": 0.05}
MODES: dict[str, dict[str, Any]] = {
    "rms_prop": RMSPROP,
    "adam": {"optimizer": "adam", "initial_learning_rate": 0.02},
    "momentum": {"optimizer": "momentum", "initial_learning_rate": 0.3},
    "adagrad": {"optimizer": "adagrad", "initial_learning_rate": 0.3},
    "worker_rms_prop": {**RMSPROP, "optimizer": "worker_rms_prop"},
    "worker_momentum": {"optimizer": "worker_momentum", "initial_learning_rate": 0.3},
    "delay_compensated": {**RMSPROP, "combine": "delay_compensated"},
    "loss_outliers": {**RMSPROP, "loss_outlier_deviations": 4.0},
}


@pytest.mark.parametrize(
    "mode",
    fast_and_slow(
        MODES,
        ("rms_prop", "worker_rms_prop", "delay_compensated"),
        *(
            "relaax/optim",
            "relaax/hosting",
            "relaax/server/parameter_server/shard",
            "relaax/algorithm_base",
            "relaax/nn",
        ),
    ),
)
def test_best_policy_is_found(mode: str) -> None:
    steps = 2 * UPDATES // WORKERS  # each update of a worker takes two steps
    section = {
        "episode_len": 2,
        "rewards_gamma": GAMMA,
        "entropy_beta": 0.1,
        "normalize_rewards": None,
        "network": {"dense": [], "separate": False},
        "max_global_step": steps * WORKERS * ENVIRONMENTS,
        **MODES[mode],
    }
    all_envs = [Corridors(ENVIRONMENTS, seed=4 + i) for i in range(WORKERS)]
    shard = train_through_a_shard(DA3C, section, all_envs, steps)
    updates = shard.counters.version + shard.counters.discarded
    assert updates == UPDATES
    assert shard.counters.discarded_stale == shard.counters.discarded_not_finite == 0
    if mode != "loss_outliers":
        assert shard.counters.discarded == 0
    config = DA3C.configure({"path": "da3c"} | section)
    actions = greedy_actions(DA3C, config, shard.pull()[1])
    best = best_actions()
    assert {place: actions[place] for place in best} == best
