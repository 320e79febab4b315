"""Do the tests notice? Plants one error at a time in a copy of the tree, and runs the tests that ought to fail.

    make planted-errors                                every error (half an hour on two cores)
    python tests/planted_errors.py policy-sign ...     these only
    python tests/planted_errors.py --list              what there is
    python tests/planted_errors.py --check             which can be planted, without running a test

An error is an exact line of the source and what replaces it. If that line has changed since, a warning names the error:
mend its entry. Slow tests run only if the fast tests pass.

Exit code 0 if every error that could be planted was caught, 1 if one was not, 2 where the tests fail without one or
could not be run.
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

from planted_errors_of_operation import OPERATION_ERRORS

from support.planting import Planted, planted

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ("algorithms", "config", "environments", "protocol", "relaax", "tests", "pyproject.toml")
TESTS_FAILED, NO_TESTS = 1, 5  # exit codes of pytest


GRADIENT = "tests/algorithms/da3c/test_gradient.py"
ROLLOUT = "tests/algorithm_base/test_rollout.py"
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
LOSS_PY = "algorithms/_actor_critic/loss.py"
ROLLOUT_PY = "relaax/algorithm_base/rollout.py"
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
STRIKES_PY = "relaax/server/security/strikes.py"
READING_PY = "relaax/server/ports/request_reader.py"
EPISODES_PY = "algorithms/da3c_cont/episodes.py"
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
EXPLORATION_PY = "relaax/algorithm_base/exploration.py"
VALUE_AGENT_PY = "algorithms/_value_based/agent.py"
VALUE_LSTM = "tests/algorithms/n_step_q/test_lstm.py"
TRANSITIONS_PY = "relaax/algorithm_base/transitions.py"
STORED_PY = "relaax/algorithm_base/transitions.py"
REPLAY_LEARNER_PY = "algorithms/gorila/learner.py"
REPLAY_AGENT_PY = "algorithms/gorila/agent.py"
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
CONT_AGENT_PY = "algorithms/da3c_cont/agent.py"
TARGET_PY = "relaax/server/parameter_server/shard/target.py"
VALUE_GRADIENT = "tests/algorithms/async_q/test_gradient.py"
VALUE_CONTRACT = "tests/algorithms/async_q/test_contract.py"
VALUE_AGENT = "tests/algorithms/async_q/test_agent.py"
TARGETS = "tests/algorithm_base/test_value_targets.py"
VALUE_LOSS = "tests/algorithm_base/test_value_loss.py"
EXPLORATION = "tests/algorithm_base/test_exploration.py"
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
_ENTROPY_SIGN = (LOSS_PY, "by_entropy=-self._beta * weights", "by_entropy=self._beta * weights")
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
    # Experience from steps to transitions, and what is learned from it.
    planted(
        "transition-cut-off-as-terminated",
        "the tail of a truncated episode is dropped",
        [(TRANSITIONS_PY, "self._open & (terminated | cut_off | (", "self._open & (terminated | (")],
        TRANSITIONS,
    ),
    planted(
        "transition-goes-on-after-the-end",
        "a terminated episode has a discount",
        [(TRANSITIONS_PY, "self._ages[:, None] * ~terminated", "self._ages[:, None] * ~first")],
        TRANSITIONS,
    ),
    planted(
        "transition-over-a-cut",
        "what follows a truncated episode is the next one's first observation",
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
        "what a reset leaves open goes on afterwards",
        [(TRANSITIONS_PY, "self._open[:] = False", "pass")],
        TRANSITIONS,
    ),
    planted(
        "priority-of-the-next-episode",
        "the priority of a cut-off transition has the value of the next episode's first observation",
        [(TRANSITIONS_PY, "np.where(completed.cut_off, completed.values, values)", "values")],
        TRANSITIONS,
    ),
    planted(
        "stack-over-an-episodes-start",
        "stacks of frames reach into the episode before",
        [
            (
                STORED_PY,
                "self._stack.push(self._add_frames(inputs), restart)",
                "self._stack.push(self._add_frames(inputs), restart & False)",
            )
        ],
        TRANSITIONS,
    ),
    planted(
        "frames-forgotten-too-early",
        "frames that open transitions will name are not kept",
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
        "a learner's targets are the online network's",
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
        [(REPLAY_LEARNER_PY, " / np.float32(count)", "")],
        REPLAY_LEARNER,
    ),
    planted(
        "learner-without-importance",
        "a learner does not correct for what is drawn more often",
        [(REPLAY_LEARNER_PY, "self._beta(self.exchange.global_step)", "0 * self._beta(self.exchange.global_step)")],
        REPLAY_LEARNER,
    ),
    planted(
        "learner-keeps-priorities",
        "priorities come back without their offset",
        [
            (
                REPLAY_LEARNER_PY,
                "priorities_of(loss.errors, self.config.priority_offset)",
                "priorities_of(loss.errors, 0.0)",
            )
        ],
        REPLAY_LEARNER,
    ),
    planted(
        "bundle-counts-twice",
        "the steps that a learner's push has counted are counted again",
        [
            (
                REPLAY_AGENT_PY,
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
        "the ladder of epsilons has as many rungs as a connection has environments",
        [("algorithms/apex/config.py", "count or len(ranks)", "len(ranks)")],
        REPLAY_AGENT,
    ),
    planted(
        "ranks-of-absent-workers",
        "ranks of workers that have gone are held for ever",
        [("relaax/server/parameter_server/service/actors.py", "seat.until = self._clock() + self._hold", "pass")],
        "tests/server/parameter_server/test_ranks.py",
    ),
    planted(
        "exploiting-actors-have-ranks",
        "exploiting connections take rungs of the ladder of epsilons",
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
        "rewards-without-a-unit",
        "a learner does not scale the rewards that memory holds",
        [(REPLAY_LEARNER_PY, "np.float32(self._normalization.reward_unit)", "np.float32(1.0)")],
        REPLAY_LEARNER,
    ),
    planted(
        "priorities-without-a-unit",
        "priorities of actors are by rewards that are not scaled",
        [(TRANSITIONS_PY, "errors = returns / self._reward_unit", "errors = returns")],
        REPLAY_AGENT,
    ),
    planted(
        "a-bundle-keeps-its-epsilon-to-itself",
        "a worker that learns does not record epsilon",
        [
            (
                REPLAY_AGENT_PY,
                "(learner.pulled))\n            self._record_exploration()\n",
                "(learner.pulled))\n",
            )
        ],
        REPLAY_AGENT,
    ),
    # Replay memory.
    planted(
        "rare-items-count-less",
        "importance weights grow with how often an item is drawn",
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
        "items are drawn by their priorities, whatever the exponent",
        [("relaax/replay/table/trees.py", "else priorities**self._alpha", "else priorities")],
        TABLE,
    ),
    planted(
        "priority-of-a-gone-key",
        "the priority of an item that is gone is given to the one in its place",
        [
            (
                "relaax/replay/table/items.py",
                "(self._keys[slots] == keys) & (keys > 0)",
                "(self._keys[slots] > 0) & (keys > 0)",
            )
        ],
        TABLE,
    ),
    planted(
        "new-items-last",
        "a new item without a priority has 1, and not the largest",
        [(TABLE_PY, "np.full(count, self._default_priority())", "np.full(count, _FIRST_PRIORITY)")],
        TABLE,
    ),
    planted(
        "overwritten-items-are-kept",
        "a copy of a table takes items for whole whose slots were given to others",
        [
            (
                TABLE_COPY_PY,
                "self._whole[here] = self._items.find(self._keys[here])[1]",
                "self._whole[here] = True",
            )
        ],
        COPIES,
    ),
    planted(
        "overwritten-frames-are-kept",
        "a copy of a table takes frames for whole that were overwritten before they were copied",
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
        "kept-inserts-come-twice",
        "a writer sends what it has sent under another name to a table that was kept over a restart",
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
        "learner-takes-itself-for-the-target",
        "a learner's target network is the newest parameters",
        [
            (
                REPLAY_LEARNER_PY,
                "self._target.set_parameters(pulled.target)",
                "self._target.set_parameters(pulled.parameters)",
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
                "if pulled.target is not self._target_parameters:",
                "if self._target_parameters is None:",
            )
        ],
        REPLAY_LEARNER,
    ),
    planted(
        "insert-doubled",
        "an insert that comes again is inserted again",
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
        "what may have arrived at a shard that went away is inserted into another one as well",
        [("relaax/replay/client/writer.py", "            return pending.in_flight\n", "            return False\n")],
        REPLAY_CLIENT,
    ),
    planted(
        "key-of-another-life",
        "the rest of a batch from before a shard began anew goes with keys of now",
        [(SHARD_SAMPLER_PY, "self._samples = [*current, sample]", "self._samples = [*self._samples, sample]")],
        REPLAY_CLIENT,
    ),
    planted(
        "actors-run-ahead",
        "inserts may go beyond the limiter's upper bound",
        [(LIMITER_PY, "self._ratio <= self._middle + self._buffer", "self._ratio <= self._middle + 2 * self._buffer")],
        LIMITER,
    ),
    planted(
        "learners-run-ahead",
        "samples may go beyond the limiter's lower bound",
        [(LIMITER_PY, "count >= self._middle - self._buffer", "count >= self._middle - 2 * self._buffer")],
        LIMITER,
    ),
    planted(
        "learners-catch-up-for-ever",
        "what was inserted while no learner was there is put to the account",
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
        "items are drawn before there are min_size",
        [(LIMITER_PY, "        if not self.has_min_size:\n            return False\n", "")],
        LIMITER,
    ),
    planted(
        "shards-in-equal-parts",
        "each shard gives as much of a batch as any other, whatever it has",
        [(SHARD_SAMPLER_PY, "shares = weights / weights.sum()", "shares = np.full(len(links), 1 / len(links))")],
        REPLAY_CLIENT,
    ),
    planted(
        "probabilities-of-one-shard",
        "an item's probability is that within its shard",
        [(SHARD_SAMPLER_PY, "share * drawn.probabilities", "drawn.probabilities")],
        REPLAY_CLIENT,
    ),
    planted(
        "each-shard-holds-all",
        "a shard keeps as many items as all shards together should",
        [("relaax/replay/spec.py", "math.ceil(self.spec.capacity / shards)", "self.spec.capacity")],
        "tests/replay/test_messages.py",
    ),
    planted(
        "empty-table-is-drawn-from",
        "a draw from an empty table is not refused",
        [(TABLE_PY, "            if not self._items.size:\n", "            if False:\n")],
        TABLE,
    ),
    planted(
        "sessions-share-a-table",
        "the session of a bundle gets the table of another one",
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
        "a worker that learns names no session",
        [(REPLAY_ACCESS_PY, 'actors, session if bundled else "", seed', 'actors, "", seed')],
        REPLAY_OF_WORKERS,
    ),
    planted(
        "learners-draw-alike",
        "all learners draw with one seed",
        [(REPLAY_ACCESS_PY, "[config.seed, number, *actors]", "[config.seed, *actors]")],
        LEARNER_PROCESS,
    ),
    planted(
        "learners-are-all-the-first",
        "a learner's number is not passed on",
        [("relaax/server/learner/process.py", "learner=plan.number,", "learner=0,")],
        LEARNER_PROCESS,
    ),
    planted(
        "ladder-one-rung-short",
        "the last actor of Ape-X explores more than it should",
        [(EXPLORATION_PY, "/ max(count - 1, 1)", "/ max(count, 1)")],
        EXPLORATION,
    ),
    planted(
        "learner-deaf",
        "a signal that the compiler's callback has dropped does not come again",
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
        "a target is the online network's own estimate",
        [(VALUE_AGENT_PY, "outputs, _ = self._target.act(flat,", "outputs, _ = self._actor.act(flat,")],
        VALUE_GRADIENT,
    ),
    planted(
        "target-that-stays",
        "a worker does not take over a refreshed target network",
        [(VALUE_AGENT_PY, "pulled.target is not self._target_parameters:", "self._target_parameters is None:")],
        VALUE_GRADIENT,
    ),
    planted(
        "target-that-follows",
        "a worker takes the newest parameters for the target network",
        [
            (
                VALUE_AGENT_PY,
                "self._target.set_parameters(pulled.target)",
                "self._target.set_parameters(pulled.parameters)",
            )
        ],
        VALUE_GRADIENT,
    ),
    planted(
        "double-chosen-by-the-target",
        "a double estimate lets the target network choose",
        [(TARGETS_PY, "selector_q_t.argmax(axis=-1)", "q_t.argmax(axis=-1)")],
        TARGETS,
        VALUE_GRADIENT,
    ),
    planted(
        "double-one-step-late",
        "a double estimate chooses by the observation before",
        [("algorithms/_value_based/agent.py", "rollout.values[1:] if", "rollout.values[:-1] if")],
        VALUE_GRADIENT,
    ),
    planted(
        "sarsa-of-the-action-before",
        "Sarsa's target has the action that led there",
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
        "Sarsa's target has the best action",
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
        "cut-off-as-terminated",
        "what a cut-off episode would have gone on to is left out",
        [(VALUE_AGENT_PY, "self.config.rewards_gamma, values)", "self.config.rewards_gamma, None)")],
        VALUE_GRADIENT,
    ),
    planted(
        "sarsa-cut-off-greedy",
        "Sarsa takes the best action after what was cut off",
        [
            (
                "algorithms/_value_based/agent.py",
                "values_of(values, self._choose_actions(self._online_values(inputs, state)))",
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
        "what follows a rollout is valued with the state before its first step",
        [("algorithms/_value_based/agent.py", "rollout.states[1]", "rollout.states[0]")],
        VALUE_LSTM,
    ),
    planted(
        "gradient-without-memory",
        "a gradient begins with an empty memory",
        [(VALUE_AGENT_PY, "rollout.states[0], rollout.restart[:-1]", "0 * rollout.states[0], rollout.restart[:-1]")],
        VALUE_LSTM,
    ),
    planted(
        "cut-off-with-the-state-before",
        "what was cut off is valued with the memory of one step earlier",
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
        "an n-step target goes on from the rollout's first observation",
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
        "void steps are learned from",
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
        "the values of all actions move to the target",
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
        "weights are left out of the gradient",
        [(VALUE_LOSS_PY, "(weights * by_chosen)[:, None]", "by_chosen[:, None]")],
        VALUE_LOSS,
    ),
    planted(
        "huber-not-cut",
        "large errors pull as hard as their size",
        [(VALUE_LOSS_PY, "np.clip(errors, -1, 1)", "np.clip(errors, -10, 10)")],
        VALUE_LOSS,
    ),
    planted(
        "epsilon-upwards",
        "actors explore more and more",
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
        "epsilon is annealed by steps",
        [(VALUE_AGENT_PY, "self._epsilon(self._pulled.frames)", "self._epsilon(self._pulled.global_step)")],
        VALUE_AGENT,
    ),
    planted(
        "greedy-instead-of-random",
        "an actor explores where it should not, and the other way round",
        [(EXPLORATION_PY, "random = rng.random(count) < epsilon", "random = rng.random(count) > epsilon")],
        EXPLORATION,
    ),
    planted(
        "one-epsilon-for-all",
        "all actors draw the same final epsilon",
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
        "the target network is copied when one interval more than is due is complete",
        [(TARGET_PY, "if self._leads and generation >", "if self._leads and generation - 1 >")],
        TARGET,
    ),
    # Losses.
    planted("policy-sign", "the policy loss has the wrong sign", [_POLICY_SIGN], LOSS),
    planted("policy-sign-pushed", "the same, seen in what is pushed", [_POLICY_SIGN], GRADIENT),
    planted("policy-sign-learned", "the same, seen in what is learned", [_POLICY_SIGN], LEARNING),
    planted("value-sign", "the value loss has the wrong sign", [_VALUE_SIGN], GRADIENT, LOSS),
    planted("value-sign-learned", "the same, seen in what is learned", [_VALUE_SIGN], LEARNING),
    planted("entropy-sign", "the entropy is punished", [_ENTROPY_SIGN], GRADIENT, LOSS),
    planted("entropy-sign-recurrent", "the same with an LSTM", [_ENTROPY_SIGN], LSTM),
    planted(
        "mean-over-steps",
        "the loss is a mean over the steps of a rollout, not a sum",
        [(LOSS_PY, "np.float32(batch.mask.shape[1])", "np.float32(batch.mask.size)")],
        GRADIENT,
        LOSS,
    ),
    planted(
        "softmax-gradient",
        "the likelihood of the action that was taken goes down instead of up",
        [(SOFTMAX_PY, "by_logits[row, taken] += by_log", "by_logits[row, taken] -= by_log")],
        "tests/nn/test_distributions.py",
    ),
    planted(
        "gaussian-gradient",
        "the mean moves away from the action that was taken",
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
        "the gradient of an LSTM passes the end of an episode",
        [(LSTM_PY, "                    by_c[restart[t]] = 0\n", "")],
        ENGINES,
    ),
    planted(
        "rows-of-an-lstm",
        "a gradient takes rows for acted on that were not",
        [(HOST_PY, "or not self._kept.issuperset(range(steps))", "")],
        ENGINES,
    ),
    planted(
        "old-activations",
        "a gradient begins with what was computed with other parameters",
        [
            (
                HOST_PY,
                "set_parameters(parameters, self._pixels)\n        self._kept.clear()\n",
                "set_parameters(parameters, self._pixels)\n",
            )
        ],
        ENGINES,
    ),
    planted(
        "activations-of-another-batch",
        "a gradient begins with what was computed for the batch before",
        [(HOST_PY, "        self._kept.clear()  # the next rows are others\n", "")],
        ENGINES,
    ),
    planted(
        "norm-not-clipped",
        "long gradients stay as long as they are",
        [(CLIPPING_PY, "if limit is not None and not norm <= limit:", "if False:")],
        ENGINES,
        CLIPPING,
    ),
    planted(
        "slope-of-a-small-network",
        "the slope of tanh is left out where one call does it all",
        [("relaax/nn/host/dense.py", "*= _UNIT - memory[y_at + i] * memory[y_at + i]", "*= _UNIT")],
        "tests/nn/host/test_network.py",
    ),
    planted(
        "stream-of-another-head",
        "every head stands on the first stream",
        [("relaax/nn/specification.py", "heads.index(head) * width", "0")],
        "tests/nn/test_streams.py",
    ),
    planted(
        "dueling-gradient",
        "the gradient of advantages keeps the mean that their values are without",
        [("relaax/nn/action_values.py", "by_values - by_values.mean(axis=1, keepdims=True)", "by_values")],
        "tests/nn/test_action_values.py",
    ),
    planted(
        "shift-of-a-convolution",
        "a convolution adds up the wrong blocks",
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
        "the entropy itself has the wrong sign",
        [(SOFTMAX_PY, "entropy -= by_logits[row, j]", "entropy += by_logits[row, j]")],
        "tests/nn/test_distributions.py",
    ),
    # Returns and ends of episodes.
    planted(
        "no-bootstrap", "nothing is expected after a rollout", [_NO_BOOTSTRAP], "tests/algorithm_base/test_returns.py"
    ),
    planted("no-bootstrap-learned", "the same, seen in what is learned", [_NO_BOOTSTRAP], LEARNING),
    planted(
        "return-off-by-one",
        "rewards are discounted by the following step's discount",
        [("relaax/nn/host/kernels.py", "decays[i] * terms[i + width]", "decays[i + width] * terms[i + width]")],
        "tests/algorithm_base/test_returns.py",
        ROLLOUT,
    ),
    planted("truncated-is-terminated", "nothing is expected after a truncation", [_NO_TRUNCATION], ROLLOUT),
    planted("truncated-is-terminated-pushed", "the same, seen in what is pushed", [_NO_TRUNCATION], GRADIENT),
    planted("truncated-is-terminated-learned", "the same, seen in what is learned", [_NO_TRUNCATION], LEARNING),
    planted("terminated-is-truncated", "an episode that is over goes on", _TERMINATED_GOES_ON, GRADIENT),
    planted("terminated-is-truncated-learned", "the same, seen in what is learned", _TERMINATED_GOES_ON, LEARNING),
    planted(
        "discount-across-an-end",
        "returns run on into the next episode",
        [_DISCOUNT_ACROSS_AN_END],
        ROLLOUT,
    ),
    planted(
        "plain-not-counted",
        "steps in which nothing ended are not learned from",
        [(ROLLOUT_PY, "= rewards, gamma, 1.0", "= rewards, gamma, 0.0")],
        GRADIENT,
    ),
    planted(
        "void-not-masked", "void transitions are learned from", [(ROLLOUT_PY, "= ~step.first", "= True")], GRADIENT
    ),
    planted(
        "void-counted",
        "void transitions count as environment steps",
        [(AGENT_PY, "env_steps += step.env_steps", "env_steps += step.first.size")],
        CONTRACT,
    ),
    # Observations.
    planted(
        "stack-over-an-end",
        "the frame stack is carried over the end of an episode",
        [("relaax/algorithm_base/observations.py", "if restart.any():", "if False:")],
        GRADIENT,
    ),
    planted(
        "stack-over-a-reset",
        "the frame stack is carried over a reset",
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
        "a final observation is valued with the next episode's frames",
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
        "short gradients are made long",
        [(CLIPPING_PY, "if limit is not None and not norm <= limit:", "if limit is not None:")],
        GRADIENT,
        ENGINES,
    ),
    planted(
        "reward-clip-one-sided",
        "negative rewards are cut to zero",
        [(INPUTS_PY, "np.maximum(rewards, -self._bound)", "np.maximum(rewards, 0.0)")],
        GRADIENT,
    ),
    # The agent and its parameters.
    planted(
        "pull-within-rollout",
        "parameters change in the middle of a rollout",
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
        "the parameters that a push brings are not taken",
        [(EXCHANGE_PY, "return None if pushed.pulled is None else", "return None if True else")],
        GRADIENT,
    ),
    planted(
        "same-chance-everywhere",
        "every connection draws the same random numbers",
        [(AGENT_PY, "[context.seed, *context.actors]", "[context.seed]")],
        AGENT,
    ),
    planted(
        "interval-ignored",
        "parameters are fetched after every push",
        [(EXCHANGE_PY, "return self._pushes >= self._interval", "return True")],
        LSTM,
    ),
    # Memory.
    planted("lstm-not-reset", "the next episode is acted on with the memory of the last", [_LSTM_KEPT], LSTM),
    planted(
        "lstm-not-reset-learned",
        "the next episode's gradient has the memory of the last",
        [(LSTM_PY, "    before[restart.reshape(-1)] = 0\n", "")],
        LSTM,
    ),
    planted(
        "lstm-reset-everywhere",
        "an episode's end clears the memory of all environments",
        [(INPUTS_PY, "np.where(restart[:, None], np.float32(0)", "np.where(restart.any(), np.float32(0)")],
        LSTM,
    ),
    planted(
        "lstm-final-after-reset",
        "a final observation is valued without memory",
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
        "a rollout's gradient begins without memory",
        [(ROLLOUT_PY, "self.states[t and 1] = state", "self.states[t and 1] = 0.0")],
        LSTM,
    ),
    planted(
        "lstm-never-remembers",
        "every step is acted on without memory",
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
        [(CONT_AGENT_PY, "self._inputs.state), self.config.gae_lambda)", "self._inputs.state), 1.0)")],
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
        [(CONT_AGENT_PY, "batch(None, self.config.gae_lambda)", "batch(None, 1.0)")],
        EPISODES,
    ),
    # Continuous actions.
    planted(
        "gaussian-entropy-sign",
        "the entropy of a Gaussian has the wrong sign",
        [("relaax/nn/distributions.py", "by_variance += (0.5 * numbers", "by_variance -= (0.5 * numbers")],
        CONT_GRADIENT,
    ),
    planted(
        "clipped-likelihood",
        "the likelihood is that of the action within the bounds",
        [
            (
                CONT_AGENT_PY,
                "actions = self._policy.sample(outputs, self._rng)\n",
                "actions = self._policy.sample(outputs, self._rng)\n            self._actions_of(actions)\n",
            ),
            (
                "relaax/algorithm_base/actions.py",
                "        leaves, start = [], 0\n",
                "        actions[...] = (mapped - self._centre) / self._radius\n        leaves, start = [], 0\n",
            ),
        ],
        CONT_GRADIENT,
    ),
    planted(
        "bounds-ignored",
        "actions are given as the policy sampled them",
        [("relaax/algorithm_base/actions.py", "np.maximum(mapped, self._low, out=mapped)", "pass")],
        CONT_CONTRACT,
    ),
    # Several choices at once, and numbers beside an image.
    planted(
        "only-the-first-choice",
        "of several choices only the first has a gradient",
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
        "the same, seen in what is learned",
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
        "the likelihood of several choices, by which the overlap weighs, is that of the last one",
        [(DISTRIBUTIONS_PY, "            found += _kernels()", "            found = _kernels()")],
        DISTRIBUTIONS,
    ),
    planted(
        "bits-sign",
        "the likelihood of bits has the wrong slope",
        [(DISTRIBUTIONS_PY, "np.where(a_t, zero, -one)", "np.where(a_t, -zero, one)")],
        DISTRIBUTIONS,
    ),
    planted(
        "bits-sign-learned",
        "the same, seen in what is learned",
        [(DISTRIBUTIONS_PY, "np.where(a_t, zero, -one)", "np.where(a_t, -zero, one)")],
        SPACES,
    ),
    planted(
        "bits-entropy-sign",
        "the entropy of bits has the wrong slope",
        [(DISTRIBUTIONS_PY, "by_logits -= logits * one", "by_logits += logits * one")],
        DISTRIBUTIONS,
    ),
    planted(
        "image-without-gradient",
        "an image with numbers beside it has no gradient",
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
        "the layer for numbers beside an image has no gradient",
        [(TRUNK_PY, "write_or_add(inputs[:, self._pixels :].T @ by_y, by_kernel, accumulate)", "by_kernel.fill(0)")],
        HOST_NETWORK,
    ),
    planted(
        "numbers-not-seen",
        "what is beside an image does not reach the network, which learns and acts without it",
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
        "image-not-seen",
        "an image with numbers beside it does not reach the network",
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
        "what nobody acted on enters the statistics",
        [(NORMALIZATION_PY, "acted = ~step.first", "acted = np.ones_like(step.first)")],
        CONT_GRADIENT,
    ),
    planted(
        "newest-statistics",
        "a gradient normalises with the newest statistics, not with those that were acted on",
        [
            (INPUTS_PY, "self.normalized(inputs), restart", "inputs, restart"),
            (
                CONT_AGENT_PY,
                "            inputs.newest, inputs.state,",
                "            inputs.normalized(inputs.newest), inputs.state,",
            ),
            (
                CONT_AGENT_PY,
                "self._actor.act(rollout.newest(), self._inputs.state, rollout.row)",
                "self._actor.act(self._inputs.normalized(rollout.newest()), self._inputs.state)",
            ),
            (CONT_AGENT_PY, "None if exploit else self._rollout.row", "None"),
            (CONT_AGENT_PY, "gradient(batch.inputs,", "gradient(self._inputs.normalized(batch.inputs),"),
        ],
        CONT_GRADIENT,
    ),
    planted(
        "own-statistics-only",
        "what other workers gathered is not used",
        [(INPUTS_PY, "        self.normalization.set_statistics(pulled)\n", "")],
        CONT_GRADIENT,
    ),
    planted(
        "exploit-gathers",
        "statistics are gathered in exploit mode",
        [
            (
                CONT_AGENT_PY,
                "            self._use(self._exchange.pull_if_old())\n",
                "            self._use(self._exchange.pull_if_old())\n            self._inputs.clipped_rewards(step)\n",
            ),
            (INPUTS_PY, "        if self._learns:", "        if True:"),
        ],
        CONT_CONTRACT,
    ),
    planted(
        "returns-over-an-end",
        "the discounted return that rewards are scaled by runs on into the next episode",
        [(NORMALIZATION_PY, "            self._returns[step.restart] = 0.0\n", "")],
        CONT_GRADIENT,
    ),
    # Whole episodes.
    planted("whole-no-truncation", "nothing is expected after a truncated whole episode", [_NO_TRUNCATION], EPISODES),
    planted("whole-terminated-goes-on", "a terminated whole episode goes on", _TERMINATED_GOES_ON, EPISODES),
    planted(
        "whole-bootstrap",
        "a whole episode is worth what is seen next, too",
        [_DISCOUNT_ACROSS_AN_END],
        EPISODES,
    ),
    planted(
        "whole-padding-learned",
        "what pads a shorter episode is learned from",
        [(EPISODES_PY, "[:, None] < lengths).astype", "[:, None] < lengths.max()).astype")],
        EPISODES,
    ),
    planted(
        "continuous-policy-sign-learned",
        "the policy loss has the wrong sign, seen in what is learned",
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
        "the optimizer's slots are not taken from a checkpoint",
        [(SHARD_PY, "            self._optimizer.restore(snapshot.slots)\n", "")],
        SHARD,
    ),
    planted(
        "ledger-not-restored",
        "after a restart a push that was applied is applied again",
        [(SHARD_PY, "            self._ledger.restore(snapshot.ledger)\n", "")],
        SHARD,
    ),
    planted(
        "annealing-upwards",
        "the learning rate grows",
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
        "RMSProp forgets what it should keep",
        [("relaax/optim/optimizers.py", '"rho": self.decay', '"rho": 1.0 - self.decay')],
        "tests/optim/test_optimizers.py",
    ),
    planted(
        "rmsprop-decay-on-the-host",
        "the host's RMSProp forgets what it should keep",
        [("relaax/optim/host_optimizers.py", "size, kernel, 1.0 - spec.decay", "size, kernel, spec.decay")],
        "tests/optim/test_optimizers.py",
    ),
    planted(
        "removal-ignored",
        "the oldest go whatever `removal` says",
        [("algorithms/gorila/model.py", ", _REMOVERS[config.removal])", ")")],
        "tests/algorithms/gorila/test_agent.py",
    ),
    planted(
        "rmsprop-not-centered",
        "the centered RMSProp leaves out the square of the mean",
        [
            ("relaax/optim/optimizers.py", "mean_square - mean * mean", "mean_square"),
            ("relaax/optim/host_optimizers.py", "mean_square[i] - mean[i] * mean[i]", "mean_square[i]"),
        ],
        "tests/optim/test_optimizers.py",
    ),
    planted(
        "rmsprop-centered-on-the-device-alone",
        "the host's centered RMSProp leaves out the square of the mean",
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
        "the memory of a snapshot is used again while somebody has it",
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
        "delays are added to, not compensated",
        [(COMPENSATION_PY, "np.subtract(now, base)", "np.subtract(base, now)")],
        COMPENSATION,
    ),
    planted(
        "ring-survives",
        "after a roll-back delays are measured by parameters of before it",
        [(COMPENSATION_PY, "        self._ring.clear()\n", "")],
        COMPENSATION,
    ),
    planted(
        "outlier-hides-others",
        "one enormous loss makes every later one ordinary",
        [("relaax/hosting/gradient_filters.py", "min(size, limit) if outlier else size", "size")],
        "tests/algorithm_base/test_loss_outliers.py",
    ),
    planted(
        "local-statistics-survive",
        "a worker's statistics outlive a roll-back of the model",
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
        "with one shard, a push may come between the copies of a checkpoint",
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
        "shard 0 publishes a checkpoint although a shard that wrote its part has gone",
        [(LEADER_PY, "if served is None or not served == self._served == self.members.changes:", "if served is None:")],
        LEADER,
    ),
    planted(
        "early-checkpoints-left-out",
        "the first checkpoint of a training comes after the whole interval",
        [(CHECKPOINTING_PY, "return min(self._interval, EARLY[self._made])", "return self._interval")],
        CHECKPOINTING,
    ),
    planted(
        "early-checkpoints-late",
        "an early checkpoint comes later than the interval says",
        [(CHECKPOINTING_PY, "return min(self._interval, EARLY[self._made])", "return EARLY[self._made]")],
        CHECKPOINTING,
    ),
    planted(
        "late-and-silent",
        "trouble with checkpoints that comes back after one was saved is not said at once",
        [(CHECKPOINTING_PY, "        self._logged.clear()\n", "")],
        CHECKPOINTING,
    ),
    planted(
        "hold-unbroken-at-its-end",
        "a hold that has just ended by itself is taken for one that held until then",
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
        "what only another shard has is not saved",
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
        "while the worker that came first is heard of, no silent one is forgotten",
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
        "what is to be written every few seconds is written whenever it is asked for",
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
        "a push that came again is not told of",
        [(CORE_PY, "        if applied.repeated:\n", "        if False:\n")],
        "tests/server/parameter_server/test_service.py",
    ),
    planted(
        "no-answer-after-the-end",
        "the push that ended training is not answered again",
        [
            (
                "relaax/server/parameter_server/service/core.py",
                '            return self._repeat("same", push.worker, push.push_id)\n',
                "            return None\n",
            )
        ],
        "tests/server/parameter_server/test_roll_back.py",
    ),
    # Bridge, stores, metrics.
    planted(
        "manifest-of-another",
        "a manifest that was put in another's place is taken for its own",
        [("relaax/checkpoint/manifest.py", "if read.id != checkpoint_id:", "if not read.id:")],
        SET_ASIDE,
    ),
    planted(
        "set-aside-deleted",
        "what was set aside is deleted when checkpoints are thinned out",
        [("relaax/checkpoint/manager.py", ", *set_aside(keys)}\n        owners", "}\n        owners")],
        SET_ASIDE,
    ),
    planted(
        "copy-of-last-forgotten",
        "the copy of the last checkpoint is not looked for at the start",
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
        "a lease that was begun anew has a lower fence than the checkpoints beside it",
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
        "who gives the lease back a second time writes over the next one's",
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
        "nothing is taken from any shard if the last one has nothing new",
        [(RECEIVED_PY, "all(answer.message.not_modified for answer in answers)", "answers[-1].message.not_modified")],
        LINKS,
    ),
    planted(
        "unmodified-part-left-empty",
        "the part of a shard that has nothing new is not copied to where the others' parts are",
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
        "a download from S3 that broke off goes on with whatever is there now",
        [("relaax/checkpoint/s3.py", ', "IfMatch": tags[0]} if at', "} if at")],
        "tests/checkpoint/test_s3.py",
    ),
    planted(
        "steps-reported-again",
        "a worker's steps are not cleared when they have been reported",
        [("relaax/metrics/fleet.py", "                worker.steps = 0\n", "                pass\n")],
        FLEET,
    ),
    planted(
        "percentile-off-by-one",
        "of a hundred numbers the 96th is given as the 95th percentile",
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
        "workers are shown by themselves if their numbers are low, not if they came first",
        [("relaax/metrics/fleet.py", "return actor in self._shown", "return actor < SHOWN_AT_MOST")],
        FLEET,
    ),
    # The gRPC port: who holds it up, and whose certificate it is.
    planted(
        "late-calls-stay",
        "a call whose message does not come keeps its thread",
        [(READING_PY, "if now - call.since > call.seconds]", "if now - call.since > 1e9]")],
        READING,
    ),
    planted(
        "strangers-take-all-threads",
        "calls that need no token are not bounded together",
        [(READING_PY, "if len(calls) <= OPEN_UNFINISHED:", "if len(calls) <= THREADS:")],
        READING,
    ),
    planted(
        "workers-are-strangers",
        "a worker's connection counts as one that has made no call",
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
        "the role of a certificate is not asked",
        [("relaax/server/parameter_server/command/credentials.py", "if role in (None, needed) else", "if True else")],
        "tests/integration/test_security.py",
    ),
    # The RLX server: time, second calls, exact edges, odd sequences.
    planted(
        "strikes-for-ever",
        "an address that failed too often stays out",
        [(STRIKES_PY, "record.blocked_until > self._clock()", "record.blocked_until > 0")],
        STRIKES,
    ),
    planted(
        "strikes-never-forgotten",
        "failures of any age count",
        [(STRIKES_PY, "if record is None or now - record.since > SECONDS:", "if record is None:")],
        STRIKES,
    ),
    planted(
        "strikes-kept-after-the-minute",
        "an address that comes back is out with its first failure",
        [(STRIKES_PY, "= now + SECONDS, 0, now", "= now + SECONDS, record.count, now")],
        STRIKES,
    ),
    planted(
        "reset-after-a-same-step-end",
        "the episode that began in the step before a reset has no return",
        [("relaax/rlx/checks.py", "= _intersection(ended, self._next_step)", "= ended")],
        f"{RLX_SERVER_TESTS}/test_session.py",
    ),
    planted(
        "between-episodes-after-a-reset",
        "a reset after another one does not count what ended before the first",
        [
            (
                "relaax/rlx/checks.py",
                "message.partial)\n        self._between_after = None",
                "message.partial)",
            )
        ],
        f"{RLX_SERVER_TESTS}/test_session.py",
    ),
    planted(
        "send-deadline",
        "a client has 30 ms to read an answer",
        [(PEER_PY, "SEND_SECONDS = 30.0", "SEND_SECONDS = 0.03")],
        f"{RLX_SERVER_TESTS}/test_peer.py",
    ),
    planted(
        "heard-and-lost",
        "what the heartbeat hears while the worker is busy is dropped",
        [(PEER_PY, "                self._received.append(event)\n", "                pass\n")],
        f"{RLX_SERVER_TESTS}/test_peer.py",
    ),
    planted(
        "every-origin",
        "pages from anywhere may connect",
        [(WEBSOCKET_PY, "origins=[None, LOOPBACK_ORIGIN, *origins]", "origins=None")],
        f"{RLX_SERVER_TESTS}/test_websocket.py",
    ),
    planted(
        "origins-like-loopback",
        "an origin that begins like one of this computer is one",
        [(WEBSOCKET_PY, '(:[0-9]{1,5})?")', '(:[0-9]{1,5})?.*")')],
        f"{RLX_SERVER_TESTS}/test_websocket.py",
    ),
    planted(
        "mistake-behind-a-message",
        "a mistake of WebSocket that came with a good message waits for more to come",
        [(CHANNEL_PY, "websocket.ended or websocket.broken is not None", "websocket.ended")],
        f"{RLX_SERVER_TESTS}/test_websocket.py",
    ),
    planted(
        "websocket-takes-a-place",
        "who asked for a WebSocket and says nothing takes a place from others",
        [(CLIENT_ENTRY_PY, "tls is not None or self._peer.begins_with_http()", "tls is not None")],
        f"{RLX_SERVER_TESTS}/test_websocket.py",
    ),
    planted(
        "request-with-the-handshake",
        "an HTTP request that comes with the end of TLS' handshake and is refused is a failure of the worker",
        [(CLIENT_ENTRY_PY, "PeerTimeout, TlsFailed, HttpRefused)", "PeerTimeout, TlsFailed)")],
        f"{RLX_SERVER_TESTS}/test_guarded.py",
    ),
    planted(
        "pings-count",
        "pings between the fragments of a message count as parts of it",
        [("relaax/websocket.py", "else self._limit + _CONTROL_BYTES", "else self._limit")],
        f"{RLX_SERVER_TESTS}/test_websocket.py",
    ),
    planted(
        "plain-http-at-tls",
        "a port with TLS takes a WebSocket in plain text",
        [(WEBSOCKET_PY, "if self._refusal:", "if False:")],
        f"{RLX_SERVER_TESTS}/test_guarded.py",
    ),
    planted(
        "names-as-sent",
        "names of metrics are kept as clients send them",
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
        "workers-grow-for-ever",
        "room is kept for workers that have long grown",
        [(ADMISSION_PY, "self._seen_at.get(pid, now)", "now")],
        f"{RLX_SERVER_TESTS}/test_admission.py",
    ),
    planted(
        "turnaround-lost-by-a-ping",
        "the answer to a ping ends the way between two steps",
        [(MEASURES_PY, "elif not isinstance(message, rlx.Ping):", "else:")],
        f"{RLX_SERVER_TESTS}/test_worker_metrics.py",
    ),
    planted(
        "arrivals-expire-early",
        "once the oldest connection is too late the others are dropped as well",
        [(ARRIVALS_PY, "if wait.deadline > now:", "if wait.deadline > now and not self.expired:")],
        f"{RLX_SERVER_TESTS}/test_pending_connections.py",
    ),
    planted(
        "newest-arrival-dropped",
        "the newest connection makes room, not the oldest",
        [(ARRIVALS_PY, "for sock in self._waits:", "for sock in reversed(self._waits):")],
        f"{RLX_SERVER_TESTS}/test_pending_connections.py",
    ),
    planted(
        "newest-leaver-ended",
        "of those that wait for a client to close the newest is ended",
        [(CHILDREN_PY, "closing.sort(key=", "closing.sort(reverse=True, key=")],
        f"{RLX_SERVER_TESTS}/test_children.py",
    ),
    planted(
        "places-without-turns",
        "a crowd has a process started as soon as it comes back",
        [(PLACES_PY, "self._next_turn = self._clock() + TURN_SECONDS", "self._next_turn = self._clock()")],
        f"{RLX_SERVER_TESTS}/test_unproven_clients.py",
    ),
    planted(
        "quota-of-each-connection",
        "each connection of a client may do what all of them together may",
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
        "a name that was taken out keeps the connections that it has",
        [(CLAIMS_PY, "each.client not in known or", "each.client in known and")],
        f"{RLX_SERVER_TESTS}/test_client_accounts.py",
    ),
    planted(
        "left-and-still-counted",
        "environments of connections whose clients have left count until their workers have ended, and beyond",
        [
            (CLAIMS_PY, "connection = self._by_pid.pop(pid, None)", "connection = self._by_pid.get(pid)"),
            (CLAIMS_PY, "self._by_pid[pid].released = True", "self._by_pid[pid].released = False"),
        ],
        f"{RLX_SERVER_TESTS}/test_client_accounts.py",
    ),
    planted(
        "living-servers-folder-removed",
        "a server that starts removes the temporary folders of those that run",
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
        "what a killed server left in the temporary directory stays",
        [("relaax/server/rlx_server/main.py", "    remove_leftovers()\n", "")],
        f"{RLX_SERVER_TESTS}/test_temporary_files.py",
    ),
    planted(
        "names-of-the-gone",
        "names of connections that have ended keep their places",
        [("relaax/metrics/names.py", "self._unused[name] = None", "pass")],
        "tests/metrics/test_fair_names.py",
    ),
    # The wire and the worker.
    planted(
        "big-endian",
        "float arrays travel in the wrong byte order, both ways",
        [("relaax/rlx/wire/arrays.py", 'np.dtype("<f4")', 'np.dtype(">f4")')],
        "tests/rlx/test_arrays.py",
        "tests/rlx/test_vectors.py",
    ),
    planted(
        "void-reward-reported",
        "the reward of a void step enters the reported return",
        [
            (
                "relaax/server/rlx_server/workers/session.py",
                "count(message.reward, ~first)",
                "count(message.reward, ~self._none)",
            )
        ],
        "tests/server/rlx_server/test_session.py",
    ),
    # The protocol core and the client.
    planted(
        "frame-in-pieces",
        "a frame of the limit is refused where its last bytes come by themselves",
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
        "a void reward is added where the connection was interrupted",
        [("relaax/client/connection/vector_client.py", "if self._between is not None:", "if False:")],
        "tests/client/test_vector_client.py",
    ),
    planted(
        "marks-of-a-refused-step",
        "a ping after a step that was refused takes its ends for said",
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
        "a large array that lies otherwise in memory is sent as it lies",
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
        "a space of as many leaves as there may be is refused",
        [("relaax/rlx/wire/space_encoding.py", "if index >= MAX_LEAVES:", "if index >= MAX_LEAVES - 1:")],
        "tests/rlx/test_spaces.py",
    ),
    planted(
        "one-level-less",
        "a space as deep as it may be is refused",
        [("relaax/rlx/wire/space_encoding.py", "if depth > MAX_DEPTH", "if depth >= MAX_DEPTH")],
        "tests/rlx/test_spaces.py",
    ),
    planted(
        "final-rows-of-others",
        "a final observation must be one where a NEXT_STEP episode ended, too",
        [("relaax/rlx/checks.py", '"final_observation", final, replaced)', '"final_observation", final, ended)')],
        "tests/rlx/test_episodes.py",
    ),
    planted(
        "two-messages",
        "the first of two messages in a Protobuf frame is taken",
        [
            ("relaax/rlx/wire/codecs.py", "if len(found) > 1:", "if False:"),
            ("relaax/rlx/wire/codecs.py", "((name, data),) = found", "name, data = found[0]"),
        ],
        "tests/rlx/test_codecs.py",
    ),
    planted(
        "early-messages",
        "a message that came before an answer is judged after it",
        [("relaax/rlx/connection.py", "            self._check_early_frames()\n", "            pass\n")],
        "tests/rlx/test_turns.py",
    ),
    planted(
        "final-states-written-over",
        "final states of a lost end are those of the environments by now",
        [("relaax/client/connection/vector_client.py", "over, [leaf.copy() for leaf in leaves])", "over, leaves)")],
        "tests/client/test_vector_client.py",
    ),
    planted(
        "lost-end-stays",
        "an end that was lost is told once more after a reset",
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
        "interrupted-for-ever",
        "after one interrupted episode returns are never the server's again",
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
        "the session id of the first welcome is said for ever",
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
        "rewards have only to be finite",
        [
            (
                "relaax/rlx/checks.py",
                'self._check_numbers("reward", message.reward, MAX_REWARD)\n        self._obs',
                'self._check_numbers("reward", message.reward, np.finfo(np.float64).max)\n        self._obs',
            )
        ],
        "tests/rlx/test_vectors.py",
    ),
    planted(
        "return-without-bound",
        "a return that no mean can have is kept",
        [("relaax/metrics/returns.py", "        if not is_return(episode_return):\n", "        if False:\n")],
        "tests/metrics/test_returns.py",
    ),
    planted(
        "sample-ends-pusher",
        "a sample that cannot be merged ends who pushed it",
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
        "workers believe every shard's generation of the target network",
        [
            (
                "relaax/parameters/received.py",
                "max(self.newest, generation)",
                "max(each.target_generation for each in answers)",
            )
        ],
        "tests/parameters/test_target.py",
    ),
    planted(
        "few-samples-judge",
        "clients with few samples judge those with many, and earlier samples",
        [(MERGED_STATISTICS_PY, "return self.count >= PROVEN", "return False")],
        "tests/server/parameter_server/test_merged_statistics.py",
    ),
    planted(
        "unclipped-samples",
        "samples of statistics have no bound",
        [("relaax/parameters/moments.py", "np.clip(values, -SAMPLE_LIMIT, SAMPLE_LIMIT)", "values")],
        "tests/parameters/test_moments.py",
    ),
    planted(
        "poisoned-statistics-restored",
        "statistics of no use are taken from a checkpoint",
        [(MERGED_STATISTICS_PY, "        return moments.checked()\n", "        return moments\n")],
        SHARD,
    ),
    planted(
        "indices-of-two",
        "indices that were given back are given to two",
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
        "workers whose connection has ended are counted on",
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
        "a session that has been away for long keeps its indices",
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
        "places-ask-who-has-refused",
        "a client goes back to a server that has just refused it, while others are left",
        [(CLIENT_PLACES_PY, "[address for address in addresses if address not in self._refused]", "addresses")],
        CLIENT_PLACES,
    ),
    planted(
        "places-stay-when-sent-away",
        "a client comes back to the server that has sent it away",
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
        "a server that moves is looked for at its first place",
        [("relaax/transport/channel.py", "if seen != self._seen:", "if self._seen is None:")],
        "tests/parameters/test_moving.py",
    ),
    planted(
        "drain-in-no-time",
        "connections of a server that ends are cut in the middle of their episodes",
        [(LISTENER_PY, "self._is_uninterrupted() and time.monotonic() < until", "False")],
        "tests/server/rlx_server/test_end.py",
    ),
    planted(
        "full-server-skips-the-upgrade",
        "a full server says in plain RLX to a WebSocket that it has no room",
        [(LISTENER_PY, "state is PendingState.HELLO and not finished", "not finished")],
        f"{RLX_SERVER_TESTS}/test_websocket.py",
    ),
    planted(
        "scaling-without-buffer",
        "a server goes although the places that should be free are not",
        [(SCALING_PY, ">= last.workers + self._buffer", ">= last.workers")],
        SCALING,
    ),
    planted(
        "scaling-by-refusals-of-before",
        "refusals of nobody knows when ask for a server",
        [(SCALING_PY, "if more > 0 and number in before:", "if more > 0:")],
        SCALING,
    ),
    planted(
        "scaling-does-not-wait",
        "a server that starts has no places, so that another one is asked for",
        [(SCALING_PY, " + places * (present - len(answering))", "")],
        SCALING,
    ),
    planted(
        "keeper-tells-the-log-again",
        "each look at a process brings its whole log",
        [("relaax/cluster/keeper.py", "log.seek(log_end)", "log.seek(0)")],
        "tests/cluster/test_keeper.py",
    ),
    planted(
        "failures-counted-for-ever",
        "failures of a process count even if it has run for long in between",
        [(PROCESS_PY, "self._failures = self._failures + 1 if failed else 0", "self._failures += failed")],
        "tests/cli/test_process.py",
    ),
    planted(
        "slow-failures-not-counted",
        "a server that ends before it is ready is restarted for ever, if it takes long to end",
        [(PROCESS_PY, "failed = quick or (self._server and not self.announced)", "failed = quick")],
        "tests/cli/test_process.py",
    ),
    planted(
        "late-because-of-another",
        "the time to start runs while something that a process needs is not ready",
        [(PROCESS_PY, "deadline = max(self._started_at, self._blocked_at)", "deadline = self._started_at")],
        "tests/cli/test_process.py",
    ),
    planted(
        "failed-because-of-another",
        "a process that ends because something that it needs is not ready has failed",
        [(SUPERVISOR_PY, "if not (has_needs and has_leader):", "if not has_leader:")],
        SUPERVISOR,
    ),
    planted(
        "restarted-too-early",
        "a process that ends because its server is away is restarted before the server is ready",
        [(SUPERVISOR_PY, "elif process.announced or (has_needs and has_leader):", "elif role.vital:")],
        SUPERVISOR,
    ),
    planted(
        "waits-for-every-server",
        "on a cluster all RLX servers must be ready before training starts",
        [(SUPERVISOR_PY, "else any(ready) or not ready", "else all(ready)")],
        SUPERVISOR,
    ),
    *OPERATION_ERRORS,
)

SOAK_ERRORS = (
    planted(
        "applied-twice",
        "a repeated push is applied again",
        [(SHARD_PY, "            if outcome is None:\n", "            if True:\n")],
    ),
    planted(
        "ledger-forgotten",
        "a shard that returns to a checkpoint has forgotten which pushes it holds",
        [(SHARD_PY, "self._ledger.restore(snapshot.ledger)", "self._ledger.restore({})")],
    ),
    planted(
        "cut-torn",
        "a shard writes what it has when it writes, not what it had at the moment of the cut",
        [(FOLLOWER_PY, "state = kept[1]", "state = self._core.state() or kept[1]")],
    ),
    planted(
        "cut-not-held",
        "updates go on while the shards take their snapshots",
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
"""What `tests/adversity/soak_planted.py` plants: it takes the soak's own faults to notice them."""


def copy_tree(target: Path) -> Path:
    target.mkdir()
    for name in NEEDED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, target)
    return target


def run_tests(tree: Path, tests: Sequence[str], *options: str) -> tuple[int, str]:
    """Return pytest's exit code and output, on the tree's own code, in its own processes too."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *options, *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def plant(error: Planted, tree: Path) -> None:
    """Make the error in a copy of the tree."""
    for edit in error.edits:
        path = tree / edit.file
        path.write_text(edit.applied(path.read_text(encoding="utf-8")), encoding="utf-8")


def try_error(error: Planted, folder: Path) -> tuple[str, str, float]:
    """The verdict, what noticed, and the seconds that it took."""
    started = time.monotonic()
    tree = copy_tree(folder / error.name)
    try:
        plant(error, tree)
        code, output = run_tests(tree, error.tests)
        if code in (0, NO_TESTS):  # not by the fast tests
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
    """Why the error cannot be planted; empty if it can."""
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


def those_that_can(errors: Sequence[Planted]) -> list[Planted]:
    """The errors that can be planted; says of the others why not."""
    obstacles = {error.name: obstacle(error) for error in errors}
    for name, problem in obstacles.items():
        if problem:
            print(f"warning: {name} cannot be planted: {problem}", flush=True)
    possible = [error for error in errors if not obstacles[error.name]]
    print(f"{len(possible)} of {len(errors)} errors can be planted", flush=True)
    return possible


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="plant these only")
    parser.add_argument("--list", action="store_true", help="list the errors")
    parser.add_argument("--check", action="store_true", help="say which errors can be planted, and run no test")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count(), help="errors tried beside each other (%(default)s)"
    )
    parser.add_argument("--without-baseline", action="store_true", help="do not check that the tests pass as they are")
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
    chosen = those_that_can(chosen)
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
