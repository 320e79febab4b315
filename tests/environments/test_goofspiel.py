"""Goofspiel: the rules, and a training through real ports in which the environment refuses invalid cards."""

from __future__ import annotations

import numpy as np
import pytest

from environments.Goofspiel.main import CARDS, Goofspiel
from support.run import Runs

pytestmark = pytest.mark.checks("environments/Goofspiel", "algorithms/da3c", "relaax/algorithm_base")


def play(game: Goofspiel, choose: object) -> tuple[float, list[int]]:
    """Play one game. Return its reward and the cards bid. `choose`: function of the observation."""
    seen, cards = game.restart(), []
    while True:
        cards.append(choose(seen))  # type: ignore[operator]
        seen, reward, terminated, truncated = game.do(cards[-1])
        assert not truncated
        assert seen["action_mask"].sum() == seen["opponent"].sum() == CARDS - len(cards)
        if terminated:
            return reward, cards
        assert reward == 0


def test_each_card_is_bid_once_and_the_better_bidder_wins() -> None:
    game = Goofspiel(np.random.default_rng(0))
    games = [play(game, lambda seen: int(seen["prize"].argmax())) for _ in range(300)]
    assert all(sorted(cards) == list(range(CARDS)) for _, cards in games)
    assert np.mean([reward for reward, _ in games]) > 0.85


def test_card_that_was_bid_before_is_an_error() -> None:
    game = Goofspiel(np.random.default_rng(0))
    game.restart()
    game.do(4)
    with pytest.raises(ValueError, match="card 5 was bid before"):
        game.do(4)


def test_lead_counts_prizes() -> None:
    game = Goofspiel(np.random.default_rng(0))
    seen = game.restart()
    prize, before = int(seen["prize"].argmax()) + 1, seen["opponent"]
    seen, *_ = game.do(CARDS - 1)
    answer = int((before - seen["opponent"]).argmax())
    points = 0 if answer == CARDS - 1 else prize
    assert seen["lead"][0] == pytest.approx(points / 91)
    assert seen["prizes"].sum() == CARDS - 2


def test_bundled_configuration_learns_to_win(runs: Runs) -> None:
    run = runs.start("--target-return", "0.4", "--no-progress", config="da3c_goofspiel")
    assert run.running.wait(300) == 0, run.running.report()
    assert run.summary["status"] == "target_reached"
