"""Tests of the contract between an algorithm and what drives it. A subclass says which algorithm; pytest runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.agent import AgentBase
from relaax.algorithm_base.config import ConfigBase
from relaax.algorithm_base.fingerprint import fingerprint, parse_fingerprint
from relaax.algorithm_base.loader import Algorithm
from relaax.algorithm_base.step import Leaves, StepResult
from relaax.algorithm_base.target_interval import TargetInterval
from relaax.algorithm_base.testing.fake_parameters import FakeParameters
from relaax.algorithm_base.testing.harness import live, make_agent
from relaax.algorithm_base.testing.random_environments import RandomEnvironments
from relaax.optim import host_optimizers
from relaax.optim.optimizers import OptimizerSpec
from relaax.optim.vector import HostVector, is_finite
from relaax.parameters.interfaces import ParameterServerUnavailable, TrainingEnded
from relaax.parameters.moments import check_lengths
from relaax.rlx import Space


class AgentCompliance:
    """What every algorithm must do, whatever it learns (see `relaax.algorithm_base.testing` for how to use it).

    A subclass gives `algorithm`, `config_section` and the spaces. `impossible_spaces` are pairs of an observation and
    an action space that the algorithm must refuse. `patience` is the number of steps within which an agent must have
    pushed. `bootstraps` is False for an algorithm that expects nothing of what comes after an episode was cut off.
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
        """Return the algorithm's configuration, checked."""
        return self.algorithm.configure(self.config_section)

    def agent(self, environments: int | None = None, **options: Any) -> tuple[AgentBase, FakeParameters]:
        """Return a new agent and its bridge; `options` are those of `make_agent`."""
        count = self.environments if environments is None else environments
        spaces = (self.observation_space, self.action_space)
        return make_agent(self.algorithm, self.config(), *spaces, environments=count, **options)

    def world(self, environments: int | None = None, **options: Any) -> RandomEnvironments:
        """Return random environments with the spaces of this test; `options` are those of `RandomEnvironments`."""
        count = self.environments if environments is None else environments
        return RandomEnvironments(self.observation_space, self.action_space, count, **options)

    def test_the_parameter_server_declares_a_flat_vector(self) -> None:
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

    def test_the_optimizer_updates_such_a_vector(self) -> None:
        server = self.algorithm.ParameterServer(self.config(), self.observation_space, self.action_space)
        spec = server.optimizer()
        assert isinstance(spec, OptimizerSpec)
        initial = server.initial_parameters(0)
        vector = HostVector(initial)
        host_optimizers.create(spec, initial.size).apply(vector, np.ones_like(initial), 1e-3)
        assert is_finite(vector.snapshot())
        assert not np.array_equal(vector.snapshot(), initial)

    def test_the_declared_statistics_are_gathered(self) -> None:
        server = self.algorithm.ParameterServer(self.config(), self.observation_space, self.action_space)
        declared = check_lengths(server.statistics())
        agent, bridge = self.agent()
        world = self.world()
        live(agent, world, 10 * self.patience, until=lambda: all(m.count for m in bridge.statistics.values()))
        assert {name: moments.size for name, moments in bridge.statistics.items()} == declared
        for name, moments in bridge.statistics.items():
            assert moments.count > 0, f"no sample of statistic {name} within {10 * self.patience} steps"

    def test_a_target_network_is_declared_by_an_interval(self) -> None:
        server = self.algorithm.ParameterServer(self.config(), self.observation_space, self.action_space)
        interval = server.target_interval()
        assert interval is None or isinstance(interval, TargetInterval), f"{interval!r} is no TargetInterval"

    def test_the_fingerprint_survives_the_wire(self) -> None:
        text = fingerprint(self.algorithm.name, self.config(), self.observation_space, self.action_space)
        description, observation_space, action_space = parse_fingerprint(text)
        assert description["algorithm"] == self.algorithm.name
        assert action_space == self.action_space
        assert fingerprint(self.algorithm.name, self.config(), observation_space, action_space) == text

    def test_its_own_spaces_are_accepted(self) -> None:
        refusal = self.algorithm.Agent.refusal(self.config(), self.observation_space, self.action_space)
        assert refusal is None

    def test_impossible_spaces_are_refused_in_a_sentence(self) -> None:
        for observation_space, action_space in self.impossible_spaces:
            sentence = self.algorithm.Agent.refusal(self.config(), observation_space, action_space)
            assert sentence, f"{observation_space}, {action_space} must be refused"
            assert "\n" not in sentence
            assert str(observation_space) in sentence or str(action_space) in sentence, f"no space named: {sentence}"

    def test_actions_are_in_the_action_space(self) -> None:
        for exploit in (False, True):
            for environments in (1, self.environments):
                for next_step in (False, True):
                    agent, bridge = self.agent(environments, exploit=exploit)
                    live(agent, self.world(environments, next_step=next_step), self.patience)
                    agent.close()
                    assert not bridge.closed, "the bridge is the worker's to close"

    def test_training_pushes_and_counts_every_step_once(self) -> None:
        for next_step in (False, True):
            agent, bridge = self.agent()
            world = self.world(next_step=[next_step, *[False] * (self.environments - 1)])
            pushes = 0
            actions = agent.reset(world.reset())
            for _ in range(self.patience):
                actions = agent.step(world.step(actions))
                agent.learn()
                if len(bridge.pushes) > pushes:
                    pushes = len(bridge.pushes)
                    assert bridge.global_step == world.counted, "env_steps of all pushes are not the steps so far"
            assert pushes > 0, f"no push within {self.patience} steps"
            assert any(push.gradient is not None and push.gradient.any() for push in bridge.pushes)
            assert bridge.episodes == [], "the worker counts episodes"

    def test_the_same_run_pushes_the_same(self) -> None:
        np.testing.assert_allclose(self._first_gradient(), self._first_gradient(), rtol=1e-4, atol=1e-6)

    def test_exploit_never_pushes_and_does_not_depend_on_chance(self) -> None:
        taken: list[list[Leaves]] = []
        for first_actor in (0, 100):
            agent, bridge = self.agent(exploit=True, first_actor=first_actor)
            world, actions = self.world(), []
            actions.append(agent.reset(world.reset()))
            for _ in range(20):
                actions.append([leaf.copy() for leaf in agent.step(world.step(actions[-1]))])
            taken.append(actions)
            assert bridge.pulls > 0
            assert bridge.pushes == []
        for ours, theirs in zip(*taken, strict=True):
            for our_leaf, their_leaf in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(our_leaf, their_leaf)

    def test_void_rewards_change_nothing(self) -> None:
        def with_void(reward: float) -> FakeParameters:
            def edit(_: int, step: StepResult) -> StepResult:
                return replace(step, rewards=np.where(step.first, reward, step.rewards))

            agent, bridge = self.agent()
            live(agent, self.world(next_step=True, end_probability=0.5), self.patience, edit)
            return bridge

        ours, theirs = with_void(0.0), with_void(1e30)
        np.testing.assert_allclose(ours.parameters, theirs.parameters, rtol=1e-3, atol=1e-5)
        for name, moments in ours.statistics.items():
            assert moments.count == theirs.statistics[name].count
            np.testing.assert_allclose(moments.mean, theirs.statistics[name].mean, rtol=1e-3, atol=1e-5)

    def test_what_follows_an_episode_counts_where_it_was_cut_off(self) -> None:
        if self.bootstraps:
            gradients = [self._with_final_observations(seed, truncated=True) for seed in (1, 2)]
            assert not np.allclose(gradients[0], gradients[1], rtol=1e-4, atol=1e-7)

    def test_what_follows_an_episode_counts_nothing_where_it_was_over(self) -> None:
        gradients = [self._with_final_observations(seed, truncated=False) for seed in (1, 2)]
        np.testing.assert_allclose(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)

    def test_a_reset_begins_anew(self) -> None:
        agent, _ = self.agent()
        world = self.world()
        for steps in (0, 1, 7, self.patience):
            live(agent, world, steps)

    def test_discarded_gradients_are_no_reason_to_stop(self) -> None:
        agent, bridge = self.agent()
        bridge.discard.extend(["stale", "incarnation", "not finite"])
        world = self.world()
        live(agent, world, 10 * self.patience, until=lambda: len(bridge.pushes) > 3)
        assert len(bridge.pushes) > 3
        assert bridge.pushes[-1].discarded is None
        assert bridge.global_step == world.counted

    def test_what_the_bridge_raises_passes_through(self) -> None:
        for failure in (TrainingEnded(7), ParameterServerUnavailable("the parameter server is away")):
            agent, bridge = self.agent()
            bridge.failures.append(failure)
            try:
                live(agent, self.world(), self.patience)
            except (TrainingEnded, ParameterServerUnavailable) as raised:
                assert raised is failure
            else:
                raise AssertionError(f"{failure!r} was swallowed")
            agent.close()

    def test_closing_is_safe_at_any_time(self) -> None:
        for steps in (None, 0, 3):
            agent, bridge = self.agent()
            if steps is not None:
                live(agent, self.world(), steps)
            pushes = len(bridge.pushes)
            bridge.failures.append(AssertionError("the bridge may be gone by then"))
            agent.close()
            assert len(bridge.pushes) == pushes

    def _first_gradient(self, edit: Any = lambda _, step: step) -> npt.NDArray[np.float32]:
        """Of the pushes that have one: those of an agent beside a learner only count its steps."""
        agent, bridge = self.agent()

        def first() -> npt.NDArray[np.float32] | None:
            return next((push.gradient for push in bridge.pushes if push.gradient is not None), None)

        live(agent, self.world(), self.patience, edit, until=lambda: first() is not None)
        gradient = first()
        assert gradient is not None, f"no gradient within {self.patience} steps"
        return gradient

    def _with_final_observations(self, seed: int, truncated: bool) -> npt.NDArray[np.float32]:
        """First gradient where every episode ends at the first step, with final observations that the seed fixes."""
        final = self.world(seed=seed).reset()

        def edit(number: int, step: StepResult) -> StepResult:
            ended = np.full(step.first.shape, number == 0)
            return replace(
                step,
                terminated=ended & (not truncated),
                truncated=ended & truncated,
                final_observations=final if number == 0 else None,
            )

        return self._first_gradient(edit)
