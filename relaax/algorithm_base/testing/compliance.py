"""Tests of the contract between an algorithm and the processes that run it. pytest runs subclasses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.agent import AgentBase, Leaves, Mask, StepResult
from relaax.algorithm_base.config import ConfigBase
from relaax.algorithm_base.declarations import TargetInterval
from relaax.algorithm_base.testing.fake_parameters import FakeParameters
from relaax.algorithm_base.testing.harness import live, make_agent
from relaax.algorithm_base.testing.random_environments import RandomEnvironments, sample
from relaax.hosting.fingerprint import fingerprint, parse_fingerprint
from relaax.hosting.loader import Algorithm
from relaax.optim import host_optimizers
from relaax.optim.learning_rates import check_rate_factors
from relaax.optim.optimizers import OptimizerSpec
from relaax.optim.vector import HostVector, is_finite
from relaax.parameters.interfaces import ParameterServerUnavailable, TrainingEnded
from relaax.parameters.moments import check_lengths
from relaax.rlx import Space


class AgentCompliance:
    """Base class of an algorithm's compliance tests (see `relaax.algorithm_base.testing` for an example).

    A subclass sets `algorithm`, `config_section` and the spaces. `impossible_spaces`: pairs of an observation and an
    action space that the algorithm must refuse. `patience`: number of steps within which an agent must push.
    `bootstraps`: False if the algorithm does not use the final observations of truncated episodes.
    """

    algorithm: ClassVar[Algorithm]
    config_section: ClassVar[Mapping[str, Any]]
    observation_space: ClassVar[Space]
    action_space: ClassVar[Space]
    impossible_spaces: ClassVar[Sequence[tuple[Space, Space]]] = ()
    environments: ClassVar[int] = 3
    patience: ClassVar[int] = 60
    bootstraps: ClassVar[bool] = True

    def config(self) -> ConfigBase:
        """Return the validated configuration of the algorithm."""
        return self.algorithm.configure(self.config_section)

    def agent(self, environments: int | None = None, **options: Any) -> tuple[AgentBase, FakeParameters]:
        """Return a new agent and its parameters. For `options` see `make_agent`."""
        count = self.environments if environments is None else environments
        spaces = (self.observation_space, self.action_space)
        return make_agent(self.algorithm, self.config(), *spaces, environments=count, **options)

    def random_environments(self, environments: int | None = None, **options: Any) -> RandomEnvironments:
        """Return random environments with the spaces of this test. For `options` see `RandomEnvironments`."""
        count = self.environments if environments is None else environments
        return RandomEnvironments(self.observation_space, self.action_space, count, **options)

    def test_initial_parameters_are_a_flat_float32_vector(self) -> None:
        first, second = (
            self.algorithm.ParameterServer(self.config(), self.observation_space, self.action_space).initial_parameters(
                5
            )
            for _ in range(2)
        )
        assert first.dtype == np.float32
        assert first.ndim == 1
        assert first.size > 0
        assert np.isfinite(first).all()
        np.testing.assert_array_equal(first, second, "the same seed must give the same parameters")

    def test_optimizer_updates_the_initial_parameters(self) -> None:
        server = self.algorithm.ParameterServer(self.config(), self.observation_space, self.action_space)
        spec = server.optimizer()
        assert isinstance(spec, OptimizerSpec)
        initial = server.initial_parameters(0)
        vector = HostVector(initial)
        host_optimizers.create(spec, initial.size).apply(vector, np.ones_like(initial), 1e-3)
        assert is_finite(vector.snapshot())
        assert not np.array_equal(vector.snapshot(), initial)

    def test_agent_records_every_declared_statistic(self) -> None:
        server = self.algorithm.ParameterServer(self.config(), self.observation_space, self.action_space)
        declared = check_lengths(server.statistics())
        agent, parameters = self.agent()
        environments = self.random_environments()
        live(
            agent, environments, 10 * self.patience, until=lambda: all(m.count for m in parameters.statistics.values())
        )
        assert {name: moments.size for name, moments in parameters.statistics.items()} == declared
        for name, moments in parameters.statistics.items():
            assert moments.count > 0, f"no sample of statistic {name} within {10 * self.patience} steps"

    def test_target_interval_is_none_or_a_target_interval(self) -> None:
        server = self.algorithm.ParameterServer(self.config(), self.observation_space, self.action_space)
        interval = server.target_interval()
        assert interval is None or isinstance(interval, TargetInterval), f"{interval!r} is not a TargetInterval"

    def test_learning_rates_cover_the_parameters(self) -> None:
        config = self.config()
        server = self.algorithm.ParameterServer(config, self.observation_space, self.action_space)
        check_rate_factors(server.learning_rates(), len(server.initial_parameters(config.seed)))

    def test_parsed_fingerprint_gives_the_same_fingerprint(self) -> None:
        text = fingerprint(self.algorithm.name, self.config(), self.observation_space, self.action_space)
        description, observation_space, action_space = parse_fingerprint(text)
        assert description["algorithm"] == self.algorithm.name
        assert action_space == self.action_space
        assert fingerprint(self.algorithm.name, self.config(), observation_space, action_space) == text

    def test_supported_spaces_are_accepted(self) -> None:
        refusal = self.algorithm.Agent.refusal(self.config(), self.observation_space, self.action_space)
        assert refusal is None

    def test_impossible_spaces_are_refused_in_one_sentence(self) -> None:
        for observation_space, action_space in self.impossible_spaces:
            sentence = self.algorithm.Agent.refusal(self.config(), observation_space, action_space)
            assert sentence, f"{observation_space}, {action_space} must be refused"
            assert "\n" not in sentence
            assert str(observation_space) in sentence or str(action_space) in sentence, f"no space named: {sentence}"

    def test_actions_are_in_the_action_space(self) -> None:
        for exploit in (False, True):
            for environments in (1, self.environments):
                for next_step in (False, True):
                    agent, parameters = self.agent(environments, exploit=exploit)
                    live(agent, self.random_environments(environments, next_step=next_step), self.patience)
                    agent.close()
                    assert not parameters.closed, "an agent must not close its parameters"

    def test_training_pushes_and_counts_every_step_once(self) -> None:
        for next_step in (False, True):
            agent, parameters = self.agent()
            environments = self.random_environments(next_step=[next_step, *[False] * (self.environments - 1)])
            pushes = 0
            actions = agent.reset(environments.reset())
            for _ in range(self.patience):
                actions = agent.step(environments.step(actions))
                agent.learn()
                if len(parameters.pushes) > pushes:
                    pushes = len(parameters.pushes)
                    assert parameters.global_step == environments.counted, (
                        "the sum of env_steps of all pushes differs from the number of steps"
                    )
            assert pushes > 0, f"no push within {self.patience} steps"
            assert any(push.gradient is not None and push.gradient.any() for push in parameters.pushes)
            assert parameters.episodes == [], "an agent must not record episodes; the worker does"

    def test_same_seed_gives_the_same_first_gradient(self) -> None:
        np.testing.assert_allclose(self._first_gradient(), self._first_gradient(), rtol=1e-4, atol=1e-6)

    def test_exploit_mode_is_deterministic_and_never_pushes(self) -> None:
        taken: list[list[Leaves]] = []
        for first_actor in (0, 100):
            agent, parameters = self.agent(exploit=True, first_actor=first_actor)
            environments, actions = self.random_environments(), []
            actions.append(agent.reset(environments.reset()))
            for _ in range(20):
                actions.append([leaf.copy() for leaf in agent.step(environments.step(actions[-1]))])
            taken.append(actions)
            assert parameters.pulls > 0
            assert parameters.pushes == []
        for first, second in zip(*taken, strict=True):
            for first_leaf, second_leaf in zip(first, second, strict=True):
                np.testing.assert_array_equal(first_leaf, second_leaf)

    def test_void_rewards_do_not_affect_training(self) -> None:
        def with_void(reward: float) -> FakeParameters:
            def edit(_: int, step: StepResult) -> StepResult:
                return replace(step, rewards=np.where(step.first, reward, step.rewards))

            agent, parameters = self.agent()
            live(agent, self.random_environments(next_step=True, end_probability=0.5), self.patience, edit)
            return parameters

        zero, large = with_void(0.0), with_void(1e30)
        np.testing.assert_allclose(zero.parameters, large.parameters, rtol=1e-3, atol=1e-5)
        for name, moments in zero.statistics.items():
            assert moments.count == large.statistics[name].count
            np.testing.assert_allclose(moments.mean, large.statistics[name].mean, rtol=1e-3, atol=1e-5)

    def test_final_observation_is_used_if_truncated(self) -> None:
        if self.bootstraps:
            gradients = [self._with_final_observations(seed, truncated=True) for seed in (1, 2)]
            assert not np.allclose(gradients[0], gradients[1], rtol=1e-4, atol=1e-7)

    def test_final_observation_is_ignored_if_terminated(self) -> None:
        gradients = [self._with_final_observations(seed, truncated=False) for seed in (1, 2)]
        np.testing.assert_allclose(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)

    def test_actions_out_of_step_are_in_the_action_space(self) -> None:
        if self.algorithm.Agent.out_of_step:
            for exploit in (False, True):
                for environments in (1, self.environments):
                    agent, _ = self.agent(environments, exploit=exploit, out_of_step=True)
                    live(agent, self._environments_out_of_step(environments), self.patience)

    def test_training_counts_completed_actions_once(self) -> None:
        if not self.algorithm.Agent.out_of_step:
            return
        agent, parameters = self.agent(out_of_step=True)
        environments = self._environments_out_of_step()
        pushes = 0
        actions = agent.reset(environments.reset())
        for _ in range(3 * self.patience):
            actions = agent.step(environments.step(actions))
            agent.learn()
            if len(parameters.pushes) > pushes:
                pushes = len(parameters.pushes)
                assert parameters.global_step == environments.counted, (
                    "the sum of env_steps of all pushes differs from the number of completed actions"
                )
        assert any(push.gradient is not None and push.gradient.any() for push in parameters.pushes)

    def test_held_rows_do_not_affect_training(self) -> None:
        if not self.algorithm.Agent.out_of_step:
            return

        def with_void(seed: int, reward: float) -> FakeParameters:
            void = self.random_environments(seed=seed)

            def edit(_: int, step: StepResult) -> StepResult:
                if step.held is None or step.unwanted is None:
                    return step
                rewards = np.where(step.held, reward, step.rewards)
                rows = zip(void.reset(), step.observations, strict=True)
                observations = [np.where(_rows(step.held, leaf), other, leaf) for other, leaf in rows]
                return replace(step, rewards=rewards, observations=observations)

            agent, parameters = self.agent(out_of_step=True)
            live(agent, self._environments_out_of_step(), 3 * self.patience, edit)
            return parameters

        zero, large = with_void(1, 0.0), with_void(2, 1e30)
        assert zero.pushes, f"no push within {3 * self.patience} steps"
        np.testing.assert_allclose(zero.parameters, large.parameters, rtol=1e-3, atol=1e-5)
        for name, moments in zero.statistics.items():
            assert moments.count == large.statistics[name].count
            np.testing.assert_allclose(moments.mean, large.statistics[name].mean, rtol=1e-3, atol=1e-5)

    def test_held_rows_do_not_change_greedy_actions(self) -> None:
        """Each step is passed as two: the outcomes of the even environments, then those of the odd ones."""
        if not self.algorithm.Agent.out_of_step:
            return
        count = 2 * self.environments
        even = np.arange(count) % 2 == 0
        together, _ = self.agent(count, exploit=True)
        apart, _ = self.agent(count, exploit=True, out_of_step=True)
        environments, void = self.random_environments(count, next_step=False), self.random_environments(count, seed=1)
        observations = environments.reset()
        expected, actions = together.reset(observations), apart.reset(observations)
        for _ in range(self.patience):
            step = environments.step(expected)
            expected = together.step(step)
            first = apart.step(_only(step, even, void.reset()))
            second = apart.step(_only(step, ~even, void.reset()))
            actions = [np.where(_rows(even, a), a, b) for a, b in zip(first, second, strict=True)]
            for expected_leaf, leaf in zip(expected, actions, strict=True):
                np.testing.assert_allclose(leaf, expected_leaf, rtol=1e-4, atol=1e-5)

    def test_only_chosen_rows_of_actions_affect_training(self) -> None:
        if not self.algorithm.Agent.chosen_actions:
            return

        def with_others(whole: int, real: float) -> FakeParameters:
            rng = np.random.default_rng(3)

            def edit(_: int, step: StepResult) -> StepResult:
                chosen = (rng.random(self.environments) < 0.3) & ~step.first
                actions = [leaf.copy() for leaf in sample(self.action_space, self.environments, rng)]
                for leaf in actions:
                    leaf[~chosen] = real if leaf.dtype.kind == "f" else whole
                return replace(step, chosen=chosen, actions=actions) if chosen.any() else step

            agent, parameters = self.agent()
            environments = self.random_environments()
            live(agent, environments, 3 * self.patience, edit, until=lambda: len(parameters.pushes) > 3)
            assert parameters.global_step <= environments.counted
            return parameters

        one, other = with_others(0, 0.0), with_others(99, math.nan)
        assert len(one.pushes) > 3, f"{len(one.pushes)} pushes within {3 * self.patience} steps"
        np.testing.assert_array_equal(one.parameters, other.parameters)

    def test_agent_can_be_reset_after_any_number_of_steps(self) -> None:
        agent, _ = self.agent()
        environments = self.random_environments()
        for steps in (0, 1, 7, self.patience):
            live(agent, environments, steps)

    def test_agent_continues_after_discarded_gradients(self) -> None:
        agent, parameters = self.agent()
        parameters.discard.extend(["stale", "incarnation", "not finite"])
        environments = self.random_environments()
        live(agent, environments, 10 * self.patience, until=lambda: len(parameters.pushes) > 3)
        assert len(parameters.pushes) > 3
        assert parameters.pushes[-1].discarded is None
        assert parameters.global_step == environments.counted

    def test_exceptions_of_parameters_pass_through_the_agent(self) -> None:
        for failure in (TrainingEnded(7), ParameterServerUnavailable("the parameter server is unreachable")):
            agent, parameters = self.agent()
            parameters.failures.append(failure)
            try:
                live(agent, self.random_environments(), self.patience)
            except (TrainingEnded, ParameterServerUnavailable) as raised:
                assert raised is failure
            else:
                raise AssertionError(f"{failure!r} was swallowed")
            agent.close()

    def test_close_is_safe_at_any_time(self) -> None:
        for steps in (None, 0, 3):
            agent, parameters = self.agent()
            if steps is not None:
                live(agent, self.random_environments(), steps)
            pushes = len(parameters.pushes)
            parameters.failures.append(AssertionError("close must not use the parameters: they may be closed"))
            agent.close()
            assert len(parameters.pushes) == pushes

    def _first_gradient(self, edit: Any = lambda _, step: step) -> npt.NDArray[np.float32]:
        """Return the first gradient that is pushed. An agent with a separate learner also pushes without a gradient."""
        agent, parameters = self.agent()

        def first() -> npt.NDArray[np.float32] | None:
            return next((push.gradient for push in parameters.pushes if push.gradient is not None), None)

        live(agent, self.random_environments(), self.patience, edit, until=lambda: first() is not None)
        gradient = first()
        assert gradient is not None, f"no gradient within {self.patience} steps"
        return gradient

    def _with_final_observations(self, seed: int, truncated: bool) -> npt.NDArray[np.float32]:
        """Return the first gradient if all episodes end at the first step, with final observations drawn by `seed`."""
        final = self.random_environments(seed=seed).reset()

        def edit(number: int, step: StepResult) -> StepResult:
            ended = np.full(step.first.shape, number == 0)
            return replace(
                step,
                terminated=ended & (not truncated),
                truncated=ended & truncated,
                final_observations=final if number == 0 else None,
            )

        return self._first_gradient(edit)

    def _environments_out_of_step(self, environments: int | None = None) -> RandomEnvironments:
        """Return environments that are out of step, with the first one in NEXT_STEP mode."""
        count = self.environments if environments is None else environments
        return self.random_environments(count, idle_probability=0.4, next_step=[True, *[False] * (count - 1)])


def _rows(mask: Mask, leaf: npt.NDArray[Any]) -> Mask:
    return mask.reshape(-1, *[1] * (leaf.ndim - 1))


def _only(step: StepResult, rows: Mask, void: Leaves) -> StepResult:
    """Return the step with the other rows held. Their observations are `void`."""
    observations = [np.where(_rows(rows, a), a, b) for a, b in zip(step.observations, void, strict=True)]
    return replace(
        step,
        observations=observations,
        terminated=step.terminated & rows,
        truncated=step.truncated & rows,
        first=step.first & rows,
        unwanted=~rows,
    )
