"""The fakes check the contract of agents, and the compliance tests fail for agents that break it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from relaax.algorithm_base import (
    AgentBase,
    Box,
    ConfigBase,
    Dict,
    Discrete,
    Leaves,
    MultiBinary,
    MultiDiscrete,
    ParameterServerBase,
    Space,
    StepResult,
    TargetInterval,
    Tuple,
)
from relaax.algorithm_base.testing import (
    AgentCompliance,
    ContractBroken,
    FakeParameters,
    RandomEnvironments,
    sample,
)
from relaax.parameters.interfaces import EXPLOIT, TRAIN, ParameterServerUnavailable, Registration, TrainingEnded
from relaax.parameters.moments import Moments
from support.algorithms import algorithm_of

TWO = np.array([1.0, 2.0], np.float32)


def registered(exploit: bool = False, **options: Any) -> FakeParameters:
    parameters_client = FakeParameters(TWO, **options)
    parameters_client.register(Registration("{}", environments=2, purpose=EXPLOIT if exploit else TRAIN))
    return parameters_client


def pulled(**options: Any) -> FakeParameters:
    parameters_client = registered(**options)
    parameters_client.pull()
    return parameters_client


def test_fake_parameters_apply_gradients() -> None:
    parameters_client = registered(learning_rate=0.5)
    before = parameters_client.pull()
    pushed = parameters_client.push(np.array([2, -4], np.float32), 7)
    assert parameters_client.parameters.tolist() == [0.0, 4.0]  # 1 - 2/2, 2 + 4/2
    assert (pushed.discarded, pushed.global_step, pushed.version, pushed.staleness) == (None, 7, 1, 0)
    assert pushed.pulled is not None
    assert pushed.pulled.parameters.tolist() == [0.0, 4.0]
    assert before.parameters.tolist() == [1.0, 2.0], "pulled parameters never change"
    assert parameters_client.pushes[0].base is before


def test_fake_parameters_count_staleness_and_steps() -> None:
    parameters_client = pulled()
    parameters_client.publish(TWO)
    parameters_client.publish(TWO)
    pushed = parameters_client.push(TWO, 3, want_parameters=False)
    assert (pushed.staleness, pushed.version, pushed.pulled) == (2, 3, None)
    assert parameters_client.push(None, 4).version == 3
    assert parameters_client.global_step == 7


def test_pull_of_an_unchanged_model_returns_the_same_object() -> None:
    parameters_client = registered()
    assert parameters_client.pull() is parameters_client.pull()


def test_discarded_gradient_counts_only_its_steps() -> None:
    parameters_client = pulled()
    parameters_client.discard.append("stale")
    pushed = parameters_client.push(TWO, 3)
    assert (pushed.discarded, pushed.version, pushed.global_step) == ("stale", 0, 3)
    parameters_client.push(TWO, 1)
    parameters_client.discard.append("incarnation")
    pushed = parameters_client.push(TWO, 1, want_parameters=False)
    assert pushed.pulled is not None
    assert pushed.pulled.parameters.tolist() == [1.0, 2.0]


def test_statistics_are_merged_by_the_push() -> None:
    parameters_client = registered(statistics={"a": 1})
    before = parameters_client.pull()
    assert before.statistics["a"].count == 0
    parameters_client.metrics.statistic("a", Moments.of([[1], [3]]))
    parameters_client.metrics.statistic("a", Moments.of([[8]]))
    assert parameters_client.pull() is before
    parameters_client.discard.append("stale")
    pushed = parameters_client.push(TWO, 1)
    assert pushed.pulled is not None
    merged = pushed.pulled.statistics["a"]
    assert (merged.count, merged.mean.tolist(), merged.m2.tolist()) == (3, [4], [26])
    assert parameters_client.pushes[0].statistics["a"].count == 3
    assert parameters_client.push(TWO, 1).pulled.statistics["a"] is merged
    assert before.statistics["a"].count == 0
    # `publish` simulates pushes of other workers.
    parameters_client.publish(TWO, {"a": Moments.of([[4]])})
    assert parameters_client.pull().statistics["a"].count == parameters_client.statistics["a"].count == 4


def test_new_incarnation_has_only_statistics_of_the_lost_push() -> None:
    parameters_client = pulled(statistics={"a": 1})
    parameters_client.metrics.statistic("a", Moments.of([[1], [3]]))
    parameters_client.push(TWO, 1)
    parameters_client.metrics.statistic("a", Moments.of([[8]]))
    parameters_client.discard.append("incarnation")
    assert parameters_client.push(TWO, 1).pulled.statistics["a"].mean.tolist() == [8]


def test_target_is_refreshed_after_an_interval_of_frames() -> None:
    parameters_client = registered(target=TargetInterval(frames=10), frame_skip=2)
    first = parameters_client.pull()
    assert first.target is not None
    assert (first.target.tolist(), first.target.flags.writeable, first.frames) == ([1, 2], False, 0)
    before = parameters_client.push(TWO, 4).pulled
    assert before is not None
    assert (before.target is first.target, before.frames) == (True, 8)
    parameters_client.publish(TWO)
    assert parameters_client.pull().target is first.target, "published parameters add no frames"
    crossing = parameters_client.push(TWO, 13).pulled
    assert crossing is not None
    assert (crossing.target is crossing.parameters, crossing.frames) == (True, 34)
    parameters_client.discard.append("stale")
    late = parameters_client.push(TWO, 2).pulled
    assert late is not None
    assert (late.target is crossing.target, late.parameters is crossing.parameters, late.frames) == (True, True, 38)
    parameters_client.push(TWO, 0)
    parameters_client.discard.append("stale")
    assert parameters_client.push(TWO, 1).pulled.target is parameters_client.parameters, (
        "frames of a discarded gradient count"
    )


def test_target_is_refreshed_by_updates_of_all_workers() -> None:
    parameters_client = registered(target=TargetInterval(updates=2))
    first = parameters_client.pull()
    parameters_client.push(TWO, 100)
    assert parameters_client.pull().target is first.target
    parameters_client.publish(TWO)
    assert parameters_client.pull().target is parameters_client.parameters
    parameters_client.discard.append("incarnation")
    assert parameters_client.push(TWO, 1).pulled.target.tolist() == [1, 2]


def test_soft_target_moves_by_tau_with_each_update() -> None:
    parameters_client = registered(target=TargetInterval(updates=1, tau=0.25))
    first = parameters_client.pull()
    assert first.target is not None and first.target.tolist() == [1, 2]
    parameters_client.publish(np.float32([5, 6]))
    assert parameters_client.pull().target.tolist() == [2, 3]
    parameters_client.publish(np.float32([6, 7]))
    moved = parameters_client.pull().target
    assert moved is not None and (moved.tolist(), moved.flags.writeable) == ([3, 4], False)
    parameters_client.discard.append("stale")
    assert parameters_client.push(TWO, 1).pulled.target is moved
    parameters_client.discard.append("incarnation")
    assert parameters_client.push(TWO, 1).pulled.target.tolist() == [1, 2]


def test_target_is_missing_in_exploit_mode_or_if_undeclared() -> None:
    acts = registered(exploit=True, target=TargetInterval(updates=1))
    assert acts.pull().target is None
    acts.publish(TWO)
    assert (acts.pull().target, pulled().pull().target) == (None, None)


def test_calls_after_the_last_step_raise_training_ended() -> None:
    parameters_client = pulled(max_global_step=5)
    parameters_client.push(TWO, 5)
    for call in (parameters_client.pull, lambda: parameters_client.push(TWO, 1)):
        with pytest.raises(TrainingEnded):
            call()


def test_failures_are_raised_once() -> None:
    parameters_client = pulled()
    parameters_client.failures.append(ParameterServerUnavailable("gone"))
    with pytest.raises(ParameterServerUnavailable, match="gone"):
        parameters_client.push(TWO, 1)
    parameters_client.push(TWO, 1)


def register_twice(parameters_client: FakeParameters) -> None:
    parameters_client.register(Registration("{}"))


def call_after_close(parameters_client: FakeParameters) -> None:
    parameters_client.close()
    parameters_client.flush()


def write_to_parameters(parameters_client: FakeParameters) -> None:
    parameters_client.pull().parameters[0] = 3


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (lambda b: b.push(TWO.astype(np.float64), 1), "a gradient must be float32, not float64"),
        (lambda b: b.push(TWO[:1], 1), r"a gradient must have shape \(2,\), not \(1,\)"),
        (lambda b: b.push(np.array([1, np.nan], np.float32), 1), "must be finite"),
        (lambda b: b.push([1.0, 2.0], 1), "a gradient must be an array, not list"),
        (lambda b: b.push(TWO, -1), "env_steps must be at least 0"),
        (lambda b: b.push(TWO, 1.0), "env_steps must be an int"),
        (lambda b: b.push(TWO, np.int64(1)), "env_steps must be an int"),
        (lambda b: b.metrics.scalar("loss policy", 1.0), "'loss policy' is not a valid name"),
        (lambda b: b.metrics.scalar("loss/policy", float("nan")), "scalar loss/policy must be finite, not nan"),
        (
            lambda b: b.metrics.statistic("a", Moments.zeros(1)),
            r"'a' is not among the declared statistics \['b'\]",
        ),
        (lambda b: b.metrics.statistic("b", Moments.zeros(1)), "statistic b must have 2 numbers, not 1"),
        (lambda b: b.metrics.statistic("b", np.zeros(2)), "a statistic must be Moments, not ndarray"),
        (register_twice, "register was called twice"),
        (call_after_close, "flush after close"),
    ],
)
def test_invalid_call_breaks_the_contract(act: Callable[[FakeParameters], None], sentence: str) -> None:
    with pytest.raises(ContractBroken, match=sentence):
        act(pulled(statistics={"b": 2}))


def test_calls_out_of_order_break_the_contract() -> None:
    with pytest.raises(ContractBroken, match="pull before register"):
        FakeParameters(TWO).pull()
    with pytest.raises(ContractBroken, match="push before the first pull"):
        registered().push(TWO, 1)
    with pytest.raises(ContractBroken, match="push in exploit mode"):
        pulled(exploit=True).push(TWO, 1)
    with pytest.raises(ContractBroken, match="statistic in exploit mode"):
        pulled(exploit=True, statistics={"b": 2}).metrics.statistic("b", Moments.zeros(2))
    with pytest.raises(ValueError, match="read-only"):
        write_to_parameters(registered())


@pytest.mark.parametrize(
    "space",
    [
        Box(),
        Box(0, 255, shape=(3, 2), dtype=np.uint8),
        Box(np.array([-5, 2]), np.array([-3, np.inf])),
        Box(-4.8e38, 3.4e38, shape=(2,)),
        Box(-7, -7, dtype=np.int64),
        Box(0, 1, shape=(3,), dtype=np.bool_),
        Discrete(3, start=-9),
        MultiDiscrete([2, 5]),
        MultiBinary([2, 2]),
        Tuple([Discrete(2), Dict({"a": Box(0, 1), "b": MultiBinary(3)})]),
    ],
    ids=str,
)
def test_samples_are_within_their_space(space: Space) -> None:
    envs = RandomEnvironments(Box(), space, 50)  # checks actions like the protocol
    envs.step(sample(space, 50, np.random.default_rng(0)))


def test_samples_reach_both_ends() -> None:
    drawn = sample(Box(0, 3, dtype=np.uint8), 200, np.random.default_rng(0))[0]
    assert set(drawn.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "actions", [np.array([0, 2]), np.array([-1, 0]), np.array([0]), np.array([0.0, 1.0]), np.array([0, 1], np.int32)]
)
def test_actions_outside_the_space_break_the_contract(actions: np.ndarray) -> None:
    envs = RandomEnvironments(Box(), Discrete(2), 2)
    envs.reset()
    with pytest.raises(ContractBroken, match="action"):
        envs.step([actions])


def test_random_environments_terminate_and_truncate_episodes() -> None:
    envs = RandomEnvironments(Box(shape=(2,)), Discrete(2), 2, next_step=[True, False], end_probability=0.4)
    envs.reset()
    seen = {"terminated": 0, "truncated": 0, "first": 0}
    starting, counted = np.zeros(2, np.bool_), 0
    for _ in range(100):
        step = envs.step([np.zeros(2, np.int64)])
        np.testing.assert_array_equal(step.first, starting)
        assert not (step.first & step.ended).any()
        assert not (step.terminated & step.truncated).any()
        assert (step.final_observations is not None) == step.ended.any()
        if step.ended[0]:
            np.testing.assert_array_equal(step.final_observations[0][0], step.observations[0][0])
        if step.ended[1]:
            assert (step.final_observations[0][1] != step.observations[0][1]).any()
        starting = step.ended & [True, False]
        counted += step.env_steps
        for name in seen:
            seen[name] += int(getattr(step, name).sum())
    assert min(seen.values()) > 10
    assert counted == envs.counted == 200 - seen["first"]


def test_random_environments_wait_leave_and_come() -> None:
    envs = RandomEnvironments(
        Box(shape=(2,)), Discrete(2), 2, next_step=[True, False], end_probability=0.4, idle_probability=0.5
    )
    envs.reset()
    away, counted = envs._away, 0
    seen = {"held": 0, "left": 0, "came": 0, "stayed": 0, "continued": 0}
    for _ in range(200):
        step = envs.step([np.zeros(2, np.int64)])
        unwanted = np.zeros(2, np.bool_) if step.unwanted is None else step.unwanted
        np.testing.assert_array_equal(step.first, away & ~unwanted)
        assert not (step.ended & away).any()
        assert not (step.ended & [True, False] & ~unwanted).any(), "a NEXT_STEP environment is away after its end"
        assert (step.final_observations is not None) == step.ended.any()
        seen["held"] += int((unwanted & ~step.ended & ~away).sum())
        seen["left"] += int((unwanted & step.ended).sum())
        seen["came"] += int(step.first.sum())
        seen["stayed"] += int((away & unwanted).sum())
        seen["continued"] += int((step.ended & ~unwanted).sum())
        away = unwanted & (away | step.ended)
        counted += step.env_steps
    assert min(seen.values()) > 10
    assert counted == envs.counted == 400 - seen["held"] - seen["came"] - seen["stayed"]


# An algorithm with one parameter: the value of every observation. Each subclass below breaks one rule.


class Config(ConfigBase):
    pass


class ParameterServer(ParameterServerBase):
    def initial_parameters(self, seed: int) -> np.ndarray:
        return np.array([0.5], np.float32)


class Agent(AgentBase):
    """An agent that learns the mean return, and acts by the sign of its first input."""

    def __init__(self, config: Any, context: Any) -> None:
        super().__init__(config, context)
        self.value = float(context.parameters.pull().parameters[0])

    @classmethod
    def refusal(cls, config: Any, observation_space: Space, action_space: Space) -> str | None:
        return None if action_space == Discrete(2) else f"it cannot handle {action_space}"

    def reset(self, observations: Leaves) -> Leaves:
        return self.act(observations)

    def act(self, observations: Leaves) -> Leaves:
        return [(observations[0][:, 0] > 0).astype(np.int64)]

    def bootstrap(self, step: StepResult) -> np.ndarray:
        if step.final_observations is None:
            return np.zeros(len(step.first))
        return np.where(step.truncated, step.final_observations[0][:, 0] * self.value, 0.0)

    def valid(self, step: StepResult) -> np.ndarray:
        return ~step.first

    def step(self, step: StepResult) -> Leaves:
        if not self.context.exploit:
            targets = np.where(self.valid(step), step.rewards + self.bootstrap(step), self.value)
            self.push(np.array([np.mean(self.value - targets)], np.float32), step.env_steps)
        return self.act(step.observations)

    def push(self, gradient: np.ndarray, env_steps: int) -> None:
        pushed = self.context.parameters.push(gradient, env_steps)
        self.value = float(pushed.pulled.parameters[0])


class TestValidAgent(AgentCompliance):
    algorithm = algorithm_of("mean", Path(__file__), Config, Agent, ParameterServer)
    config_section: ClassVar = {"path": "mean"}
    observation_space = Box(-1, 1, shape=(2,))
    action_space = Discrete(2)
    impossible_spaces = ((Box(shape=(2,)), Discrete(3)),)


class Remembers(Agent):
    """An agent for environments out of step that acts by the sign of the sum of its inputs in the episode."""

    out_of_step = True

    def valid(self, step: StepResult) -> np.ndarray:
        return step.acted

    def reset(self, observations: Leaves) -> Leaves:
        self.sums = np.zeros(len(observations[0]))
        return super().reset(observations)

    def step(self, step: StepResult) -> Leaves:
        self.sums[step.restart] = 0
        self.wanted = self.wants(step)
        return super().step(step)

    def wants(self, step: StepResult) -> np.ndarray:
        return np.ones_like(step.first) if step.held is None else ~step.held

    def act(self, observations: Leaves) -> Leaves:
        self.sums += np.where(getattr(self, "wanted", True), observations[0][:, 0], 0)
        return [(self.sums > 0).astype(np.int64)]


class TestAgentOutOfStep(TestValidAgent):
    algorithm = algorithm_of("remembering", Path(__file__), Config, Remembers, ParameterServer)


class OutOfSpaceIfHeld(Remembers):
    def act(self, observations: Leaves) -> Leaves:
        return [super().act(observations)[0] + 2 * ~np.asarray(getattr(self, "wanted", True))]


class CountsHeldSteps(Remembers):
    def push(self, gradient: np.ndarray, env_steps: int) -> None:
        super().push(gradient, self.context.environments)


class LearnsFromHeldRows(Remembers):
    def valid(self, step: StepResult) -> np.ndarray:
        return ~step.first


class RemembersHeldRows(Remembers):
    def wants(self, step: StepResult) -> np.ndarray:
        return np.ones_like(step.first)


class DeclaresRewards(ParameterServer):
    def statistics(self) -> dict[str, int]:
        return {"rewards": 1}


class RecordsRewards(Agent):
    def step(self, step: StepResult) -> Leaves:
        if not self.context.exploit:
            self.gather(step)
        return super().step(step)

    def gather(self, step: StepResult) -> None:
        self.context.metrics.statistic("rewards", Moments.of(step.rewards[self.valid(step), None]))


class TestAgentWithStatistics(TestValidAgent):
    algorithm = algorithm_of("gathering", Path(__file__), Config, RecordsRewards, DeclaresRewards)


class RecordsInExploit(RecordsRewards):
    def step(self, step: StepResult) -> Leaves:
        self.gather(step)
        return super().step(step)


class RecordsVoidRewards(RecordsRewards):
    def gather(self, step: StepResult) -> None:
        self.context.metrics.statistic("rewards", Moments.of(step.rewards[:, None]))


class RecordsNothing(RecordsRewards):
    def gather(self, step: StepResult) -> None:
        pass


class DeclaresInvalidSize(ParameterServer):
    def statistics(self) -> dict[str, int]:
        return {"rewards": 0}


class OutOfSpace(Agent):
    def act(self, observations: Leaves) -> Leaves:
        return [np.full(len(observations[0]), 2)]


class PushesInExploit(Agent):
    def step(self, step: StepResult) -> Leaves:
        self.push(np.ones(1, np.float32), 0)
        return self.act(step.observations)


class RandomInExploit(Agent):
    def act(self, observations: Leaves) -> Leaves:
        rng = np.random.default_rng(self.context.actors)
        return [rng.integers(0, 2, len(observations[0]))]


class CountsVoidSteps(Agent):
    def push(self, gradient: np.ndarray, env_steps: int) -> None:
        super().push(gradient, self.context.environments)


class CountsNothing(Agent):
    def push(self, gradient: np.ndarray, env_steps: int) -> None:
        super().push(gradient, 0)


class LearnsFromVoidRewards(Agent):
    def valid(self, step: StepResult) -> np.ndarray:
        return np.ones_like(step.first)


class NeverBootstraps(Agent):
    def bootstrap(self, step: StepResult) -> np.ndarray:
        return np.zeros(len(step.first))


class AlwaysBootstraps(Agent):
    def bootstrap(self, step: StepResult) -> np.ndarray:
        return super().bootstrap(replace(step, truncated=step.ended))


class SuppressesErrors(Agent):
    def push(self, gradient: np.ndarray, env_steps: int) -> None:
        with contextlib.suppress(TrainingEnded, ParameterServerUnavailable):
            super().push(gradient, env_steps)


class ClosesParameters(Agent):
    def close(self) -> None:
        self.context.parameters.close()


class PushesAtTheEnd(Agent):
    def close(self) -> None:
        self.context.parameters.push(None, 0)


class RefusesAll(Agent):
    @classmethod
    def refusal(cls, config: Any, observation_space: Space, action_space: Space) -> str | None:
        return "no"


class AcceptsAll(Agent):
    @classmethod
    def refusal(cls, config: Any, observation_space: Space, action_space: Space) -> str | None:
        return None


class CountsEpisodes(Agent):
    def step(self, step: StepResult) -> Leaves:
        self.context.metrics.episode(0.0, 1)
        return super().step(step)


class NeverPushes(Agent):
    def push(self, gradient: np.ndarray, env_steps: int) -> None:
        pass


class FailsAfterDiscard(Agent):
    """An agent that fails if a push is discarded."""

    def push(self, gradient: np.ndarray, env_steps: int) -> None:
        if self.context.parameters.push(gradient, env_steps).discarded:
            raise RuntimeError("discarded")


class DrawsParameters(ParameterServer):
    def initial_parameters(self, seed: int) -> np.ndarray:
        return np.random.default_rng().normal(size=1).astype(np.float32)


class Float64Parameters(ParameterServer):
    def initial_parameters(self, seed: int) -> np.ndarray:
        return np.zeros(1)


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (OutOfSpace, "test_actions_are_in_the_action_space"),
        (PushesInExploit, "test_exploit_mode_is_deterministic_and_never_pushes"),
        (RandomInExploit, "test_exploit_mode_is_deterministic_and_never_pushes"),
        (CountsVoidSteps, "test_training_pushes_and_counts_every_step_once"),
        (CountsNothing, "test_training_pushes_and_counts_every_step_once"),
        (CountsEpisodes, "test_training_pushes_and_counts_every_step_once"),
        (NeverPushes, "test_training_pushes_and_counts_every_step_once"),
        (LearnsFromVoidRewards, "test_void_rewards_do_not_affect_training"),
        (NeverBootstraps, "test_final_observation_is_used_if_truncated"),
        (AlwaysBootstraps, "test_final_observation_is_ignored_if_terminated"),
        (SuppressesErrors, "test_exceptions_of_parameters_pass_through_the_agent"),
        (ClosesParameters, "test_actions_are_in_the_action_space"),
        (PushesAtTheEnd, "test_close_is_safe_at_any_time"),
        (RefusesAll, "test_supported_spaces_are_accepted"),
        (AcceptsAll, "test_impossible_spaces_are_refused_in_one_sentence"),
        (FailsAfterDiscard, "test_agent_continues_after_discarded_gradients"),
        (DrawsParameters, "test_initial_parameters_are_a_flat_float32_vector"),
        (Float64Parameters, "test_initial_parameters_are_a_flat_float32_vector"),
        (DeclaresInvalidSize, "test_agent_records_every_declared_statistic"),
        (RecordsRewards, "test_agent_records_every_declared_statistic"),
        (OutOfSpaceIfHeld, "test_actions_out_of_step_are_in_the_action_space"),
        (CountsHeldSteps, "test_training_counts_completed_actions_once"),
        (LearnsFromHeldRows, "test_held_rows_do_not_affect_training"),
        (RemembersHeldRows, "test_held_rows_do_not_change_greedy_actions"),
    ],
)
def test_agent_that_breaks_a_rule_fails_compliance(broken: Any, test: str) -> None:
    is_agent = issubclass(broken, Agent)

    class Broken(TestValidAgent):
        __test__ = False
        algorithm = algorithm_of(
            "broken", Path(__file__), Config, broken if is_agent else Agent, ParameterServer if is_agent else broken
        )

    with pytest.raises((AssertionError, RuntimeError, ValueError)):
        getattr(Broken(), test)()


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (RecordsInExploit, "test_exploit_mode_is_deterministic_and_never_pushes"),
        (RecordsVoidRewards, "test_void_rewards_do_not_affect_training"),
        (RecordsNothing, "test_agent_records_every_declared_statistic"),
    ],
)
def test_agent_that_records_wrong_statistics_fails_compliance(broken: type[Agent], test: str) -> None:
    class Broken(TestAgentWithStatistics):
        __test__ = False
        algorithm = algorithm_of("broken", Path(__file__), Config, broken, DeclaresRewards)

    with pytest.raises(AssertionError):
        getattr(Broken(), test)()
