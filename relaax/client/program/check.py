"""Check of environments without a server: play random episodes, and report faults that would break training."""

from __future__ import annotations

import re
import reprlib
import sysconfig
import time
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax import rlx
from relaax.client.connection.failure import EnvironmentExit, EnvironmentFault
from relaax.client.connection.values import values_of
from relaax.client.program.agents import RandomAgent
from relaax.client.program.check_outcome import OutcomeCheck
from relaax.client.program.check_report import CheckReport, Findings
from relaax.client.program.checked_env import autoreset_of, closing_error, is_a, is_of_signal

EPISODES, STEPS, SECONDS = 3, 10_000, 30.0
"""Limits of a check, summed over all environments. The check ends at the first limit."""
_REPEATED_STEPS = 32
_STEP = "observation, reward, terminated, truncated, info"
_LIBRARIES = ("site-packages", sysconfig.get_path("stdlib"), str(Path(__file__).resolve().parents[1]))
_OPTIONS = "write `def reset(self, *, seed=None, options=None)`"
_SEEDS = (
    "let reset call super().reset(seed=seed) and draw from self.np_random only, or register with nondeterministic=True"
)
# Warnings of gymnasium's checker about bounds and normalization, which training does not need, and duplicates.
_IGNORED_WARNINGS = (
    "infinity",
    "symmetric and normalized",
    "different from the unwrapped",
    "seed argument in `Env.reset`",
)


class _Unusable(Exception):
    """An environment that cannot be played further. The findings contain the reason."""


def check(env: Any, seed: int | None = None, episodes: int | None = None, steps: int | None = None) -> CheckReport:
    """Play random episodes in an Env or a VectorEnv, close it, and return a report of its faults.

    `env`: the environment without a CheckedEnv wrapper. `episodes`, `steps`: limits over all environments. The
    environments of gymnasium's SyncVectorEnv are checked one by one, other vectors as batches. Raises EnvironmentExit
    if an environment calls sys.exit().
    """
    findings = Findings()
    is_vector = hasattr(env, "single_observation_space")
    spaces = _spaces(env, is_vector, findings)
    checks: list[_Check] = []
    if spaces is not None:
        vector = getattr(env, "unwrapped", env)
        ones, made = [env], _VectorCheck if is_vector else _SingleCheck
        if is_vector and is_a(env, "SyncVectorEnv"):
            ones, made = list(vector.envs), _SingleCheck
            if len({id(one) for one in ones}) < len(ones):
                text = f"the {len(ones)} environments of the vector are the same object: create a new one for each"
                findings.error("same", text)
                ones = ones[:1]
            vector.envs = []  # each is closed by its own check
        episodes, steps = episodes or max(EPISODES, 2 * len(ones)), steps or STEPS
        for index, one in enumerate(ones):
            shares = max(1, (episodes + index) // len(ones)), max(1, steps // len(ones))
            limits = CheckLimits(*shares, SECONDS / len(ones))
            place = f"environment {index} of {len(ones)}: " if len(ones) > 1 else ""
            checks.append(made(one, place, findings, limits, 0 if seed is None else seed + index))
            checks[-1].run()
    if is_vector or not checks:  # the check of one environment closes it
        _check_close(env, "", findings)
    limits_of = [one.limits for one in checks]
    played = sum(len(limits.lengths) for limits in limits_of)
    mean = sum(limits.returns for limits in limits_of) / played if played else None
    return CheckReport(spaces, played, sum(limits.taken for limits in limits_of), mean, list(findings))


def _spaces(env: Any, is_vector: bool, findings: Findings) -> tuple[rlx.Space, rlx.Space] | None:
    """Return the spaces of one environment; None if one is missing or cannot be sent."""
    found = []
    for what in ("observation_space", "action_space"):
        try:
            found.append(values_of(getattr(env, f"single_{what}" if is_vector else what)).space)
        except (AttributeError, TypeError, ValueError) as error:
            findings.error(what, f"{what}: {error}")
    return (found[0], found[1]) if len(found) == 2 else None


class _Check:
    """Base of the checks of one environment and of a vector."""

    def __init__(self, env: Any, place: str, findings: Findings, limits: CheckLimits, seed: int) -> None:
        self._env, self._place, self._findings, self.limits, self._seed = env, place, findings, limits, seed
        self._steps = 0  # of the episode, or of the vector

    def run(self) -> None:
        """Play, and close the environment."""
        try:
            self._play()
        except _Unusable:
            return
        self.limits.report(self._findings, self._place)

    def _play(self) -> None:
        raise NotImplementedError

    @property
    def _where(self) -> str:
        """Return the prefix of a finding about the current call."""
        at = f"step {self._steps}" if self._steps else "reset"
        return f"{self._place}episode {len(self.limits.lengths) + 1}, {at}: "

    def _call(self, name: str, *given: Any, **options: Any) -> Any:
        """Return what a method of the environment returns. Raises _Unusable if it raises."""
        try:
            return getattr(self._env, name)(*given, **options)
        except SystemExit as end:
            if is_of_signal(end):
                raise
            raise EnvironmentExit(f"{self._where}{name}() called sys.exit()") from end
        except Exception as error:
            is_fault = isinstance(error, EnvironmentFault)  # raised by Worlds, or in another process
            self._findings.error(name, f"{self._where}{error if is_fault else _error_text(name, error)}")
        raise _Unusable

    def _unpacked(self, name: str, outcome: Any, count: int, parts: str) -> Any:
        """Return an outcome with `count` parts. Raises _Unusable for any other outcome."""
        if isinstance(outcome, tuple | list) and len(outcome) == count:
            return outcome
        what = f"{len(outcome)} values" if isinstance(outcome, tuple | list) else type(outcome).__name__
        self._findings.error(name, f"{self._where}{name}() returned {what} instead of {count} values: return {parts}")
        raise _Unusable


class _SingleCheck(_Check):
    """The check of one environment."""

    def __init__(self, env: Any, place: str, findings: Findings, limits: CheckLimits, seed: int) -> None:
        super().__init__(_without_checker(env), place, findings, limits, seed)
        self._agent = RandomAgent(env.observation_space, env.action_space, seed=seed)
        self._outcome = OutcomeCheck(env.observation_space, env.action_space, findings)
        self._first_outcomes: list[Any] = []  # outcomes of the first steps from the seed
        self._actions: list[Any] = []

    def run(self) -> None:
        super().run()
        _check_close(self._env, self._place, self._findings)

    def _play(self) -> None:
        seed: int | None = self._seed
        while not self.limits.reached:
            self._steps = 0
            seen = self._reset(seed)
            self._keep_outcome(seen)
            seed, over, total = None, False, 0.0
            while not over and not self.limits.reached:
                action = self._agent.draw(seen)
                if len(self._actions) < _REPEATED_STEPS:
                    self._actions.append(action)
                outcome, over = self._step(action)
                seen = outcome[0]
                self._keep_outcome(outcome)
                total += outcome[1] or 0.0
            if over:
                self.limits.add(self._steps, total, truncated=outcome[3])
        if not self._findings.errors:
            self._check_determinism()
        if not self._findings:
            self._check_with_gymnasium()

    def _keep_outcome(self, outcome: Any) -> None:
        if not self.limits.lengths and len(self._first_outcomes) <= len(self._actions):
            self._first_outcomes.append(outcome)

    def _reset(self, seed: int | None) -> Any:
        observation, info = self._unpacked("reset", self._call("reset", seed=seed), 2, "observation, info")
        self._outcome.info(self._where, info)
        leaves = self._outcome.observation(self._where, observation)
        self._outcome.mask(self._where, leaves)
        return leaves

    def _step(self, action: Any) -> tuple[Any, bool]:
        self._steps += 1
        self.limits.taken += 1
        outcome = self._unpacked("step", self._call("step", action), 5, _STEP)
        observation, reward, terminated, truncated, info = outcome
        number = self._outcome.reward(self._where, reward)
        over = self._outcome.flag(self._where, "terminated", terminated)
        cut = self._outcome.flag(self._where, "truncated", truncated)
        self._outcome.info(self._where, info)
        leaves = self._outcome.final(self._where, observation, over, cut)
        if not over and not cut:
            self._outcome.mask(self._where, leaves)
        return (leaves, number, over, cut), over or cut

    def _check_determinism(self) -> None:
        """Repeat the first steps from the same seed, and compare the outcomes."""
        spec = getattr(self._env, "spec", None)
        if spec is not None and spec.nondeterministic:
            return
        taken, self._steps = self.limits.taken, 0
        again = [self._reset(self._seed)]
        for action in self._actions[: len(self._first_outcomes) - 1]:
            again.append(self._step(action)[0])
        self.limits.taken = taken
        for step, (first, second) in enumerate(zip(self._first_outcomes, again, strict=True)):
            if not _is_same(first, second):
                where = f"step {step}" if step else "the first observation"
                text = f"{self._place}two episodes from the seed {self._seed} differ in {where}: {_SEEDS}"
                self._findings.error("seed", text)
                return

    def _check_with_gymnasium(self) -> None:
        """Add the findings of gymnasium's checker, which also checks spaces and signatures.

        It draws from all actions, so it is not used if only some are valid.
        """
        if self._agent.masked:
            return
        try:
            import gymnasium
            from gymnasium.utils.env_checker import check_env
        except ImportError:
            return
        if not isinstance(self._env, gymnasium.Env):
            return
        raised = ""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                check_env(self._env, skip_render_check=True, skip_close_check=True)
            except Exception as error:  # AssertionError, or an error of the environment
                raised = str(error)
        for text in dict.fromkeys([*(str(warning.message) for warning in caught), raised]):
            plain = " ".join(re.sub(r"\x1b\[[\d;]*m|WARN: ", "", text).split())
            if plain and not any(part in plain for part in _IGNORED_WARNINGS):
                self._findings.warning(plain, f"{self._place}gymnasium's check_env says: {plain}")


class _VectorCheck(_Check):
    """The check of a vector other than gymnasium's SyncVectorEnv, by its batches."""

    def _play(self) -> None:
        count, mode = self._env.num_envs, autoreset_of(self._env)
        spaces = self._env.single_observation_space, self._env.single_action_space
        agent, outcome = RandomAgent(*spaces, count, self._seed), OutcomeCheck(*spaces, self._findings, axes=1)
        seen = self._reset(outcome, seed=self._seed)
        lengths, totals, begins = np.zeros(count, np.int64), np.zeros(count), np.zeros(count, np.bool_)
        while not self.limits.reached:
            self._steps += 1
            states, rewards, *flags, infos = self._unpacked("step", self._call("step", agent.draw(seen)), 5, _STEP)
            seen = self._check_rows(outcome, states)
            rewards = self._checked_batch("rewards", rewards, count, "iufb")
            terminated, truncated = (
                self._checked_batch(what, flag, count, "b")
                for what, flag in zip(("terminated", "truncated"), flags, strict=True)
            )
            ended = terminated | truncated
            self.limits.taken += int(np.count_nonzero(~begins))
            lengths[~begins] += 1
            totals[~begins] += rewards[~begins]
            for index in np.flatnonzero(ended):
                self.limits.add(int(lengths[index]), float(totals[index]), bool(truncated[index]))
            lengths[ended] = totals[ended] = 0
            if mode == "same_step" and ended.any():
                self._check_final(infos, truncated & ~terminated)
            if mode == "disabled" and ended.any():
                seen = self._reset(outcome, options={"reset_mask": ended.copy()})
            else:
                outcome.mask(self._where, seen, ended if mode == "next_step" else None)
            begins = ended if mode == "next_step" else begins

    @property
    def _where(self) -> str:
        return f"step {self._steps} of the vector: " if self._steps else "reset of the vector: "

    def _reset(self, outcome: OutcomeCheck, **options: Any) -> rlx.Leaves | None:
        reset = self._call("reset", **options)
        leaves = self._check_rows(outcome, self._unpacked("reset", reset, 2, "observations, infos")[0])
        outcome.mask(self._where, leaves)
        return leaves

    def _check_rows(self, outcome: OutcomeCheck, states: Any) -> rlx.Leaves | None:
        """Return the leaves; None if they are not in the space, or if there is not one row for each environment."""
        leaves = outcome.observation(self._where, states)
        if leaves is not None and any(len(leaf) != self._env.num_envs for leaf in leaves):
            text = f"observations have {len(leaves[0])} rows for {self._env.num_envs} environments"
            self._findings.error("rows", f"{self._where}{text}")
            return None
        return leaves

    def _checked_batch(self, what: str, values: Any, count: int, kinds: str) -> npt.NDArray[Any]:
        """Return `values` as numbers or flags of shape [N]. Raises _Unusable if they are different."""
        array = np.asarray(values)
        if array.shape != (count,) or array.dtype.kind not in kinds:
            wanted = "bools" if kinds == "b" else "numbers"
            got = f"{reprlib.repr(values)} of shape {list(array.shape)} and dtype {array.dtype}"
            self._findings.error(what, f"{self._where}{what} is {got}: return {wanted} of shape [{count}]")
            raise _Unusable
        odd = ~np.isfinite(array)
        if odd.any():
            index = int(np.argmax(odd))
            text = f"environment {index}: the reward is {array[index]}: it must be one finite number"
            self._findings.error("reward", f"{self._where}{text}")
        return array

    def _check_final(self, infos: Any, cut: npt.NDArray[np.bool_]) -> None:
        """Check that truncated episodes have final observations."""
        final = infos.get("final_obs") if isinstance(infos, dict) else None
        rows = final if isinstance(final, np.ndarray) and final.dtype == object else None
        if cut.any() and (final is None or (rows is not None and any(row is None for row in rows[cut]))):
            lost = 'an episode was truncated, and infos["final_obs"] does not contain its last observation'
            self._findings.error("final", f"{self._where}{lost}: the agent's bootstrap uses its value")


def _check_close(env: Any, place: str, findings: Findings) -> None:
    error = closing_error(env)
    if error is not None:
        text = "close() called sys.exit()" if isinstance(error, SystemExit) else _error_text("close", error)
        findings.error("close", f"{place}{text}")


def _error_text(name: str, error: Exception) -> str:
    """Return a description of the environment's error, with the last line of code that is not in a library."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(folder in frame.filename for folder in _LIBRARIES)]
    at = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    text = f"{name}() raised {type(error).__name__}: {error}{at}"
    if name == "reset" and isinstance(error, TypeError) and any(word in str(error) for word in ("'seed'", "'options'")):
        return f"{text}: {_OPTIONS}"
    if name == "step" and "gymnasium" in frames[-1].filename and "values to unpack" in str(error):  # by a wrapper
        return f"{text}: return {_STEP}"
    return text


def _is_same(first: Any, second: Any) -> bool:
    """Return whether two outcomes are equal, up to rounding of numbers."""
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(_is_same, first, second))
    if first is None or second is None:
        return first is second
    return bool(np.allclose(first, second, rtol=1e-5, atol=1e-5, equal_nan=True))


def _without_checker(env: Any) -> Any:
    """Return `env` without gymnasium's PassiveEnvChecker, which would raise before the findings are complete."""
    if type(env).__name__ == "PassiveEnvChecker":
        return env.env
    around = env
    while hasattr(around, "__dict__") and "env" in vars(around):
        if type(around.env).__name__ == "PassiveEnvChecker":
            around.env = around.env.env
            break
        around = around.env
    return env


_LONG = 10  # steps; the lengths of shorter episodes prove nothing
_SEVERAL = 3  # episodes


@dataclass
class CheckLimits:
    """Limits of a check, and counts of the episodes played."""

    episodes: int
    steps: int
    seconds: float
    lengths: tuple[int, ...] = ()  # in steps, of the ended episodes
    returns: float = 0.0  # sum over the ended episodes
    truncated: bool = False  # whether any of them was truncated
    taken: int = 0

    def __post_init__(self) -> None:
        self._until = time.monotonic() + self.seconds

    @property
    def reached(self) -> bool:
        """Whether a limit is reached."""
        return len(self.lengths) >= self.episodes or self.taken >= self.steps or time.monotonic() > self._until

    def add(self, length: int, total: float, truncated: bool) -> None:
        """Add an ended episode, with its return `total`."""
        self.lengths += (length,)
        self.returns += total
        self.truncated |= truncated

    def report(self, findings: Findings, where: str) -> None:
        """Add findings about the lengths of the episodes."""
        if not self.lengths:
            findings.warning(
                "endless",
                f"{where}no episode ended in {self.taken:,} steps, so no returns can be reported: truncate episodes,"
                " for example with max_episode_steps of gymnasium.register, or check with more --steps",
            )
        elif self.lengths[0] >= _LONG and set(self.lengths[1:]) == {1}:
            findings.warning(
                "begins",
                f"{where}the first episode had {self.lengths[0]:,} steps, and each later one ended in its first step:"
                " let reset() reset all state that ends an episode",
            )
        elif not self.truncated and (longest := max(self.lengths)) >= _LONG:
            count, played = self.lengths.count(longest), len(self.lengths)
            if count >= max(_SEVERAL, played / 2):
                findings.warning(
                    "time",
                    f"{where}{count} of {played} episodes terminated after {longest:,} steps, and none later: if this"
                    " is a time limit, return terminated=False and truncated=True there",
                )
