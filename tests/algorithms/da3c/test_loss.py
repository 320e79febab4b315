"""The actor-critic loss computed by hand, and the effect of a changed term on the gradient of every engine."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import Box, Dict, Discrete, load_algorithm
from relaax.algorithm_base.rollout import Batch
from relaax.nn.distributions import Bernoulli, Categorical, Distribution, Gaussian, MultiCategorical
from relaax.nn.engine import Engine
from relaax.nn.host.engine import HostEngine
from relaax.nn.initialization import orthogonal_parameters
from relaax.nn.specification import NetworkSpec
from relaax.nn.tensorflow_engine import TensorFlowEngine

DA3C = load_algorithm("da3c", Path())
PACKAGE = DA3C.Agent.__module__.rpartition(".")[0]
LOSS = importlib.import_module(".loss", PACKAGE)
C, BETA = 0.25, 0.05


def config(**keys: Any) -> Any:
    return DA3C.configure({"path": "da3c", "value_loss_weight": C, "entropy_beta": BETA} | keys)


def batch(steps: int, environments: int, policy: Distribution, mask: Any = 1.0) -> Any:
    shape, rng = (steps, environments), np.random.default_rng(1)
    nothing = {head: np.zeros((steps * environments, width), np.float32) for head, width in policy.heads.items()}
    return Batch(
        inputs=rng.normal(size=(*shape, 3)).astype(np.float32),
        actions=policy.sample(nothing, rng).reshape(*shape, *policy.action_shape),
        advantages=rng.normal(size=shape).astype(np.float32),
        targets=rng.normal(size=shape).astype(np.float32),
        mask=np.broadcast_to(np.asarray(mask, np.float32), shape),
        state=np.zeros((environments, 0), np.float32),
        restart=np.zeros(shape, np.bool_),
    )


def test_actor_critic_loss_by_hand() -> None:
    # One step of two environments; the second is masked. pi = [3/4, 1/4], the action is 1, A = 2, V = 1 and R = 4.
    policy = Categorical(2)
    given = batch(1, 2, policy, [[1, 0]])
    given.actions[...], given.advantages[...], given.targets[...] = 1, 2, 4
    log_3 = np.log(3.0)
    outputs = {
        "policy": np.array([[log_3, 0], [5, 7]], np.float32),
        "value": np.array([[1], [9]], np.float32),
    }
    loss = LOSS.ActorCriticLoss(config(), policy, given)
    found = loss(outputs, slice(0, 2))
    # Derivative by the logits: (A (pi - onehot) + beta pi (log pi + H)) / N. By the value: -2 c (R - V) / N.
    by_logits = np.array([1.5, -1.5]) + BETA * 3 / 16 * log_3 * np.array([1, -1])
    np.testing.assert_allclose(found["policy"], [by_logits / 2, [0, 0]], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found["value"], [[-2 * C * 3 / 2], [0]], rtol=1e-6)
    entropy = np.log(4) - 0.75 * log_3
    expected = {"loss/policy": 2 * np.log(4), "loss/value": 9.0, "loss/entropy": entropy}
    expected["loss"] = 2 * np.log(4) + C * 9 - BETA * entropy
    assert loss.means == pytest.approx(expected)


@pytest.mark.parametrize("choices", [1, 2, 18])
def test_relative_entropy_has_one_maximum_for_any_actions(choices: int) -> None:
    policy = Categorical(choices)
    given = batch(1, 1, policy)
    outputs = {"policy": np.zeros((1, choices), np.float32), "value": given.targets.reshape(1, 1)}
    loss = LOSS.ActorCriticLoss(config(relative_entropy=True), policy, given)
    loss(outputs, slice(0, 1))
    means = loss.means
    assert means["loss/entropy"] == pytest.approx(np.log(choices)), "it is reported in nats"
    expected = BETA if choices > 1 else 0.0
    assert means["loss/policy"] - means["loss"] == pytest.approx(expected, rel=1e-5, abs=1e-9)


def test_relative_entropy_of_real_numbers_is_refused() -> None:
    spaces = Box(-1, 1, (2,)), Dict({"aim": Box(-1, 1, (2,)), "fire": Discrete(2)})
    refused = DA3C.refusal(config(relative_entropy=True), *spaces)
    assert refused is not None
    assert "no maximum; set algorithm.relative_entropy to false" in refused.sentence
    assert DA3C.refusal(config(), *spaces) is None
    assert DA3C.refusal(config(relative_entropy=True), spaces[0], Discrete(18)) is None


def test_loss_of_chosen_actions_by_hand() -> None:
    # One step of two environments, as above; the client chose the second action. w = 0.5, so its term is -0.5 log pi.
    policy = Categorical(2)
    given = batch(1, 2, policy)
    given.actions[...], given.advantages[...], given.targets[...] = 1, 2, 4
    given = replace(given, chosen=np.array([[False, True]]))
    log_3 = np.log(3.0)
    outputs = {"policy": np.array([[log_3, 0]] * 2, np.float32), "value": np.array([[1], [1]], np.float32)}
    loss = LOSS.ActorCriticLoss(config(cloning_weight=0.5), policy, given)
    found = loss(outputs, slice(0, 2))
    own = np.array([1.5, -1.5]) + BETA * 3 / 16 * log_3 * np.array([1, -1])
    cloned = 0.5 * np.array([0.75, -0.75])
    np.testing.assert_allclose(found["policy"], [own / 2, cloned / 2], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found["value"], [[-2 * C * 3 / 2]] * 2, rtol=1e-6)
    entropy = np.log(4) - 0.75 * log_3
    expected = {"loss/policy": np.log(4), "loss/value": 9.0, "loss/entropy": entropy / 2, "loss/cloning": np.log(4) / 4}
    expected["loss"] = np.log(4) + C * 9 - BETA * entropy / 2 + np.log(4) / 4
    assert loss.means == pytest.approx(expected)


def test_chosen_action_that_was_not_valid_is_not_cloned() -> None:
    policy = Categorical(3)
    given = batch(1, 2, policy)
    given.actions[...] = [[2, 1]]
    valid = np.array([[[1, 1, 0], [1, 1, 0]]], np.bool_)
    given = replace(given, chosen=np.array([[True, True]]), valid=valid)
    loss = LOSS.ActorCriticLoss(config(cloning_weight=1), policy, given)
    found = loss({"policy": np.zeros((2, 3), np.float32), "value": np.zeros((2, 1), np.float32)}, slice(0, 2))
    np.testing.assert_allclose(found["policy"], [[0, 0, 0], [0.25, -0.25, 0]], atol=1e-7)
    assert loss.means["loss/cloning"] == pytest.approx(np.log(2) / 2)


POLICIES = [Categorical(3), Gaussian(2), Gaussian(2, spherical=True), MultiCategorical((2, 3)), Bernoulli(2)]


@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("policy", POLICIES, ids=["choice", "numbers", "spherical", "choices", "bits"])
def test_derivative_is_the_slope_of_the_reported_loss(policy: Distribution, chosen: bool) -> None:
    given = batch(3, 2, policy, [[1, 0], [1, 1], [0, 1]])
    if chosen:
        given = replace(given, chosen=np.array([[True, True], [False, True], [False, False]]))
    keys = {"cloning_weight": 0.7}
    rng = np.random.default_rng(5)
    heads = {**policy.heads, "value": 1}
    outputs = {head: rng.normal(size=(6, width)).astype(np.float64) for head, width in heads.items()}

    def whole() -> float:
        """Return the loss whose gradient is used: the reported mean over the 4 valid steps, times 4 / 2."""
        loss = LOSS.ActorCriticLoss(config(**keys), policy, given)
        loss(outputs, slice(0, 6))
        return float(loss.means["loss"]) * 4 / 2

    found = LOSS.ActorCriticLoss(config(**keys), policy, given)(outputs, slice(0, 6))
    for head, output in outputs.items():
        for index in np.ndindex(output.shape):
            at = output[index]
            output[index] = at + 1e-2
            above = whole()
            output[index] = at - 1e-2
            slope = (above - whole()) / 2e-2
            output[index] = at
            assert found[head][index] == pytest.approx(slope, rel=2e-2, abs=2e-3)


def test_loss_of_parts_equals_the_whole() -> None:
    policy = Categorical(3)
    given = batch(4, 2, policy)
    outputs = {
        head: np.random.default_rng(2).normal(size=(8, n)).astype(np.float32)
        for head, n in {**policy.heads, "value": 1}.items()
    }
    at_once, in_parts = (LOSS.ActorCriticLoss(config(), policy, given) for _ in range(2))
    expected = at_once(outputs, slice(0, 8))
    for part in (slice(0, 3), slice(3, 8)):
        found = in_parts({head: output[part] for head, output in outputs.items()}, part)
        for head in found:
            np.testing.assert_allclose(found[head], expected[head][part], rtol=1e-6)
    assert in_parts.means == pytest.approx(at_once.means)


def gradient(kind: type[Engine], module: Any) -> np.ndarray:
    policy = Categorical(3)
    spec = NetworkSpec((3,), {**policy.heads, "value": 1}, (4,))
    engine = HostEngine(spec, np.float32, (5, 2)) if kind is HostEngine else TensorFlowEngine(spec, np.float32)
    engine.set_parameters(orthogonal_parameters(spec, 3, {}))
    given = batch(5, 2, policy)
    loss = module.ActorCriticLoss(config(), policy, given)
    return np.array(engine.gradient(given.inputs, given.state, given.restart, loss))


TERMS = {
    "policy": ("by_log_probability=-advantages", "by_log_probability=advantages"),
    "value": ("-2 * self._c * weighted", "-3 * self._c * weighted"),
    "entropy": ("by_entropy=-self._beta * own", "by_entropy=0 * own"),
}


@pytest.mark.parametrize("kind", [HostEngine, TensorFlowEngine])
@pytest.mark.parametrize("term", TERMS)
def test_changed_loss_term_changes_the_gradient(kind: type[Engine], term: str) -> None:
    """The loss has one definition: if its source is changed, the gradient of every engine changes."""
    source, (before, after) = inspect.getsource(LOSS), TERMS[term]
    assert source.count(before) == 1
    changed = type(LOSS)(LOSS.__name__)
    changed.__package__ = LOSS.__package__
    exec(source.replace(before, after), changed.__dict__)
    whole, other = gradient(kind, LOSS), gradient(kind, changed)
    assert np.abs(whole - other).max() > 1e-3 * np.abs(whole).max()
