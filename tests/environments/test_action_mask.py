"""The option --action-mask of the gymnasium program, with real environments and a server that reads the masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from environments.OpenAI_Gym import main as gym
from relaax import rlx
from relaax.client import RunSummary
from support.programs import program, refusal
from support.rlx_peer import PeerConnection, RlxPeer, serve

pytestmark = pytest.mark.checks("environments", "relaax/client", "relaax/rlx")

GYM = "OpenAI_Gym"
STRICT = """
import gymnasium
import numpy as np

class Strict(gymnasium.Env):
    '''Episodes of four steps, and an error for an invalid action. It has both kinds of masks.'''

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.MultiDiscrete([2, 3])

    def __init__(self, fault="", parts=False):
        self.fault, self.parts = fault, parts
        if parts:
            self.observation_space = gymnasium.spaces.Dict({"at": self.observation_space})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.outcome()

    def step(self, action):
        assert tuple(action) == self.valid, f"{action} is not valid"
        self.steps += 1
        observation, info = self.outcome()
        return observation, 1.0, False, self.steps == 4, info

    def outcome(self):
        self.valid = int(self.np_random.integers(2)), int(self.np_random.integers(3))
        mask = np.eye(2)[self.valid[0]], np.eye(3)[self.valid[1]]
        missing = (self.fault, self.steps) in (("last", 4), ("second", 2))
        at = np.full(2, self.steps / 4, np.float32)
        return {"at": at} if self.parts else at, {} if missing else {"action_mask": mask[self.fault == "short":]}

    def action_masks(self):
        return np.concatenate([np.arange(2) == self.valid[0], np.arange(3) == self.valid[1]])
"""


@pytest.fixture
def strict(tmp_path: Path) -> list[str]:
    """Arguments of the program for the environment `Strict`."""
    (tmp_path / "strict_masks.py").write_text(STRICT)
    return ["strict_masks:Strict", "3", "--path", str(tmp_path), "--steps", "60", "--seed", "2"]


def first_valid(message: Any, conn: PeerConnection) -> list[np.ndarray]:
    """Return the first valid action of each choice, of a Discrete or a MultiDiscrete."""
    paths, actions = list(conn.hello.observation_space.paths()), conn.hello.action_space
    mask = message.observation[paths.index("['action_mask']")]
    assert mask.any(axis=1).all()
    if isinstance(actions, rlx.Discrete):
        return [mask.argmax(axis=1)]
    parts = np.split(mask, np.cumsum(actions.nvec)[:-1], axis=1)
    return [np.stack([part.argmax(axis=1) for part in parts], axis=1)]


def scripted(conn: PeerConnection) -> None:
    conn.policy = first_valid
    serve(conn)


def ended(*line: str) -> tuple[str, int, PeerConnection]:
    """Run the program against a server that takes the first valid action. Return its errors, code and connection."""
    with RlxPeer(scripted) as peer:
        done = program(GYM, peer.address, *line)
        (conn,) = peer.connections
    return done.stderr, done.returncode, conn


def test_masks_in_the_infos_of_taxi_are_sent() -> None:
    errors, code, conn = ended("Taxi-v4", "2", "--action-mask", "info", "--steps", "450", "--seed", "1")
    assert code == 0, errors
    assert conn.hello.observation_space == rlx.Dict(
        {"action_mask": rlx.MultiBinary(6), "observation": rlx.Discrete(500)}
    )
    taxi: Any = gymnasium.make("Taxi-v4").unwrapped
    steps = conn.of(rlx.Step)
    for message in [*conn.of(rlx.Init), *steps]:
        mask, states = message.observation
        np.testing.assert_array_equal(mask, [taxi.action_mask(state) for state in states])
    finals = [step.final_observation for step in steps if step.final_observation is not None]
    assert finals, "episodes are truncated after 200 steps"
    np.testing.assert_array_equal(finals[0][0], [taxi.action_mask(state) for state in finals[0][1]])


@pytest.mark.parametrize("source", ["info", "method"])
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_only_valid_actions_are_taken_in_a_vector(strict: list[str], vectorization: str, source: str) -> None:
    errors, code, conn = ended(*strict, "--action-mask", source, "--vectorization", vectorization)
    assert code == 0, errors
    space = conn.hello.observation_space
    assert space == rlx.Dict({"action_mask": rlx.MultiBinary(5), "observation": rlx.Box(-1, 1, (2,))})
    ends = [step for step in conn.of(rlx.Step) if step.final_observation is not None]
    assert len(ends) == 60 / 3 / 4
    for step in ends:
        mask, last = step.final_observation
        assert (last == 1).all() and (mask.sum(axis=1) == 2).all()


def test_mask_of_a_dict_observation_is_one_more_part(strict: list[str]) -> None:
    errors, code, conn = ended(*strict, "--action-mask", "info", "--kwarg", "parts=true")
    assert code == 0, errors
    assert list(conn.hello.observation_space.paths()) == ["['action_mask']", "['at']"]


def test_last_info_may_lack_a_mask(strict: list[str]) -> None:
    errors, code, conn = ended(*strict, "--action-mask", "info", "--kwarg", "fault=last")
    assert code == 0, errors
    (final, *_) = [step.final_observation for step in conn.of(rlx.Step) if step.final_observation is not None]
    assert not final[0].any()


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("second", "--action-mask info: info['action_mask'] is missing; every reset and step must return it"),
        (
            "short",
            "--action-mask info: info['action_mask'] has 3 elements, and a mask of the actions MultiDiscrete([2 3])",
        ),
    ],
)
def test_missing_or_short_mask_is_an_error(strict: list[str], fault: str, sentence: str) -> None:
    with RlxPeer(scripted) as peer:
        done = program(GYM, peer.address, *strict, "--action-mask", "info", "--kwarg", f"fault={fault}")
    assert done.returncode != 0
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (["Pendulum-v1"], "--action-mask info: PendulumEnv: its actions, Box(-2.0, 2.0, (1,), float32), have no"),
        (
            ["CartPole-v1", "--action-mask", "method"],
            "--action-mask method: CartPoleEnv: it has no method action_masks",
        ),
        (["CartPole-v1", "--vectorization", "vector_entry_point"], "--action-mask reads each environment: use --vect"),
    ],
)
def test_environment_without_masks_is_refused(line: list[str], sentence: str) -> None:
    assert sentence in refusal(gym, "127.0.0.1:1", line[0], "--action-mask", "info", *line[1:])


def test_random_play_takes_only_valid_actions(strict: list[str]) -> None:
    summary: RunSummary = gym.main(gym.parser().parse_args(["random", *strict, "--action-mask", "method"]))
    assert summary.mean_return == 4
