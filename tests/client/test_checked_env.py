"""Tests that `run` checks, converts and copies the outcomes of every kind of environment."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from relaax import rlx
from relaax.client import CheckedEnv, EnvironmentExit, EnvironmentFault, Failure, RunSummary, VectorClient, Worlds, run
from relaax.client.program import agents as local_agent
from relaax.client.program.agents import Game
from support.rlx_peer import RlxPeer

LENGTH = 3


class Place(gymnasium.Env):
    """An environment that returns its step counter in one reused array. It is truncated after three steps."""

    def __init__(self) -> None:
        self.observation_space: Any = spaces.Box(0, 9, (2,), np.float32)
        self.action_space: Any = spaces.Discrete(2)
        self.array: Any = np.zeros(2, np.float32)
        self.reward: Any = 1.0
        self.info: Any = {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.array[:] = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.array[:] += 1
        return self.observe(), self.reward, False, bool(self.array[0] >= LENGTH), self.info

    def observe(self) -> Any:
        return self.array


class SameArrays:
    """A vector of two environments without autoreset that reuses all its arrays."""

    num_envs = 2
    autoreset_mode = "disabled"
    single_observation_space = rlx.Box(0, 9, (2,))
    single_action_space = rlx.Discrete(2)

    def __init__(self) -> None:
        self.states = np.zeros((2, 2), np.float32)
        self.rewards, self.over, self.cut = np.zeros(2), np.zeros(2, np.bool_), np.zeros(2, np.bool_)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        for array in (self.states, self.rewards, self.over, self.cut):
            array[:] = 0
        if options is not None:
            options["reset_mask"][:] = False
        return self.states, {}

    def step(self, actions: Any) -> Any:
        self.states += 1
        self.rewards[:] = 1
        self.cut[:] = self.states[:, 0] >= LENGTH
        return self.states, self.rewards, self.over, self.cut, {}


class World:
    """An environment for `Worlds` that returns the array `shared`."""

    observation_space = rlx.Box(0, 9, (2,))
    action_space = rlx.Discrete(2)
    shared = np.zeros(2, np.float32)
    """One array for all environments, as in a simulator of several environments."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.t = 0

    def restart(self) -> Any:
        self.t = 0
        return self.observe()

    def do(self, action: Any) -> Any:
        self.t += 1
        return self.observe(), np.array([1.0]), False, self.t >= LENGTH

    def observe(self) -> Any:
        World.shared[:] = self.t
        return World.shared


def sync(mode: AutoresetMode, **options: Any) -> SyncVectorEnv:
    return SyncVectorEnv([Place, Place], autoreset_mode=mode, **options)


def ends(env: Any) -> list[tuple[list[float], list[float], list[float]]]:
    """Run `env`. For each end of an episode, return rewards, final observations and the observations that follow."""
    with RlxPeer() as peer:
        run(env, peer.address, steps=20)
        received = [
            message for message in peer.connections[0].received if isinstance(message, rlx.Init | rlx.Step | rlx.Reset)
        ]
    found = []
    for message, after in itertools.pairwise(received):
        if not isinstance(message, rlx.Init) and message.truncated is not None:
            final, following = message.final_observation, after.observation
            if final is None:  # NEXT_STEP
                final = message.observation
            elif isinstance(message, rlx.Step):  # SAME_STEP
                following = message.observation
            found.append((message.reward.tolist(), final[0][:, 0].tolist(), following[0][:, 0].tolist()))
    return found


@pytest.mark.parametrize(
    "make",
    [
        Place,
        lambda: sync(AutoresetMode.SAME_STEP),
        lambda: sync(AutoresetMode.SAME_STEP, copy=False),
        lambda: sync(AutoresetMode.NEXT_STEP, copy=False),
        lambda: sync(AutoresetMode.DISABLED),
        lambda: sync(AutoresetMode.DISABLED, copy=False),
        SameArrays,
        lambda: Worlds(World, 2),
    ],
    ids=["one", "same", "same-copyless", "next-copyless", "disabled", "disabled-copyless", "custom", "worlds"],
)
def test_reused_arrays_do_not_change_the_end_of_an_episode(make: Any) -> None:
    env = make()
    count = getattr(env, "num_envs", 1)
    found = ends(env)
    assert len(found) >= 2
    assert found == [([1.0] * count, [3.0] * count, [0.0] * count)] * len(found)


def test_observations_in_a_shared_array_are_copied() -> None:
    class Shared(Place):
        array_of_all = np.zeros(2, np.float32)

        def __init__(self, value: float) -> None:
            super().__init__()
            self.value = value

        def observe(self) -> Any:
            self.array_of_all[:] = self.value
            return self.array_of_all

    env = SyncVectorEnv([lambda: Shared(1), lambda: Shared(2)], autoreset_mode=AutoresetMode.SAME_STEP)
    with RlxPeer() as peer:
        run(env, peer.address, steps=2)
        assert peer.connections[0].of(rlx.Step)[0].observation[0][:, 0].tolist() == [1, 2]


class NoneAtCut(Place):
    def step(self, action: Any) -> Any:
        observation, reward, over, cut, info = super().step(action)
        return None if cut else observation, reward, over, cut, info


class NoneWorld(World):
    def do(self, action: Any) -> Any:
        observation, reward, over, cut = super().do(action)
        return None if cut else observation, reward, over, cut


@pytest.mark.parametrize("address", ["random", "peer"])
@pytest.mark.parametrize(
    "make",
    [
        NoneAtCut,
        *(lambda mode=mode: SyncVectorEnv([NoneAtCut] * 2, autoreset_mode=mode) for mode in AutoresetMode),
        lambda: Worlds(NoneWorld, 2),
    ],
)
def test_none_as_final_observation_is_refused(make: Any, address: str) -> None:
    with RlxPeer() as peer, pytest.raises(EnvironmentFault, match="final observation of a truncated episode is None"):
        run(make(), peer.address if address == "peer" else address, steps=20)


def test_none_among_final_states_is_refused_by_the_vector_client() -> None:
    box = rlx.Box(0, 9, (2,))
    with RlxPeer() as peer:
        client = VectorClient(peer.address, environments=2, observation_space=box, action_space=rlx.Discrete(2))
        with client:
            client.init(np.zeros((2, 2), np.float32))
            final = np.array([None, None], dtype=object)
            final[0] = np.ones(2, np.float32)
            with pytest.raises(ValueError, match=r"final_states\[1\] is None"):
                client.step([0, 0], np.zeros((2, 2), np.float32), None, [True, True], final)


def test_none_as_last_observation_is_allowed_if_terminated() -> None:
    class Over(NoneAtCut):
        def step(self, action: Any) -> Any:
            observation, reward, over, cut, info = super().step(action)
            return observation, reward, cut, over, info

    for mode in AutoresetMode:
        assert run(SyncVectorEnv([Over] * 2, autoreset_mode=mode), "random", steps=20).episodes >= 4


class Pixels(Place):
    """An environment with observations of another dtype than its space."""

    def __init__(self, values: Any = (7, 250)) -> None:
        super().__init__()
        self.observation_space = spaces.Dict({"screen": spaces.Box(0, 255, (2,), np.uint8), "n": spaces.Discrete(9)})
        self.values = values

    def observe(self) -> Any:
        return {"screen": np.array(self.values), "n": np.int32(3)}


@pytest.mark.parametrize("many", [False, True])
def test_integers_that_fit_are_converted_leaf_by_leaf(many: bool) -> None:
    env = SyncVectorEnv([Pixels] * 2, autoreset_mode=AutoresetMode.SAME_STEP) if many else Pixels()
    with RlxPeer() as peer:
        run(env, peer.address, steps=8)
        number, screen = peer.connections[0].of(rlx.Step)[0].observation
    assert (screen.dtype, screen[0].tolist(), number[0]) == (np.uint8, [7, 250], 3)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ((7, 300), "holds 300, which is outside the range of uint8"),
        ((7.0, 8.0), "is float64, the space is uint8"),
        ((1, 2, 3), r"has shape \(3,\), the space is \(2,\)"),
        (None, "is None, not an array of numbers"),
    ],
)
def test_leaf_outside_its_space_is_named(many: bool, values: Any, reason: str) -> None:
    created = Pixels(values)
    env = SyncVectorEnv([Pixels, lambda: created], autoreset_mode=AutoresetMode.SAME_STEP) if many else created
    which = "environment 1 of 2 .Pixels." if many else "environment Pixels"
    with pytest.raises(EnvironmentFault, match=rf"{which} is not in its space: observation\['screen'\] {reason}"):
        run(env, "random", steps=8)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("reward", [np.array([0.5]), np.float32(0.5), [[0.5]], 0.5])
def test_reward_of_one_number_is_accepted_in_any_shape(many: bool, reward: Any) -> None:
    created = Place()
    created.reward = reward
    env = SyncVectorEnv([lambda: created], autoreset_mode=AutoresetMode.SAME_STEP) if many else created
    with RlxPeer() as peer:
        run(env, peer.address, steps=1)
        assert [message.reward.tolist() for message in peer.received(rlx.Step)] == [[0.5]]


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    "reward", [np.array([1.0, 2.0]), "much", None, float("nan"), float("inf"), 1j, pytest.param(10**400, id="huge")]
)
def test_invalid_reward_is_refused_by_name(many: bool, reward: Any) -> None:
    created = Place()
    created.reward = reward
    env = SyncVectorEnv([lambda: created], autoreset_mode=AutoresetMode.SAME_STEP) if many else created
    with pytest.raises(EnvironmentFault, match=r"Place.*: the reward is .*: it must be one finite number"):
        run(env, "random", steps=8)


def test_step_with_four_values_is_refused() -> None:
    class Old(Place):
        def step(self, action: Any) -> Any:
            return super().step(action)[:4]

    with pytest.raises(
        EnvironmentFault, match=r"step\(\) returned 4 values instead of the 5 values: observation, reward, term"
    ):
        run(Old(), "random", steps=8)


class Winner(Place):
    """An environment whose info changes its type from step to step."""

    values = (1, None, 0.5)

    def __init__(self, offset: int) -> None:
        super().__init__()
        self.offset = offset

    def step(self, action: Any) -> Any:
        t = int(self.array[0]) + self.offset
        self.info = {"winner": self.values[t % 3], "other": np.zeros(t)}
        return super().step(action)


def winners() -> SyncVectorEnv:
    return SyncVectorEnv([lambda: Winner(0), lambda: Winner(2)], autoreset_mode=AutoresetMode.SAME_STEP)


def test_infos_that_cannot_be_merged_are_ignored_if_unused() -> None:
    assert run(winners(), "random", steps=20).steps == 20


def test_wrapper_of_a_vector_receives_all_infos() -> None:
    class Wrapper(gymnasium.vector.VectorWrapper):
        keys: tuple[str, ...] = ()

        def step(self, actions: Any) -> Any:
            outcome = self.env.step(actions)
            Wrapper.keys = tuple(outcome[4])
            return outcome

    class Lives(Place):
        def step(self, action: Any) -> Any:
            self.info = {"lives": 3}
            return super().step(action)

    run(Wrapper(SyncVectorEnv([Lives] * 2)), "random", steps=2)
    assert "lives" in Wrapper.keys


def test_kept_observations_are_not_overwritten_by_the_vector() -> None:
    class KeepingPlayer:
        def __init__(self) -> None:
            self.observations: list[Any] = []

        def set_environment(self, *_: Any) -> None:
            pass

        def games(self) -> Any:
            yield Game(0, seed=1)

        def act(self, observation: Any, first: bool, place: int) -> int:
            self.observations.append(observation)
            return 0

        def record_game(self, *_: Any) -> None:
            pass

    player = KeepingPlayer()
    with local_agent.playing(player):
        run(SyncVectorEnv([Place], copy=False, autoreset_mode=AutoresetMode.SAME_STEP), "local")
    assert [float(observation[0]) for observation in player.observations[:LENGTH]] == [0, 1, 2]


def test_metric_value_does_not_depend_on_the_first_type() -> None:
    with RlxPeer() as peer:
        run(winners(), peer.address, steps=12, metrics=["winner"], report_latency=None)
        found = [value for message in peer.received(rlx.Metrics) for _, value in message.scalars]
    assert set(found) == {0.75, 1.0, 0.5}


def test_failed_close_is_logged_and_the_others_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    closed = []

    class Window(Place):
        def close(self) -> None:
            closed.append(self)
            raise AttributeError("no window")

    with caplog.at_level(logging.WARNING, "relaax.client"):
        assert isinstance(run(lambda: SyncVectorEnv([Window] * 2), "random", steps=2), RunSummary)
        run(Window, "random", steps=2)
    assert len(closed) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "environment 0 of 2 (Window): close() failed: AttributeError: no window",
        "environment 1 of 2 (Window): close() failed: AttributeError: no window",
        "environment Window: close() failed: AttributeError: no window",
    ]


@pytest.mark.parametrize(("code", "call"), [(None, "sys.exit()"), (3, "sys.exit(3)")])
def test_exit_in_close_is_logged(code: int | None, call: str, caplog: pytest.LogCaptureFixture) -> None:
    class Quits(Place):
        def close(self) -> None:
            sys.exit(code)

    run(Quits, "random", steps=2)
    assert [record.getMessage() for record in caplog.records] == [f"environment Quits: close() called {call}"]


@pytest.mark.parametrize("code", [None, 0, 3, "the window was closed"])
@pytest.mark.parametrize("call", ["reset", "step"])
def test_sys_exit_of_an_environment_is_a_failure(call: str, code: Any) -> None:
    class Quits(Place):
        pass

    setattr(Quits, call, lambda self, *_, **__: sys.exit(code))
    with pytest.raises(EnvironmentExit, match=r"environment Quits ended the program by sys.exit\(") as raised:
        run(Quits(), "random", steps=8)
    assert isinstance(raised.value, Failure)


def test_sys_exit_of_a_signal_handler_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Signalled(Place):
        def step(self, action: Any) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            return super().step(action)

    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    try:
        with pytest.raises(SystemExit) as raised:
            run(Signalled(), "random", steps=8)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert raised.value.code == 7


def test_other_attributes_are_those_of_the_environment() -> None:
    created = Place()
    env = CheckedEnv(created)
    assert (env.array is created.array, env.unwrapped, env.observation_space) == (
        True,
        created,
        created.observation_space,
    )
    with pytest.raises(AttributeError, match="nothing"):
        _ = env.nothing
