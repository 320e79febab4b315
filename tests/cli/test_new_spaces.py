"""The environment of `relaax new`, changed to the spaces that docs/limits.md lists."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from relaax import rlx
from relaax.cli.app import app
from relaax.client import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple, command
from support.rlx_peer import RlxPeer
from support.run import Runs

# The fields: observation space, an observation, action space, and a check of an action.
WORLD = """\
class World:
    observation_space = {observation_space}
    action_space = {action_space}

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def restart(self) -> Any:
        self._steps = 0
        return {observation}

    def do(self, action: Any) -> tuple[Any, float, bool, bool]:
        assert {check}, repr(action)
        self._steps += 1
        return {observation}, self._rng.uniform(), self._steps == 5, self._steps >= 3 and self._rng.uniform() < 0.2


"""
VECTOR = ("Box(-2, 2, shape=(2,))", "self._rng.uniform(-2, 2, 2).astype(np.float32)")
PUSH = ("Discrete(3)", "type(action) is int and 0 <= action < 3")
OBSERVATIONS = {
    "vector": VECTOR,
    "list": ("Box(-2, 2, shape=(2,))", "[0.5, 1]"),
    "image": ("Box(0, 255, (36, 36, 3), np.uint8)", "self._rng.integers(0, 256, (36, 36, 3), np.uint8)"),
    "gray": ("Box(0, 255, (36, 36), np.uint8)", "self._rng.integers(0, 256, (36, 36), np.uint8)"),
    "planes": ("Box(0, 1, (10, 10, 4), np.bool_)", "self._rng.uniform(size=(10, 10, 4)) < 0.5"),
    "discrete": ("Discrete(5, start=-2)", "int(self._rng.integers(-2, 3))"),
    "bits": ("MultiBinary([2, 3])", "self._rng.integers(0, 2, (2, 3), np.int8)"),
    "tuple": ("Tuple([Box(-2, 2, shape=(2,)), Discrete(4)])", f"({VECTOR[1]}, 3)"),
    "dict": (
        "Dict({'where': Box(-2, 2, shape=(2,)), 'room': Discrete(4), 'doors': MultiBinary(3)})",
        f"{{'where': {VECTOR[1]}, 'room': 2, 'doors': np.array([1, 0, 1], np.int8)}}",
    ),
    "nested": (
        "Dict({'a': Dict({'b': Tuple([Discrete(3), Box(0, 1, (2, 2))]), 'c': MultiBinary(2)}), 'd': Discrete(2)})",
        "{'d': 1, 'a': {'c': [0, 1], 'b': (2, self._rng.uniform(size=(2, 2)))}}",
    ),
    "image within": (
        "Dict({'eye': Box(0, 255, (8, 8, 3), np.uint8), 'speed': Box(shape=(1,))})",
        "{'eye': self._rng.integers(0, 256, (8, 8, 3), np.uint8), 'speed': [0.1]}",
    ),
}
ACTIONS = {
    "push": PUSH,
    "choices": ("MultiDiscrete([2, 3])", "action.shape == (2,) and action.dtype == np.int64"),
    "bits": ("MultiBinary(3)", "action.shape == (3,) and action.dtype == np.int8"),
    "from -1": ("Discrete(3, start=-1)", "type(action) is int and -1 <= action < 2"),
    "real": ("Box(-1, 3, shape=(2,))", "action.shape == (2,) and action.dtype == np.float32"),
    "real, a dict": (
        "Dict({'arm': Box(-1, 1, (2, 2)), 'leg': Tuple([Box(0, 1, (1,)), Box(shape=())])})",
        "action['arm'].shape == (2, 2) and [part.shape for part in action['leg']] == [(1,), ()]",
    ),
    "mixed": (
        "Dict({'move': Box(-1, 1, (2,)), 'arms': Tuple([Discrete(3, -1), MultiDiscrete([2, 3]), MultiBinary(2)])})",
        "action['move'].shape == (2,) and type(action['arms'][0]) is int and action['arms'][2].dtype == np.int8",
    ),
}


@pytest.fixture(autouse=True)
def empty_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def write_world(observation: tuple[str, str], action: tuple[str, str]) -> None:
    """Write the files of `relaax new environment mine`, with a World of these spaces."""
    assert CliRunner().invoke(app, ["new", "environment", "mine"]).exit_code == 0
    world = WORLD.format(
        observation_space=observation[0], observation=observation[1], action_space=action[0], check=action[1]
    )
    main = Path("mine/main.py")
    text, found = re.subn(r"class World:.*?(?=def main)", lambda _: world, main.read_text(), flags=re.DOTALL)
    text = text.replace("import Box, Discrete,", "import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple,")
    assert found == 1
    main.write_text(text)


def space_of(text: str) -> rlx.Space:
    kinds = [Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple]
    return eval(text, {"np": np} | {kind.__name__: kind for kind in kinds})


@pytest.mark.parametrize(
    ("observation", "action"),
    [
        *((observation, PUSH) for observation in OBSERVATIONS.values()),
        *((VECTOR, action) for action in ACTIONS.values()),
    ],
)
def test_environment_of_any_space_is_served(observation: tuple[str, str], action: tuple[str, str]) -> None:
    write_world(observation, action)
    with RlxPeer() as peer:
        line = [peer.address, "mine", "3", "--steps", "60", "--seed", "4"]
        summary = runpy.run_path("mine/main.py")["main"](command.parser("mine/main", "", "").parse_args(line))
        (conn,) = peer.connections
    assert summary.steps == 60
    assert conn.hello.observation_space == space_of(observation[0])
    assert conn.hello.action_space == space_of(action[0])
    steps = conn.of(rlx.Step)
    assert len(steps) == 20
    assert any(step.truncated is not None for step in steps)
    assert any(step.terminated is not None for step in steps)


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/new", "relaax/rlx", "relaax/client", "algorithms")
@pytest.mark.parametrize(
    ("observation", "action", "algorithm"),
    [
        ("image within", "from -1", "da3c"),
        ("nested", "bits", "da3c"),
        ("nested", "real, a dict", "da3c_cont"),
        ("planes", "real", "da3c_cont"),
        ("dict", "mixed", "da3c"),
        ("dict", "mixed", "ppo"),
    ],
)
def test_environment_of_any_space_trains(observation: str, action: str, algorithm: str, runs: Runs) -> None:
    write_world(OBSERVATIONS[observation], ACTIONS[action])
    options = ("--set", f"algorithm.path={algorithm}", "--set", "run.target_return=null", "--max-steps", "3000")
    run = runs.start(*options, "--no-progress", config=Path("mine.yaml").resolve())
    assert run.running.wait(240) == 0, run.running.report()
    assert run.summary["env_steps"] >= 3000
