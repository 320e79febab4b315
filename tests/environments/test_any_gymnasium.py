"""The gymnasium program with ids of other packages, constructor arguments and wrappers."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from environments.OpenAI_Gym import main as gym
from relaax import rlx
from relaax.client import RunSummary
from relaax.client.command import UsageError
from support.programs import program
from support.rlx_peer import PeerConnection, RlxPeer

GYM = "OpenAI_Gym"
NUMBERS = itertools.count()
CAR = ["--kwarg", "continuous=false"]
RESIZE = ["--wrapper", 'ResizeObservation={"shape": [84, 84]}']
PACKAGE = {
    "__init__.py": """
        import gymnasium
        gymnasium.register(id="RoomOf{name}-v0", entry_point="{name}.room:Room", max_episode_steps=20)
    """,
    "late.py": """
        import gymnasium
        def tell(): gymnasium.register(id="Late{name}-v0", entry_point="{name}.room:Room")
        def fail(): raise RuntimeError("no licence")
        def none(env): pass
    """,
    "broken.py": "import json; json.loads('{{')",
    "lacking.py": "import no_such_library",
    "room.py": """
        import gymnasium, numpy as np
        class Room(gymnasium.Env):
            observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
            action_space = gymnasium.spaces.Discrete(2)
            def __init__(self, size=3):
                if size > 10:
                    raise ValueError(f"a room of {{size}} is too large")
                self.size = size
            def reset(self, *, seed=None, options=None):
                super().reset(seed=seed)
                return np.full(3, self.size / 10, np.float32), {{}}
            def step(self, action):
                return np.full(3, self.size / 10, np.float32), 1.0, False, False, {{}}
        class Times(gymnasium.RewardWrapper):
            def __init__(self, env, by=2):
                super().__init__(env)
                self.by = by
            def reward(self, reward):
                return self.by * reward
        class Scaled(gymnasium.ObservationWrapper):
            def __init__(self, env, by: np.ndarray):
                super().__init__(env)
                self.by = by
            def observation(self, observation):
                return (observation * self.by.astype(np.float32)).clip(-1, 1)
        class Spoken(gymnasium.Wrapper):
            def __init__(self, env):
                super().__init__(env)
                parts = {{"seen": env.observation_space, "said": gymnasium.spaces.Text(5)}}
                self.observation_space = gymnasium.spaces.Dict(parts)
    """,
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The unique name of a package in `tmp_path`; its ids and modules are removed from this process afterwards."""
    name = f"package{next(NUMBERS)}"
    (tmp_path / name).mkdir()
    for file, text in PACKAGE.items():
        lines = [line[8:] if line.startswith(" ") else line for line in text.format(name=name).splitlines()]
        (tmp_path / name / file).write_text("\n".join(lines))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield name
    for identifier in [identifier for identifier in gymnasium.registry if name in identifier]:
        del gymnasium.registry[identifier]
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]


def run(*line: str) -> tuple[RunSummary, PeerConnection]:
    """Run the program in this process; return its summary and the connection at the server."""
    with RlxPeer() as peer:
        summary = gym.main(gym.parser().parse_args([peer.address, *line]))
        (conn,) = peer.connections
    return summary, conn


def refusal(*line: str) -> str:
    with pytest.raises(UsageError) as refused:
        gym.main(gym.parser().parse_args(["127.0.0.1:1", *line]))
    return str(refused.value)


def made(name: str, count: int, *options: str) -> gymnasium.vector.VectorEnv:
    arguments = gym.parser().parse_args(["random", name, str(count), *options])
    return gym.make(gym.find(arguments), False, [], arguments)


def test_constructor_argument_changes_spaces() -> None:
    _, conn = run("LunarLander-v3", "2", "--steps", "10", "--kwarg", "continuous=true")
    assert conn.hello.action_space == rlx.Box(-1, 1, (2,))
    _, conn = run("FrozenLake-v1", "2", "--steps", "10", "--kwarg", "map_name=8x8", "--kwarg", "is_slippery=False")
    assert conn.hello.observation_space == rlx.Discrete(64)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("false", False), ("False", False), ("None", None), ("null", None), ("8x8", "8x8"), ('"8"', "8"),
        ("-1e-3", -1e-3),
        ('{"a": [1, 2]}', {"a": [1, 2]}), ("(84, 84)", (84, 84)), ("a=b", "a=b"), ("", ""), ("false ly", "false ly"),
    ],
)  # fmt: skip
def test_value_is_parsed_as_json_then_python_then_text(text: str, value: object) -> None:
    ((name, read),) = gym.parser().parse_args(["random", "any", "--kwarg", f"name={text}"]).kwarg
    assert (name, read) == ("name", value)
    assert type(read) is type(value)


def test_three_wrappers_give_gray_84x84_frames() -> None:
    wrappers = ["--wrapper", 'MaxAndSkipObservation={"skip": 4}', *RESIZE, "--wrapper", "GrayscaleObservation"]
    with RlxPeer() as peer:
        done = program(GYM, peer.address, "CarRacing-v3", "1", "--steps", "12", "--seed", "1", *CAR, *wrappers)
        (conn,) = peer.connections
    assert done.returncode == 0, done.stderr
    assert conn.hello.observation_space == rlx.Box(0, 255, (84, 84), np.uint8)
    assert conn.hello.action_space == rlx.Discrete(5)
    assert conn.hello.frame_skip == 4
    assert conn.of(rlx.Step)[-1].observation[0].std() > 10


def test_frame_skips_of_wrappers_multiply() -> None:
    skips = ["--wrapper", "MaxAndSkipObservation", "--wrapper", 'RepeatAction={"num_repeats": 3}']
    _, conn = run("CarRacing-v3", "1", "--steps", "3", *CAR, *skips)
    assert conn.hello.frame_skip == 12


def test_wrappers_are_applied_in_order() -> None:
    flat = ["--wrapper", 'TimeAwareObservation={"flatten": false}', "--wrapper", "FlattenObservation"]
    _, conn = run("CartPole-v1", "2", "--steps", "10", *flat)
    assert conn.hello.observation_space.shape == (5,)
    assert "FlattenObservation" not in refusal("CartPole-v1", *flat[2:], *flat[:2], *RESIZE)


def test_wrapped_observations_are_sent_unchanged() -> None:
    options = ["--wrapper", "GrayscaleObservation", *RESIZE, "--wrapper", "NormalizeObservation"]
    _, conn = run("CarRacing-v3", "2", "--steps", "4", "--seed", "3", *CAR, *options)
    env = gymnasium.make("CarRacing-v3", continuous=False)
    for wrapper in (
        gymnasium.wrappers.GrayscaleObservation,
        lambda env: gymnasium.wrappers.ResizeObservation(env, (84, 84)),
        gymnasium.wrappers.NormalizeObservation,
    ):
        env = wrapper(env)
    first, _ = env.reset(seed=3)
    second, *_ = env.step(0)
    env.close()
    assert conn.hello.observation_space == rlx.Box(-np.inf, np.inf, (84, 84), env.observation_space.dtype)
    np.testing.assert_array_equal(conn.of(rlx.Init)[0].observation[0][0], first)
    np.testing.assert_array_equal(conn.of(rlx.Step)[0].observation[0][0], second)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_observe_selects_from_wrapped_observation(vectorization: str) -> None:
    wrapper = ["--wrapper", "TimeAwareObservation", "--observe", "4", "--vectorization", vectorization]
    _, conn = run("CartPole-v1", "2", "--steps", "6", *wrapper)
    assert [step.observation[0][0].tolist() for step in conn.of(rlx.Step)] == [[1.0], [2.0], [3.0]]


@pytest.mark.parametrize(
    ("options", "own"),
    [
        ([], True),
        (["--kwarg", "sutton_barto_reward=true"], True),
        (["--kwarg", "disable_env_checker=true"], False),  # the vector form lacks this argument
    ],
)
def test_own_vector_form_is_used_if_it_accepts_the_arguments(options: list[str], own: bool) -> None:
    env = made("CartPole-v1", gym.VECTOR_PAYS, *options)
    assert isinstance(env.unwrapped, CartPoleVectorEnv) == own
    env.close()


def test_wrapper_disables_own_vector_form() -> None:
    limit = ["--wrapper", 'TimeLimit={"max_episode_steps": 5}']
    summary, conn = run("CartPole-v1", "4", "--steps", "80", *limit)
    assert list(conn.hello.autoreset) == [rlx.Autoreset.SAME_STEP]
    assert summary.episodes == 16
    assert "--vectorization sync or async" in refusal(
        "CartPole-v1", "4", *limit, "--vectorization", "vector_entry_point"
    )


def test_atari_preprocessing_comes_before_wrappers() -> None:
    resize = ["--wrapper", 'ResizeObservation={"shape": [42, 42]}', "--kwarg", "full_action_space=true"]
    _, conn = run("ALE/Breakout-v5", "2", "--steps", "6", *resize)
    assert conn.hello.observation_space == rlx.Box(0, 255, (42, 42), np.uint8)
    assert (conn.hello.frame_skip, conn.hello.action_space) == (4, rlx.Discrete(18))
    assert "--kwarg frameskip: the preprocessing" in refusal("ALE/Breakout-v5", "--kwarg", "frameskip=2")


def test_package_in_working_directory_is_found(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = [f"{package}:RoomOf{package}-v0", "2", "--steps", "40", "--kwarg", "size=5"]
    with RlxPeer() as peer:
        done = program(GYM, peer.address, *line, "--wrapper", f'{package}.room:Times={{"by": 3}}')
        (conn,) = peer.connections
    assert done.returncode == 0, done.stderr
    assert conn.hello.environment == f"RoomOf{package}-v0"
    steps = conn.of(rlx.Step)
    assert (steps[0].observation[0] == np.float32(0.5)).all()
    assert steps[0].reward.tolist() == [3.0, 3.0]
    assert steps[-1].truncated.tolist() == [True, True]


def test_package_in_path_option_is_found(package: str, tmp_path: Path) -> None:
    _, conn = run(f"{package}:RoomOf{package}", "2", "--steps", "4", "--path", str(tmp_path))
    assert conn.hello.environment == f"RoomOf{package}-v0"  # the newest


def test_list_is_converted_to_array_for_wrapper(package: str, tmp_path: Path) -> None:
    scaled = f'{package}.room:Scaled={{"by": [1, 2, 3]}}'
    _, conn = run(f"{package}:RoomOf{package}-v0", "2", "--steps", "4", "--path", str(tmp_path), "--wrapper", scaled)
    assert conn.of(rlx.Step)[0].observation[0][0].tolist() == pytest.approx([0.3, 0.6, 0.9])


@pytest.mark.slow
@pytest.mark.checks("environments/OpenAI_Gym", "relaax/client")
def test_register_option_calls_function_once(package: str, tmp_path: Path) -> None:
    options = ["--register", f"{package}.late:tell", "--path", str(tmp_path), "--steps", "4"]
    for _ in range(2):  # a second call would warn, and warnings are errors here
        _, conn = run(f"Late{package}-v0", "2", *options)
        assert conn.hello.environment == f"Late{package}-v0"
    _, conn = run("MinAtar/Breakout-v1", "2", "--steps", "4", "--register", "minatar.gym:register_envs")
    assert conn.hello.observation_space.shape == (10, 10, 4)


def test_import_option_registers_ids(package: str, tmp_path: Path) -> None:
    options = ["--import", "json", "--import", package, "--path", str(tmp_path), "--steps", "4"]
    for _ in range(2):
        _, conn = run(f"RoomOf{package}-v0", "2", *options)
        assert conn.hello.environment == f"RoomOf{package}-v0"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (["Roof-v0", "--import", "PKG"], "gymnasium has no environment 'Roof-v0'; the registered ones are RoomOfPKG"),
        (["Roof-v0", "--import", "no_such"], "there is no module 'no_such', neither installed nor in the working"),
        (["Roof-v0", "--import", "math"], "importing math registers none: use --register math:FUNCTION"),
        (["PKG:Roof-v0"], "gymnasium has no environment 'Roof-v0'; the registered ones are RoomOfPKG-v0"),
        (["PKG.room:Roof-v0"], "gymnasium has no environment 'Roof-v0'; the registered ones are RoomOfPKG-v0"),
        (["math:Roof-v0"], "importing math registers none: use --register math:FUNCTION"),
        (["math.Roof"], "gymnasium has no environment 'math.Roof'; did you mean math:Roof?"),
        (["PKG.room.Room"], "; did you mean PKG.room:Room?"),
        (["no_such.Roof"], "'no_such.Roof'; for a class of yours, write MODULE:CLASS; for one of another package"),
        (["no_such:Roof-v0"], "there is no module 'no_such', neither installed nor in the working directory"),
        (["PKG.nothing:Roof-v0"], "there is no module 'PKG.nothing'"),
        (["PKG.lacking:Roof-v0"], "cannot import PKG.lacking: No module named 'no_such_library'"),
        (["PKG.broken:Roof-v0"], "cannot import PKG.broken: JSONDecodeError: Expecting property name"),
        (["Roof-v0", "--register", "PKG.late:tel"], "PKG.late has no 'tel'; the nearest is 'tell'"),
        (["Roof-v0", "--register", "PKG.late:fail"], "--register PKG.late:fail: RuntimeError: no licence"),
        (["Roof-v0", "--register", "PKG"], "'PKG' is not MODULE:NAME, such as minatar.gym:register_envs"),
        (["highway-v0"], "for one of another package, write PACKAGE:ID, such as highway_env:highway-v0"),
        (["PKG:RoomOfPKG-v0", "--kwarg", "sice=3"], "RoomOfPKG-v0 has no argument 'sice'; it has size"),
        (
            ["PKG:RoomOfPKG-v0", "--kwarg", "size=11"],
            "cannot make RoomOfPKG-v0 with size=11: ValueError: a room of 11 is too",
        ),
        (
            ["Hopper-v5", "--kwarg", "forward_reward=1"],
            "Hopper-v5 has no argument 'forward_reward'; it has xml_file, frame",
        ),
        (
            ["FrozenLake-v1", "--kwarg", "map_name=9x9"],
            "cannot make FrozenLake-v1 with map_name='9x9': KeyError: '9x9'",
        ),
        (
            ["CartPole-v1", "--wrapper", "FrameStack"],
            "wrappers has no such class; the nearest is 'FrameStackObservation'",
        ),
        (
            ["CartPole-v1", "--wrapper", 'TimeLimit={"steps": 3}'],
            "TimeLimit has no argument 'steps'; it has max_episode_s",
        ),
        (["CartPole-v1", "--wrapper", "ResizeObservation"], "--wrapper ResizeObservation: TypeError: "),
        (["CartPole-v1", *RESIZE], "--wrapper ResizeObservation: ValueError: "),
        (["CartPole-v1", "--wrapper", "PKG.room:Time"], "PKG.room has no 'Time'; the nearest is 'Times'"),
        (
            ["CartPole-v1", "--wrapper", "PKG.room:Spoken"],
            "cannot be sent: 'said' (Text); to remove them: --wrapper 'FilterObservation={\"filter_keys\": [\"seen",
        ),
        (
            ["CartPole-v1", "--wrapper", "PKG.late:none"],
            "PKG.late:none: made None, which is not a gymnasium env",
        ),
    ],
)
def test_unusable_arguments_are_refused_with_reason(
    line: list[str], sentence: str, package: str, tmp_path: Path
) -> None:
    said = refusal(*(word.replace("PKG", package) for word in line), "--path", str(tmp_path))
    assert sentence.replace("PKG", package) in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("Hall", "has no environment 'Hall'; the nearest is 'Halls'"), ("Zoo", "has no environment 'Zoo'; it has Halls")],
)
def test_misspelt_class_error_lists_classes_of_module(name: str, sentence: str, tmp_path: Path) -> None:
    module = f"halls{next(NUMBERS)}"
    text = "import gymnasium\nfrom gymnasium import Env, Wrapper\nclass Halls(Env): ...\nclass Around(Wrapper): ...\n"
    (tmp_path / f"{module}.py").write_text(text)
    assert f"{module} {sentence}" in refusal(f"{module}:{name}", "--path", str(tmp_path))


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (["--kwarg", "size"], "'size' is not NAME=VALUE, such as is_slippery=false"),
        (["--wrapper", "TimeLimit={3}"], "'TimeLimit={3}' is neither NAME nor NAME={...} with arguments"),
        (["--wrapper", "TimeLimit={max: 3}"], "'TimeLimit={max: 3}' is neither NAME nor NAME={...} with arguments"),
    ],
)
def test_malformed_option_values_are_refused(
    line: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        gym.parser().parse_args(["127.0.0.1:1", "CartPole-v1", *line])
    assert sentence in capsys.readouterr().err


def test_usage_error_exits_with_code_2_and_one_line() -> None:
    done = program(GYM, "127.0.0.1:1", "FrozenLake-v1", "2", "--kwarg", "slippery=false")
    assert done.returncode == 2
    assert done.stderr.startswith("OpenAI_Gym/main: FrozenLake-v1 has no argument 'slippery'; it has ")
    assert "is_slippery" in done.stderr
    assert len(done.stderr.splitlines()) == 1
