"""The gymnasium program with Box2D, MuJoCo and partial observations."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from environments.OpenAI_Gym import main as gym
from environments.OpenAI_Gym.observe import Observe
from relaax import rlx
from relaax.client.command import UsageError
from support.programs import program, refusal
from support.rlx_peer import PeerConnection, RlxPeer, serve

GYM = "OpenAI_Gym"
POSITION, ANGLE = 0, 2  # of CartPole-v1, whose elements 1 and 3 are velocities


def actor(conn: PeerConnection) -> None:
    """Serve random actions of the client's action space."""
    rng = np.random.default_rng(3)

    def act(message: object, conn: PeerConnection) -> list[np.ndarray]:
        space, count = conn.hello.action_space, conn.hello.environments
        if isinstance(space, rlx.Discrete):
            return [rng.integers(space.n, size=count)]
        return [rng.uniform(-1, 1, (count, *space.shape)).astype(np.float32)]

    conn.policy = act
    serve(conn)


def made(name: str, *options: str) -> gymnasium.vector.VectorEnv:
    arguments = gym.parser().parse_args(["localhost:1", name, "2", *options])
    return gym.make(gym.find(arguments), False, [], arguments)


@pytest.mark.parametrize(
    ("name", "vectorization", "observation", "action"),
    [
        ("BipedalWalker-v3", "async", (24,), rlx.Box(-1, 1, (4,))),
        ("LunarLander-v3", "sync", (8,), rlx.Discrete(4)),
        ("Hopper-v5", "async", (11,), rlx.Box(-1, 1, (3,))),
        ("Walker2d-v5", "sync", (17,), rlx.Box(-1, 1, (6,))),
    ],
)
def test_physics_environments_run_without_warnings(name, vectorization, observation, action):
    with RlxPeer(actor) as peer:
        done = program(GYM, peer.address, name, "2", "--steps", "200", "--seed", "3", "--vectorization", vectorization)
        hello, *rest = peer.connections[0].received
    assert done.returncode == 0, done.stderr
    assert all("relaax.client:" in line for line in done.stderr.splitlines()), done.stderr
    assert hello.observation_space.shape == observation
    assert hello.action_space == action
    steps = [message for message in rest if isinstance(message, rlx.Step)]
    assert len(steps) == 100
    assert all(np.isfinite(step.observation[0]).all() for step in steps)


@pytest.mark.parametrize("codec", ["protobuf", "json"])
def test_unbounded_float64_observations_are_sent_unchanged(codec):
    with RlxPeer(actor) as peer:
        line = (peer.address, "Hopper-v5", "2", "--steps", "20", "--seed", "5", "--codec", codec)
        gym.main(gym.parser().parse_args(line))
        hello, init, *_ = peer.connections[0].received
    assert hello.observation_space == rlx.Box(-np.inf, np.inf, (11,), np.float64)
    expected, _ = made("Hopper-v5").reset(seed=5)
    assert init.observation[0].dtype == np.float64
    np.testing.assert_array_equal(init.observation[0], expected)


@pytest.mark.parametrize(("count", "own"), [(gym.VECTOR_PAYS - 1, False), (gym.VECTOR_PAYS, True)])
def test_own_vector_form_is_used_from_threshold(count, own):
    arguments = gym.parser().parse_args(["random", "CartPole-v1", str(count)])
    env = gym.make(gym.find(arguments), False, [], arguments)
    assert isinstance(env.unwrapped, CartPoleVectorEnv if own else gymnasium.vector.SyncVectorEnv)
    assert env.num_envs == count
    env.close()


@pytest.mark.parametrize("vectorization", ["vector_entry_point", "sync", "async"])
def test_observe_option_hides_velocities(vectorization):
    options = ["--vectorization", vectorization]
    with RlxPeer(actor) as peer:
        line = (peer.address, "CartPole-v1", "2", "--steps", "200", "--seed", "3", "--observe", "0,2", *options)
        gym.main(gym.parser().parse_args(line))
        hello, init, *rest = peer.connections[0].received
    whole = made("CartPole-v1", *options)
    space = whole.single_observation_space
    kept = [POSITION, ANGLE]
    assert hello.observation_space == rlx.Box(space.low[kept], space.high[kept], (2,), np.float32)
    assert hello.environment == "CartPole-v1"
    expected, _ = whole.reset(seed=3)
    whole.close()
    np.testing.assert_array_equal(init.observation[0], expected[:, kept])
    steps = [message for message in rest if isinstance(message, rlx.Step)]
    assert len(steps) >= 100  # the own vector form uses one more step for a reset
    assert all(step.observation[0].shape == (2, 2) for step in steps)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_observe_option_applies_to_final_observations(vectorization):
    options = ["--vectorization", vectorization]
    whole, part = made("CartPole-v1", *options), made("CartPole-v1", *options, "--observe", "2,0")
    whole.reset(seed=1), part.reset(seed=1)
    finals = 0
    for _ in range(60):
        seen, _, over, _, infos = whole.step(np.ones(2, np.int64))
        kept, _, _, _, fewer = part.step(np.ones(2, np.int64))
        np.testing.assert_array_equal(kept, seen[:, [2, 0]])
        for index in np.flatnonzero(over):
            finals += 1
            np.testing.assert_array_equal(fewer["final_obs"][index], infos["final_obs"][index][[2, 0]])
    assert finals >= 4  # with constant pushes a pole falls within ten steps
    whole.close(), part.close()


@pytest.mark.parametrize(
    ("name", "observe", "sentence"),
    [
        ("CartPole-v1", "0,4", "--observe 0,4: there is no element 4; the observation has 0 to 3"),
        ("CartPole-v1", "0,,2", "'0,,2' is not a list of positions"),
        ("CartPole-v1", "0,-1", "'0,-1' is not a list of positions"),
        ("CartPole-v1", "1,1", "'1,1' names a position twice"),
        ("FrozenLake-v1", "0", "--observe 0: the observation is not a vector of numbers, but Discrete(16)"),
        ("ALE/Boxing-v5", "0", "the observation is not a vector of numbers, but Box(0, 255, (84, 84), uint8)"),
    ],
)
def test_invalid_observe_option_is_refused(name, observe, sentence):
    assert sentence in refusal(gym, "127.0.0.1:1", name, "2", "--observe", observe)


def test_invalid_observe_option_is_refused_with_async():
    sentence = "--observe 0,4: there is no element 4; the observation has 0 to 3"
    line = ("127.0.0.1:1", "CartPole-v1", "2", "--observe", "0,4", "--vectorization", "async")
    done = program(GYM, *line)
    assert (done.returncode, sentence in done.stderr, "Traceback" in done.stderr) == (2, True, False)


def test_observe_refuses_same_step_vector():
    # gymnasium's wrappers do not process its final observations.
    whole = made("Acrobot-v1")
    with pytest.raises(UsageError, match="--vectorization sync"):
        Observe([0]).vector(whole)
    whole.close()
