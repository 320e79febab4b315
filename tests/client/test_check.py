"""Findings of the environment check: each names the place, the value and the way out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit

from relaax.client import Box, Dict, Discrete, EnvironmentExit, Worlds, run
from relaax.client.program.check_report import CheckReport, left_processes


class Good(gymnasium.Env[Any, Any]):
    observation_space: Any = gymnasium.spaces.Box(-5, 5, (2,), np.float32)
    action_space: Any = gymnasium.spaces.Discrete(2)
    closed = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.place = 0, self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.place.copy(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.place = (self.place + self.np_random.uniform(-0.1, 0.1, 2)).astype(np.float32)
        return self.place.copy(), 1.0, False, self.steps >= 20, {}

    def close(self) -> None:
        self.closed += 1


class Changed(Good):
    """An environment whose outcomes have `value` at position `index`, from the step number `step` on."""

    def __init__(self, index: int, value: Any, step: int = 7) -> None:
        self._index, self._value, self._step = index, value, step

    def step(self, action: Any) -> Any:
        outcome = list(super().step(action))
        if self.steps >= self._step:
            outcome[self._index] = self._value
        return tuple(outcome)


class Seedless(Good):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset()


class OnlyOnce(Good):
    begun = False

    def reset(self, **options: Any) -> Any:
        if self.begun:
            raise RuntimeError("the game is over")
        self.begun = True
        return super().reset(**options)


class KeepsCount(Good):
    count = 0

    def step(self, action: Any) -> Any:
        self.count += 1
        observation, reward, *_ = super().step(action)
        return observation, reward, False, self.count >= 20, {}


class CloseFails(Good):
    def close(self) -> None:
        raise OSError("no such window")


class Overwrites(Good):
    array = np.zeros(2, np.float32)

    def _same(self, outcome: Any) -> Any:
        self.array[:] = outcome[0]
        return (self.array, *outcome[1:])

    def reset(self, **options: Any) -> Any:
        return self._same(super().reset(**options))

    def step(self, action: Any) -> Any:
        return self._same(super().step(action))


class NoFinal(Good):
    def step(self, action: Any) -> Any:
        observation, reward, over, cut, info = super().step(action)
        return None if cut else observation, reward, over, cut, info


class FourValues(Good):
    def step(self, action: Any) -> Any:
        return super().step(action)[:4]


class BareReset(Good):
    def reset(self, **options: Any) -> Any:
        return super().reset(**options)[0]


class OldReset(Good):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class Quits(Good):
    def step(self, action: Any) -> Any:
        if self.steps == 3:
            sys.exit()
        return super().step(action)


class Floats(Good):
    observation_space = gymnasium.spaces.Discrete(3)

    def reset(self, **options: Any) -> Any:
        return 0, super().reset(**options)[1]

    def step(self, action: Any) -> Any:
        return (self.steps % 5, *super().step(action)[1:])


def report_of(env: Any, **limits: Any) -> CheckReport:
    return cast(CheckReport, run(env, "check", seed=3, **limits).report)


def findings(env: Any, **limits: Any) -> list[str]:
    return [str(finding) for finding in report_of(env, **limits).findings]


NAN = np.array([0, np.nan], np.float32)
FAR = np.array([0, 7.5], np.float32)
PLACE = "episode 1, step 7: "
FAULTS = {
    "not_a_number": (lambda: Changed(0, NAN), f"error: {PLACE}observation[1] is nan: servers refuse it"),
    "bounds": (
        lambda: Changed(0, FAR),
        f"error: {PLACE}observation[1] is 7.5, outside the bounds -5 to 5 of its space Box(float32, [2], -5..5)",
    ),
    "discrete": (Floats, "error: episode 1, step 4: observation is 3, outside the bounds 0 to 2 of its space Disc"),
    "shape": (
        lambda: Changed(0, FAR[:1]),
        f"error: {PLACE}the observation is not in its space: observation has shape (1,), the space is (2,)",
    ),
    "reward": (lambda: Changed(1, None), f"error: {PLACE}the reward is None: it must be one finite number"),
    "huge_reward": (
        lambda: Changed(1, 1e16),
        f"error: {PLACE}the reward is 1e+16, and servers refuse rewards with a size",
    ),
    "flag": (lambda: Changed(2, "no"), f"error: {PLACE}terminated is 'no': it must be true or false"),
    "no_flag": (lambda: Changed(3, None, 1), "error: episode 1, step 1: truncated is None: return True or False"),
    "number_as_flag": (lambda: Changed(2, 0), f"warning: {PLACE}terminated is 0: return True or False"),
    "info": (lambda: Changed(4, [1]), f"error: {PLACE}info is [1]: return a dict, such as {{}}"),
    "pickle": (lambda: Changed(4, {"f": lambda: 0}), f"warning: {PLACE}info['f'], of type function, cannot be pickled"),
    "mask": (lambda: Changed(4, {"action_mask": 0}), f"warning: {PLACE}info has an entry 'action_mask', which "),
    "dtype": (
        lambda: Changed(0, np.zeros(2)),
        f"warning: {PLACE}observation is float64, but its space is float32: RELAAX converts it, but wrappers may not; "
        "return it with .astype(np.float32)",
    ),
    "seed": (Seedless, "error: two episodes from the seed 3 differ in the first observation: let reset call super()"),
    "second_reset": (OnlyOnce, "error: episode 2, reset: reset() raised RuntimeError: the game is over (test_check.py"),
    "kept_count": (KeepsCount, "warning: the first episode had 20 steps, and each later one ended in its first step"),
    "close": (CloseFails, "error: close() raised OSError: no such window (test_check.py, line"),
    "overwritten": (Overwrites, "warning: episode 1, step 1: the array of the previous observation was overwritten"),
    "final": (NoFinal, "error: episode 1, step 20: the final observation of a truncated episode is None"),
    "endless": (lambda: Changed(3, False), "warning: no episode ended in 300 steps, so no returns can be reported"),
}


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("vector", [False, True])
def test_fault_that_passes_a_probe_is_found_by_the_check(kind: str, vector: bool) -> None:
    make, sentence = FAULTS[kind]
    probed = SyncVectorEnv([make]) if vector else make()
    assert run(probed, "probe").report is None  # a probe takes only one step
    found = findings(SyncVectorEnv([make]) if vector else make(), steps=300)
    assert any(finding.startswith(sentence) for finding in found), found


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (FourValues(), "error: episode 1, step 1: step() returned 4 values instead of 5 values: return observation, "),
        (TimeLimit(FourValues(), 9), "error: episode 1, step 1: step() raised ValueError: not enough values to unpack"),
        (
            BareReset(),
            "error: episode 1, reset: reset() returned ndarray instead of 2 values: return observation, info",
        ),
        (OldReset(), "error: episode 1, reset: reset() raised TypeError"),
    ],
)
def test_wrong_number_of_values_is_reported_with_the_right_one(env: Any, sentence: str) -> None:
    (found,) = findings(env)
    assert found.startswith(sentence)
    assert found.endswith(("terminated, truncated, info", "observation, info", "seed=None, options=None)`"))


def test_valid_environment_has_no_findings_and_is_closed() -> None:
    env = Good()
    report = report_of(env)
    assert list(report.lines()) == [
        "observations Box(float32, [2], -5..5), actions Discrete(2)",
        "ok: 3 episodes, 60 steps, mean return 20.0 at random; no warnings",
    ]
    assert env.closed == 1


def test_random_mean_return_covers_whole_episodes_only() -> None:
    assert report_of(Good(), steps=50).mean_return == 20.0
    assert report_of(Good(), steps=15).mean_return is None
    assert report_of(OwnVector("none")).mean_return == 4.0
    assert report_of(OwnVector("none", AutoresetMode.NEXT_STEP), steps=20).mean_return == 3.5  # 4, 4, 3 and 3


class FixedLengths(Good):
    episodes = 0

    def __init__(self, lengths: tuple[int, ...] = (20,)) -> None:
        self.lengths = lengths

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.limit = self.lengths[self.episodes % len(self.lengths)]
        self.episodes += 1
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        observation, reward, *_, info = super().step(action)
        return observation, reward, self.steps >= self.limit, False, info


def test_terminations_at_the_same_step_are_a_warning() -> None:
    (found,) = findings(FixedLengths())
    assert found == (
        "warning: 3 of 3 episodes terminated after 20 steps, and none later: if this is a time limit, return"
        " terminated=False and truncated=True there"
    )
    assert findings(FixedLengths(), episodes=2) == []
    assert "3 of 4 episodes" in findings(FixedLengths((20, 20, 12, 20)), episodes=4)[0]
    for lengths in ((20, 20, 20, 21), (20, 20, 20, 12, 13, 14, 15), (5,)):
        assert findings(FixedLengths(lengths), episodes=len(lengths)) == [], lengths


@pytest.mark.parametrize("id_", ["CartPole-v1", "FrozenLake-v1", "Pendulum-v1", "Blackjack-v1", "MountainCar-v0"])
def test_environments_of_gymnasium_pass_without_findings(id_: str) -> None:
    assert findings(id_) == []


def test_findings_of_gymnasiums_checker_are_included() -> None:
    class DefaultSeed(Good):
        def reset(self, *, seed: int | None = 1, options: Any = None) -> Any:
            return super().reset(seed=seed)

    sentence = "warning: gymnasium's check_env says: The default seed argument in reset should be `None`"
    assert any(found.startswith(sentence) for found in findings(DefaultSeed()))


def test_nondeterministic_environment_needs_no_seed() -> None:
    gymnasium.register("Unseeded-v0", Seedless, nondeterministic=True)
    try:
        assert not any("seed" in finding for finding in findings("Unseeded-v0") if "gymnasium's" not in finding)
    finally:
        del gymnasium.registry["Unseeded-v0"]


def test_unsupported_space_is_an_error() -> None:
    env = Good()
    env.observation_space = gymnasium.spaces.Text(4)
    assert findings(env) == [
        "error: observation_space: a space of type Text is not supported; supported are Box, Discrete, MultiDiscrete, "
        "MultiBinary, Tuple, Dict"
    ]
    assert env.closed == 1


def test_sys_exit_within_a_step_is_reported_with_its_place() -> None:
    with pytest.raises(EnvironmentExit, match=r"episode 1, step 4: step\(\) called sys.exit\(\)"):
        run(Quits(), "check")


def test_faulty_environment_of_a_vector_is_named() -> None:
    found = findings(SyncVectorEnv([Good, lambda: Changed(1, None)]))
    assert [finding.partition(", ")[0] for finding in found] == ["error: environment 1 of 2: episode 1"]


def test_vector_of_one_shared_object_is_an_error() -> None:
    env = Good()
    found = findings(SyncVectorEnv([lambda: env] * 2))
    assert found == ["error: the 2 environments of the vector are the same object: create a new one for each"]


class OwnVector(VectorEnv[Any, Any, Any]):
    """Two environments with one fault: episodes of four steps, autoreset in the same step."""

    num_envs = 2
    single_observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
    single_action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fault: str, mode: AutoresetMode = AutoresetMode.SAME_STEP) -> None:
        self._fault, self.autoreset_mode = fault, mode

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self._step = 0
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions: Any) -> Any:
        self._step += 1
        states = np.full((2, 1), 10 if self._fault == "bounds" else 1, np.float32)
        if self._fault == "nan":
            states[1] = np.nan
        if self._fault == "rows":
            states = states[:1]
        rewards = np.array([1.0, np.inf]) if self._fault == "reward" else np.ones(2)
        over, cut = np.zeros(2, bool), np.full(2, self._step % 4 == 0)
        infos = {} if self._fault == "final" else {"final_obs": states.copy()}
        return states, rewards[:1] if self._fault == "rewards" else rewards, over, cut, infos


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("bounds", "error: step 1 of the vector: environment 0: observation[0] is 10, outside the bounds 0 to 9"),
        ("nan", "error: step 1 of the vector: environment 1: observation[0] is nan"),
        ("rows", "error: step 1 of the vector: observations have 1 rows for 2 environments"),
        ("reward", "error: step 1 of the vector: environment 1: the reward is inf: it must be one finite number"),
        ("rewards", "error: step 1 of the vector: rewards is array([1.]) of shape [1] and dtype float64: return numb"),
        ("final", 'error: step 4 of the vector: an episode was truncated, and infos["final_obs"] does not contain it'),
    ],
)
def test_faults_of_a_custom_vector_are_found(fault: str, sentence: str) -> None:
    found = findings(OwnVector(fault))
    assert found[0].startswith(sentence), found


@pytest.mark.parametrize("mode", AutoresetMode)
def test_valid_vector_of_any_autoreset_mode_passes(mode: AutoresetMode) -> None:
    report = report_of(OwnVector("", mode))
    assert report.findings == []
    assert report.episodes >= 3


class Masked(Good):
    """An environment with one valid action. The mask of the step `blocked` allows nothing."""

    def __init__(self, blocked: int, actions: Any) -> None:
        self._blocked, self.action_space, self._strict = blocked, actions, blocked != 7
        self._size = int(actions.n if hasattr(actions, "n") else sum(actions.nvec))
        parts = {"at": Good.observation_space, "action_mask": gymnasium.spaces.MultiBinary(self._size)}
        self.observation_space = gymnasium.spaces.Dict(parts)

    def reset(self, **options: Any) -> Any:
        observation, info = super().reset(**options)
        return self._with_mask(observation), info

    def step(self, action: Any) -> Any:
        assert not self._strict or np.asarray(action).reshape(-1)[0] == self._valid, "an invalid action"
        observation, *others = super().step(action)
        return self._with_mask(observation), *others

    def _with_mask(self, observation: Any) -> Any:
        self._valid = int(self.np_random.integers(2))
        mask = np.ones(self._size, np.int8)
        mask[1 - self._valid] = 0
        if self.steps == self._blocked:
            mask[:2] = 0
        return {"at": observation, "action_mask": mask}


@pytest.mark.parametrize("actions", [gymnasium.spaces.Discrete(2), gymnasium.spaces.MultiDiscrete([2, 3])], ids=str)
@pytest.mark.parametrize("vector", ["none", "sync", "same_step", "next_step"])
def test_check_plays_valid_actions_and_refuses_empty_masks(vector: str, actions: Any) -> None:
    def made(blocked: int) -> Any:
        if vector == "none":
            return Masked(blocked, actions)
        if vector == "sync":
            return SyncVectorEnv([lambda: Masked(-1, actions), lambda: Masked(blocked, actions)])
        own = SyncVectorEnv([lambda: Masked(blocked, actions)] * 2, autoreset_mode=AutoresetMode[vector.upper()])
        return Opaque(own)

    assert findings(made(-1)) == []
    assert findings(made(20)) == [], "the mask of a last observation has no effect"
    (found,) = findings(made(7))
    assert "step 7" in found
    assert (
        "observation['action_mask'] allows no action of a choice: servers refuse it; mark a valid action, or end the "
        "episode"
    ) in found


class Opaque(VectorEnv[Any, Any, Any]):
    """A vector that hides its environments."""

    def __init__(self, vector: Any) -> None:
        self._vector, self.autoreset_mode, self.num_envs = vector, vector.metadata["autoreset_mode"], vector.num_envs
        self.single_observation_space = vector.single_observation_space
        self.single_action_space = vector.single_action_space

    def reset(self, **options: Any) -> Any:
        return self._vector.reset(**options)

    def step(self, actions: Any) -> Any:
        return self._vector.step(actions)


class World:
    observation_space = Dict({"a": Box(-1, 1, (2,)), "action_mask": Discrete(2)})
    action_space = Discrete(2)
    far = 0.0

    def __init__(self, rng: np.random.Generator) -> None:
        self._steps = 0

    def restart(self) -> Any:
        self._steps = 0
        return {"a": [0, 0], "action_mask": 0}

    def do(self, action: int) -> Any:
        self._steps += 1
        return {"a": [0, self._steps], "action_mask": 0}, 1.0, False, self._steps >= 5


def test_findings_of_worlds_name_the_parts_of_observations() -> None:
    (bounds,) = findings(Worlds(World, 2))
    assert bounds.startswith("error: step 2 of the vector: environment 0: observation['a'][1] is 2, outside the bounds")


@pytest.mark.slow
@pytest.mark.checks("relaax/client")
def test_process_left_running_is_found_until_it_ends() -> None:
    process = subprocess.Popen(["sleep", "600"])
    try:
        assert f"process {process.pid} (sleep)" in left_processes()
    finally:
        process.kill()
        process.wait()
    assert not psutil.pid_exists(process.pid)
    assert not any(str(process.pid) in left for left in left_processes())


def test_report_is_equal_after_writing_and_reading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of(Changed(1, None))
    report.write(tmp_path / "report.json")
    read = CheckReport.read(tmp_path / "report.json")
    assert read == report
    assert list(read.lines(["algorithms: none"])) == [
        f"error: {PLACE}the reward is None: it must be one finite number (42 times)",
        "observations Box(float32, [2], -5..5), actions Discrete(2)",
        "algorithms: none",
        "failed: 3 episodes, 60 steps; 1 error",
    ]
