"""The shooting range: its rules, its picture, and the returns that its page gives for programs that play it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from environments.Shooter.arena import FAR, NEAR, RADIUS, SPEED, STEPS, Arenas
from relaax import rlx
from relaax.rlx.leaf_checks import LeavesCheck
from support.programs import ROOT, program
from support.rlx_peer import PeerConnection, RlxPeer, serve

N = 256
PAGE = (ROOT / "environments" / "Shooter" / "README.md").read_text("utf-8")
Actions = dict[str, Any]


def returns(choose: Callable[[Any, np.random.Generator], Actions]) -> float:
    arenas, rng = Arenas(N, seed=0), np.random.default_rng(1)
    seen, _ = arenas.reset()
    total = 0.0
    for step in range(STEPS):
        seen, rewards, terminated, truncated, _ = arenas.step(choose(seen, rng))
        assert not terminated.any()
        assert (truncated == (step == STEPS - 1)).all()
        total += rewards.mean()
    return total


def play(seen: Any, rng: np.random.Generator, at_random: tuple[str, ...] = ()) -> Actions:
    """Walk to the target, aim, and shoot with the right ammunition. `at_random`: parts to draw."""
    to_target = seen["see"][:, 2:4].astype(np.float64)
    distance = np.linalg.norm(to_target, axis=1, keepdims=True)
    move = np.clip(to_target / distance * (distance - 0.3) / SPEED, -1, 1)
    move = rng.uniform(-1, 1, (N, 2)) if "move" in at_random else move
    aim = to_target - SPEED * move
    aim = rng.normal(size=(N, 2)) if "aim" in at_random else aim
    return {"move": move, "aim": aim, "shoot": rng.integers(0, 2, N) if "shoot" in at_random else seen["blue"]}


def draw(seen: Any, rng: np.random.Generator) -> Actions:
    return {"move": rng.uniform(-1, 1, (N, 2)), "aim": rng.uniform(-1, 1, (N, 2)), "shoot": rng.integers(0, 2, N)}


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        ("none", r"chooses well returns ([\d.]+\d)"),
        ("shoot", r"draws only its ammunition at random, it returns ([\d.]+\d)"),
        ("aim", r"only its aim, ([\d.]+\d)"),
        ("move", r"only its way, ([\d.]+\d)"),
    ],
)
def test_programs_return_what_the_page_says(part: str, sentence: str) -> None:
    found = re.search(sentence, PAGE)
    assert found is not None
    assert returns(lambda seen, rng: play(seen, rng, (part,))) == pytest.approx(float(found[1]), abs=0.5)


def test_random_agent_returns_almost_nothing() -> None:
    assert "A random agent returns 0.3." in PAGE
    assert returns(draw) == pytest.approx(0.3, abs=0.1)


def placed(arenas: Arenas, place: Any, target: Any, blue: int) -> None:
    """Put the player and the target of every arena to these places."""
    arenas._place[:], arenas._target[:], arenas._blue[:], arenas._drift[:] = place, target, blue, 0


@pytest.mark.parametrize(
    ("target", "aim", "shoot", "blue", "reward", "hit"),
    [
        ((0.3, 0), (0.5, 0), 0, 0, 1, True),
        ((0.3, 0), (0.5, 0), 1, 1, 1, True),
        ((0.3, 0), (0.5, 0), 1, 0, 0, True),  # the wrong ammunition
        ((0.3, 0), (-0.5, 0), 0, 0, 0, False),  # behind
        ((0, 0.3), (0, 1), 0, 0, 1, True),
        ((0.3, RADIUS - 0.01), (1, 0), 0, 0, 1, True),
        ((0.3, RADIUS + 0.01), (1, 0), 0, 0, 0, False),
        ((NEAR - 0.01, 0), (1, 0), 0, 0, 0, False),
        ((FAR - 0.01, 0), (1, 0), 0, 0, 1, True),
        ((FAR + 0.01, 0), (1, 0), 0, 0, 0, False),
        ((0.3, 0), (0, 0), 0, 0, 1, True),  # without a direction, a shot goes to the right
    ],
)
def test_shot_hits_what_is_in_its_path(target: Any, aim: Any, shoot: int, blue: int, reward: float, hit: bool) -> None:
    arenas = Arenas(2, seed=3)
    arenas.reset()
    placed(arenas, (0, 0), target, blue)
    action = {"move": np.zeros((2, 2)), "aim": np.array([aim, (-1, 0)], float), "shoot": np.array([shoot, 0])}
    seen, rewards, *_ = arenas.step(action)
    assert rewards.tolist() == [reward, 0]
    moved = np.abs(seen["see"][:, 2:4] - target).max(axis=1) > 1e-6
    assert moved.tolist() == [hit, False]


def test_player_and_target_stay_in_the_arena() -> None:
    arenas = Arenas(N, seed=0)
    arenas.reset()
    for _ in range(3 * STEPS):
        seen, *_ = arenas.step({"move": np.ones((N, 2)), "aim": np.zeros((N, 2)), "shoot": np.zeros(N, np.int64)})
        assert np.abs(seen["see"][:, :2]).max() <= 1
        assert np.abs(seen["see"][:, :2] + seen["see"][:, 2:4]).max() <= 1.03
    assert seen["see"][:, :2].min() == 1


def test_masked_reset_begins_episodes_only_there() -> None:
    arenas = Arenas(3, seed=0)
    before, _ = arenas.reset()
    after, _ = arenas.reset(options={"reset_mask": np.array([False, True, False])})
    assert (before["see"] == after["see"]).all(axis=1).tolist() == [True, False, True]
    assert Arenas(3, seed=0).reset()[0]["see"] == pytest.approx(before["see"])


def test_picture_shows_player_target_and_shot() -> None:
    arenas = Arenas(1, seed=0)
    arenas.reset()
    placed(arenas, (0, 0), (0.8, 0), 1)
    arenas.step({"move": np.zeros((1, 2)), "aim": np.array([[0.0, 1.0]]), "shoot": np.array([0])})
    picture = arenas.render()
    middle, side = len(picture) // 2, len(picture)
    assert (picture.shape, picture.dtype) == ((side, side, 3), np.uint8)
    colors = [picture[middle, middle], picture[middle, int(side * 0.9)], picture[int(side * 0.35), middle]]
    assert [tuple(color) for color in colors] == [(0, 0, 0), (40, 80, 220), (128, 128, 128)]
    assert tuple(picture[int(side * 0.65), middle]) == (255, 255, 255), "nothing is below the player"


def test_program_sends_its_spaces_and_gets_mixed_actions() -> None:
    """The server checks each observation, and the program uses each action."""
    checked = []

    def policy(message: rlx.Message, conn: PeerConnection) -> rlx.Leaves:
        LeavesCheck(conn.hello.observation_space, 3, bounded=True).check("observation", message.observation)
        checked.append(message)
        return [np.ones((3, 2), np.float32), np.zeros((3, 2), np.float32), np.array([0, 1, 1])]

    def script(conn: PeerConnection) -> None:
        conn.policy = policy
        serve(conn)

    with RlxPeer(script) as peer:
        done = program("Shooter", peer.address, "shooter", "3", "--steps", "360", "--seed", "1")
        (conn,) = peer.connections
    assert done.returncode == 0, done.stderr
    assert "mean return" in done.stdout
    assert conn.hello.action_space == rlx.Dict(
        {"aim": rlx.Box(-1, 1, (2,)), "move": rlx.Box(-1, 1, (2,)), "shoot": rlx.Discrete(2)}
    )
    assert len(checked) >= 120
