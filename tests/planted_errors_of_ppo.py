"""Errors in the algorithm ppo."""

from __future__ import annotations

from support.planting import planted

AGENT_PY = "algorithms/ppo/clipped_agent.py"
LOSS_PY = "algorithms/ppo/clipped_loss.py"
MINIBATCHES_PY = "algorithms/ppo/minibatches.py"
ROLLOUT_PY = "relaax/algorithm_base/rollout.py"
RAGGED_PY = "relaax/algorithm_base/ragged.py"

GRADIENT = "tests/algorithms/ppo/test_gradient.py"
LOSS = "tests/algorithms/ppo/test_loss.py"
CONTRACT = "tests/algorithms/ppo/test_contract.py"
LEARNING = "tests/learning/test_ppo.py"

_RATIO = "(self._policy.log_probability(masked, actions) - self._old_log_probability[part])"
_REVERSED = "(self._old_log_probability[part] - self._policy.log_probability(masked, actions))"
_CLIP_SIGN = (LOSS_PY, "surrogate = np.minimum(", "surrogate = np.maximum(")

PPO_ERRORS = (
    planted("ppo-clip-sign", "the larger of the two objectives is used", [_CLIP_SIGN], LOSS),
    planted("ppo-clip-sign-pushed", "the larger of the two objectives is used (pushes)", [_CLIP_SIGN], GRADIENT),
    planted(
        "ppo-ratio-reversed", "the ratio is that of the old policy to the new one", [(LOSS_PY, _RATIO, _REVERSED)], LOSS
    ),
    planted(
        "ppo-policy-sign-learned",
        "the policy loss has the wrong sign (learning)",
        [(LOSS_PY, "np.float32(0), -surrogate)", "np.float32(0), surrogate)")],
        LEARNING,
    ),
    planted(
        "ppo-clipped-steps-learn",
        "clipped steps still have a gradient",
        [(LOSS_PY, "np.where(ratio * weighted > surrogate, np.float32(0), -surrogate)", "-ratio * weighted")],
        LOSS,
    ),
    planted(
        "ppo-log-pi-of-newest-policy",
        "the ratio is to the newest policy when an update begins",
        [
            (
                AGENT_PY,
                "            self._record(batch)\n",
                "            self._record(batch)\n"
                "            shape, none = batch.mask.shape, np.zeros((batch.mask.size, 0))\n"
                "            outputs, _ = self._actor.act(batch.inputs.reshape(-1, 2), none)\n"
                "            newest = self._policy.log_probability(outputs, batch.actions.reshape(-1)).reshape(shape)\n"
                "            batch.log_probability[:] = newest\n",
            )
        ],
        GRADIENT,
    ),
    planted(
        "ppo-log-pi-not-carried-over",
        "an action in progress at an update loses its likelihood",
        [(ROLLOUT_PY, "for stored in (self.valid, self.log_probability,", "for stored in (self.valid,")],
        GRADIENT,
    ),
    planted(
        "ppo-log-pi-of-held-row",
        "an action of a held row loses its likelihood at an update",
        [(RAGGED_PY, "self._log_probability[0, is_open] = self._log_probability[last]", "pass")],
        GRADIENT,
    ),
    planted(
        "ppo-no-pull",
        "an update begins with the parameters that acted",
        [(AGENT_PY, "self._use(self._exchange.pull())  # other", "pass  # other")],
        GRADIENT,
    ),
    planted(
        "ppo-advantages-not-scaled",
        "normalised advantages are not divided by their deviation",
        [(LOSS_PY, "self._advantages = centred / (deviation + np.float32(1e-8))", "self._advantages = centred")],
        LOSS,
    ),
    planted(
        "ppo-advantages-of-masked-steps",
        "the deviation of the advantages includes masked steps",
        [(LOSS_PY, "deviation = np.sqrt(np.dot(shares, centred * centred))", "deviation = centred.std()")],
        LOSS,
    ),
    planted(
        "ppo-values-of-normalized-advantages",
        "the value's clip is around targets minus normalised advantages",
        [
            (
                LOSS_PY,
                "        old = self._old_values[part]\n",
                "        old = (self._targets - self._advantages)[part]\n",
            ),
        ],
        LOSS,
    ),
    planted(
        "ppo-smaller-value-error",
        "the smaller of the two value errors is used",
        [
            (LOSS_PY, "np.where(clipped * clipped > squares,", "np.where(clipped * clipped < squares,"),
            (LOSS_PY, "np.maximum(squares, clipped * clipped)", "np.minimum(squares, clipped * clipped)"),
        ],
        LOSS,
    ),
    planted(
        "ppo-first-minibatch-only",
        "an epoch has one minibatch",
        [(MINIBATCHES_PY, "min(count, len(columns))):", "min(count, len(columns)))[:1]:")],
        GRADIENT,
    ),
    planted(
        "ppo-void-steps",
        "void steps are in the minibatches",
        [(MINIBATCHES_PY, "np.flatnonzero(batch.mask.any(axis=0))", "np.arange(batch.mask.shape[1])")],
        GRADIENT,
    ),
    planted(
        "ppo-order-kept",
        "all epochs have the same minibatches",
        [(MINIBATCHES_PY, "    rng.shuffle(columns)\n", "")],
        GRADIENT,
    ),
    planted(
        "ppo-state-of-other-environments",
        "an LSTM's minibatch has the states of the first environments",
        [(MINIBATCHES_PY, "batch.state[chosen] if recurrent", "batch.state[: len(chosen)] if recurrent")],
        GRADIENT,
    ),
    planted(
        "ppo-lstm-steps-shuffled",
        "the steps of an LSTM are shuffled",
        [(AGENT_PY, "recurrent=config.lstm", "recurrent=False")],
        GRADIENT,
    ),
    planted(
        "ppo-epochs-after-divergence",
        "a large divergence ends only the current epoch",
        [(AGENT_PY, "                    return\n", "                    break\n")],
        GRADIENT,
    ),
    planted(
        "ppo-steps-not-counted",
        "steps are not counted if the first minibatch diverges",
        [(AGENT_PY, "if self._exchange.env_steps or not has_steps:", "if not has_steps:")],
        GRADIENT,
        CONTRACT,
    ),
    planted(
        "ppo-epochs-out-of-phase",
        "with sync all, a worker gathers a rollout while others have minibatches left",
        [(AGENT_PY, "while self._version % (config.epochs * config.minibatches):", "while False:")],
        "tests/learning/test_synchronous.py",
    ),
    planted(
        "ppo-mean-over-environments",
        "the loss is a mean over environments and a sum over steps, as that of da3c",
        [(LOSS_PY, "        self._weigh(mask / np.float32(max(mask.sum(), 1)))\n", "")],
        LOSS,
    ),
)
