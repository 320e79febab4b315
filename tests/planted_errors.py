"""Mutation tests: plant one error at a time in a copy of the tree, and run the tests that must fail.

    make planted-errors                                every error (half an hour on two cores)
    python tests/planted_errors.py policy-sign ...     only these
    python tests/planted_errors.py --list              list the errors
    python tests/planted_errors.py --check             check that they can be planted, and run no test

An error replaces an exact text of the source. If the source has changed, a warning names the error: update its entry.
Slow tests run only if the fast tests pass.

The exit code is 0 if every planted error was caught, 1 if one was not, 2 if the tests fail without an error or could
not run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from planted_errors_of_control import CONTROL_ERRORS
from planted_errors_of_demonstrations import DEMONSTRATION_ERRORS
from planted_errors_of_operation import OPERATION_ERRORS
from planted_errors_of_ppo import PPO_ERRORS
from planted_errors_of_self_play import SELF_PLAY_ERRORS
from planted_errors_of_takeover import TAKEOVER_ERRORS

from support.planting import Planted, planted

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ("algorithms", "config", "environments", "protocol", "relaax", "tests", "pyproject.toml")
TESTS_FAILED, NO_TESTS = 1, 5  # exit codes of pytest


GRADIENT = "tests/algorithms/da3c/test_gradient.py"
ROLLOUT = "tests/algorithm_base/test_rollout.py"
RAGGED = "tests/algorithm_base/test_ragged.py"
TURNS_OF_AGENTS = "tests/algorithms/test_out_of_step.py"
TURNS_OF_DA3C = "tests/algorithms/da3c/test_out_of_step.py"
AGENT = "tests/algorithms/da3c/test_agent.py"
CONTRACT = "tests/algorithms/da3c/test_contract.py"
LSTM = "tests/algorithms/da3c/test_lstm.py"
OVERLAP = "tests/algorithms/da3c/test_overlap.py"
ENGINES = "tests/algorithms/da3c/test_engines.py"
LOSS = "tests/algorithms/da3c/test_loss.py"
CLIPPING = "tests/optim/test_clipping.py"
LEARNING = "tests/learning/test_da3c_corridors.py"
RECALL = "tests/learning/test_da3c_recall.py"
SPACES = "tests/learning/test_da3c_spaces.py"
DISTRIBUTIONS = "tests/nn/test_distributions.py"
HOST_NETWORK = "tests/nn/host/test_network.py"
COMPOSITE = "tests/nn/test_composite.py"
MIXED_ACTIONS = "tests/algorithms/da3c/test_mixed_actions.py"
MIXED_GRADIENT = "tests/algorithms/da3c/test_mixed_gradient.py"
CONT_GRADIENT = "tests/algorithms/da3c_cont/test_gradient.py"
CONT_CONTRACT = "tests/algorithms/da3c_cont/test_contract.py"
EPISODES = "tests/algorithms/da3c_cont/test_episodes.py"
DOCKING = "tests/learning/test_da3c_cont_docking.py"
SHARD = "tests/server/parameter_server/test_shard.py"
COMPENSATION = "tests/server/parameter_server/test_delay_compensation.py"
CHECKPOINTING = "tests/server/parameter_server/test_checkpointing.py"
LEADER = "tests/server/parameter_server/coordination/test_leader.py"
LINKS = "tests/parameters/test_links.py"
LEASE = "tests/checkpoint/test_lease.py"
SET_ASIDE = "tests/checkpoint/test_set_aside.py"
FLEET = "tests/metrics/test_fleet.py"

HOST_PY = "relaax/nn/host/engine.py"
LSTM_PY = "relaax/nn/host/lstm.py"
SOFTMAX_PY = "relaax/nn/host/kernels.py"
CLIPPING_PY = "relaax/optim/clipping.py"
DISTRIBUTIONS_PY = "relaax/nn/distributions.py"
TRUNK_PY = "relaax/nn/host/trunk.py"
LOSS_PY = "algorithms/da3c/loss.py"
ROLLOUT_PY = "relaax/algorithm_base/rollout.py"
RAGGED_PY = "relaax/algorithm_base/ragged.py"
AGENT_PY = "algorithms/da3c/agent.py"
NORMALIZATION_PY = "relaax/algorithm_base/normalization.py"
ADMISSION_PY = "relaax/server/rlx_server/listening/admission.py"
ARRIVALS_PY = "relaax/server/rlx_server/listening/pending_connections.py"
CLAIMS_PY = "relaax/server/rlx_server/clients/claims.py"
METERS_PY = "relaax/server/rlx_server/clients/meters.py"
CHILDREN_PY = "relaax/server/rlx_server/listening/children.py"
MEASURES_PY = "relaax/server/rlx_server/workers/session.py"
PEER_PY = "relaax/server/rlx_server/connection/peer.py"
CLIENT_ENTRY_PY = "relaax/server/rlx_server/workers/client_entry.py"
CHANNEL_PY = "relaax/server/rlx_server/connection/channel.py"
WEBSOCKET_PY = "relaax/server/rlx_server/connection/channel.py"
LISTENER_PY = "relaax/server/rlx_server/listening/listener.py"
PLACES_PY = "relaax/server/rlx_server/listening/admission.py"
SESSION_PY = "relaax/server/rlx_server/workers/session.py"
WORKER_PY = "relaax/server/rlx_server/workers/worker.py"
VOID_ROWS_PY = "relaax/server/rlx_server/workers/void_rows.py"
TURNS_PY = "relaax/client/connection/turns.py"
OUT_OF_STEP = "tests/server/rlx_server/test_out_of_step.py"
TURNS = "tests/client/test_turns.py"
STRIKES_PY = "relaax/server/security/strikes.py"
READING_PY = "relaax/server/ports/request_reader.py"
RLX_SERVER_TESTS = "tests/server/rlx_server"
STRIKES = "tests/server/test_strikes.py"
READING = "tests/server/parameter_server/test_request_reader.py"
SHARD_PY = "relaax/server/parameter_server/shard/shard.py"
MERGED_STATISTICS_PY = "relaax/server/parameter_server/shard/merged_statistics.py"
COMPENSATION_PY = "relaax/server/parameter_server/shard/shard.py"
CHECKPOINTING_PY = "relaax/server/checkpoints/checkpointing.py"
LEADER_PY = "relaax/server/parameter_server/coordination/leader.py"
RECEIVED_PY = "relaax/parameters/received.py"
CORE_PY = "relaax/server/parameter_server/service/core.py"
FOLLOWER_PY = "relaax/server/parameter_server/coordination/follower.py"
GATE_PY = "relaax/server/parameter_server/shard/model.py"
SERVICE_PY = "relaax/server/parameter_server/service/service.py"


TARGETS_PY = "relaax/algorithm_base/values.py"
VALUE_LOSS_PY = "relaax/algorithm_base/values.py"
EXPLORATION_PY = "relaax/algorithm_base/acting/exploration.py"
VALUE_AGENT_PY = "algorithms/_value_based/agent.py"
VALUE_LSTM = "tests/algorithms/n_step_q/test_lstm.py"
TRANSITIONS_PY = "relaax/algorithm_base/transitions.py"
STORED_PY = "relaax/algorithm_base/transitions.py"
REPLAY_LEARNER_PY = "algorithms/gorila/learner.py"
REPLAY_AGENT_PY = "algorithms/gorila/agent.py"
SHARED_LEARNER_PY = "algorithms/_replay/learner.py"
SHARED_AGENT_PY = "algorithms/_replay/agent.py"
TRANSITIONS = "tests/algorithm_base/test_transitions.py"
REPLAY_LEARNER = "tests/algorithms/gorila/test_learner.py"
REPLAY_AGENT = "tests/algorithms/gorila/test_agent.py"
REPLAY_CONTRACT = "tests/algorithms/gorila/test_contract.py"
TABLE_PY = "relaax/replay/table/table.py"
TABLE_COPY_PY = "relaax/replay/table/table_copy.py"
COPIES = "tests/replay/test_copies.py"
TABLE_CHECKPOINTS = "tests/server/replay_server/test_table_checkpoints.py"
LIMITER_PY = "relaax/replay/table/limiter.py"
SHARD_SAMPLER_PY = "relaax/replay/client/sampler.py"
REPLAY_ACCESS_PY = "relaax/server/access.py"
TABLE = "tests/replay/test_table.py"
LIMITER = "tests/replay/test_limiter.py"
REPLAY_CLIENT = "tests/replay/test_client.py"
LEARNER_PROCESS = "tests/server/learner/test_process.py"
REPLAY_OF_WORKERS = "tests/server/rlx_server/test_replay_memory.py"
INPUTS_PY = "relaax/algorithm_base/inputs.py"
EXCHANGE_PY = "relaax/algorithm_base/exchange.py"
TARGET_PY = "relaax/server/parameter_server/shard/target.py"
VALUE_GRADIENT = "tests/algorithms/async_q/test_gradient.py"
VALUE_CONTRACT = "tests/algorithms/async_q/test_contract.py"
VALUE_AGENT = "tests/algorithms/async_q/test_agent.py"
TARGETS = "tests/algorithm_base/test_value_targets.py"
VALUE_LOSS = "tests/algorithm_base/test_value_loss.py"
EXPLORATION = "tests/algorithm_base/test_exploration.py"
MASKS = "tests/nn/test_masks.py"
MASKED_GRADIENTS = "tests/algorithms/test_masked_gradients.py"
TARGET = "tests/server/parameter_server/test_target.py"
CLIENT_PLACES_PY = "relaax/client/connection/address.py"
CLIENT_PLACES = "tests/client/test_places.py"
PROCESS_PY = "relaax/supervision/process.py"
SCALING_PY = "relaax/cluster/scaling.py"
SCALING = "tests/cluster/test_scaling.py"
SUPERVISOR = "tests/cli/test_supervisor.py"
SUPERVISOR_PY = "relaax/cli/run/supervisor.py"


_POLICY_SIGN = (LOSS_PY, "by_log_probability=-advantages", "by_log_probability=advantages")
_VALUE_SIGN = (LOSS_PY, "(-2 * self._c * weighted)", "(2 * self._c * weighted)")
_ENTROPY_SIGN = (LOSS_PY, "by_entropy=-self._beta * own", "by_entropy=self._beta * own")
_NO_BOOTSTRAP = (
    "relaax/algorithm_base/values.py",
    "np.multiply(discount_t[-1], bootstrap_value, out",
    "np.multiply(discount_t[-1], 0.0 * bootstrap_value, out",
)
_NO_TRUNCATION = (ROLLOUT_PY, "gamma * final_values[truncated]", "0.0 * final_values[truncated]")
_TERMINATED_GOES_ON = (
    (ROLLOUT_PY, "truncated = step.truncated & ~step.terminated", "truncated = step.ended"),
    ("relaax/algorithm_base/agent.py", "or not self.truncated.any()", "or not self.ended.any()"),
)
_DISCOUNT_ACROSS_AN_END = (ROLLOUT_PY, "gamma * ~step.restart", "gamma * ~step.first")
_LSTM_KEPT = (INPUTS_PY, "np.where(restart[:, None], np.float32(0), self.state_after)", "self.state_after")

ERRORS = (
    # Transitions and learning from them.
    planted(
        "transition-cut-off-as-terminated",
        "the tail of a truncated episode is dropped",
        [(TRANSITIONS_PY, "self._open & (terminated | cut_off | (", "self._open & (terminated | (")],
        TRANSITIONS,
    ),
    planted(
        "transition-continues-after-the-end",
        "a terminated episode has a discount",
        [(TRANSITIONS_PY, "self._ages[:, None] * ~terminated", "self._ages[:, None] * ~first")],
        TRANSITIONS,
    ),
    planted(
        "transition-over-a-cut",
        "the first observation of the next episode replaces the final one of a truncated episode",
        [(TRANSITIONS_PY, "np.where(cut_off, completed.final, observations)", "observations")],
        TRANSITIONS,
    ),
    planted(
        "transition-tail-with-the-whole-discount",
        "a tail is discounted as if it were n steps long",
        [(TRANSITIONS_PY, "self._gamma ** self._ages[:, None] *", "self._gamma ** self._steps *")],
        TRANSITIONS,
    ),
    planted(
        "transition-of-a-void-step",
        "a void step makes a transition",
        [(TRANSITIONS_PY, "self._open[:, first] = False", "pass")],
        TRANSITIONS,
    ),
    planted(
        "transition-over-a-reset",
        "a transition that is open at a reset continues after it",
        [(TRANSITIONS_PY, "self._open[:] = False", "pass")],
        TRANSITIONS,
    ),
    planted(
        "priority-of-the-next-episode",
        "the priority of a truncated transition uses the value of the next episode's first observation",
        [(TRANSITIONS_PY, "np.where(completed.cut_off, completed.values, values)", "values")],
        TRANSITIONS,
    ),
    planted(
        "stack-over-an-episodes-start",
        "frame stacks include frames of the previous episode",
        [
            (
                STORED_PY,
                "self._stack.push(numbers, restart, held)",
                "self._stack.push(numbers, restart & False, held)",
            )
        ],
        TRANSITIONS,
    ),
    planted(
        "frames-dropped-too-early",
        "frames that open transitions refer to are dropped",
        [
            (
                TRANSITIONS_PY,
                'numbers in (columns["observation"], self._observations[self._open])',
                "numbers in (self._observations[self._open],)",
            )
        ],
        TRANSITIONS,
    ),
    planted(
        "learner-with-its-own-target",
        "a learner computes targets with the online network",
        [
            (
                REPLAY_LEARNER_PY,
                "self._values(self._target, inputs)  # while",
                "self._values(self._online, inputs)  # while",
            )
        ],
        REPLAY_LEARNER,
    ),
    planted(
        "learner-sums",
        "a learner sums over the batch",
        [(SHARED_LEARNER_PY, " / np.float32(len(sampled.keys))", "")],
        REPLAY_LEARNER,
    ),
    planted(
        "learner-without-importance",
        "a learner does not correct for non-uniform sampling",
        [(SHARED_LEARNER_PY, "self._beta(self.exchange.global_step)", "0 * self._beta(self.exchange.global_step)")],
        REPLAY_LEARNER,
    ),
    planted(
        "learner-keeps-priorities",
        "priorities are sent without their offset",
        [
            (
                SHARED_LEARNER_PY,
                "priorities_of(errors, self.config.priority_offset)",
                "priorities_of(errors, 0.0)",
            )
        ],
        REPLAY_LEARNER,
    ),
    planted(
        "bundle-counts-twice",
        "steps that a learner's push has counted are counted again",
        [
            (
                SHARED_AGENT_PY,
                "learner.exchange.env_steps, self._exchange.env_steps = self._exchange.env_steps, 0",
                "learner.exchange.env_steps = self._exchange.env_steps",
            )
        ],
        REPLAY_CONTRACT,
        REPLAY_AGENT,
    ),
    planted(
        "actors-explore-alike",
        "the actors of Ape-X share one epsilon",
        [
            (
                "algorithms/apex/config.py",
                "ladder_of_epsilons(ranks, count",
                "ladder_of_epsilons([0] * len(ranks), count",
            )
        ],
        REPLAY_AGENT,
    ),
    planted(
        "actors-by-connection",
        "the ladder of epsilons has only as many steps as a connection has environments",
        [("algorithms/apex/config.py", "count or len(ranks)", "len(ranks)")],
        REPLAY_AGENT,
    ),
    planted(
        "ranks-of-absent-workers",
        "the ranks of deregistered workers are kept forever",
        [("relaax/server/parameter_server/service/actors.py", "seat.until = self._clock() + self._hold", "pass")],
        "tests/server/parameter_server/test_ranks.py",
    ),
    planted(
        "exploiting-actors-have-ranks",
        "exploiting connections use ranks of the ladder of epsilons",
        [
            (
                "relaax/server/parameter_server/service/registry.py",
                "worker.purpose.trains and",
                "worker.purpose.acts and",
            )
        ],
        "tests/server/parameter_server/test_ranks.py",
    ),
    planted(
        "rewards-not-scaled",
        "a learner does not scale the rewards of replay memory",
        [(SHARED_LEARNER_PY, "np.float32(self._normalization.reward_unit)", "np.float32(1.0)")],
        REPLAY_LEARNER,
    ),
    planted(
        "priorities-not-scaled",
        "priorities of actors use unscaled rewards",
        [(TRANSITIONS_PY, "errors = returns / self._reward_unit", "errors = returns")],
        REPLAY_AGENT,
    ),
    planted(
        "bundle-does-not-record-epsilon",
        "a worker that learns does not record epsilon",
        [
            (
                SHARED_AGENT_PY,
                "(learner.pulled))\n            self._record_exploration()\n",
                "(learner.pulled))\n",
            )
        ],
        REPLAY_AGENT,
    ),
    # Replay memory.
    planted(
        "rare-items-count-less",
        "importance weights grow with the probability of an item",
        [
            (
                "relaax/replay/interfaces.py",
                "(self.size * self.probabilities) ** -beta",
                "(self.size * self.probabilities) ** beta",
            )
        ],
        REPLAY_LEARNER,
    ),
    planted(
        "priorities-without-exponent",
        "items are sampled by priority without the exponent",
        [("relaax/replay/table/trees.py", "else priorities**self._alpha", "else priorities")],
        TABLE,
    ),
    planted(
        "priority-of-an-evicted-item",
        "the priority of an evicted item is set for the item in its slot",
        [("relaax/replay/table/items.py", "keys[slot] == wanted[i]:", "keys[slot] > 0:")],
        TABLE,
    ),
    planted(
        "new-items-last",
        "a new item without a priority gets 1 instead of the largest priority",
        [(TABLE_PY, "np.full(count, self._default_priority())", "np.full(count, _FIRST_PRIORITY)")],
        TABLE,
    ),
    planted(
        "overwritten-items-are-kept",
        "a copy of a table keeps items whose slots were reused during the copy",
        [
            (
                TABLE_COPY_PY,
                "self._whole[here] = self._items.exist(self._keys[here])",
                "self._whole[here] = True",
            )
        ],
        COPIES,
    ),
    planted(
        "overwritten-frames-are-kept",
        "a copy of a table keeps frames that were overwritten before they were copied",
        [
            (
                "relaax/replay/table/frame_store.py",
                "return ~self._written[slots]",
                "return np.ones(len(slots), np.bool_)",
            )
        ],
        COPIES,
    ),
    planted(
        "restored-inserts-are-repeated",
        "after a shard's restart a writer sends inserts again that the restored table already has",
        [
            (
                "relaax/replay/client/writer.py",
                "if self._incarnation in link.earlier_incarnations:",
                "if self._incarnation in link.earlier_incarnations and False:",
            )
        ],
        TABLE_CHECKPOINTS,
    ),
    planted(
        "learner-uses-newest-target",
        "a learner uses the newest parameters as the target network",
        [
            (
                REPLAY_LEARNER_PY,
                "self._target.set_parameters(pulled.target, mean)",
                "self._target.set_parameters(pulled.parameters, mean)",
            )
        ],
        REPLAY_LEARNER,
    ),
    planted(
        "learner-with-a-stale-target",
        "a learner keeps the first target network",
        [
            (
                REPLAY_LEARNER_PY,
                "if pulled.target is not self._target_parameters or mean is not self._mean:",
                "if self._target_parameters is None:",
            )
        ],
        REPLAY_LEARNER,
    ),
    planted(
        "insert-doubled",
        "a repeated insert is applied again",
        [
            (
                TABLE_PY,
                "            if known.is_duplicate(sequence):\n",
                "            if known.is_duplicate(sequence) and False:\n",
            )
        ],
        TABLE,
    ),
    planted(
        "insert-doubled-elsewhere",
        "an insert that an unavailable shard may have received is sent to another shard",
        [("relaax/replay/client/writer.py", "            return pending.in_flight\n", "            return False\n")],
        REPLAY_CLIENT,
    ),
    planted(
        "key-of-another-incarnation",
        "the rest of a batch sampled before a shard's restart uses keys of the new incarnation",
        [(SHARD_SAMPLER_PY, "self._samples = [*current, sample]", "self._samples = [*self._samples, sample]")],
        REPLAY_CLIENT,
    ),
    planted(
        "actors-run-ahead",
        "inserts may exceed the upper bound of the limiter",
        [(LIMITER_PY, "self._ratio <= self._middle + self._buffer", "self._ratio <= self._middle + 2 * self._buffer")],
        LIMITER,
    ),
    planted(
        "learners-run-ahead",
        "samples may exceed the lower bound of the limiter",
        [(LIMITER_PY, "count >= self._middle - self._buffer", "count >= self._middle - 2 * self._buffer")],
        LIMITER,
    ),
    planted(
        "learners-catch-up-forever",
        "inserts without a learner change the balance of the limiter without bound",
        [
            (
                LIMITER_PY,
                "min(self._balance + inserts * self._ratio - samples, self._middle + self._buffer)",
                "self._balance + inserts * self._ratio - samples",
            )
        ],
        LIMITER,
    ),
    planted(
        "sampled-too-early",
        "items are sampled before the table has min_size items",
        [(LIMITER_PY, "        if not self.has_min_size:\n            return False\n", "")],
        LIMITER,
    ),
    planted(
        "shards-in-equal-parts",
        "each shard provides an equal part of a batch, regardless of its size",
        [(SHARD_SAMPLER_PY, "shares = weights / weights.sum()", "shares = np.full(len(links), 1 / len(links))")],
        REPLAY_CLIENT,
    ),
    planted(
        "probabilities-of-one-shard",
        "the probability of an item is relative to its shard only",
        [(SHARD_SAMPLER_PY, "share * drawn.probabilities", "drawn.probabilities")],
        REPLAY_CLIENT,
    ),
    planted(
        "each-shard-holds-all",
        "each shard has the capacity of all shards together",
        [("relaax/replay/spec.py", "math.ceil(self.spec.capacity / shards)", "self.spec.capacity")],
        "tests/replay/test_messages.py",
    ),
    planted(
        "empty-table-is-sampled",
        "a sample from an empty table is not refused",
        [(TABLE_PY, "            if not self._items.size:\n", "            if False:\n")],
        TABLE,
    ),
    planted(
        "sessions-share-a-table",
        "a session of a bundle uses the table of another bundle",
        [
            (
                "relaax/server/replay_server/service.py",
                "table = self._tables.get((name, session))",
                "table = next((h for (n, _), h in self._tables.items() if n == name), None)",
            )
        ],
        REPLAY_CLIENT,
    ),
    planted(
        "bundles-share-a-table",
        "a worker that learns sends no session name",
        [(REPLAY_ACCESS_PY, 'actors, session if bundled else "", seed', 'actors, "", seed')],
        REPLAY_OF_WORKERS,
    ),
    planted(
        "learners-share-a-seed",
        "all learners sample with the same seed",
        [(REPLAY_ACCESS_PY, "[config.seed, number, *actors]", "[config.seed, *actors]")],
        LEARNER_PROCESS,
    ),
    planted(
        "learner-number-not-passed",
        "a learner's number is not passed on",
        [("relaax/server/learner/process.py", "learner=plan.number,", "learner=0,")],
        LEARNER_PROCESS,
    ),
    planted(
        "ladder-one-step-short",
        "the last actor of Ape-X explores too much",
        [(EXPLORATION_PY, "/ max(count - 1, 1)", "/ max(count, 1)")],
        EXPLORATION,
    ),
    planted(
        "learner-ignores-signal",
        "a signal that the compiler's callback dropped is not repeated",
        [
            (
                "relaax/server/learner/learning.py",
                "                self._schedule_alarm(WAIT_SECONDS)\n"
                "                raise SignalReceived(self._number)\n",
                "                raise SignalReceived(self._number)\n",
            )
        ],
        "tests/server/learner/test_interruption.py",
    ),
    # Value methods.
    planted(
        "max-over-the-online-network",
        "a target uses the maximum of the online network",
        [(VALUE_AGENT_PY, "outputs, _ = self._target.act(flat,", "outputs, _ = self._actor.act(flat,")],
        VALUE_GRADIENT,
    ),
    planted(
        "target-not-refreshed",
        "a worker does not use a refreshed target network",
        [
            (
                VALUE_AGENT_PY,
                "(pulled.target is not self._target_parameters or mean is not self._mean):",
                "self._target_parameters is None:",
            )
        ],
        VALUE_GRADIENT,
    ),
    planted(
        "target-follows-parameters",
        "a worker uses the newest parameters as the target network",
        [
            (
                VALUE_AGENT_PY,
                "self._target.set_parameters(pulled.target, mean)",
                "self._target.set_parameters(pulled.parameters, mean)",
            )
        ],
        VALUE_GRADIENT,
    ),
    planted(
        "double-chosen-by-the-target",
        "the target network chooses the action of a double estimate",
        [(TARGETS_PY, "masked(selector_q_t, valid).argmax(axis=-1)", "masked(q_t, valid).argmax(axis=-1)")],
        TARGETS,
        VALUE_GRADIENT,
    ),
    planted(
        "double-one-step-late",
        "a double estimate chooses by the previous observation",
        [("algorithms/_value_based/agent.py", "rollout.values[1:] if", "rollout.values[:-1] if")],
        VALUE_GRADIENT,
    ),
    planted(
        "sarsa-of-the-action-before",
        "Sarsa's target uses the previous action",
        [
            (
                "algorithms/_value_based/agent.py",
                "(rollout.inputs[1:]), rollout.actions[1:])",
                "(rollout.inputs[1:]), rollout.actions[:-1])",
            )
        ],
        VALUE_GRADIENT,
    ),
    planted(
        "sarsa-greedy",
        "Sarsa's target uses the best action",
        [
            (
                "algorithms/_value_based/agent.py",
                "values_of(target_values(rollout.inputs[1:]), rollout.actions[1:])",
                "target_values(rollout.inputs[1:]).max(axis=-1)",
            )
        ],
        VALUE_GRADIENT,
    ),
    planted(
        "truncated-as-terminated",
        "a truncated episode has no bootstrap value",
        [(VALUE_AGENT_PY, "self.config.rewards_gamma, values)", "self.config.rewards_gamma, None)")],
        VALUE_GRADIENT,
    ),
    planted(
        "sarsa-truncated-greedy",
        "Sarsa uses the best action after a truncation",
        [
            (
                "algorithms/_value_based/agent.py",
                "values_of(values, self._choose_actions(self._online_values(inputs, state), valid))",
                "values.max(axis=1)",
            )
        ],
        VALUE_AGENT,
    ),
    planted(
        "connections-explore-alike",
        "the environments of all connections draw the same epsilons",
        [
            (
                VALUE_AGENT_PY,
                "context.seed, ranks, config.final",
                "context.seed, range(len(ranks)), config.final",
            )
        ],
        VALUE_AGENT,
    ),
    planted(
        "bootstrap-without-memory",
        "the bootstrap value of a rollout uses the LSTM state before its first step",
        [("algorithms/_value_based/agent.py", "rollout.states[1]", "rollout.states[0]")],
        VALUE_LSTM,
    ),
    planted(
        "gradient-without-memory",
        "a gradient starts with an empty LSTM state",
        [(VALUE_AGENT_PY, "rollout.states[0], rollout.restart[:-1]", "0 * rollout.states[0], rollout.restart[:-1]")],
        VALUE_LSTM,
    ),
    planted(
        "truncation-with-previous-state",
        "the final observation of a truncated episode is evaluated with the LSTM state of one step earlier",
        [
            (
                VALUE_AGENT_PY,
                "        state = self._inputs.state_after",
                "        state = self._inputs.state",
            )
        ],
        VALUE_LSTM,
    ),
    planted(
        "discount-of-values",
        "a one-step target does not discount",
        [(TARGETS_PY, "r_t + discount_t * v_tp1", "r_t + np.sign(discount_t) * v_tp1")],
        TARGETS,
        VALUE_GRADIENT,
    ),
    planted(
        "bootstrap-of-the-first-row",
        "an n-step target bootstraps from the rollout's first observation",
        [
            (
                "algorithms/_value_based/agent.py",
                "target_values(rollout.newest(),",
                "target_values(rollout.inputs[0],",
            )
        ],
        VALUE_GRADIENT,
    ),
    planted(
        "void-steps-count",
        "the steps that only reset are learned from",
        [
            (
                VALUE_AGENT_PY,
                "rollout.mask.reshape(-1) / np.float32",
                "np.ones(rollout.mask.size, np.float32) / np.float32",
            )
        ],
        VALUE_GRADIENT,
    ),
    planted(
        "all-actions-move",
        "the values of all actions are moved towards the target",
        [
            (
                VALUE_LOSS_PY,
                "np.put_along_axis(by_values, a_t[:, None], (weights * by_chosen)[:, None], axis=1)",
                "by_values += (weights * by_chosen)[:, None]",
            )
        ],
        VALUE_LOSS,
        VALUE_GRADIENT,
    ),
    planted(
        "importance-weights",
        "importance weights are omitted from the gradient",
        [(VALUE_LOSS_PY, "(weights * by_chosen)[:, None]", "by_chosen[:, None]")],
        VALUE_LOSS,
    ),
    planted(
        "huber-not-clipped",
        "the gradient of large errors is not clipped",
        [(VALUE_LOSS_PY, "np.clip(errors, -1, 1)", "np.clip(errors, -10, 10)")],
        VALUE_LOSS,
    ),
    planted(
        "epsilon-upwards",
        "epsilon grows during training",
        [
            (
                EXPLORATION_PY,
                "self.initial + done * (self.final - self.initial)",
                "self.final + done * (self.initial - self.final)",
            )
        ],
        EXPLORATION,
    ),
    planted(
        "epsilon-by-steps",
        "epsilon is annealed by global steps instead of frames",
        [(VALUE_AGENT_PY, "self._epsilon(self._pulled.frames)", "self._epsilon(self._pulled.global_step)")],
        VALUE_AGENT,
    ),
    planted(
        "greedy-instead-of-random",
        "an actor explores with probability 1 - epsilon",
        [(EXPLORATION_PY, "random = rng.random(count) < epsilon", "random = rng.random(count) > epsilon")],
        EXPLORATION,
    ),
    planted(
        "one-epsilon-for-all",
        "all actors have the same final epsilon",
        [
            (
                EXPLORATION_PY,
                "np.random.default_rng([seed, rank, _EPSILON_STREAM])",
                "np.random.default_rng([seed, _EPSILON_STREAM])",
            )
        ],
        EXPLORATION,
    ),
    planted(
        "target-one-interval-late",
        "the target network is copied one interval too late",
        [(TARGET_PY, "if self._counts and generation >", "if self._counts and generation - 1 >")],
        TARGET,
    ),
    # Action masks.
    planted(
        "mask-of-the-next-row",
        "the loss uses the mask of the next observation",
        [(ROLLOUT_PY, "else self.valid[:-1],", "else self.valid[1:],")],
        MASKED_GRADIENTS,
    ),
    planted(
        "mask-missing-in-the-loss",
        "probabilities and entropies in the loss are over all actions",
        [(LOSS_PY, "self._policy.masked(outputs, None if self._valid is None else self._valid[part])", "outputs")],
        MASKED_GRADIENTS,
    ),
    planted(
        "mask-keeps-probability",
        "invalid actions keep a share of the probability and of the entropy",
        [(DISTRIBUTIONS_PY, "MASKED = np.float32(-1e30)", "MASKED = np.float32(-3)")],
        MASKS,
    ),
    planted(
        "mask-of-parts-in-wrong-order",
        "each part of a mixed action has the first columns of the mask",
        [(DISTRIBUTIONS_PY, "valid[:, self._valid_columns[i]]", "valid[:, : sum(part.choices)]")],
        MASKS,
    ),
    planted(
        "draw-over-all-actions",
        "the policy is sampled without the mask",
        [(AGENT_PY, "outputs = self._policy.masked(computed, inputs.valid)", "outputs = computed")],
        MASKED_GRADIENTS,
    ),
    planted(
        "importance-weight-over-all-actions",
        "the newer likelihood is that over all actions",
        [(AGENT_PY, "outputs = self._policy.masked(renewed, self._inputs.valid)", "outputs = renewed")],
        MASKED_GRADIENTS,
    ),
    planted(
        "mask-missing-in-the-maximum",
        "the maximum of the next values is over all actions",
        [(TARGETS_PY, "masked(q_t, valid).max(axis=-1)", "q_t.max(axis=-1)")],
        MASKED_GRADIENTS,
    ),
    planted(
        "mask-missing-in-the-double-estimate",
        "the double estimate selects among all actions",
        [(TARGETS_PY, "masked(selector_q_t, valid).argmax(axis=-1)", "selector_q_t.argmax(axis=-1)")],
        MASKED_GRADIENTS,
    ),
    planted(
        "mask-missing-in-the-random-action",
        "epsilon-greedy draws among all actions",
        [
            (
                EXPLORATION_PY,
                "(np.cumsum(valid, axis=1) > rng.integers(0, np.count_nonzero(valid, axis=1))[:, None]).argmax(axis=1)",
                "rng.integers(0, choices, count)",
            )
        ],
        MASKS,
    ),
    planted(
        "mask-of-the-current-state-in-the-target",
        "the maximum of the next values is over the actions of the current state",
        [(VALUE_AGENT_PY, "_rows(rollout.valid, slice(1, None))", "_rows(rollout.valid, slice(0, -1))")],
        MASKED_GRADIENTS,
    ),
    planted(
        "final-mask-ignored",
        "a truncated episode's target uses the mask of the next episode",
        [(VALUE_AGENT_PY, "valid = self._inputs.truncated_valid(step)", "valid = self._inputs.valid")],
        MASKED_GRADIENTS,
    ),
    planted(
        "final-mask-not-stored",
        "replay memory has the mask of the next episode for a truncated one",
        [
            (
                TRANSITIONS_PY,
                "valid = np.where(completed.cut_off[:, None], completed.valid, valid)",
                "valid = valid.copy()",
            )
        ],
        TRANSITIONS,
    ),
    planted(
        "stored-mask-ignored",
        "a learner's target is over all actions",
        [
            (
                REPLAY_LEARNER_PY,
                "greedy_values(target_values, selector, columns.get(NEXT_VALID))",
                "greedy_values(target_values, selector)",
            )
        ],
        REPLAY_LEARNER,
    ),
    planted(
        "blocked-environment-not-refused",
        "a mask that allows nothing is taken as one that allows all",
        [(INPUTS_PY, "            self._masks.check(", "            self._masks.check(0 * ")],
        MASKED_GRADIENTS,
    ),
    # Losses.
    planted("policy-sign", "the policy loss has the wrong sign", [_POLICY_SIGN], LOSS),
    planted("policy-sign-pushed", "the policy loss has the wrong sign (pushed gradients)", [_POLICY_SIGN], GRADIENT),
    planted("policy-sign-learned", "the policy loss has the wrong sign (learning)", [_POLICY_SIGN], LEARNING),
    planted("value-sign", "the value loss has the wrong sign", [_VALUE_SIGN], GRADIENT, LOSS),
    planted("value-sign-learned", "the value loss has the wrong sign (learning)", [_VALUE_SIGN], LEARNING),
    planted("entropy-sign", "the entropy bonus has the wrong sign", [_ENTROPY_SIGN], GRADIENT, LOSS),
    planted("entropy-sign-recurrent", "the entropy bonus has the wrong sign (LSTM)", [_ENTROPY_SIGN], LSTM),
    planted(
        "mean-over-steps",
        "the loss is a mean over the steps of a rollout, not a sum",
        [(LOSS_PY, "np.float32(batch.mask.shape[1])", "np.float32(batch.mask.size)")],
        GRADIENT,
        LOSS,
    ),
    planted(
        "softmax-gradient",
        "the likelihood of the chosen action decreases instead of increasing",
        [(SOFTMAX_PY, "by_logits[row, taken] += by_log", "by_logits[row, taken] -= by_log")],
        "tests/nn/test_distributions.py",
    ),
    planted(
        "gaussian-gradient",
        "the mean moves away from the chosen action",
        [("relaax/nn/distributions.py", "by_mean = error / variance", "by_mean = -error / variance")],
        "tests/nn/test_distributions.py",
    ),
    planted(
        "forget-gate",
        "the gradient of an LSTM does not pass its forget gate",
        [(LSTM_PY, "by_cells[at + j] = by_cell * f", "by_cells[at + j] = by_cell")],
        ENGINES,
    ),
    planted(
        "lstm-over-an-end",
        "the gradient of an LSTM crosses the end of an episode",
        [(LSTM_PY, "                    by_c[restart[t]] = 0\n", "")],
        ENGINES,
    ),
    planted(
        "rows-of-an-lstm",
        "a gradient includes rows without an action",
        [(HOST_PY, "or not self._kept.issuperset(range(steps))", "")],
        ENGINES,
    ),
    planted(
        "old-activations",
        "a gradient uses activations of earlier parameters",
        [
            (
                HOST_PY,
                "mean if self._pixels else None)\n        self._kept.clear()\n",
                "mean if self._pixels else None)\n",
            )
        ],
        ENGINES,
    ),
    planted(
        "activations-of-another-batch",
        "a gradient uses activations of the previous batch",
        [(HOST_PY, "        self._kept.clear()  # the next batch has other rows\n", "")],
        ENGINES,
    ),
    planted(
        "norm-not-clipped",
        "the norm of long gradients is not clipped",
        [(CLIPPING_PY, "if limit is not None and not norm <= limit:", "if False:")],
        ENGINES,
        CLIPPING,
    ),
    planted(
        "slope-of-a-small-network",
        "the derivative of tanh is omitted in the kernel for small networks",
        [("relaax/nn/host/dense.py", "*= _UNIT - memory[y_at + i] * memory[y_at + i]", "*= _UNIT")],
        "tests/nn/host/test_network.py",
    ),
    planted(
        "stream-of-another-head",
        "every head uses the first stream",
        [("relaax/nn/specification.py", "heads.index(head) * width", "0")],
        "tests/nn/test_streams.py",
    ),
    planted(
        "dueling-gradient",
        "the gradient of advantages keeps the mean that the values omit",
        [("relaax/nn/action_values.py", "by_values - by_values.mean(axis=1, keepdims=True)", "by_values")],
        "tests/nn/test_action_values.py",
    ),
    planted(
        "shift-of-a-convolution",
        "a convolution subtracts blocks instead of adding them",
        [
            (
                "relaax/nn/host/convolution.py",
                "outputs[at + i] += products[by + i]",
                "outputs[at + i] -= products[by + i]",
            )
        ],
        "tests/nn/host/test_convolution.py",
    ),
    planted(
        "entropy-formula",
        "the entropy has the wrong sign",
        [(SOFTMAX_PY, "entropy -= by_logits[row, j]", "entropy += by_logits[row, j]")],
        "tests/nn/test_distributions.py",
    ),
    # Returns and ends of episodes.
    planted(
        "no-bootstrap", "a rollout has no bootstrap value", [_NO_BOOTSTRAP], "tests/algorithm_base/test_returns.py"
    ),
    planted("no-bootstrap-learned", "a rollout has no bootstrap value (learning)", [_NO_BOOTSTRAP], LEARNING),
    planted(
        "return-off-by-one",
        "rewards are discounted by the discount of the next step",
        [("relaax/nn/host/kernels.py", "decays[i] * terms[i + width]", "decays[i + width] * terms[i + width]")],
        "tests/algorithm_base/test_returns.py",
        ROLLOUT,
    ),
    planted(
        "truncated-is-terminated", "a truncated episode has no bootstrap value in a rollout", [_NO_TRUNCATION], ROLLOUT
    ),
    planted(
        "truncated-is-terminated-pushed",
        "a truncated episode has no bootstrap value in a rollout (pushed gradients)",
        [_NO_TRUNCATION],
        GRADIENT,
    ),
    planted(
        "truncated-is-terminated-learned",
        "a truncated episode has no bootstrap value in a rollout (learning)",
        [_NO_TRUNCATION],
        LEARNING,
    ),
    planted("terminated-is-truncated", "a terminated episode has a bootstrap value", _TERMINATED_GOES_ON, GRADIENT),
    planted(
        "terminated-is-truncated-learned",
        "a terminated episode has a bootstrap value (learning)",
        _TERMINATED_GOES_ON,
        LEARNING,
    ),
    planted(
        "discount-across-an-end",
        "returns continue into the next episode",
        [_DISCOUNT_ACROSS_AN_END],
        ROLLOUT,
    ),
    planted(
        "plain-not-counted",
        "steps without the end of an episode are not learned from",
        [(ROLLOUT_PY, "= 1.0 if step.plain", "= 0.0 if step.plain")],
        GRADIENT,
    ),
    planted(
        "void-not-masked",
        "steps that only reset are learned from in a rollout",
        [(ROLLOUT_PY, "else ~step.first", "else True")],
        GRADIENT,
    ),
    planted(
        "void-counted",
        "steps that only reset count as environment steps",
        [(AGENT_PY, "env_steps += step.env_steps", "env_steps += step.first.size")],
        CONTRACT,
    ),
    # Observations.
    planted(
        "stack-over-an-end",
        "the frame stack is kept over the end of an episode",
        [("relaax/algorithm_base/observations.py", "if restart.any():", "if False:")],
        GRADIENT,
    ),
    planted(
        "stack-over-a-reset",
        "the frame stack is kept over a reset",
        [
            (
                "relaax/algorithm_base/observations.py",
                "        self._stack[...] = frames[..., None]\n",
                "        self._shift(self._stack, self._packed, frames)\n",
            )
        ],
        GRADIENT,
    ),
    planted(
        "final-after-reset",
        "a final observation is evaluated with frames of the next episode",
        [
            (
                AGENT_PY,
                "            final = self._inputs.truncated_inputs(step)",
                "            self._inputs._encoder.push(step.observations, step.ended | step.first)\n"
                "            final = self._inputs.truncated_inputs(step)",
            )
        ],
        GRADIENT,
    ),
    # Clipping.
    planted(
        "norm-always-scaled",
        "short gradients are scaled up to the norm",
        [(CLIPPING_PY, "if limit is not None and not norm <= limit:", "if limit is not None:")],
        GRADIENT,
        ENGINES,
    ),
    planted(
        "reward-clip-one-sided",
        "negative rewards are clipped to zero",
        [(INPUTS_PY, "np.maximum(rewards, -self._bound)", "np.maximum(rewards, 0.0)")],
        GRADIENT,
    ),
    # The agent and its parameters.
    planted(
        "pull-within-rollout",
        "parameters change within a rollout",
        [
            (
                AGENT_PY,
                "        inputs, exploit = self._inputs, self.context.exploit\n",
                "        inputs, exploit = self._inputs, self.context.exploit\n"
                "        self._use(self._exchange.pull())\n",
            )
        ],
        GRADIENT,
    ),
    planted(
        "answer-ignored",
        "the parameters in the response to a push are ignored",
        [(EXCHANGE_PY, "return None if pushed.pulled is None else", "return None if True else")],
        GRADIENT,
    ),
    planted(
        "same-random-numbers",
        "every connection draws the same random numbers",
        [(AGENT_PY, "[context.seed, *context.actors]", "[context.seed]")],
        AGENT,
    ),
    planted(
        "interval-ignored",
        "parameters are pulled after every push",
        [(EXCHANGE_PY, "return self._pushes >= self._interval", "return True")],
        LSTM,
    ),
    # Memory.
    planted("lstm-not-reset", "the next episode starts with the LSTM state of the last one", [_LSTM_KEPT], LSTM),
    planted(
        "lstm-not-reset-learned",
        "the gradient of the next episode starts with the LSTM state of the last one",
        [(LSTM_PY, "    before[restart.reshape(-1)] = 0\n", "")],
        LSTM,
    ),
    planted(
        "lstm-reset-everywhere",
        "the end of an episode clears the LSTM state of all environments",
        [(INPUTS_PY, "np.where(restart[:, None], np.float32(0)", "np.where(restart.any(), np.float32(0)")],
        LSTM,
    ),
    planted(
        "lstm-final-after-reset",
        "a final observation is evaluated without LSTM state",
        [
            (
                AGENT_PY,
                "self._inputs.normalized(final), self._inputs.state_after)",
                "self._inputs.normalized(final), self._inputs.state * 0)",
            )
        ],
        LSTM,
    ),
    planted(
        "lstm-start-forgotten",
        "the gradient of a rollout starts without LSTM state",
        [(ROLLOUT_PY, "self.states[t and 1] = state", "self.states[t and 1] = 0.0")],
        LSTM,
    ),
    planted(
        "lstm-never-remembers",
        "every action is computed without LSTM state",
        [(INPUTS_PY, "np.where(restart[:, None], np.float32(0)", "np.where(True, np.float32(0)")],
        RECALL,
    ),
    planted(
        "lambda-ignored",
        "advantages are always n-step",
        [(AGENT_PY, "self._inputs.state), self.config.gae_lambda)", "self._inputs.state), 1.0)")],
        LSTM,
    ),
    planted(
        "lambda-ignored-in-episodes",
        "advantages of whole episodes are always n-step",
        [(AGENT_PY, "self._inputs.state), self.config.gae_lambda)", "self._inputs.state), 1.0)")],
        EPISODES,
    ),
    planted(
        "lambda-ignored-with-overlap",
        "advantages are always n-step if a worker learns while its environments step",
        [(AGENT_PY, "batch(None, self.config.gae_lambda)", "batch(None, 1.0)")],
        OVERLAP,
    ),
    planted(
        "lambda-ignored-in-episodes-with-overlap",
        "advantages of whole episodes are always n-step if a worker learns while its environments step",
        [(AGENT_PY, "batch(None, self.config.gae_lambda)", "batch(None, 1.0)")],
        EPISODES,
    ),
    # Continuous actions.
    planted(
        "gaussian-entropy-sign",
        "the entropy of a Gaussian has the wrong sign",
        [(DISTRIBUTIONS_PY, "by_variance += np.float32(0.5) * weights", "by_variance -= np.float32(0.5) * weights")],
        CONT_GRADIENT,
    ),
    planted(
        "clipped-likelihood",
        "the likelihood is that of the action clipped to its bounds",
        [
            (
                AGENT_PY,
                "actions = self._policy.sample(outputs, self._rng)\n",
                "actions = self._policy.sample(outputs, self._rng)\n            self._actions_of(actions)\n",
            ),
            (
                "relaax/algorithm_base/acting/actions.py",
                "        leaves, start = [], 0\n",
                "        actions[...] = (within - self._centre) / self._radius\n        leaves, start = [], 0\n",
            ),
        ],
        CONT_GRADIENT,
    ),
    planted(
        "bounds-ignored",
        "sampled actions are not clipped to their bounds",
        [
            (
                "relaax/algorithm_base/acting/actions.py",
                "within = np.minimum(np.maximum(mapped, self._low), self._high)",
                "within = mapped",
            )
        ],
        CONT_CONTRACT,
    ),
    # Mixed actions.
    planted(
        "entropy-weight-not-in-the-derivative",
        "the weight of a part's entropy changes the reported entropy only",
        [(DISTRIBUTIONS_PY, "by_log_probability, weight * by_entropy", "by_log_probability, by_entropy")],
        COMPOSITE,
    ),
    planted(
        "part-left-out-of-the-likelihood",
        "the importance weight ignores the last part of an action",
        [
            (
                DISTRIBUTIONS_PY,
                "for i, part in enumerate(self.parts):\n            found +=",
                "for i, part in enumerate(self.parts[:-1]):\n            found +=",
            )
        ],
        MIXED_GRADIENT,
    ),
    planted(
        "columns-of-the-next-part",
        "each part counts as one column of a mixed action",
        [
            (
                DISTRIBUTIONS_PY,
                "_consecutive([math.prod(part.action_shape) for part in parts])",
                "slice(i, i + math.prod(part.action_shape)) for i, part in enumerate(parts)",
            ),
            (DISTRIBUTIONS_PY, "(self.columns[-1].stop,)", "(sum(math.prod(part.action_shape) for part in parts),)"),
        ],
        MIXED_ACTIONS,
    ),
    planted(
        "entropy-weight-of-the-outer-part",
        "a weight of an inner part has no effect if its outer part has one too",
        [
            (
                "relaax/algorithm_base/acting/actions.py",
                "path, separator, _ = path.rpartition",
                "path, separator, _ = path.partition",
            )
        ],
        MIXED_ACTIONS,
    ),
    planted(
        "mask-of-the-first-part",
        "every part of a mixed action uses the start of the mask",
        [(DISTRIBUTIONS_PY, "valid[:, self._valid_columns[i]]", "valid[:, : sum(part.choices)]")],
        COMPOSITE,
    ),
    planted(
        "clipped-numbers-not-counted",
        "the share of clipped actions is always 0",
        [
            (
                "relaax/algorithm_base/acting/actions.py",
                "clipped = within != mapped",
                "clipped = within != within",
            )
        ],
        MIXED_ACTIONS,
    ),
    # Several choices at once, and images with additional numbers.
    planted(
        "only-the-first-choice",
        "only the first of several choices has a gradient",
        [
            (
                DISTRIBUTIONS_PY,
                "            entropy += entropy_k\n",
                "            entropy += entropy_k\n            by_logits[:, columns] *= k == 0\n",
            )
        ],
        DISTRIBUTIONS,
    ),
    planted(
        "only-the-first-choice-learned",
        "only the first of several choices has a gradient (learning)",
        [
            (
                DISTRIBUTIONS_PY,
                "            entropy += entropy_k\n",
                "            entropy += entropy_k\n            by_logits[:, columns] *= k == 0\n",
            )
        ],
        SPACES,
    ),
    planted(
        "choices-as-one",
        "the likelihood of several choices, which weights overlapped steps, is that of the last choice",
        [(DISTRIBUTIONS_PY, "            found += kernels", "            found = kernels")],
        DISTRIBUTIONS,
    ),
    planted(
        "bits-sign",
        "the likelihood of bits has the wrong derivative",
        [(DISTRIBUTIONS_PY, "np.where(a_t, zero, -one)", "np.where(a_t, -zero, one)")],
        DISTRIBUTIONS,
    ),
    planted(
        "bits-sign-learned",
        "the likelihood of bits has the wrong derivative (learning)",
        [(DISTRIBUTIONS_PY, "np.where(a_t, zero, -one)", "np.where(a_t, -zero, one)")],
        SPACES,
    ),
    planted(
        "bits-entropy-sign",
        "the entropy of bits has the wrong derivative",
        [(DISTRIBUTIONS_PY, "by_logits -= logits * one", "by_logits += logits * one")],
        DISTRIBUTIONS,
    ),
    planted(
        "image-without-gradient",
        "an image with additional numbers has no gradient",
        [
            (
                TRUNK_PY,
                "np.ascontiguousarray(gradient[:, : -self._side_width])",
                "np.zeros_like(gradient[:, : -self._side_width], order='C')",
            )
        ],
        HOST_NETWORK,
    ),
    planted(
        "numbers-without-gradient",
        "the layer for numbers in addition to an image has no gradient",
        [(TRUNK_PY, "write_or_add(inputs[:, self._pixels :].T @ by_y, by_kernel, accumulate)", "by_kernel.fill(0)")],
        HOST_NETWORK,
    ),
    planted(
        "numbers-not-used",
        "numbers in addition to an image do not reach the network",
        [
            (
                "relaax/algorithm_base/observations.py",
                "inputs[:, count:] = self._vector",
                "inputs[:, count:] = 0 * self._vector",
            ),
        ],
        SPACES,
    ),
    planted(
        "image-not-used",
        "an image with additional numbers does not reach the network",
        [
            (
                "relaax/algorithm_base/observations.py",
                "np.divide(pixels, np.float32(255)",
                "np.divide(0 * pixels, np.float32(255)",
            )
        ],
        SPACES,
    ),
    # Normalisation.
    planted(
        "void-statistics",
        "observations without an action enter the statistics",
        [(NORMALIZATION_PY, "acted = step.acted", "acted = np.ones_like(step.first)")],
        CONT_GRADIENT,
    ),
    planted(
        "newest-statistics",
        "a gradient normalizes with the newest statistics instead of those used for the actions",
        [
            (INPUTS_PY, "self.newest = inputs, self.normalized(inputs)", "self.newest = inputs, inputs"),
            (
                AGENT_PY,
                "self._actor.act(inputs.newest, inputs.state, None if exploit else self._row)",
                "self._actor.act(inputs.normalized(inputs.newest), inputs.state)",
            ),
            (
                AGENT_PY,
                "self._actor.act(rollout.newest(), self._inputs.state, self._row)",
                "self._actor.act(self._inputs.normalized(rollout.newest()), self._inputs.state)",
            ),
            (AGENT_PY, "gradient(batch.inputs,", "gradient(self._inputs.normalized(batch.inputs),"),
        ],
        CONT_GRADIENT,
    ),
    planted(
        "own-statistics-only",
        "statistics of other workers are not used",
        [(INPUTS_PY, "        self.normalization.set_statistics(pulled)\n", "")],
        CONT_GRADIENT,
    ),
    planted(
        "exploit-collects-statistics",
        "statistics are collected in exploit mode",
        [
            (
                AGENT_PY,
                "            self._use(self._exchange.pull_if_old())\n",
                "            self._use(self._exchange.pull_if_old())\n            self._inputs.clipped_rewards(step)\n",
            ),
            (INPUTS_PY, "        if self._learns:", "        if True:"),
        ],
        CONT_CONTRACT,
    ),
    planted(
        "returns-over-an-end",
        "the discounted return for the scale of rewards continues into the next episode",
        [(NORMALIZATION_PY, "            self._returns[step.restart] = 0.0\n", "")],
        CONT_GRADIENT,
    ),
    # Whole episodes.
    planted("whole-no-truncation", "a truncated whole episode has no bootstrap value", [_NO_TRUNCATION], EPISODES),
    planted(
        "whole-terminated-continues", "a terminated whole episode has a bootstrap value", _TERMINATED_GOES_ON, EPISODES
    ),
    planted(
        "whole-bootstrap",
        "the return of a whole episode includes the value of the next observation",
        [_DISCOUNT_ACROSS_AN_END],
        EPISODES,
    ),
    planted(
        "whole-padding-learned",
        "the padding of a shorter episode is learned from",
        [(RAGGED_PY, "mask[after] = 0, 1, 0", "_ = 0, 1, 0")],
        EPISODES,
    ),
    # Learning from environments out of step.
    planted(
        "held-row-is-a-step",
        "a held row counts as a step of a rollout",
        [(RAGGED_PY, "self._steps += step.acted", "self._steps += ~step.first")],
        RAGGED,
    ),
    planted(
        "held-rows-are-acted",
        "held rows count as completed actions",
        [("relaax/algorithm_base/agent.py", "~(self.first | self.held)", "~self.first")],
        CONTRACT,
    ),
    planted(
        "short-column-ends",
        "an environment with fewer steps than others has no bootstrap value",
        [(RAGGED_PY, "discounts[after], mask[after] = 0, 1, 0", "discounts[after], mask[after] = 0, 0, 0")],
        RAGGED,
    ),
    planted(
        "bootstrap-over-an-idle-row",
        "an environment with fewer steps than others bootstraps from an old row",
        [(RAGGED_PY, "values[:-1][after] = np.broadcast_to(values[-1], values[:-1].shape)[after]", "pass")],
        RAGGED,
    ),
    planted(
        "open-action-lost",
        "an action in progress at the end of a rollout is lost",
        [(RAGGED_PY, "array[0, is_open] = array[last]", "pass")],
        RAGGED,
        TURNS_OF_DA3C,
    ),
    planted(
        "open-action-without-its-state",
        "an action in progress at the end of a rollout loses the LSTM state before it",
        [(RAGGED_PY, "self._states[0, is_open] = self._states[1, is_open]", "pass")],
        RAGGED,
        TURNS_OF_DA3C,
    ),
    planted(
        "mean-over-idle-environments",
        "a gradient is averaged over environments without a step, too",
        [(RAGGED_PY, "ready: Mask = self._steps > 0", "ready: Mask = self._steps >= 0")],
        RAGGED,
    ),
    planted(
        "results-of-void-rows-reused",
        "a gradient uses results for inputs that a void step has overwritten",
        [(HOST_PY, "def forget(self) -> None:\n        self._kept.clear()", "def forget(self) -> None:\n        pass")],
        TURNS_OF_AGENTS,
    ),
    planted(
        "lstm-state-before-a-held-row",
        "the LSTM state before an action changes while the action is in progress",
        [(INPUTS_PY, "self.state = self.keep_held(self.state, state)", "self.state = state")],
        TURNS_OF_DA3C,
        TURNS_OF_AGENTS,
    ),
    planted(
        "held-action-not-weighted",
        "an action in progress at an update has no importance weight without overlap",
        [(AGENT_PY, "if step.held is not None:", "if False:")],
        TURNS_OF_DA3C,
    ),
    planted(
        "held-action-forgets-its-policy",
        "the importance weight of an action in progress uses a later policy",
        [(AGENT_PY, "inputs.keep_held(self._outputs[head], output) for", "output for")],
        TURNS_OF_DA3C,
    ),
    planted(
        "return-decays-in-held-rows",
        "the discounted return for the scale of rewards decays in held rows",
        [(NORMALIZATION_PY, "np.where(step.held, self._returns, returns)", "returns")],
        TURNS_OF_AGENTS,
    ),
    planted(
        "void-observation-as-input",
        "the observation of a held row becomes the input of the action in progress",
        [(INPUTS_PY, "inputs = _where(void, self.unnormalized, inputs)", "pass")],
        TURNS_OF_AGENTS,
        TURNS_OF_DA3C,
    ),
    planted(
        "frame-of-a-held-row",
        "a held row pushes a frame on its stack",
        [("relaax/algorithm_base/observations.py", "self._stack[void] = kept", "pass")],
        TRANSITIONS,
        TURNS_OF_AGENTS,
    ),
    planted(
        "transition-with-a-held-reward",
        "the void reward of a held row is part of a transition",
        [(TRANSITIONS_PY, "void = first if held is None else first | held", "void = first")],
        TRANSITIONS,
    ),
    planted(
        "transition-ages-in-held-rows",
        "held rows count as steps of an n-step transition",
        [(TRANSITIONS_PY, "np.roll(column[:, held], 1, axis=0)", "column[:, held]")],
        TRANSITIONS,
    ),
    planted(
        "transition-ends-in-a-held-row",
        "a transition becomes complete in a held row",
        [(TRANSITIONS_PY, "            where &= ~held\n", "            pass\n")],
        TRANSITIONS,
    ),
    planted(
        "frames-kept-for-a-held-row",
        "all frames since the last action of a waiting environment are kept",
        [(TRANSITIONS_PY, "self._buffer.renew(self._observations, self._open, held)", "pass")],
        TRANSITIONS,
    ),
    planted(
        "continuous-policy-sign-learned",
        "the policy loss has the wrong sign (learning, continuous actions)",
        [_POLICY_SIGN],
        DOCKING,
    ),
    # The parameter server.
    planted(
        "doubled-push",
        "a repeated push is applied twice",
        [
            (
                SHARD_PY,
                "            if outcome is None:\n                outcome = self._count",
                "            if True:\n                outcome = self._count",
            )
        ],
        SHARD,
    ),
    planted(
        "slots-not-restored",
        "the slots of the optimizer are not restored from a checkpoint",
        [(SHARD_PY, "            self._optimizer.restore(snapshot.slots)\n", "")],
        SHARD,
    ),
    planted(
        "ledger-not-restored",
        "after a restart an applied push is applied again",
        [(SHARD_PY, "            self._ledger.restore(snapshot.ledger)\n", "")],
        SHARD,
    ),
    planted(
        "annealing-upwards",
        "the learning rate increases",
        [
            (
                "relaax/algorithm_base/config.py",
                "1.0 - global_step / self.end",
                "1.0 + global_step / self.end",
            )
        ],
        "tests/algorithm_base/test_schedule.py",
    ),
    planted(
        "staleness-off-by-one",
        "gradients exactly as stale as allowed are discarded",
        [(SHARD_PY, "staleness > self._max_staleness", "staleness >= self._max_staleness")],
        SHARD,
    ),
    planted(
        "discarded-steps-lost",
        "the steps of a discarded gradient are not counted",
        [
            (
                SHARD_PY,
                "env_steps=before.env_steps + push.env_steps",
                "env_steps=before.env_steps + push.env_steps * (discard is Discard.NONE)",
            )
        ],
        SHARD,
    ),
    planted(
        "rmsprop-decay",
        "RMSProp swaps the weights of old and new squares",
        [("relaax/optim/optimizers.py", '"rho": self.decay', '"rho": 1.0 - self.decay')],
        "tests/optim/test_optimizers.py",
    ),
    planted(
        "rmsprop-decay-on-the-host",
        "the host's RMSProp swaps the weights of old and new squares",
        [("relaax/optim/host_optimizers.py", "size, function, 1.0 - spec.decay", "size, function, spec.decay")],
        "tests/optim/test_optimizers.py",
    ),
    planted(
        "removal-ignored",
        "the oldest item is evicted regardless of `removal`",
        [("algorithms/_replay/model.py", "remover = _REMOVERS[config.removal]", 'remover = _REMOVERS["oldest"]')],
        "tests/algorithms/gorila/test_agent.py",
    ),
    planted(
        "rmsprop-not-centered",
        "centered RMSProp omits the square of the mean",
        [
            ("relaax/optim/optimizers.py", "mean_square - mean * mean", "mean_square"),
            ("relaax/optim/host_optimizers.py", "mean_square[i] - mean[i] * mean[i]", "mean_square[i]"),
        ],
        "tests/optim/test_optimizers.py",
    ),
    planted(
        "rmsprop-centered-on-the-device-alone",
        "the host's centered RMSProp omits the square of the mean",
        [("relaax/optim/host_optimizers.py", "mean_square[i] - mean[i] * mean[i]", "mean_square[i]")],
        "tests/optim/test_optimizers.py",
    ),
    planted(
        "variance-below-zero",
        "rounding makes the variance of centered RMSProp negative",
        [
            (
                "relaax/optim/host_optimizers.py",
                "max(mean_square[i] - mean[i] * mean[i], np.float32(0.0))",
                "mean_square[i] - mean[i] * mean[i]",
            )
        ],
        "tests/optim/test_optimizers.py",
    ),
    planted(
        "snapshot-overwritten",
        "the memory of a snapshot is reused while a reader still has it",
        [
            (
                "relaax/nn/recycled_memory.py",
                "sys.getrefcount(array) == _UNSHARED",
                "sys.getrefcount(array) >= _UNSHARED",
            )
        ],
        "tests/optim/test_optimizers.py",
    ),
    planted(
        "delay-doubled",
        "delays are added instead of compensated",
        [(COMPENSATION_PY, "np.subtract(now, base)", "np.subtract(base, now)")],
        COMPENSATION,
    ),
    planted(
        "ring-survives",
        "after a roll-back delays are measured with earlier parameters",
        [(COMPENSATION_PY, "        self._ring.clear()\n", "")],
        COMPENSATION,
    ),
    planted(
        "outlier-hides-others",
        "after one huge loss no later outlier is found",
        [("relaax/hosting/gradient_filters.py", "min(size, limit) if outlier else size", "size")],
        "tests/algorithm_base/test_loss_outliers.py",
    ),
    planted(
        "local-statistics-survive",
        "a worker keeps its statistics after a roll-back of the model",
        [
            (
                "relaax/hosting/gradient_filters.py",
                "        self._update = None\n\n\ndef",
                "        pass\n\n\ndef",
            )
        ],
        "tests/algorithm_base/test_local_optimizer.py",
    ),
    planted(
        "cut-in-pieces",
        "with one shard, a push is applied between the copies of a checkpoint",
        [
            (
                "relaax/server/parameter_server/service/core.py",
                "            unbroken = self.access.hold(CUT)\n",
                "            unbroken = True\n",
            ),
            ("relaax/server/parameter_server/service/core.py", "unbroken &= self.access.release()", "pass"),
        ],
        "tests/server/parameter_server/test_one_cut.py",
    ),
    planted(
        "published-without-a-shard",
        "shard 0 publishes a checkpoint although a shard disappeared after writing its part",
        [(LEADER_PY, "if served is None or not served == self._served == self.members.changes:", "if served is None:")],
        LEADER,
    ),
    planted(
        "early-checkpoints-missing",
        "the first checkpoint of a training comes only after a full interval",
        [(CHECKPOINTING_PY, "return min(self._interval, EARLY[self._made])", "return self._interval")],
        CHECKPOINTING,
    ),
    planted(
        "early-checkpoints-late",
        "an early checkpoint comes later than the interval allows",
        [(CHECKPOINTING_PY, "return min(self._interval, EARLY[self._made])", "return EARLY[self._made]")],
        CHECKPOINTING,
    ),
    planted(
        "late-and-silent",
        "checkpoint errors after a successful save are not logged at once",
        [(CHECKPOINTING_PY, "        self._logged.clear()\n", "")],
        CHECKPOINTING,
    ),
    planted(
        "hold-unbroken-at-its-end",
        "a hold that has just expired counts as held",
        [
            (
                "relaax/server/parameter_server/shard/model.py",
                "unbroken = self._clock() < self._held_until",
                "unbroken = self._clock() <= self._held_until",
            )
        ],
        "tests/server/parameter_server/test_model_access.py",
    ),
    planted(
        "news-of-shard-0-only",
        "changes of other shards alone cause no checkpoint",
        [
            (
                "relaax/server/parameter_server/coordination/leader.py",
                "return (mark, *(answer.state for answer in answers)) != saved",
                "return False",
            )
        ],
        LEADER,
    ),
    planted(
        "first-worker-keeps-all",
        "while the first worker is active, no silent worker is removed",
        [
            (
                "relaax/server/parameter_server/service/registry.py",
                "        self._workers.move_to_end(worker.worker_id)\n",
                "",
            )
        ],
        "tests/server/parameter_server/test_registry.py",
    ),
    planted(
        "figures-every-time",
        "metrics with an interval are written at every request",
        [
            (
                "relaax/server/parameter_server/service/metrics.py",
                "        self._due = now + INTERVAL\n        values",
                "        values",
            )
        ],
        "tests/server/parameter_server/test_periodic_metrics.py",
    ),
    planted(
        "repeats-not-counted",
        "repeated pushes are not reported",
        [(CORE_PY, "        if applied.repeated:\n", "        if False:\n")],
        "tests/server/parameter_server/test_service.py",
    ),
    planted(
        "no-answer-after-the-end",
        "a repeated push after the end of training gets no response",
        [
            (
                "relaax/server/parameter_server/service/core.py",
                '            return self._repeat("same", push.worker, push.push_id)\n',
                "            return None\n",
            )
        ],
        "tests/server/parameter_server/test_roll_back.py",
    ),
    # Transport, stores, metrics.
    planted(
        "manifest-of-another",
        "a manifest copied to another checkpoint is accepted",
        [("relaax/checkpoint/manifest.py", "if read.id != checkpoint_id:", "if not read.id:")],
        SET_ASIDE,
    ),
    planted(
        "set-aside-deleted",
        "a checkpoint that was set aside is deleted during thinning",
        [("relaax/checkpoint/manager.py", ", *set_aside(keys)}\n        owners", "}\n        owners")],
        SET_ASIDE,
    ),
    planted(
        "copy-of-last-forgotten",
        "the copy of the last checkpoint is not used at the start",
        [
            (
                "relaax/server/parameter_server/command/assembly.py",
                "    retry_while_unavailable(spool.deliver, ends)\n",
                "",
            )
        ],
        "tests/server/parameter_server/test_spool.py",
    ),
    planted(
        "fence-below-checkpoints",
        "a recreated lease has a lower fence than existing checkpoints",
        [
            (
                "relaax/checkpoint/lease.py",
                "max(above, record.fence if record else 0) + 1",
                "(record.fence if record else above) + 1",
            )
        ],
        LEASE,
    ),
    planted(
        "lease-given-back-twice",
        "a second release of a lease overwrites that of the next owner",
        [
            (
                "relaax/checkpoint/lease.py",
                "if self._lost is not None or self._record.released:",
                "if self._lost is not None:",
            )
        ],
        LEASE,
    ),
    planted(
        "unmodified-by-the-last-shard",
        "no shard is pulled if the last one is unmodified",
        [(RECEIVED_PY, "all(answer.message.not_modified for answer in answers)", "answers[-1].message.not_modified")],
        LINKS,
    ),
    planted(
        "unmodified-part-left-empty",
        "the part of an unmodified shard is not copied to the new buffer",
        [(RECEIVED_PY, "vector[part] = self.pulled.parameters[part]", "pass")],
        LINKS,
    ),
    planted(
        "float16-edge",
        "65520 becomes infinite in float16",
        [("relaax/parameters/precision.py", "size >= _U32(0x477FF000)", "size > _U32(0x477FF000)")],
        "tests/parameters/test_precision.py",
    ),
    planted(
        "resumed-without-a-condition",
        "an interrupted S3 download continues even if the object has changed",
        [("relaax/checkpoint/s3.py", ', "IfMatch": tags[0]} if at', "} if at")],
        "tests/checkpoint/test_s3.py",
    ),
    planted(
        "steps-reported-again",
        "a worker's steps are not cleared after a report",
        [("relaax/metrics/fleet.py", "                worker.steps = 0\n", "                pass\n")],
        FLEET,
    ),
    planted(
        "percentile-off-by-one",
        "the 95th percentile of 100 numbers is the 96th number",
        [
            (
                "relaax/metrics/aggregator.py",
                "ordered[math.ceil(0.95 * len(ordered)) - 1]",
                "ordered[min(math.ceil(0.95 * len(ordered)), len(ordered) - 1)]",
            )
        ],
        "tests/metrics/test_aggregator.py",
    ),
    planted(
        "shown-by-number",
        "the workers with the lowest numbers, not the first to report, have metrics of their own",
        [("relaax/metrics/fleet.py", "return actor in self._shown", "return actor < SHOWN_AT_MOST")],
        FLEET,
    ),
    # The gRPC port: slow and unauthenticated calls, roles of certificates.
    planted(
        "late-calls-stay",
        "a call without a message keeps its thread",
        [(READING_PY, "if now - call.since > call.seconds]", "if now - call.since > 1e9]")],
        READING,
    ),
    planted(
        "strangers-take-all-threads",
        "calls without a token have no common bound",
        [(READING_PY, "if len(calls) <= OPEN_UNFINISHED:", "if len(calls) <= THREADS:")],
        READING,
    ),
    planted(
        "workers-are-strangers",
        "a worker's connection counts as one without a call",
        [
            (
                READING_PY,
                "        self._on_message(call.peer, method not in OPEN)\n        return message",
                "        self._on_message(call.peer, False)\n        return message",
            )
        ],
        "tests/server/parameter_server/test_connections.py",
    ),
    planted(
        "a-servers-certificate-is-a-workers",
        "the role of a certificate is not checked",
        [("relaax/server/parameter_server/command/credentials.py", "if role in (None, needed) else", "if True else")],
        "tests/integration/test_security.py",
    ),
    # The RLX server: times, repeated calls, exact bounds, unusual sequences.
    planted(
        "strikes-forever",
        "an address with too many failures stays blocked",
        [(STRIKES_PY, "record.blocked_until > self._clock()", "record.blocked_until > 0")],
        STRIKES,
    ),
    planted(
        "strikes-never-expire",
        "failures of any age count",
        [(STRIKES_PY, "if record is None or now - record.since > SECONDS:", "if record is None:")],
        STRIKES,
    ),
    planted(
        "strikes-kept-after-the-minute",
        "a blocked address is blocked again at its first later failure",
        [(STRIKES_PY, "= now + SECONDS, 0, now", "= now + SECONDS, record.count, now")],
        STRIKES,
    ),
    planted(
        "reset-after-a-same-step-end",
        "the episode that began in the step before a reset has no return",
        [("relaax/rlx/checks.py", ", _intersection(ended, self._next_step)", ", ended")],
        f"{RLX_SERVER_TESTS}/test_session.py",
    ),
    planted(
        "between-episodes-after-a-reset",
        "a second reset does not count episodes that ended before the first",
        [
            (
                "relaax/rlx/checks.py",
                "self._between_after = None if idle is None else",
                "self._between_after = self._between_after if idle is None else",
            )
        ],
        f"{RLX_SERVER_TESTS}/test_session.py",
    ),
    planted(
        "send-deadline",
        "a client has 30 ms to read a reply",
        [(PEER_PY, "SEND_SECONDS = 30.0", "SEND_SECONDS = 0.03")],
        f"{RLX_SERVER_TESTS}/test_peer.py",
    ),
    planted(
        "received-and-lost",
        "a message received by the heartbeat while the worker is busy is dropped",
        [(PEER_PY, "                self._received.append(event)\n", "                pass\n")],
        f"{RLX_SERVER_TESTS}/test_peer.py",
    ),
    planted(
        "every-origin",
        "pages of any origin may connect",
        [(WEBSOCKET_PY, "origins=[None, LOOPBACK_ORIGIN, *origins]", "origins=None")],
        f"{RLX_SERVER_TESTS}/test_websocket.py",
    ),
    planted(
        "origins-like-loopback",
        "an origin whose name begins like a loopback address is accepted as local",
        [(WEBSOCKET_PY, '(:[0-9]{1,5})?")', '(:[0-9]{1,5})?.*")')],
        f"{RLX_SERVER_TESTS}/test_websocket.py",
    ),
    planted(
        "protocol-error-after-a-message",
        "a WebSocket error after a good message waits for more data",
        [(CHANNEL_PY, "websocket.ended or websocket.broken is not None", "websocket.ended")],
        f"{RLX_SERVER_TESTS}/test_websocket.py",
    ),
    planted(
        "websocket-takes-a-place",
        "a silent WebSocket client occupies a place of other clients",
        [(CLIENT_ENTRY_PY, "tls is not None or self._peer.begins_with_http()", "tls is not None")],
        f"{RLX_SERVER_TESTS}/test_websocket.py",
    ),
    planted(
        "request-with-the-handshake",
        "a refused HTTP request in the last packet of the TLS handshake counts as a failure of the worker",
        [(CLIENT_ENTRY_PY, "PeerTimeout, TlsFailed, HttpRefused)", "PeerTimeout, TlsFailed)")],
        f"{RLX_SERVER_TESTS}/test_guarded.py",
    ),
    planted(
        "pings-count",
        "pings between the fragments of a message count as fragments",
        [("relaax/websocket.py", "else self._limit + _CONTROL_BYTES", "else self._limit")],
        f"{RLX_SERVER_TESTS}/test_websocket.py",
    ),
    planted(
        "plain-http-at-tls",
        "a port with TLS accepts a WebSocket in plain text",
        [(WEBSOCKET_PY, "if self._refusal:", "if False:")],
        f"{RLX_SERVER_TESTS}/test_guarded.py",
    ),
    planted(
        "names-as-sent",
        "metric names are kept exactly as clients send them",
        [("relaax/server/rlx_server/workers/session.py", "{CLIENTS}{normalize_name(name)}", "{CLIENTS}{name}")],
        f"{RLX_SERVER_TESTS}/test_session.py",
    ),
    planted(
        "swap-as-memory",
        "swap counts as memory",
        [
            (
                "relaax/metrics/system.py",
                "psutil.virtual_memory().available",
                "psutil.virtual_memory().available + psutil.swap_memory().free",
            )
        ],
        f"{RLX_SERVER_TESTS}/test_admission.py",
    ),
    planted(
        "workers-grow-forever",
        "memory is reserved for the growth of workers that have long been running",
        [(ADMISSION_PY, "self._seen_at.get(pid, now)", "now")],
        f"{RLX_SERVER_TESTS}/test_admission.py",
    ),
    planted(
        "turnaround-lost-by-a-ping",
        "the reply to a ping ends the measured time between two steps",
        [(MEASURES_PY, "elif not isinstance(message, rlx.Ping):", "else:")],
        f"{RLX_SERVER_TESTS}/test_worker_metrics.py",
    ),
    planted(
        "arrivals-expire-early",
        "if the oldest connection is too late, all others are dropped as well",
        [(ARRIVALS_PY, "if wait.deadline > now:", "if wait.deadline > now and not self.expired:")],
        f"{RLX_SERVER_TESTS}/test_pending_connections.py",
    ),
    planted(
        "newest-arrival-dropped",
        "the newest connection is dropped instead of the oldest",
        [(ARRIVALS_PY, "for sock in self._waits:", "for sock in reversed(self._waits):")],
        f"{RLX_SERVER_TESTS}/test_pending_connections.py",
    ),
    planted(
        "newest-closing-connection-ended",
        "of the connections waiting for their client to close, the newest is ended",
        [(CHILDREN_PY, "closing.sort(key=", "closing.sort(reverse=True, key=")],
        f"{RLX_SERVER_TESTS}/test_children.py",
    ),
    planted(
        "places-without-turns",
        "waiting connections get processes without waiting for a turn",
        [(PLACES_PY, "self._next_turn = self._clock() + TURN_SECONDS", "self._next_turn = self._clock()")],
        f"{RLX_SERVER_TESTS}/test_unproven_clients.py",
    ),
    planted(
        "quota-of-each-connection",
        "each connection of a client has the quota of all",
        [
            (
                METERS_PY,
                "begin = max(self._numbers[at + 1], now - BURST_SECONDS)",
                "begin = max(self.__dict__.setdefault('own', {}).get(at, 0.0), now - BURST_SECONDS)",
            ),
            (METERS_PY, "self._numbers[at + 1] = begin + amount / rate", "self.own[at] = begin + amount / rate"),
        ],
        f"{RLX_SERVER_TESTS}/test_client_accounts.py",
    ),
    planted(
        "revoked-but-served",
        "connections of a removed name are kept",
        [(CLAIMS_PY, "each.client not in known or", "each.client in known and")],
        f"{RLX_SERVER_TESTS}/test_client_accounts.py",
    ),
    planted(
        "disconnected-and-still-counted",
        "environments of a disconnected client count even after its worker has ended",
        [
            (CLAIMS_PY, "connection = self._by_pid.pop(pid, None)", "connection = self._by_pid.get(pid)"),
            (CLAIMS_PY, "self._by_pid[pid].released = True", "self._by_pid[pid].released = False"),
        ],
        f"{RLX_SERVER_TESTS}/test_client_accounts.py",
    ),
    planted(
        "running-servers-folder-removed",
        "a server that starts removes the temporary folders of running servers",
        [
            (
                "relaax/server/rlx_server/temporary_folders.py",
                "        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n        shutil",
                "        shutil",
            )
        ],
        f"{RLX_SERVER_TESTS}/test_temporary_files.py",
    ),
    planted(
        "leftovers-stay",
        "the temporary files of a killed server are not removed",
        [("relaax/server/rlx_server/main.py", "    remove_leftovers()\n", "")],
        f"{RLX_SERVER_TESTS}/test_temporary_files.py",
    ),
    planted(
        "names-of-ended-connections",
        "metric names of ended connections keep their places",
        [("relaax/metrics/names.py", "self._unused[name] = None", "pass")],
        "tests/metrics/test_fair_names.py",
    ),
    # The wire and the worker.
    planted(
        "big-endian",
        "float arrays have the wrong byte order in both directions",
        [("relaax/rlx/wire/arrays.py", 'np.dtype("<f4")', 'np.dtype(">f4")')],
        "tests/rlx/test_arrays.py",
        "tests/rlx/test_vectors.py",
    ),
    planted(
        "void-reward-reported",
        "the reward of a step that only resets enters the reported return",
        [
            (
                "relaax/server/rlx_server/workers/session.py",
                "count(message.reward, step.acted)",
                "count(message.reward, None)",
            )
        ],
        "tests/server/rlx_server/test_session.py",
    ),
    # Environments out of step.
    planted(
        "void-observation-seen",
        "the agent gets the void observation of an idle environment",
        [(VOID_ROWS_PY, "copy[void] = other[void]", "pass")],
        OUT_OF_STEP,
    ),
    planted(
        "stale-valid-observation",
        "a void observation is replaced by that of an earlier step, if the steps since then were plain",
        [(SESSION_PY, "            self._valid.latest = message.observation\n", "            pass\n")],
        OUT_OF_STEP,
    ),
    planted(
        "leaving-row-held",
        "the outcome of an action that ends an episode is dropped if no next action is wanted",
        [(SESSION_PY, "if step.held.all():", "if step.unwanted is not None and step.unwanted.all():")],
        OUT_OF_STEP,
    ),
    planted(
        "early-agent-reset",
        "an agent is reset before an environment plays",
        [(SESSION_PY, "if idle is not None and idle.all():", "if False:")],
        OUT_OF_STEP,
    ),
    planted(
        "idle-steps-charged",
        "idle environments count as steps of the client",
        [(SESSION_PY, "return environments - void", "return environments")],
        OUT_OF_STEP,
    ),
    planted(
        "seconds-since-idle",
        "the seconds of an episode include those before its environment comes",
        [(SESSION_PY, "self._episodes.set_start(first, now)", "pass")],
        OUT_OF_STEP,
    ),
    planted(
        "learning-without-a-step",
        "an agent learns after a message that it did not get",
        [(WORKER_PY, "isinstance(answer, rlx.Actions) and not void", "isinstance(answer, rlx.Actions)")],
        TURNS,
    ),
    planted(
        "end-of-a-lost-action",
        "the client sends the end of an episode whose action was lost with a connection",
        [(TURNS_PY, "unsent = ended & self.lost if self._ends_in_steps else none", "unsent = none")],
        TURNS,
    ),
    planted(
        "lost-action-awaited",
        "after a lost connection, an environment whose action was lost gets no action for its next state",
        [(TURNS_PY, "replace(marks, lost=_none_if_empty(lost))", "replace(marks, lost=None)")],
        TURNS,
    ),
    planted(
        "lost-action-twice",
        "after a lost connection, an environment whose action is in progress gets another one",
        [
            (
                TURNS_PY,
                "_none_if_empty(partial), _none_if_empty(away | lost)",
                "_none_if_empty(partial), _none_if_empty(away)",
            )
        ],
        TURNS,
    ),
    planted(
        "rest-of-an-episode-whole",
        "the rest of an episode after a lost connection is reported as a whole one",
        [(TURNS_PY, "partial = ~(away | (none", "partial = none & (away | (none")],
        TURNS,
    ),
    # The protocol core and the client.
    planted(
        "frame-in-pieces",
        "a frame at the limit is refused if its last bytes arrive separately",
        [("relaax/rlx/wire/framing.py", ">= HEADER_BYTES + self.max_frame_bytes:", ">= self.max_frame_bytes:")],
        "tests/rlx/test_framing.py",
    ),
    planted(
        "keys-by-utf16",
        "the keys of a Dict are sorted by UTF-16",
        [("relaax/rlx/spaces.py", "in sorted(spaces)}", 'in sorted(spaces, key=lambda key: key.encode("utf-16-be"))}')],
        "tests/rlx/test_spaces.py",
    ),
    planted(
        "void-rewards-returned",
        "the reward of a step that only resets is added to an interrupted connection's return",
        [("relaax/client/connection/vector_client.py", "if self._between is not None:", "if False:")],
        "tests/client/test_vector_client.py",
    ),
    planted(
        "idle-without-the-flag",
        "environments are marked in `idle` although the welcome has no `out_of_step`",
        [("relaax/rlx/checks.py", "if idle is not None and not self.out_of_step:", "if False:")],
        "tests/rlx/test_out_of_step.py",
    ),
    planted(
        "left-environment-plays",
        "an environment that left is still playing",
        [("relaax/rlx/checks.py", "_intersection(_union(away, ended), idle)", "_intersection(away, idle)")],
        "tests/rlx/test_out_of_step.py",
    ),
    planted(
        "final-row-of-leaving-unchecked",
        "the final observation of a NEXT_STEP environment that leaves is not checked",
        [("relaax/rlx/checks.py", "~idle if shown is None else ~idle | shown", "~idle")],
        "tests/rlx/test_out_of_step.py",
    ),
    planted(
        "unasked-out-of-step",
        "a client accepts `out_of_step` in a welcome although its hello did not ask for it",
        [("relaax/rlx/handshake.py", "if getattr(welcome, name) and not getattr(hello, name):", "if False:")],
        "tests/rlx/test_handshake.py",
    ),
    planted(
        "idle-not-written",
        "the fast encoder of steps omits `idle`",
        [("relaax/rlx/wire/layouts.py", "size += self._write_mask(self._idle, step.idle, pieces)", "pass")],
        "tests/rlx/test_layouts.py",
    ),
    planted(
        "marks-of-a-refused-step",
        "a ping after a refused step treats its ends as reported",
        [
            (
                "relaax/rlx/checks.py",
                "        self._between_after = self.between_episodes\n        check =",
                "        check =",
            )
        ],
        "tests/rlx/test_episodes.py",
    ),
    planted(
        "strides-ignored",
        "a large non-contiguous array is sent in memory order",
        [
            (
                "relaax/rlx/wire/layouts.py",
                "array.nbytes > _FEW_BYTES and array.flags.c_contiguous",
                "array.nbytes > _FEW_BYTES",
            )
        ],
        "tests/rlx/test_layouts.py",
    ),
    planted(
        "one-leaf-less",
        "a space with the maximum number of leaves is refused",
        [("relaax/rlx/wire/space_encoding.py", "if index >= MAX_LEAVES:", "if index >= MAX_LEAVES - 1:")],
        "tests/rlx/test_spaces.py",
    ),
    planted(
        "one-level-less",
        "a space with the maximum depth is refused",
        [("relaax/rlx/wire/space_encoding.py", "if depth > MAX_DEPTH", "if depth >= MAX_DEPTH")],
        "tests/rlx/test_spaces.py",
    ),
    planted(
        "final-rows-of-others",
        "a final observation must also be valid in rows of NEXT_STEP ends",
        [("relaax/rlx/checks.py", '"final_observation", final, replaced)', '"final_observation", final, ended)')],
        "tests/rlx/test_episodes.py",
    ),
    planted(
        "two-messages",
        "the first of two messages in a Protobuf frame is accepted",
        [
            ("relaax/rlx/wire/codecs.py", "if len(found) > 1:", "if False:"),
            ("relaax/rlx/wire/codecs.py", "((name, data),) = found", "name, data = found[0]"),
        ],
        "tests/rlx/test_codecs.py",
    ),
    planted(
        "early-messages",
        "a message that came before a reply is validated after it",
        [("relaax/rlx/connection.py", "            self._check_early_frames()\n", "            pass\n")],
        "tests/rlx/test_turns.py",
    ),
    planted(
        "final-states-overwritten",
        "final states of a lost end are overwritten by current observations",
        [("relaax/client/connection/vector_client.py", "over, [leaf.copy() for leaf in leaves])", "over, leaves)")],
        "tests/client/test_vector_client.py",
    ),
    planted(
        "lost-end-stays",
        "a lost end of an episode is reported again after a reset",
        [
            (
                "relaax/client/connection/vector_client.py",
                "self._between = self._lost_ends = None\n        return",
                "self._between = None\n        return",
            )
        ],
        "tests/client/test_vector_client.py",
    ),
    planted(
        "interrupted-forever",
        "after one interrupted episode the client always computes returns itself",
        [
            (
                "relaax/client/connection/client.py",
                "        self._interrupted = False\n\n    def _check",
                "\n    def _check",
            )
        ],
        "tests/client/test_reconnect.py",
    ),
    planted(
        "first-session-id",
        "the session id of the first welcome is used after reconnecting",
        [
            (
                "relaax/client/connection/session.py",
                "session_id=welcome.session_id)",
                "session_id=self._hello.session_id or welcome.session_id)",
            )
        ],
        "tests/client/test_reconnect.py",
    ),
    planted(
        "rewards-without-bound",
        "finite rewards of any size are accepted",
        [
            (
                "relaax/rlx/checks.py",
                'self._check_numbers("reward", step.reward, MAX_REWARD)',
                'self._check_numbers("reward", step.reward, np.finfo(np.float64).max)',
            )
        ],
        "tests/rlx/test_vectors.py",
    ),
    planted(
        "return-without-bound",
        "a return that overflows the mean is kept",
        [("relaax/metrics/returns.py", "        if not is_return(episode_return):\n", "        if False:\n")],
        "tests/metrics/test_returns.py",
    ),
    planted(
        "sample-ends-pusher",
        "a sample that cannot be merged ends the worker that pushed it",
        [
            (
                MERGED_STATISTICS_PY,
                "                self.dropped_samples += 1\n",
                "                raise ValueError(str(why)) from None\n",
            )
        ],
        SHARD,
    ),
    planted(
        "false-generations-spread",
        "workers accept the target-network generation of any shard",
        [
            (
                "relaax/parameters/received.py",
                "max(self.newest, generations[0])",
                "max(generations)",
            )
        ],
        "tests/parameters/test_target.py",
    ),
    planted(
        "few-samples-judge",
        "clients with few samples decide which samples of others are outliers",
        [(MERGED_STATISTICS_PY, "return self.count >= PROVEN", "return False")],
        "tests/server/parameter_server/test_merged_statistics.py",
    ),
    planted(
        "unclipped-samples",
        "samples of statistics are not clipped",
        [("relaax/parameters/moments.py", "np.clip(values, -SAMPLE_LIMIT, SAMPLE_LIMIT)", "values")],
        "tests/parameters/test_moments.py",
    ),
    planted(
        "poisoned-statistics-restored",
        "invalid statistics are restored from a checkpoint",
        [(MERGED_STATISTICS_PY, "        return moments.checked()\n", "        return moments\n")],
        SHARD,
    ),
    planted(
        "indices-assigned-twice",
        "returned actor indices are assigned to two workers",
        [
            (
                "relaax/server/parameter_server/service/actors.py",
                "                rest = gap[count:]\n",
                "                rest = gap[count - 1 :]\n",
            )
        ],
        "tests/server/parameter_server/test_actors.py",
    ),
    planted(
        "killed-workers-count",
        "workers with an ended connection still count",
        [
            (
                "relaax/server/ports/local_server.py",
                "                    self._on_lost(name)\n",
                "                    pass\n",
            )
        ],
        "tests/adversity/test_killed_workers.py",
    ),
    planted(
        "indices-never-return",
        "a session that has been silent for long keeps its actor indices",
        [
            (
                "relaax/server/parameter_server/service/actors.py",
                "if since > limit and self._absent_indices <= MAX_KEPT:",
                "if True:",
            )
        ],
        "tests/server/parameter_server/test_registry.py",
    ),
    # Several machines.
    planted(
        "places-retry-a-refusing-server",
        "a client returns to a server that just refused it, although other servers are left",
        [(CLIENT_PLACES_PY, "[address for address in addresses if address not in self._refused]", "addresses")],
        CLIENT_PLACES,
    ),
    planted(
        "places-stay-after-a-redirect",
        "a client returns to the server that sent it away",
        [
            (
                CLIENT_PLACES_PY,
                "self._retry_same = connected and code is not ErrorCode.REBALANCING",
                "self._retry_same = connected",
            )
        ],
        CLIENT_PLACES,
    ),
    planted(
        "moving-read-once",
        "a server that moves is looked up only at its first address",
        [("relaax/transport/channel.py", "if seen != self._seen:", "if self._seen is None:")],
        "tests/parameters/test_moving.py",
    ),
    planted(
        "drain-in-no-time",
        "connections of a stopping server are closed in the middle of their episodes",
        [(LISTENER_PY, "self._is_uninterrupted() and time.monotonic() < until", "False")],
        "tests/server/rlx_server/test_end.py",
    ),
    planted(
        "full-server-skips-the-upgrade",
        "a full server answers a WebSocket client in plain RLX",
        [(LISTENER_PY, "state is PendingState.HELLO and not finished", "not finished")],
        f"{RLX_SERVER_TESTS}/test_websocket.py",
    ),
    planted(
        "scaling-without-buffer",
        "a server is removed although the free places are below the buffer",
        [(SCALING_PY, ">= last.workers + self._buffer", ">= last.workers")],
        SCALING,
    ),
    planted(
        "scaling-by-refusals-of-before",
        "refusals of unknown age add a server",
        [(SCALING_PY, "if more > 0 and number in before:", "if more > 0:")],
        SCALING,
    ),
    planted(
        "scaling-does-not-wait",
        "a starting server counts as no places, so another server is added",
        [(SCALING_PY, " + places * (present - len(answering))", "")],
        SCALING,
    ),
    planted(
        "keeper-repeats-the-log",
        "each report about a process contains its whole log",
        [("relaax/cluster/keeper.py", "log.seek(log_end)", "log.seek(0)")],
        "tests/cluster/test_keeper.py",
    ),
    planted(
        "failures-counted-forever",
        "failures of a process count even after a long run between them",
        [(PROCESS_PY, "self._failures = self._failures + 1 if failed else 0", "self._failures += failed")],
        "tests/cli/test_process.py",
    ),
    planted(
        "slow-failures-not-counted",
        "a server that ends late but before it is ready is restarted forever",
        [(PROCESS_PY, "failed = quick or (self._server and not self.announced)", "failed = quick")],
        "tests/cli/test_process.py",
    ),
    planted(
        "late-because-of-another",
        "the start timeout runs while a dependency is not ready",
        [(PROCESS_PY, "deadline = max(self._started_at, self._blocked_at)", "deadline = self._started_at")],
        "tests/cli/test_process.py",
    ),
    planted(
        "failed-because-of-another",
        "a process that ends because a dependency is not ready counts as failed",
        [(SUPERVISOR_PY, "if not (has_needs and has_leader):", "if not has_leader:")],
        SUPERVISOR,
    ),
    planted(
        "restarted-too-early",
        "a process that ended without its server is restarted before the server is ready",
        [(SUPERVISOR_PY, "elif process.announced or (has_needs and has_leader):", "elif role.vital:")],
        SUPERVISOR,
    ),
    planted(
        "waits-for-every-server",
        "on a cluster all RLX servers must be ready before training starts",
        [(SUPERVISOR_PY, "else any(ready) or not ready", "else all(ready)")],
        SUPERVISOR,
    ),
    *CONTROL_ERRORS,
    *OPERATION_ERRORS,
    *PPO_ERRORS,
    *DEMONSTRATION_ERRORS,
    *TAKEOVER_ERRORS,
    *SELF_PLAY_ERRORS,
)

SOAK_ERRORS = (
    planted(
        "applied-twice",
        "a repeated push is applied again",
        [(SHARD_PY, "            if outcome is None:\n", "            if True:\n")],
    ),
    planted(
        "ledger-not-rolled-back",
        "a shard that rolls back to a checkpoint loses its ledger of pushes",
        [(SHARD_PY, "self._ledger.restore(snapshot.ledger)", "self._ledger.restore({})")],
    ),
    planted(
        "cut-torn",
        "a shard writes its current state instead of the state at the cut",
        [(FOLLOWER_PY, "state = kept[1]", "state = self._core.state() or kept[1]")],
    ),
    planted(
        "cut-not-held",
        "updates continue while the shards take their snapshots",
        [(GATE_PY, "while update and not self.closed and (left", "while False and (left")],
    ),
    planted(
        "statistics-doubled",
        "a repeated push merges its samples again",
        [
            (
                SHARD_PY,
                "            repeated = outcome is not None\n",
                "            repeated = outcome is not None\n"
                "            if repeated:\n"
                "                self._statistics.add(push.client, push.statistics)\n",
            )
        ],
    ),
    planted(
        "incarnation-ignored",
        "a push of an earlier incarnation is applied",
        [
            (CORE_PY, "in self.registry.clear():", "in ():"),
            (
                SERVICE_PY,
                "self._core.registry.record_call(worker_id) if incarnation == self._core.incarnation else None",
                "self._core.registry.record_call(worker_id)",
            ),
        ],
    ),
)
"""Errors of `tests/adversity/soak_planted.py`: only the faults of the soak reveal them."""


def copy_tree(target: Path) -> Path:
    target.mkdir()
    for name in NEEDED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, target)
    return target


def run_tests(tree: Path, tests: Sequence[str], *options: str) -> tuple[int, str]:
    """Return pytest's exit code and output. All processes use the code of `tree`."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *options, *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def plant(error: Planted, tree: Path) -> None:
    """Apply the edits of an error to a copy of the tree."""
    for edit in error.edits:
        path = tree / edit.file
        path.write_text(edit.applied(path.read_text(encoding="utf-8")), encoding="utf-8")


def try_error(error: Planted, folder: Path) -> tuple[str, str, float]:
    """Return the verdict, the failed test or another detail, and the seconds."""
    started = time.monotonic()
    tree = copy_tree(folder / error.name)
    try:
        plant(error, tree)
        code, output = run_tests(tree, error.tests)
        if code in (0, NO_TESTS):  # the fast tests did not catch it
            code, output = run_tests(tree, error.tests, "-m", "slow")
    finally:
        shutil.rmtree(tree)
    seconds = time.monotonic() - started
    if code in (0, NO_TESTS):
        return "NOT CAUGHT", " ".join(error.tests), seconds
    if code != TESTS_FAILED:
        return "NOT RUN", output.strip().splitlines()[-1], seconds
    failed = re.search(r"^FAILED (\S+)", output, re.MULTILINE)
    return "caught", failed[1].split("/")[-1] if failed else "?", seconds


def obstacle(error: Planted) -> str:
    """Return why the error cannot be planted, or an empty text."""
    texts: dict[str, str] = {}
    try:
        for edit in error.edits:
            before = texts.get(edit.file) or (ROOT / edit.file).read_text(encoding="utf-8")
            texts[edit.file] = edit.applied(before)
            compile(texts[edit.file], edit.file, "exec")
    except (OSError, ValueError, SyntaxError) as problem:
        return str(problem)
    missing = [test for test in error.tests if not (ROOT / test).is_file()]
    return f"no such test: {', '.join(missing)}" if missing else ""


def select_possible(errors: Sequence[Planted]) -> list[Planted]:
    """Return the errors that can be planted, and print a warning for each other one."""
    obstacles = {error.name: obstacle(error) for error in errors}
    for name, problem in obstacles.items():
        if problem:
            print(f"warning: {name} cannot be planted: {problem}", flush=True)
    possible = [error for error in errors if not obstacles[error.name]]
    print(f"{len(possible)} of {len(errors)} errors can be planted", flush=True)
    return possible


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="plant only these errors")
    parser.add_argument("--list", action="store_true", help="list the errors")
    parser.add_argument("--check", action="store_true", help="check that the errors can be planted, and run no test")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count(), help="number of errors tried in parallel (%(default)s)"
    )
    parser.add_argument(
        "--without-baseline", action="store_true", help="do not check that the tests pass without an error"
    )
    arguments = parser.parse_args()
    if len({error.name for error in ERRORS + SOAK_ERRORS}) != len(ERRORS + SOAK_ERRORS):
        parser.error("two errors have one name")
    if unknown := set(arguments.names) - {error.name for error in ERRORS}:
        parser.error(f"no such error: {', '.join(sorted(unknown))}; --list lists them")
    chosen = [error for error in ERRORS if not arguments.names or error.name in arguments.names]
    width = max(len(error.name) for error in ERRORS)
    if arguments.list:
        print("\n".join(f"{error.name:{width}}  {error.what}" for error in chosen))
        return 0
    chosen = select_possible(chosen)
    if arguments.check:
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not arguments.without_baseline:
            tests = sorted({test for error in chosen for test in error.tests})
            code, output = run_tests(copy_tree(folder / "baseline"), tests)
            if code:
                print(output, "the tests fail without a planted error", sep="\n")
                return 2
        verdicts = []
        with ThreadPoolExecutor(arguments.processes) as pool:
            tried = {pool.submit(try_error, error, folder): error for error in chosen}
            for future in as_completed(tried):
                verdict, detail, seconds = future.result()
                verdicts.append(verdict)
                print(f"{tried[future].name:{width}}  {verdict:10}  {seconds:5.1f} s  {detail}", flush=True)
    print(f"{verdicts.count('caught')} of {len(verdicts)} caught")
    return 2 if "NOT RUN" in verdicts else int("NOT CAUGHT" in verdicts)


if __name__ == "__main__":
    sys.exit(main())
