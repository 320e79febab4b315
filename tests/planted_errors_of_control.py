"""Planted errors of the algorithms with real actions and replay memory (see `planted_errors`)."""

from __future__ import annotations

from support.planting import planted

SQUASHED_PY = "relaax/nn/squashed_gaussian.py"
TRUNK_PY = "relaax/nn/host/trunk.py"
NETWORK_PY = "relaax/nn/host/network.py"
SAC_LEARNER_PY = "algorithms/sac/learner.py"
DPG_LEARNER_PY = "algorithms/apex_dpg/learner.py"
CONTROL_LEARNER_PY = "algorithms/_continuous/learner.py"
CONTROL_AGENT_PY = "algorithms/_continuous/agent.py"
CONTROL_MODEL_PY = "algorithms/_continuous/model.py"

SQUASHED = "tests/nn/test_squashed_gaussian.py"
INPUT_GRADIENT = "tests/nn/test_input_gradient.py"
SAC_LEARNER = "tests/algorithms/sac/test_learner.py"
SAC_AGENT = "tests/algorithms/sac/test_agent.py"
DPG_LEARNER = "tests/algorithms/apex_dpg/test_learner.py"
DOCKING = "tests/learning/test_continuous_docking.py"
ONNX = "tests/policy/test_onnx_export.py"

CONTROL_ERRORS = (
    planted(
        "density-without-slope",
        "the density of a squashed action is that of the normal distribution",
        [(SQUASHED_PY, "(log_density - log_slope).sum", "log_density.sum")],
        SQUASHED,
    ),
    planted(
        "squashing-without-derivative",
        "the derivative ignores the slope of tanh",
        [(SQUASHED_PY, "by_actions * (1 - self.actions * self.actions)", "by_actions")],
        SQUASHED,
        DOCKING,
    ),
    planted(
        "entropy-of-squashing-ignored",
        "the derivative of the density ignores that actions are squashed",
        [(SQUASHED_PY, " + 2 * weights * self.actions", "")],
        SQUASHED,
    ),
    planted(
        "deviation-without-entropy",
        "the derivative by the deviation ignores the normal density",
        [(SQUASHED_PY, "self.noise * self.std - weights", "self.noise * self.std")],
        SQUASHED,
    ),
    planted(
        "bounded-deviation-has-a-derivative",
        "a deviation at its bound is moved further",
        [(SQUASHED_PY, "        by_log_std[self.bounded] = 0\n", "")],
        SQUASHED,
    ),
    planted(
        "inputs-of-last-trunk-only",
        "the derivative by the inputs is that of the last trunk",
        [(NETWORK_PY, "                summed += by_inputs", "                summed[...] = by_inputs")],
        INPUT_GRADIENT,
    ),
    planted(
        "inputs-without-activation",
        "the derivative by the inputs ignores the activations",
        [
            (
                TRUNK_PY,
                "            self._before_activation(gradient, layers[index])\n            gradient = self._by_inputs(",
                "            gradient = self._by_inputs(",
            )
        ],
        INPUT_GRADIENT,
        SAC_LEARNER,
    ),
    planted(
        "optimistic-targets",
        "targets have the larger value of both critics",
        [(SAC_LEARNER_PY, 'np.minimum(outputs["q1"]', 'np.maximum(outputs["q1"]')],
        SAC_LEARNER,
    ),
    planted(
        "targets-without-entropy",
        "targets ignore the entropy of the next action",
        [(SAC_LEARNER_PY, "least - self._temperature * drawn.log_probability", "least")],
        SAC_LEARNER,
    ),
    planted(
        "targets-by-online-critics",
        "targets are computed with the critics themselves",
        [
            (
                CONTROL_LEARNER_PY,
                "set_parameters(self._target_parts[CRITIC])",
                "set_parameters(self._parts[CRITIC])",
            )
        ],
        SAC_LEARNER,
        DPG_LEARNER,
    ),
    planted(
        "policy-lowers-values",
        "the policy of sac descends the values",
        [(SAC_LEARNER_PY, '{"q1": -(share * is_first)', '{"q1": (share * is_first)')],
        SAC_LEARNER,
        DOCKING,
    ),
    planted(
        "policy-by-one-critic",
        "the policy learns from the larger value",
        [(SAC_LEARNER_PY, "is_first = first <= second", "is_first = first > second")],
        SAC_LEARNER,
    ),
    planted(
        "policy-without-entropy",
        "the policy of sac does not seek entropy",
        [(SAC_LEARNER_PY, "drawn.gradient(temperature * share,", "drawn.gradient(0 * share,")],
        SAC_LEARNER,
    ),
    planted(
        "temperature-sign",
        "the temperature rises if the entropy is too large",
        [(SAC_LEARNER_PY, "self._by_log_temperature -= float", "self._by_log_temperature += float")],
        SAC_LEARNER,
    ),
    planted(
        "temperature-always-learned",
        "the temperature is learned although it is fixed",
        [
            (
                SAC_LEARNER_PY,
                "self._by_log_temperature if self.config.learn_temperature else 0.0",
                "self._by_log_temperature",
            )
        ],
        SAC_LEARNER,
    ),
    planted(
        "critics-without-weights",
        "critics ignore the importance weights",
        [(CONTROL_LEARNER_PY, "derivatives[head] = (weights * errors)", "derivatives[head] = (errors / len(errors))")],
        SAC_LEARNER,
        DPG_LEARNER,
    ),
    planted(
        "errors-of-last-critic",
        "priorities are those of the last critic",
        [(CONTROL_LEARNER_PY, "self.errors[part] += np.abs", "self.errors[part] = np.abs")],
        SAC_LEARNER,
    ),
    planted(
        "pixels-not-scaled",
        "critics see pixels from 0 to 255",
        [(CONTROL_MODEL_PY, "np.multiply(flat, np.float32(1 / 255)", "np.multiply(flat, np.float32(1)")],
        SAC_LEARNER,
    ),
    planted(
        "next-action-by-online-policy",
        "targets of apex_dpg use the policy instead of its target network",
        [(DPG_LEARNER_PY, "set_parameters(self._target_parts[POLICY])", "set_parameters(self._parts[POLICY])")],
        DPG_LEARNER,
    ),
    planted(
        "deterministic-policy-sign",
        "the policy of apex_dpg descends the values",
        [(DPG_LEARNER_PY, 'np.full_like(values["q"], -1)', 'np.full_like(values["q"], 1)')],
        DPG_LEARNER,
        DOCKING,
    ),
    planted(
        "action-gradient-not-clipped",
        "the derivative by the action is not bounded",
        [(DPG_LEARNER_PY, "self._networks.actions :], -bound, bound)", "self._networks.actions :], -np.inf, np.inf)")],
        DPG_LEARNER,
    ),
    planted(
        "actors-share-their-noise",
        "all actors of apex_dpg have the noise of the first",
        [("algorithms/apex_dpg/agent.py", "self.config.noise, self.config.noise_exponent", "self.config.noise, 0.0")],
        SAC_AGENT,
    ),
    planted(
        "priorities-by-the-best-action",
        "actors set priorities by the value of the best action",
        [("relaax/algorithm_base/transitions.py", "= values[0][at]", "= values[1][at]")],
        "tests/algorithm_base/test_transitions.py",
    ),
    planted(
        "no-random-steps",
        "the first actions are those of the policy",
        [(CONTROL_AGENT_PY, ">= self.config.random_steps:", ">= 0:")],
        SAC_AGENT,
    ),
    planted(
        "exploit-explores",
        "exploit mode explores",
        [(CONTROL_AGENT_PY, "if exploit and self.config.greedy_exploit:", "if exploit and False:")],
        SAC_AGENT,
    ),
    planted(
        "unbounded-actions-are-accepted",
        "actions without bounds are accepted",
        [(CONTROL_MODEL_PY, "< LARGEST_BOUND).all()", "<= np.inf).all()")],
        SAC_AGENT,
    ),
    planted(
        "export-without-tanh",
        "an exported policy does not squash its actions",
        [("relaax/policy/onnx_export.py", "        if action.squashed:\n", "        if False:\n")],
        ONNX,
    ),
    planted(
        "rest-of-insertion-is-lost",
        "transitions of many environments beyond the largest insertion are lost",
        [
            (
                "relaax/algorithm_base/transitions.py",
                "for start in range(0, np.count_nonzero(learnable), LARGEST_INSERT):",
                "for start in range(0, LARGEST_INSERT, LARGEST_INSERT):",
            )
        ],
        "tests/algorithm_base/test_transitions.py",
    ),
    planted(
        "free-inserts-wait",
        "inserts wait for samples although actors must not",
        [
            (
                "relaax/replay/table/limiter.py",
                "not self.has_min_size or not self._inserts_wait:",
                "not self.has_min_size:",
            )
        ],
        "tests/replay/test_limiter.py",
    ),
    planted(
        "free-inserts-are-not-sent",
        "replay servers do not learn that inserts must not wait",
        [("relaax/replay/wire.py", "free_inserts=not declaration.inserts_wait", "free_inserts=False")],
        "tests/replay/test_messages.py",
    ),
    planted(
        "actors-receive-targets",
        "actors with separate learners receive the target network",
        [("relaax/parameters/client.py", "registration.purpose.may_update and registration.wants_target)", "True)")],
        "tests/parameters/test_soft_target.py",
    ),
    planted(
        "actions-wait-for-inserts",
        "actions are sent after transitions were inserted",
        [
            (
                "relaax/algorithm_base/transitions.py",
                "held)\n            self._prepare()\n",
                "held)\n            self._prepare()\n            self.insert()\n",
            )
        ],
        "tests/algorithms/sac/test_agent.py",
    ),
    planted(
        "last-transitions-are-lost",
        "an orderly end loses the transitions that do not fill an insertion",
        [
            (
                "relaax/algorithm_base/transitions.py",
                "            self._writer.insert_at_end(insertion)\n",
                "            pass\n",
            )
        ],
        "tests/algorithms/sac/test_agent.py",
    ),
    planted(
        "last-insertions-are-not-sent",
        "insertions at the end are not sent to the shard",
        [("relaax/replay/client/writer.py", "[*self._retries, *self._last], [], []", "[*self._retries], [], []")],
        "tests/replay/test_client.py",
    ),
    planted(
        "means-of-losses-by-raw-weights",
        "means for metrics are with weights whose sum is below 1",
        [("algorithms/_continuous/learner.py", "or 1.0", "* 0.0 + 1.0")],
        "tests/algorithms/apex_dpg/test_learner.py",
        "tests/algorithms/sac/test_learner.py",
    ),
)
