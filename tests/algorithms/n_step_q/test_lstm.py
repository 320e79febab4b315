"""Pushed gradients of n_step_q with an LSTM, compared with TensorFlow's derivative of the loss, over two rollouts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from relaax.algorithm_base import Box, Discrete, TargetInterval, load_algorithm
from relaax.algorithm_base.testing import FakeParameters, make_agent
from relaax.nn.action_values import ActionValues
from relaax.nn.numpy_actor import forward_numpy
from relaax.nn.specification import NetworkSpec
from relaax.nn.tensorflow_engine import forward
from relaax.nn.tensorflow_loading import tf
from support.scene import Script

N_STEP_Q = load_algorithm("n_step_q", Path())
T, N, GAMMA = 3, 2, 0.5
O = np.random.default_rng(1).normal(size=(2 * T + 1, N, 2)).astype(np.float32)  # noqa: E741 - observations
F = np.random.default_rng(2).normal(size=(N, 2)).astype(np.float32)  # final observations
REWARDS = [[1, -2], [4, 8], [5, 0.5], [1, 2], [3, 4], [-1, -2]]
TERMINATED, TRUNCATED = {1: [0]}, {1: [1], 4: [0]}  # step -> environments


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("keys", [{}, {"dueling": True}, {"dueling": True, "network": {"separate": True}}])
def test_gradients_pass_through_the_lstm_state(keys: dict[str, object], double: bool) -> None:
    network = {"dense": [5], "lstm_size": 4, "separate": False} | dict(keys.get("network", {}))  # type: ignore[call-overload]
    section = {
        "path": "n_step_q",
        "update_interval": T,
        "rewards_gamma": GAMMA,
        "initial_epsilon": 0.5,
        "final_epsilons": [0.5],
        "final_epsilon_probabilities": [1],
        "lstm": True,
        "double": double,
        "dueling": "dueling" in keys,
        "RMSProp": {"gradient_norm_clipping": None},
        "normalize_rewards": None,
        "network": network,
    }
    config = N_STEP_Q.configure(section)
    spaces = Box(-9, 9, shape=(2,)), Discrete(3)
    size = len(N_STEP_Q.ParameterServer(config, *spaces).initial_parameters(0))
    target, online = np.random.default_rng(3).normal(size=(2, size)).astype(np.float32)
    parameters_client = FakeParameters(target, learning_rate=0.1, target=TargetInterval(updates=1000))
    parameters_client.publish(online)
    agent, _ = make_agent(N_STEP_Q, config, *spaces, environments=N, parameters=parameters_client)
    spec = agent.policy_graph().network  # type: ignore[union-attr]
    scene = Script(agent, N)
    scene.reset(O[0])
    for t, rewards in enumerate(REWARDS):
        final = F if t in TRUNCATED else None
        scene.step(rewards, O[t + 1], terminated=TERMINATED.get(t, ()), truncated=TRUNCATED.get(t, ()), final=final)
    first, second = (push.base.parameters for push in parameters_client.pushes)
    assert not np.allclose(first, second)
    oracle = Oracle(spec, ActionValues(3, "dueling" in keys), target, double)
    before = np.zeros((N, spec.state_size), np.float32)
    for push, parameters, begin in zip(parameters_client.pushes, (first, second), (0, T), strict=True):
        wanted, before = oracle.rollout(parameters, begin, before, np.array(scene.actions[begin : begin + T]))
        assert push.gradient is not None
        np.testing.assert_allclose(push.gradient, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


class Oracle:
    """The definition of the targets and the loss, computed step by step."""

    def __init__(self, spec: NetworkSpec, values: ActionValues, target: np.ndarray, double: bool) -> None:
        self._spec, self._values, self._target, self._double = spec, values, target, double

    def rollout(
        self, online: np.ndarray, begin: int, state: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradient of the rollout that begins at step `begin`, and the state before the next rollout."""
        starts, states, restarts = state, [state], [self._restart(begin)]
        after = []
        for t in range(begin, begin + T):
            after.append(self._q(online, O[t], states[-1])[1])
            states.append(np.where(self._restart(t + 1)[:, None], 0, after[-1]).astype(np.float32))
            restarts.append(self._restart(t + 1))
        y, targets = self._best(online, O[begin + T], states[-1]), []
        for t in range(begin + T - 1, begin - 1, -1):
            y = np.array(REWARDS[t]) + GAMMA * np.where(self._restart(t + 1), 0, y)
            for i in TRUNCATED.get(t, []):
                y[i] += GAMMA * self._best(online, F, after[t - begin])[i]
            targets.insert(0, y)
        flat, layout = tf.Variable(online), self._spec.layout()
        with tf.GradientTape() as tape:
            parts = tf.split(flat, list(layout.sizes))
            named = {n: tf.reshape(p, s) for (n, s), p in zip(layout.shapes.items(), parts, strict=True)}
            outputs, _ = forward(
                self._spec, named, tf.constant(O[begin : begin + T]), tf.constant(starts), tf.constant(restarts[:-1])
            )
            chosen = tf.gather(self._tensor(outputs), actions, batch_dims=2)
            loss = tf.reduce_sum((chosen - np.array(targets, np.float32)) ** 2) / N
        return tape.gradient(loss, flat).numpy(), states[-1]

    def _best(self, online: np.ndarray, inputs: np.ndarray, state: np.ndarray) -> np.ndarray:
        values, chooser = self._q(self._target, inputs, state)[0], self._q(online, inputs, state)[0]
        return values[np.arange(N), (chooser if self._double else values).argmax(axis=1)]

    def _q(self, parameters: np.ndarray, inputs: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        outputs, after = forward_numpy(self._spec, self._spec.layout().views(parameters), inputs, state)
        return self._values.values(outputs), after

    def _tensor(self, outputs: dict[str, tf.Tensor]) -> tf.Tensor:
        if "q" in outputs:
            return outputs["q"]
        advantage = outputs["advantage"]
        return outputs["value"] + advantage - tf.reduce_mean(advantage, -1, keepdims=True)

    def _restart(self, t: int) -> np.ndarray:
        """Return whether observation t begins an episode, bool [N]."""
        return np.array([t == 0 or i in TERMINATED.get(t - 1, []) + TRUNCATED.get(t - 1, []) for i in range(N)])
