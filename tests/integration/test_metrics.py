"""Every metric is written to the event file, and docs/metrics.md lists them all."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from relaax.algorithm_base import Box, load_algorithm
from relaax.algorithm_base.testing import RandomEnvironments, live, make_agent
from relaax.client import Episode, run
from support.metrics_page import documented, listed_as, scalars
from support.processes import wait_until
from support.service import Service, started_service

PATIENCE = 150.0
REALS = {"actions/clipped"}
"""Metrics on the page that only policies of real numbers write."""
ACTOR_CRITIC = {"loss/policy", "loss/value", "loss/entropy"} | REALS
VALUES = {"loss", "loss/td_error", "q/chosen", "q/held_out", "epsilon", "target/age_frames", "target/age_updates"}
"""Metrics on the page that only actor-critics write, and metrics that only value methods write."""
PPO = {"policy/kl", "policy/kl_first", "policy/kl_at_end", "policy/clipped", "value/explained_variance"}
SYNCHRONOUS = {name for name in documented() if name.startswith("sync/")}
CONTROL = {"loss/critic", "q/mean", "temperature", "noise"}
"""Metrics that only ppo, only synchronous updates, and only sac and apex_dpg write."""
LEARNERS = {name for name in documented() if name.startswith(("learner/", "replay/"))} | {"staleness/actors"}
FEATURES = {
    *{"actions/chosen", "loss/cloning", "loss/margin"},
    *{"lesson/number", "lesson/mean_return", "opponents/win_rate", "opponents/elo"},
    *{"inference/rows", "inference/version"},
}
"""Metrics of clients that choose actions, of lessons, of self-play and of shared inference, which have own tests."""
PROCESSOR = "system/worker_processor_percent/max"


class AllWritten(Exception):
    """All expected metrics are written."""


def angles(infos: dict[str, Any]) -> dict[str, float]:
    return {"pole/angle": 0.25}


def train_until_written(service: Service, wanted: set[str]) -> None:
    deadline, checked_at = time.monotonic() + PATIENCE, time.monotonic()

    def check(episode: Episode) -> None:
        nonlocal checked_at
        if time.monotonic() - checked_at > 0.5:
            checked_at = time.monotonic()
            values = scalars(service.folder / "metrics")
            missing = wanted - {listed_as(tag) for tag in values}
            # The clock of processor time is coarse: a worker's first sample, right after its start, may be 0.
            if not missing and max(values[PROCESSOR]) > 0:
                raise AllWritten
            assert checked_at < deadline, f"not within {PATIENCE:g} s: {missing or PROCESSOR}"

    env = gymnasium.make_vec("CartPole-v1", 4, "sync", {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP})
    try:
        run(env, service.address, seed=1, on_episode=check, metrics=angles, report_latency=0.2)
    except AllWritten:
        pass
    finally:
        env.close()


def written(folder: Path) -> set[str]:
    return {listed_as(tag) for tag in scalars(folder / "metrics")}


def test_value_methods_write_the_documented_metrics(tmp_path: Path) -> None:
    page = {name for name in documented() if not name.startswith(("evaluation/", "exploit/"))}
    elsewhere = ACTOR_CRITIC | LEARNERS | PPO | SYNCHRONOUS | CONTROL | FEATURES
    expected = page - elsewhere - {"target/age_updates"}  # only if the interval counts updates
    with started_service(tmp_path, path="async_q", held_out_states=4) as service:
        train_until_written(service, expected)
        assert written(service.folder) == expected


def test_ppo_and_synchronous_updates_write_their_metrics(tmp_path: Path) -> None:
    keys = {"path": "ppo", "episode_len": 16, "sync": "all", "target_kl": 1e-9}
    with started_service(tmp_path, **keys) as service:
        train_until_written(service, PPO | SYNCHRONOUS | {PROCESSOR})
        assert written(service.folder) <= documented()


@pytest.mark.parametrize(("name", "own"), [("sac", "temperature"), ("apex_dpg", "noise")])
def test_control_by_real_numbers_writes_documented_metrics(name: str, own: str) -> None:
    algorithm, spaces = load_algorithm(name, Path()), (Box(-1, 1, (2,)), Box(-1, 1, (2,)))
    keys = {"learning_starts": 20, "batch_size": 8, "samples_per_insert": 8, "actor_interval": 1}
    config = algorithm.configure({"path": name, "network": {"dense": [4]}} | keys)
    agent, parameters = make_agent(algorithm, config, *spaces, environments=2)
    live(agent, RandomEnvironments(*spaces, 2), 60)
    names = {scalar for scalar, _ in parameters.scalars}
    assert names & CONTROL == {"loss/critic", "q/mean", own}
    assert names <= documented()


def test_written_metrics_are_exactly_the_documented_ones(service: Service) -> None:
    page = {name for name in documented() if not name.startswith("evaluation/")}  # `relaax run` writes these
    page -= VALUES | LEARNERS | REALS | PPO | SYNCHRONOUS | CONTROL | FEATURES
    train_until_written(service, {name for name in page if not name.startswith("exploit/")})
    run("CartPole-v1", service.address, episodes=1, seed=2, mode="exploit")
    exploit = {name for name in page if name.startswith("exploit/")}
    wait_until(lambda: exploit <= written(service.folder), "the episodes of exploit mode are written", PATIENCE)
    assert written(service.folder) == page
    values = scalars(service.folder / "metrics")
    assert all(math.isfinite(value) for each in values.values() for value in each)
    assert set(values["client/pole/angle"]) == {0.25}
    assert 0 < values["latency/act_ms/p50"][-1] <= values["latency/act_ms/p99"][-1] < 1e5
    # The first report is complete; only a part of the last one may be on the disk.
    assert values["client/latency/act_without_network_ms"][0] <= values["client/latency/act_ms"][0]
    assert 1 < values["system/worker_memory_mb/max"][-1] < 2_000
    assert 20 < values["system/parameter_server_memory_mb"][-1] < 4_000
    assert max(values[PROCESSOR]) > 0
    assert values["episode/seconds"][-1] > 0
    status = service.status
    assert 0 < status.act_ms_p50 <= status.act_ms_p99
