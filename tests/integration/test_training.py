"""Environments train a shared model with real servers."""

from __future__ import annotations

import gymnasium
import pytest
from gymnasium.vector import AutoresetMode

from relaax.client import Client, Failure, run
from relaax.rlx import ErrorCode
from support.processes import wait_until
from support.service import Service

ROLLOUT = 5  # episode_len of da3c
CARTPOLE = gymnasium.make("CartPole-v1")


def cartpoles(count: int, mode: AutoresetMode) -> gymnasium.vector.VectorEnv:
    return gymnasium.make_vec("CartPole-v1", count, "sync", {"autoreset_mode": mode})


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP], ids=lambda mode: mode.name)
def test_environments_stepped_together_train_the_model(service: Service, mode: AutoresetMode) -> None:
    before = service.wait_for_no_workers()
    env = cartpoles(4, mode)
    try:
        summary = run(env, service.address, steps=400, seed=1)
    finally:
        env.close()
    after = service.wait_for_no_workers()
    counted = after.global_step - before.global_step
    unfinished = 4 * (ROLLOUT + 1)  # a disconnecting client loses its unfinished rollout and its last action
    assert summary.steps - unfinished <= counted <= summary.steps
    assert after.frames - before.frames == counted
    assert after.updates - before.updates == pytest.approx(counted / (4 * ROLLOUT), rel=0.25)
    assert after.discarded == before.discarded
    assert after.episodes - before.episodes == summary.episodes > 5
    assert 8 <= after.mean_return_100 <= 100


def test_several_clients_train_one_model(service: Service) -> None:
    before = service.wait_for_no_workers()
    with (
        Client(
            service.address, observation_space=CARTPOLE.observation_space, action_space=CARTPOLE.action_space
        ) as one,
        Client(
            service.address, observation_space=CARTPOLE.observation_space, action_space=CARTPOLE.action_space
        ) as two,
    ):
        state, _ = CARTPOLE.reset(seed=3)
        for client in (one, two):
            client.init(state)
        assert service.status.workers == 2
        for _ in range(ROLLOUT):
            for client in (one, two):
                assert client.send(1.0, state) in (0, 1)
        wait_until(lambda: service.status.updates - before.updates == 2, "both have pushed once")
        assert service.status.global_step - before.global_step == 2 * ROLLOUT


def test_reset_returns_the_return_of_the_episode(service: Service) -> None:
    before = service.wait_for_no_workers()
    env = gymnasium.make("CartPole-v1")
    lengths = []
    with Client(service.address, observation_space=env.observation_space, action_space=env.action_space) as client:
        for episode in range(3):
            state, _ = env.reset(seed=episode)
            action = client.init(state)
            for length in range(1, 500):
                state, reward, terminated, _truncated, _ = env.step(action)
                if terminated:
                    assert client.reset(0.5) == pytest.approx(length - 0.5)
                    lengths.append(length)
                    break
                client.metrics().scalar("angle", float(state[2]))
                action = client.send(float(reward), state)
    env.close()
    after = service.wait_for_no_workers()
    assert after.episodes - before.episodes == len(lengths) == 3


def test_client_in_exploit_mode_changes_nothing(service: Service) -> None:
    run("CartPole-v1", service.address, steps=20, seed=1)  # creates the model
    before = service.wait_for_no_workers()
    summary = run("CartPole-v1", service.address, steps=300, seed=2, mode="exploit")
    assert summary.steps == 300
    after = service.wait_for_no_workers()
    assert (after.global_step, after.updates, after.frames) == (before.global_step, before.updates, before.frames)
    assert after.episodes == before.episodes, "exploit episodes are not counted"
    assert after.mean_return_100 == before.mean_return_100


def test_client_with_other_spaces_is_refused(service: Service) -> None:
    run("CartPole-v1", service.address, steps=2, seed=1)
    other = gymnasium.spaces.Box(-1, 1, (3,))
    with (
        pytest.raises(Failure) as refused,
        Client(service.address, observation_space=other, action_space=CARTPOLE.action_space) as client,
    ):
        client.connect()
    assert refused.value.code is ErrorCode.SPACE_MISMATCH
    assert "observation_space" in str(refused.value)
    assert "3" in str(refused.value)
    assert "4" in str(refused.value)
