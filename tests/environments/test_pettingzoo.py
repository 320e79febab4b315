"""The program of PettingZoo: rows, turns, opponents, masks and names, with the real library."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

from environments.PettingZoo import games, main, naming
from relaax import rlx
from relaax.client import EnvironmentFault, run
from relaax.client.command import UsageError
from relaax.client.program.agents import Game, playing
from support.programs import program, refusal
from support.rlx_peer import PeerConnection, RlxPeer, serve

ONE = spaces.Box(0, 100, (1,), np.float32)


def serve_lowest(conn: PeerConnection) -> None:
    """Answer with the lowest valid actions."""
    conn.policy = lambda message, conn: [message.observation[0].argmax(axis=1)]
    serve(conn)


def of(connection: PeerConnection) -> list[rlx.Step]:
    return connection.of(rlx.Step)


def flags(mask: Any, count: int) -> list[bool]:
    return [False] * count if mask is None else mask.tolist()  # type: ignore[no-any-return]


def vector(name: str, *options: str, address: str = "random") -> games.ZooGames:
    """Return the vector that the program makes."""
    arguments = main.parser().parse_args([address, name, *options])
    return main.make(naming.find(arguments.name, arguments.path), arguments)  # type: ignore[no-any-return]


def test_players_of_tic_tac_toe_take_turns_on_one_connection() -> None:
    with RlxPeer(serve_lowest) as peer:
        done = program("PettingZoo", peer.address, "pettingzoo:classic/tictactoe_v3", "2", "--episodes", "8")
        (conn,) = peer.connections
    assert done.returncode == 0, done.stderr
    assert all("relaax.client:" in line for line in done.stderr.splitlines()), done.stderr
    hello, init, *_ = conn.received
    assert (hello.environment, hello.environments, hello.out_of_step) == ("classic/tictactoe_v3", 4, True)
    assert list(hello.autoreset) == [rlx.Autoreset.SAME_STEP]
    assert flags(init.idle, 4) == [False, True, False, True]
    # Both take the lowest free field: 0, 2, 4 and 6 win against 1, 3 and 5 in the seventh move.
    *moves, last = of(conn)[:7]
    assert [flags(step.idle, 4)[:2] for step in moves] == [[True, False], [False, True]] * 3
    assert last.reward.tolist() == [1, -1, 1, -1]
    assert flags(last.terminated, 4) == [True] * 4
    assert flags(last.idle, 4) == [False, True, False, True], "the next game begins in the same message"
    assert done.stdout.startswith("28 steps, 8 episodes, mean return 0 ")


@pytest.mark.parametrize(("play", "stones"), [("first", {0}), ("second", {1}), ("alternate", {0, 1})])
def test_random_opponent_moves_between_the_agents_turns(play: str, stones: set[int]) -> None:
    with RlxPeer(serve_lowest) as peer:
        options = ["--opponents", "random", "--play", play, "--episodes", "12", "--seed", "3"]
        done = program("PettingZoo", peer.address, "tictactoe", "2", *options)
        (conn,) = peer.connections
    assert done.returncode == 0, done.stderr
    hello, init, *_ = conn.received
    assert (hello.environments, hello.out_of_step) == (2, False)
    starts = [init.observation[1]]
    for step in of(conn):
        ended = np.array(flags(step.terminated, 2))
        starts.append(step.observation[1][ended])
        own, other = step.observation[1][~ended].sum(axis=(1, 2)).T
        assert set((other - own).tolist()) <= stones, "the opponent has moved once since the agent's move"
    assert {int(board[..., 1].sum()) for board in np.concatenate(starts)} == stones
    assert all(board[..., 0].sum() == 0 for board in np.concatenate(starts))


def test_seed_repeats_games_against_random_opponents() -> None:
    def returns(seed: int) -> tuple[float, ...]:
        env = vector("connect_four", "3", "--opponents", "random")
        return run(env, "random", episodes=30, seed=seed).returns

    assert returns(5) == returns(5) != returns(6)


def test_archers_and_knights_die_and_come_again() -> None:
    with RlxPeer() as peer:
        done = program("PettingZoo", peer.address, "knights_archers_zombies", "2", "--episodes", "24", "--seed", "1")
        (conn,) = peer.connections
    assert done.returncode == 0, done.stderr
    assert (conn.hello.environments, conn.hello.out_of_step) == (8, True)
    away = np.zeros(8, np.bool_)
    waited = 0
    for step in of(conn):
        idle, ended = np.array(flags(step.idle, 8)), np.array(flags(step.terminated, 8)) | flags(step.truncated, 8)
        assert not (ended & away).any()
        assert flags(step.first, 8) == (away & ~idle).tolist()
        away = (away | ended) & idle
        waited += int(away.sum())
    assert waited > 20, "some agents outlive others"


class Relay(ParallelEnv):  # type: ignore[misc]
    """Two agents: agent i is truncated after 2 + i steps. `mask`: whether the infos have action masks."""

    metadata: ClassVar[dict[str, Any]] = {"name": "relay"}

    def __init__(self, mask: bool = False, sizes: Sequence[int] = (3, 3)) -> None:
        self.possible_agents = ["left", "right"]
        self._mask, self._sizes = mask, dict(zip(self.possible_agents, sizes, strict=True))
        self.played: list[dict[str, int]] = []

    def observation_space(self, agent: str) -> Any:
        return ONE

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(self._sizes[agent])

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self._steps = list(self.possible_agents), 0
        return self._states(self.agents), self._infos(self.agents)

    def step(self, actions: dict[str, int]) -> Any:
        self.played.append(actions)
        self._steps += 1
        acted, over = self.agents, dict.fromkeys(self.agents, False)
        cut = {agent: self._steps >= 2 + self.possible_agents.index(agent) for agent in acted}
        self.agents = [agent for agent in acted if not cut[agent]]
        return self._states(acted), dict.fromkeys(acted, 1.0), over, cut, self._infos(acted)

    def _states(self, agents: Sequence[str]) -> dict[str, Any]:
        return {agent: np.full(1, self._steps, np.float32) for agent in agents}

    def _infos(self, agents: Sequence[str]) -> dict[str, Any]:
        mask = np.arange(3) == self._steps % 3
        return {agent: {"action_mask": mask, "steps": self._steps} if self._mask else {} for agent in agents}


def test_truncated_agent_leaves_with_its_last_state() -> None:
    env = games.ZooGames([Relay()], "relay", "all")
    states, infos = env.reset(seed=1)
    assert (states.tolist(), infos["idle"].tolist(), env.out_of_step) == ([[0], [0]], [False, False], True)
    env.step(np.zeros(2, np.int64))
    states, rewards, terminated, truncated, infos = env.step(np.zeros(2, np.int64))
    assert (states[1].tolist(), infos["final_obs"][0].tolist(), infos["final_obs"][1]) == ([2], [2], None)
    assert (rewards.tolist(), terminated.any(), truncated.tolist()) == ([1, 1], False, [True, False])
    assert infos["idle"].tolist() == [True, False]
    states, rewards, terminated, truncated, infos = env.step(np.zeros(2, np.int64))
    assert (states.tolist(), infos["final_obs"][1].tolist()) == ([[0], [0]], [3]), "both begin the next game"
    assert (rewards.tolist(), truncated.tolist(), infos["idle"].tolist()) == ([0, 1], [False, True], [False, False])


def test_mask_of_infos_is_added_to_the_observation() -> None:
    made = [Relay(mask=True), Relay(mask=True)]
    env = games.ZooGames(made, "relay", "left", ["steps"])
    assert env.single_observation_space == spaces.Dict(observation=ONE, action_mask=spaces.Box(0, 1, (3,), np.int8))
    run(env, "random", episodes=20, seed=1)
    for relay in made:
        for step, actions in enumerate(relay.played):
            assert set(actions.values()) == {step % 3}, "the policy and the random opponent choose the valid action"
    states, _, _, _, infos = env.step(np.zeros(2, np.int64))
    assert infos["steps"].tolist() == states["observation"][:, 0].tolist()


def test_agent_that_disappears_is_a_fault() -> None:
    class Vanishing(Relay):
        def step(self, actions: dict[str, int]) -> Any:
            states, rewards, over, _, infos = super().step(actions)
            return states, rewards, over, dict.fromkeys(over, False), infos

    env = games.ZooGames([Vanishing()], "relay", "all")
    env.reset()
    env.step(np.zeros(2, np.int64))
    with pytest.raises(EnvironmentFault, match="agent left has disappeared: mark its end in terminations"):
        env.step(np.zeros(2, np.int64))


def test_kinds_of_agents_need_a_service_each() -> None:
    sentence = (
        r"relay has 2 kinds of agents \(left: .*Discrete\(2\); right: .*Discrete\(4\)\).*run one service for each"
    )
    for play in ("all", "alternate"):
        with pytest.raises(UsageError, match=sentence):
            games.ZooGames([Relay(sizes=(2, 4))], "relay", play)
    assert games.ZooGames([Relay(sizes=(2, 4))], "relay", "right").single_action_space == spaces.Discrete(4)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("classic/tictactoe_v3", "classic/tictactoe_v3"),
        ("tictactoe", "classic/tictactoe_v3"),
        ("PettingZoo/Connect-Four", "classic/connect_four_v3"),
        ("pettingzoo:butterfly/cooperative_pong_v6", "butterfly/cooperative_pong_v6"),
        ("pettingzoo.classic.rps.rps", "rps"),
        ("pettingzoo.classic.rps.rps:raw_env", "pettingzoo.classic.rps.rps:raw_env"),
    ],
)
def test_environment_is_found_by_id_module_or_object(name: str, found: str) -> None:
    assert naming.find(name, []).name == found


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (["tictacto"], "PettingZoo has no environment 'tictacto'; the nearest is 'tictactoe'"),
        (["classic/tictacto_v3"], "PettingZoo has no environment 'classic/tictacto_v3'; the nearest is"),
        (["atari/pong_v3"], "cannot make atari/pong_v3: multi_agent_ale_py is not installed; pip install"),
        (["no_such_module.at_all"], "there is no module 'no_such_module'"),
        (["pettingzoo.utils"], "pettingzoo.utils has neither parallel_env nor env"),
        (["rps", "--kwarg", "moves=3"], "cannot make classic/rps_v2: TypeError: "),
        (["rps", "--play", "first"], "--play first needs --opponents random"),
        (["rps", "--play", "all", "--opponents", "random"], "--play all leaves no agent for --opponents"),
        (["rps", "--play", "third", "--opponents", "random"], "--play third: classic/rps_v2 has no such agent; choose"),
    ],
)
def test_unusable_arguments_are_refused_with_reason(line: list[str], sentence: str) -> None:
    assert refusal(main, "127.0.0.1:1", *line).startswith(sentence)


class Recorder:
    """A player of two games that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, bool, int]] = []
        self.played: list[tuple[float, int, int, bool]] = []

    def set_environment(self, observation_space: rlx.Space, action_space: rlx.Space, frame_skip: int) -> None:
        assert action_space == rlx.Discrete(3)

    def games(self) -> Iterator[Game]:
        yield Game(0, 5)
        yield Game(1, 6, max_steps=3)

    def act(self, observation: Any, first: bool, place: int) -> int:
        self.calls.append((float(observation[0]), first, place))
        return 0

    def record_game(self, game: Game, episode: rlx.Episode, steps: int, cut: bool) -> None:
        self.played.append((episode.episode_return, episode.length, steps, cut))


def test_evaluation_plays_all_agents_that_act_together() -> None:
    player = Recorder()
    with playing(player):
        run(games.ZooGames([Relay()], "relay", "all"), "local")
    whole = [(0, True, 0), (0, True, 1), (1, False, 0), (1, False, 1), (2, False, 1)]
    begun = [(0, True, 0), (0, True, 1)]  # of the game after it
    assert player.calls[:7] == whole + begun
    assert player.played == [(2.5, 2, 5, False), (2.0, 2, 4, True)]


def test_evaluation_plays_another_agent_in_each_game() -> None:
    alternating = games.ZooGames([Relay()], "relay", "alternate")
    seats = []
    for number in (0, 1, 2, 3, 7):
        alternating.game_number = number
        alternating.reset(seed=4)
        seats += alternating._copies[0]._rows
    first, second = alternating.envs[0].possible_agents
    assert seats == [first, second, first, second, second]


def test_evaluation_of_turns_has_random_opponents() -> None:
    assert vector("tictactoe", address="local").num_envs == 1
    assert vector("rps", address="local").num_envs == 2


def test_check_plays_each_agent_against_random_ones(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = program("PettingZoo", "check", "tictactoe", "2", "--episodes", "10", "--report", str(report))
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
    assert (found["episodes"] >= 10, found["findings"]) == (True, [])
