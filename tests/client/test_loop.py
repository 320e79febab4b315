import json
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import relaax
from relaax import rlx
from relaax.client import Box, Discrete, Episode, Failure, VectorClient, run
from relaax.client.program.agents import Game, playing
from relaax.client.program.checked_env import autoreset_of
from relaax.rlx import ErrorCode
from support.counting import Counting, check_next_step, check_same_step, counting_policy, length_of, return_of
from support.rlx_peer import PeerConnection, RlxPeer, serve


def serve_counting(conn: PeerConnection) -> None:
    conn.policy = counting_policy
    serve(conn)


def kill_after(answers):
    def script(conn: PeerConnection) -> None:
        conn.policy = counting_policy
        conn.welcome()
        for _ in range(answers):
            conn.answer()
        conn.receive()
        conn.kill()

    return script


def vector(mode, environments=3, kind=SyncVectorEnv):
    return kind([lambda i=i: Counting(i) for i in range(environments)], autoreset_mode=mode)


def test_single_environment_sends_whole_episodes():
    env, reported_episodes = Counting(), []
    with RlxPeer(serve_counting) as peer:
        summary = run(env, peer.address, episodes=6, seed=11, on_episode=reported_episodes.append)
        received = peer.connections[0].received
    assert env.seeds == [11, None, None, None, None, None]
    assert reported_episodes == [Episode(0, return_of(0, e), length_of(0, e)) for e in range(6)]
    assert summary.returns == tuple(return_of(0, e) for e in range(6))
    assert (summary.episodes, summary.steps) == (6, sum(length_of(0, e) for e in range(6)))
    assert summary.mean_return == pytest.approx(sum(summary.returns) / 6)
    assert summary.training_finished is None
    for episode, reset in enumerate(message for message in received if isinstance(message, rlx.Reset)):
        last = [0, episode, length_of(0, episode)]
        if episode % 2:
            assert reset.truncated.tolist() == [True]
            assert reset.final_observation[0].tolist() == [last]
        else:
            assert reset.truncated is None


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_vector_with_autoreset_keeps_message_order(mode, kind):
    env = vector(mode, kind=kind)
    try:
        with RlxPeer(serve_counting) as peer:
            summary = run(env, peer.address, steps=120)
            received = peer.connections[0].received
    finally:
        env.close()
    check = check_same_step if mode is AutoresetMode.SAME_STEP else check_next_step
    assert received[0].autoreset[0].name == mode.name
    assert check(received[1:]) == summary.episodes > 20
    assert 120 <= summary.steps < 123


def test_vector_without_autoreset_is_reset_by_run():
    with RlxPeer(serve_counting) as peer:
        summary = run(vector(AutoresetMode.DISABLED), peer.address, steps=120)
        received = peer.connections[0].received
    assert list(received[0].autoreset) == [rlx.Autoreset.SAME_STEP]
    assert check_same_step(received[1:]) == summary.episodes > 20


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_episode_count_is_split_over_the_environments(mode):
    reported_episodes = []
    with RlxPeer(serve_counting) as peer:
        summary = run(vector(mode), peer.address, episodes=7, on_episode=reported_episodes.append)
    expected = {(i, return_of(i, e), length_of(i, e)) for i, n in enumerate((2, 2, 3)) for e in range(n)}
    assert {(e.environment, e.episode_return, e.length) for e in reported_episodes} == expected
    assert summary.episodes == len(reported_episodes) == 7


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("answers", range(1, 9))
def test_lost_connection_of_a_vector_loses_no_step(mode, answers):
    """`Counting` raises an error if the action does not belong to its current observation, also after a loss."""
    with RlxPeer(kill_after(answers), serve_counting) as peer:
        summary = run(vector(mode), peer.address, steps=90, retry_seconds=10)
        first, second = peer.connections
    check = check_next_step if mode is AutoresetMode.NEXT_STEP else check_same_step
    # After each Init within a connection, the check starts again.
    assert check(first.received[1:]) + check(second.received[1:]) >= summary.episodes - 3
    assert summary.steps >= 90
    assert second.of(rlx.Init)


@pytest.mark.parametrize("answers", range(1, 9))
def test_lost_connection_of_one_environment_loses_no_return(answers):
    with RlxPeer(kill_after(answers), serve_counting) as peer:
        summary = run(Counting(), peer.address, episodes=8, retry_seconds=10)
        assert len(peer.connections) == 2
    assert summary.returns == tuple(return_of(0, e) for e in range(8))


@pytest.mark.parametrize("env", [Counting, lambda: vector(AutoresetMode.SAME_STEP)])
def test_end_of_training_ends_the_run_cleanly(env):
    def script(conn: PeerConnection) -> None:
        conn.policy = counting_policy
        conn.welcome()
        for _ in range(4):
            conn.answer()
        conn.receive()
        conn.send(rlx.TrainingFinished("after 1000 steps", 1000))
        conn.close()

    with RlxPeer(script) as peer:
        summary = run(env, peer.address)
        assert len(peer.connections) == 1
    assert summary.training_finished == "after 1000 steps"
    assert summary.steps > 0


def test_run_closes_only_environments_that_it_created():
    class Closing(Counting):
        closed = 0

        def close(self):
            self.closed += 1

    own, created = Closing(), []
    with RlxPeer(serve_counting) as peer:
        run(own, peer.address, steps=1)
        run(lambda: created.append(Closing()) or created[0], peer.address, steps=1)
        with pytest.raises(Failure):
            run(lambda: created.append(Closing()) or created[1], "127.0.0.1:1", retry_seconds=0)
    assert (own.closed, created[0].closed, created[1].closed) == (0, 1, 1)


def test_environment_id_is_created_by_gymnasium():
    with RlxPeer() as peer:
        summary = run("CartPole-v1", peer.address, episodes=2, mode="exploit")
        hello = peer.connections[0].hello
    assert summary.episodes == 2
    assert (hello.environment, hello.mode) == ("CartPole-v1", rlx.Mode.EXPLOIT)
    assert str(hello.observation_space).startswith("Box(float32, [4]")
    assert hello.action_space == rlx.Discrete(2)


def test_id_with_a_module_and_wrapped_environment_are_accepted(tmp_path, monkeypatch):
    (tmp_path / "halls.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "gymnasium.register(id='Hall-v0', entry_point=CartPoleEnv, max_episode_steps=3)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with RlxPeer() as peer:
        assert run("halls:Hall-v0", peer.address, steps=9).episodes == 3
        assert peer.connections[0].hello.environment == "Hall-v0"
    del gymnasium.registry["Hall-v0"], sys.modules["halls"]
    env = gymnasium.wrappers.FlattenObservation(gymnasium.make("FrozenLake-v1", map_name="8x8", is_slippery=False))
    with RlxPeer() as peer:
        run(env, peer.address, steps=9)
        assert peer.connections[0].hello.observation_space == rlx.Box(0, 1, (64,), np.int64)


def test_vector_cart_pole_is_truncated_after_500_steps():
    def balance(message, conn):
        angle, speed = message.observation[0][:, 2], message.observation[0][:, 3]
        return [(angle + 0.5 * speed + 0.05 * message.observation[0][:, 0] > 0).astype(np.int64)]

    def script(conn: PeerConnection) -> None:
        conn.policy = balance
        serve(conn)

    with RlxPeer(script) as peer:
        env = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
        summary = run(env, peer.address, episodes=4, seed=3)
        env.close()
        steps = peer.connections[0].of(rlx.Step)
    assert summary.returns == (500.0,) * 4
    assert summary.steps == 2000
    cut = [k for k, step in enumerate(steps) if step.truncated is not None]
    assert cut == [499, 1000]  # the step between them only resets
    assert steps[500].first.tolist() == [True, True]
    assert steps[500].reward.tolist() == [0.0, 0.0]
    assert (np.abs(steps[500].observation[0]) <= 0.05).all()  # the first state of the next episode
    assert not any(step.terminated is not None for step in steps)


def test_failure_of_the_agent_is_raised():
    def script(conn: PeerConnection) -> None:
        conn.welcome()
        conn.expect(rlx.Init)
        conn.fail(ErrorCode.AGENT_FAILED, "the loss is NaN")

    with RlxPeer(script) as peer, pytest.raises(Failure, match="the loss is NaN"):
        run(vector(AutoresetMode.SAME_STEP), peer.address)


def test_whole_episodes_from_infos_replace_counted_ones():
    class Lives(Counting):
        """An environment in which every third episode ends a game."""

        def step(self, action):
            state, reward, terminated, truncated, info = super().step(action)
            if (terminated or truncated) and self.episode % 3 == 2:
                info = {"game": Episode(0, 1000.0 + self.episode, 7)}
            return state, reward, terminated, truncated, info

    with RlxPeer(serve_counting) as peer:
        summary = run(Lives(), peer.address, episodes=2, whole_episodes=lambda i: [i["game"]] if i else [])
        assert peer.connections[0].hello.reports_episodes
        sent = [e for reset in peer.connections[0].of(rlx.Reset) for e in reset.episodes]
    assert summary.returns == (1002.0, 1005.0)
    assert sent == [Episode(0, 1002.0, 7), Episode(0, 1005.0, 7)]


class Life:
    """A vector of one environment: three episodes of two steps are a game. An observation is the number of resets."""

    num_envs = 1
    single_observation_space, single_action_space = Box(0, 100, (1,)), Discrete(2)

    def __init__(self, mode):
        self.autoreset_mode, self.resets, self.steps, self.ended = mode, 0, 0, False

    def reset(self, *, seed=None, options=None):
        self.resets, self.steps, self.ended = self.resets + 1, 0, False
        return self.observation(), {}

    def step(self, actions):
        if self.ended and self.autoreset_mode == "next_step":
            return self.reset()[0], np.zeros(1), np.zeros(1, bool), np.zeros(1, bool), {}
        self.steps += 1
        self.ended = self.steps == 2
        infos = {"game": Episode(0, 1.0, 6)} if self.ended and self.resets % 3 == 0 else {}
        if self.ended and self.autoreset_mode == "same_step":
            infos["final_obs"] = self.observation()
            self.resets, self.steps = self.resets + 1, 0
        ended = np.array([self.ended])
        return self.observation(), np.ones(1), ended, np.zeros(1, bool), infos

    def observation(self):
        return np.array([[self.resets]], np.float32)


class LifePlayer:
    """A player of one game that records the observations and whether they begin an episode."""

    def __init__(self):
        self.calls = []

    def set_environment(self, *_):
        pass

    def games(self):
        yield Game(0, seed=1)

    def act(self, observation, first, place):
        self.calls.append((int(observation[0]), first))
        return 0

    def record_game(self, *_):
        pass


@pytest.mark.parametrize("mode", ["same_step", "next_step", "disabled"])
def test_evaluation_acts_on_each_state_of_each_life(mode):
    player = LifePlayer()
    with playing(player):
        run(Life(mode), "local", whole_episodes=lambda infos: [infos["game"]] if "game" in infos else [])
    of_lives = [(life, first) for life in (1, 2, 3) for first in (True, False)]
    assert [call for call in player.calls if call[0] <= 3] == of_lives


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (AutoresetMode.NEXT_STEP, "next_step"),
        ("SameStep", "same_step"),
        ("disabled", "disabled"),
    ],
)
def test_autoreset_mode_is_read_from_the_metadata(mode, expected):
    class Env:
        metadata = {"autoreset_mode": mode}  # noqa: RUF012

    assert autoreset_of(Env()) == expected


class Growing(gymnasium.Env):
    """An environment whose second step raises `error`, or returns a longer observation if `grows`."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, grows, error=None):
        self.resets, self.steps, self.grows, self.error = 0, 0, grows, error

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.error and self.steps > 1:
            raise self.error
        return np.zeros(4 if self.grows and self.steps > 1 else 3, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("mode", [None, *AutoresetMode])
def test_probe_resets_once_and_takes_one_step(mode):
    env = Growing(False)
    created = env if mode is None else SyncVectorEnv([lambda: env], autoreset_mode=mode)
    summary = run(created, "probe")
    spaces = [rlx.space_from_dict(space) for space in json.loads(summary.spaces)]
    assert spaces == [rlx.Box(-1, 1, (3,)), rlx.Discrete(2)]
    assert (summary.steps, summary.episodes, env.resets, env.steps) == (0, 0, 1, 1)


def test_observation_that_changes_its_shape_is_refused():
    env = SyncVectorEnv([lambda: Growing(False), lambda: Growing(True), lambda: Growing(False)])
    with pytest.raises(ValueError, match="environment 1 of 3 .Growing. is not in its space: obs") as raised:
        run(env, "random", steps=30)
    assert str(raised.value).endswith("observation has shape (4,), the space is (3,)")


def test_error_raised_by_an_environment_is_passed_on():
    error = ValueError("the simulator is out of fuel")
    env = SyncVectorEnv([lambda: Growing(False), lambda: Growing(False, error)])
    with pytest.raises(ValueError, match="out of fuel") as raised:
        run(env, "random", steps=30)
    assert raised.value is error


def test_vector_without_autoreset_mode_is_refused():
    class Env:
        metadata: dict[str, str] = {}  # noqa: RUF012

    with pytest.raises(ValueError, match="autoreset_mode"):
        autoreset_of(Env())


@pytest.mark.parametrize("what", ["episodes", "steps"])
def test_zero_episodes_or_steps_are_refused(what):
    with pytest.raises(ValueError, match=what):
        run(Counting(), "127.0.0.1:1", **{what: 0})


def test_gymnasium_is_imported_only_for_an_id():
    code = """
import sys
from relaax import rlx
from relaax.client import run
class Env:
    observation_space, action_space = rlx.Box(shape=(1,)), rlx.Discrete(2)
    def reset(self, seed): return [0.0], {}
    def step(self, action): return [1.0], 1.0, True, False, {}
print(run(Env(), sys.argv[1], episodes=3).mean_return, "gymnasium" in sys.modules)
"""
    with RlxPeer() as peer:
        done = subprocess.run(
            [sys.executable, "-c", code, peer.address],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            cwd=Path(relaax.__file__).parent.parent,
        )
    assert done.stdout.split() == ["1.0", "False"]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda **option: run("CartPole-v1", "random", steps=1, **option), "run"),
        (lambda **option: VectorClient("localhost:1", environments=2, **option), "VectorClient"),
    ],
)
def test_misspelt_argument_is_refused_with_the_nearest_name(call, sentence):
    with pytest.raises(TypeError) as refused:
        call(retry_second=1)
    assert str(refused.value) == f"{sentence}() has no argument 'retry_second'; did you mean retry_seconds?"
