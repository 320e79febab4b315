"""Errors in the operation of the service: quotas, copies, suites, planning, replay shards, bundles and clusters."""

from __future__ import annotations

from support.planting import planted

CLAIMS_PY = "relaax/server/rlx_server/clients/claims.py"
FORECAST_PY = "relaax/planning/forecast.py"
DEMAND_PY = "relaax/planning/demand.py"
MEMORY_PY = "relaax/planning/demand.py"
QUEUEING_PY = "relaax/planning/queueing.py"
DECLARATION_PY = "relaax/replay/spec.py"
LIMITER_PY = "relaax/replay/table/limiter.py"
SERVED_TABLE_PY = "relaax/server/replay_server/served_table.py"
TABLE_CHECKPOINTS_PY = "relaax/server/replay_server/table_checkpoints.py"
CLIENT_PY = "relaax/parameters/client.py"
TREES_PY = "relaax/replay/table/trees.py"
FILTERS_PY = "relaax/hosting/gradient_filters.py"
BACKOFF_PY = "relaax/client/connection/backoff.py"
WORLDS_PY = "relaax/client/program/worlds.py"
COPYING_PY = "relaax/checkpoint/manager.py"
JOBS_PY = "relaax/cli/suite/jobs.py"
PROCESS_PY = "relaax/supervision/process.py"
REMOTE_PROCESS_PY = "relaax/cluster/remote_process.py"
MACHINES_PY = "relaax/cluster/machines.py"
REPLAY_AGENT_PY = "algorithms/gorila/agent.py"
SHARED_AGENT_PY = "algorithms/_replay/agent.py"
LEARNER_PY = "algorithms/gorila/learner.py"
TARGET_PY = "relaax/server/parameter_server/shard/target.py"

CLAIMS = "tests/server/rlx_server/test_claims.py"
FIGURES = "tests/planning/test_figures.py"
QUEUEING = "tests/planning/test_queueing.py"
DECLARATION = "tests/replay/test_declaration.py"
SERVED_TABLE = "tests/server/replay_server/test_served_table.py"
LIMITER = "tests/replay/test_limiter.py"
RESTORED_TABLES = "tests/server/replay_server/test_restored_tables.py"
CLIENT = "tests/parameters/test_client.py"
FILTERS = "tests/algorithm_base/test_loss_outliers.py"
BACKOFF = "tests/client/test_backoff.py"
WORLDS = "tests/client/test_worlds.py"
COPYING = "tests/checkpoint/test_copying.py"
JOBS = "tests/cli/test_suite_jobs.py"
PROCESS = "tests/cli/test_process.py"
REMOTE_PROCESS = "tests/cluster/test_remote_process.py"
MACHINES = "tests/cluster/test_machines.py"
AGENT = "tests/algorithms/gorila/test_agent.py"
LEARNER = "tests/algorithms/gorila/test_learner.py"
SOFT_TARGET = "tests/server/parameter_server/test_soft_target.py"
RECEIVED_SOFT_TARGET = "tests/parameters/test_soft_target.py"
INVERSE_PRIORITY = "tests/replay/test_inverse_priority.py"
LEARNING_RATES = "tests/optim/test_learning_rates.py"
SHARDED_LEARNING_RATES = "tests/parameters/test_learning_rates.py"

LEARNING_ERRORS = (
    planted(
        "bundle-acts-by-its-first-parameters",
        "the agent of a bundle never uses the parameters that its learner has pulled",
        [(SHARED_AGENT_PY, "if learner.pulled is not self._pulled:", "if False:")],
        AGENT,
    ),
    planted(
        "learner-without-statistics",
        "a learner normalizes observations without statistics",
        [("algorithms/_replay/learner.py", "        self._normalization.set_statistics(pulled)\n", "")],
        LEARNER,
    ),
    planted(
        "agent-without-statistics",
        "an agent normalizes observations without the statistics of the parameter server",
        [("relaax/algorithm_base/inputs.py", "        self.normalization.set_statistics(pulled)\n", "")],
        AGENT,
    ),
    planted(
        "memory-of-normalized-observations",
        "transitions hold normalized observations, which a learner normalizes again",
        [(REPLAY_AGENT_PY, "self._transitions.act(inputs.unnormalized,", "self._transitions.act(inputs.newest,")],
        AGENT,
    ),
    planted(
        "memory-of-normalized-final-observations",
        "transitions end with normalized final observations",
        [
            (
                SHARED_AGENT_PY,
                "            self._transitions.outcome(step, rewards * unit, final, values, unit, valid)",
                "            if final is not None:\n                final = self._inputs.normalized(final)\n"
                "            self._transitions.outcome(step, rewards * unit, final, values, unit, valid)",
            )
        ],
        AGENT,
    ),
    planted(
        "targets-of-raw-observations",
        "a learner evaluates the next observations without normalization",
        [
            (
                LEARNER_PY,
                'self._inputs(columns["next_observation"])',
                'self._layout.to_inputs(columns["next_observation"])',
            )
        ],
        LEARNER,
    ),
    planted(
        "actor-never-pulls",
        "an agent with separate learners never uses the parameters that it pulls",
        [
            (
                SHARED_AGENT_PY,
                "self._use_if_any(self._exchange.push(None))",
                "self._exchange.push(None)",
            )
        ],
        AGENT,
    ),
    planted(
        "withheld-is-not-sent-later",
        "a gradient withheld from `push_later` does not count as discarded",
        [
            (
                CLIENT_PY,
                "common = self._common_request(env_steps, want_parameters, withheld)\n        calls",
                "common = self._common_request(env_steps, want_parameters, False)\n        calls",
            )
        ],
        CLIENT,
    ),
    planted(
        "filtered-and-not-reported-later",
        "a gradient that a filter withholds is not reported by `push_later`",
        [
            (
                FILTERS_PY,
                "self._client.push_later(sent, env_steps, want_parameters, withheld=withheld)",
                "self._client.push_later(sent, env_steps, want_parameters)",
            )
        ],
        FILTERS,
    ),
    planted(
        "filters-after-a-late-roll-back",
        "filters are not reset after a roll-back during `push_later`",
        [(FILTERS_PY, "return lambda: self._reset_on_rollback(answer())", "return answer")],
        FILTERS,
    ),
    planted(
        "gradient-of-before-a-roll-back",
        "a gradient computed before a roll-back is pushed to the new incarnation",
        [(CLIENT_PY, "if self._hogwild is not None or self._received.rolled_back:", "if self._hogwild is not None:")],
        CLIENT,
    ),
)

SERVER_ERRORS = (
    planted(
        "max-connections-off",
        "a client may have any number of connections",
        [(CLAIMS_PY, "and len(own) >= client.max_connections", "and False")],
        CLAIMS,
    ),
    planted(
        "max-connections-plus-one",
        "a client may have one connection too many",
        [(CLAIMS_PY, "and len(own) >= client.max_connections", "and len(own) > client.max_connections")],
        CLAIMS,
    ),
    planted(
        "quotas-over-all-clients",
        "connections and environments of all clients count for the quota of each",
        [(CLAIMS_PY, "if other.client == claim.client]", "]")],
        CLAIMS,
    ),
    planted(
        "replaced-token-granted",
        "a claim with a token that was just replaced is accepted",
        [(CLAIMS_PY, "client is None or client.digest != claim.digest)", "client is None)")],
        CLAIMS,
    ),
    planted(
        "replaced-token-stays",
        "connections with a replaced token are kept",
        [(CLAIMS_PY, "or known[each.client].digest != each.digest", "")],
        CLAIMS,
    ),
    planted(
        "changed-quota-for-new-connections",
        "a changed quota applies only after the client's last connection has ended",
        [(CLAIMS_PY, "            self._bucket_of(known[name])\n", "            pass\n")],
        CLAIMS,
    ),
    planted(
        "bucket-freed-too-early",
        "the bucket of a client is freed although it has other connections",
        [(CLAIMS_PY, "all(other.client != name for other in self._by_pid.values())", "True")],
        CLAIMS,
    ),
    planted(
        "rows-are-lost",
        "the row of an ended worker is not reused",
        [(CLAIMS_PY, "        self._free.append(connection.row)\n", "")],
        CLAIMS,
    ),
    planted(
        "row-of-another-worker",
        "the meter of a new worker starts with the values of the previous one",
        [(CLAIMS_PY, "        self.meters.clear(row)\n", "")],
        CLAIMS,
    ),
    planted(
        "totals-of-open-connections",
        "totals omit ended connections",
        [(CLAIMS_PY, "_add(self._totals_of(connection.client), self.meters.read(connection.row))", "pass")],
        CLAIMS,
    ),
    planted(
        "refusals-fill-the-log",
        "every refusal of a client is logged",
        [(CLAIMS_PY, "return self.count <= LOGGED_REFUSALS", "return True")],
        CLAIMS,
    ),
    planted(
        "stuck-at-once",
        "a connection that waits for its client counts as stuck at once",
        [(CLAIMS_PY, "and now - reading.stuck_since >= STUCK_SECONDS", "")],
        CLAIMS,
    ),
    planted(
        "throttled-time-as-demand",
        "the demand of a throttled client includes the time of its waits",
        [(CLAIMS_PY, "busy = max(seconds - sum(waited), seconds / 1000)", "busy = seconds")],
        CLAIMS,
    ),
    planted(
        "copy-without-its-lease",
        "a copy is published although another server has taken over the lease",
        [(COPYING_PY, "        lease.check()\n", "")],
        COPYING,
    ),
    planted(
        "copy-not-read-back",
        "a part that arrived damaged is published",
        [(COPYING_PY, 'verify_part(target.pieces(description["key"]), description)', "pass")],
        COPYING,
    ),
    planted(
        "copy-leaves-its-parts",
        "the parts of a failed copy are not deleted",
        [(COPYING_PY, 'written.append(description["key"])', "pass")],
        COPYING,
    ),
    planted(
        "part-of-any-size",
        "a part of any size is read",
        [(COPYING_PY, 'check_size(store.size(description["key"]), description)', "pass")],
        COPYING,
    ),
    planted(
        "one-incarnation-of-a-table",
        "a restored table keeps only its last incarnation, so writers of earlier ones insert twice",
        [(TABLE_CHECKPOINTS_PY, "table.incarnation][-MAX_INCARNATIONS:]", "table.incarnation][-1:]")],
        RESTORED_TABLES,
    ),
    planted(
        "all-incarnations-of-a-table",
        "the incarnations of a restored table grow with every restart",
        [(TABLE_CHECKPOINTS_PY, "table.incarnation][-MAX_INCARNATIONS:]", "table.incarnation]")],
        RESTORED_TABLES,
    ),
    planted(
        "min-size-of-each-shard",
        "each replay shard waits for the min_size of all shards together",
        [(DECLARATION_PY, "min_size = math.ceil(self.min_size / shards)", "min_size = self.min_size")],
        DECLARATION,
    ),
    planted(
        "error-buffer-of-each-shard",
        "replay shards divide the declared error buffer",
        [
            (
                DECLARATION_PY,
                "buffer = self.error_buffer\n",
                "buffer = self.error_buffer and self.error_buffer / shards\n",
            )
        ],
        DECLARATION,
    ),
    planted(
        "frames-of-each-shard",
        "each replay shard has the frame capacity of all shards",
        [(DECLARATION_PY, "math.ceil(slots / shards)", "slots")],
        DECLARATION,
    ),
    planted(
        "large-requests-of-many-shards",
        "the default buffer of many shards is too small for a large request",
        [(DECLARATION_PY, "1_000 * max(1.0,", "1_000 / shards * max(1.0,")],
        DECLARATION,
    ),
    planted(
        "refused-insert-is-counted",
        "a refused insert counts for the limiter",
        [(SERVED_TABLE_PY, "self.limiter.undo_insert(insert.count)", "pass")],
        SERVED_TABLE,
    ),
    planted(
        "failed-sample-is-counted",
        "a sample of an empty table counts for the limiter",
        [(SERVED_TABLE_PY, "                self.limiter.undo_sample(count)\n", "")],
        SERVED_TABLE,
    ),
    planted(
        "silent-too-soon",
        "a writer is removed regardless of its last insert",
        [(SERVED_TABLE_PY, "if not name or self._clock() - last_insert < seconds:", "if not name:")],
        SERVED_TABLE,
    ),
    planted(
        "age-of-a-part",
        "the mean age of samples counts each call as one sample",
        [(SERVED_TABLE_PY, "min(1.0, _RECENT * count)", "_RECENT")],
        SERVED_TABLE,
    ),
    planted(
        "restored-balance-without-bounds",
        "a restored balance beyond the limiter's bounds blocks one side for long",
        [(LIMITER_PY, "if self._ratio is not None and self.has_min_size:", "if False:")],
        LIMITER,
    ),
    planted(
        "restore-wakes-no-sampler",
        "samplers keep waiting although the restored table has enough items",
        [
            (
                LIMITER_PY,
                "self._middle + self._buffer)\n            self._changed.notify_all()",
                "self._middle + self._buffer)",
            )
        ],
        LIMITER,
    ),
    planted(
        "timeout-wakes-no-call",
        "a call keeps waiting behind one that timed out",
        [(LIMITER_PY, "queue.remove(turn)\n            self._changed.notify_all()", "queue.remove(turn)")],
        LIMITER,
    ),
)

RUN_ERRORS = (
    planted(
        "slow-failures-count",
        "a process that ends is given up regardless of its run time",
        [(PROCESS_PY, "self._failures + 1 if failed else 0", "self._failures + 1")],
        PROCESS,
    ),
    planted(
        "whole-time-again",
        "an interrupted training of a suite gets its full time again",
        [(JOBS_PY, "plan.max_seconds - seconds", "plan.max_seconds")],
        JOBS,
    ),
    planted(
        "killed-suite-loses-its-time",
        "the run time of a killed suite does not count",
        [
            (
                JOBS_PY,
                "        self._count(name, run)\n        if not job.trained and not self.stopping.is_set():",
                "        if not job.trained and not self.stopping.is_set():",
            )
        ],
        JOBS,
    ),
    planted(
        "override-of-the-environment",
        "the overrides of a suite follow the name of the environment",
        [
            (
                JOBS_PY,
                '*plan.overrides, f"run.name={environment}"]',
                'f"run.name={environment}", *plan.overrides]',
            )
        ],
        JOBS,
    ),
    planted(
        "failed-job-ends-the-suite",
        "a failed job stops the others",
        [(JOBS_PY, 'failures.append(f"{name}: {failure}")', "raise")],
        JOBS,
    ),
    planted(
        "one-job-after-another",
        "the jobs of a suite run one by one",
        [(JOBS_PY, "ThreadPoolExecutor(at_once)", "ThreadPoolExecutor(1)")],
        JOBS,
    ),
    planted(
        "one-seed-for-all-worlds",
        "all worlds draw the same random numbers",
        [(WORLDS_PY, "None if seed is None else seed + i", "seed")],
        WORLDS,
    ),
    planted(
        "all-worlds-are-reset",
        "a reset of some worlds resets all",
        [(WORLDS_PY, 'if options is None or options["reset_mask"][i]:', "if True:")],
        WORLDS,
    ),
    planted(
        "longest-wait-of-several-servers",
        "the server that requests the longest wait decides",
        [(BACKOFF_PY, "else min(self._asked, reason.retry_after)", "else max(self._asked, reason.retry_after)")],
        BACKOFF,
    ),
    planted(
        "wait-before-another-server",
        "a client waits before it tries another server",
        [(BACKOFF_PY, "wait = 0.0 if elsewhere else self._pauses.next()", "wait = self._pauses.next()")],
        BACKOFF,
    ),
    planted(
        "waits-of-earlier-rounds",
        "the wait requested by a server in an earlier round still counts",
        [(BACKOFF_PY, "self._asked = asked if elsewhere else None", "self._asked = asked")],
        BACKOFF,
    ),
    planted(
        "waits-double-with-each-server",
        "waits grow with each server that is tried",
        [(BACKOFF_PY, "0.0 if elsewhere else self._pauses.next()", "self._pauses.next() * (not elsewhere)")],
        BACKOFF,
    ),
    planted(
        "gives-up-before-the-others",
        "a client gives up at a server that requests a long wait, although other servers are left",
        [(BACKOFF_PY, "(asked > left and not elsewhere)", "asked > left")],
        BACKOFF,
    ),
)

PLANNING_ERRORS = (
    planted(
        "plan-used-by-one-machine",
        "the used share of a part ignores the number of machines",
        [(FORECAST_PY, "(size.cores * (machines or 1))", "size.cores")],
        FIGURES,
    ),
    planted(
        "plan-both-ways",
        "the bytes of both directions count in each direction",
        [(FORECAST_PY, "half, push, pull = load.wire_bytes / 2,", "half, push, pull = load.wire_bytes,")],
        FIGURES,
    ),
    planted(
        "plan-without-rlx-servers",
        "the memory of RLX servers is omitted",
        [(FORECAST_PY, "servers * RLX_SERVER_MB", "0.0")],
        FIGURES,
    ),
    planted(
        "plan-hold-of-all-shards",
        "the hold of a checkpoint is as long as with one shard",
        [(FORECAST_PY, "written / workload.shards / COPY_BYTES", "written / COPY_BYTES")],
        FIGURES,
    ),
    planted(
        "plan-checkpoint-of-all-shards",
        "shards write a checkpoint one after another",
        [(FORECAST_PY, "written / WRITE_BYTES / workload.shards", "written / WRITE_BYTES")],
        FIGURES,
    ),
    planted(
        "plan-replay-traffic-swapped",
        "replay servers receive what they send",
        [
            (
                FORECAST_PY,
                "load.replay, table, into, out)",
                "load.replay, table, out, into)",
            )
        ],
        FIGURES,
    ),
    planted(
        "plan-learner-traffic-swapped",
        "learners receive what they send",
        [(FORECAST_PY, "learner_mb(workload), out, push)", "learner_mb(workload), push, out)")],
        FIGURES,
    ),
    planted(
        "plan-actors-push-gradients",
        "actors with separate learners are charged for gradients",
        [(DEMAND_PY, "learners, exchange_factor = updates, SHARE_WITHOUT_GRADIENT", "learners = updates")],
        FIGURES,
    ),
    planted(
        "plan-update-of-one-item",
        "an update costs a learner the time of one item",
        [(DEMAND_PY, "replay.batch * costs.learner_us_per_item", "costs.learner_us_per_item")],
        FIGURES,
    ),
    planted(
        "plan-insert-of-one-environment",
        "a message inserts the item of one environment",
        [(DEMAND_PY, "inserted * replay.insert_bytes", "replay.insert_bytes")],
        FIGURES,
    ),
    planted(
        "plan-connections-of-one-environment",
        "the connection limit of a parameter server counts environments",
        [(FORECAST_PY, "MOST_CONNECTIONS * workload.per_connection", "MOST_CONNECTIONS")],
        FIGURES,
    ),
    planted(
        "plan-breaks-at-connections",
        "the limit of a part is a number of connections instead of environments",
        [(FORECAST_PY, "int(workload.environments / demanded)", "int(workload.connections / demanded)")],
        FIGURES,
    ),
    planted(
        "plan-one-machine-of-any-memory",
        "one machine is enough regardless of its memory",
        [(FORECAST_PY, "and memory <= FULL_MEMORY * size.gigabytes", "")],
        FIGURES,
    ),
    planted(
        "plan-clients-without-traffic",
        "the network of machines with environment programs is ignored",
        [(FORECAST_PY, "memory * costs.client_mb, messages * half, size)", "memory * costs.client_mb, 0.0, size)")],
        FIGURES,
    ),
    planted(
        "plan-workers-without-traffic",
        "the network of machines with workers is ignored",
        [
            (
                FORECAST_PY,
                "memory * worker_mb(workload, costs), traffic, size)",
                "memory * worker_mb(workload, costs), 0.0, size)",
            )
        ],
        FIGURES,
    ),
    planted(
        "plan-one-learner",
        "all learners together have the throughput of one",
        [(FORECAST_PY, "workload.learners * 1e6 / load.learner", "1e6 / load.learner")],
        FIGURES,
    ),
    planted(
        "plan-one-replay-network",
        "the traffic of all replay shards goes to one machine",
        [(FORECAST_PY, "load.replay_out_bytes) / workload.replay.shards", "load.replay_out_bytes)")],
        FIGURES,
    ),
    planted(
        "plan-one-parameter-network",
        "the traffic of all parameter shards goes to one machine",
        [
            (
                FORECAST_PY,
                "max(load.push_bytes, load.pull_bytes) / workload.shards",
                "max(load.push_bytes, load.pull_bytes)",
            )
        ],
        FIGURES,
    ),
    planted(
        "plan-shard-without-slots",
        "a shard's memory omits the optimizer's slots",
        [(MEMORY_PY, "2 * (1 + workload.slots) + workload.target", "2 + workload.target")],
        FIGURES,
    ),
    planted(
        "plan-endless-rollout",
        "a worker keeps rollouts of any length",
        [(MEMORY_PY, "min(workload.rollout, 100)", "workload.rollout")],
        FIGURES,
    ),
    planted(
        "plan-warm-workers",
        "cold caches do not increase the cost of a worker's exchange",
        [(DEMAND_PY, "exchange_worker=warmth[at_worker]", "exchange_worker=1.0")],
        FIGURES,
    ),
    planted(
        "plan-learning-blocks-paced-workers",
        "learning blocks an action although the next message comes later",
        [(QUEUEING_PY, "free = max(outside, network.period - answered)", "free = outside")],
        QUEUEING,
    ),
)

CLUSTER_ERRORS = (
    planted(
        "lost-machine-is-a-quick-failure",
        "a machine that is lost repeatedly ends the training",
        [
            (
                REMOTE_PROCESS_PY,
                "        if not self._lost:\n            super()",
                "        if True:\n            super()",
            )
        ],
        REMOTE_PROCESS,
    ),
    planted(
        "log-is-repeated",
        "the log of a process is written again from its start",
        [(REMOTE_PROCESS_PY, "        self._log_end = snapshot.log_end\n", "")],
        REMOTE_PROCESS,
    ),
    planted(
        "metrics-are-copied-twice",
        "metrics are copied from the start of their files each time",
        [(REMOTE_PROCESS_PY, "self._ends[name] = begin + len(piece)", "self._ends[name] = 0")],
        REMOTE_PROCESS,
    ),
    planted(
        "unavailable-is-lost",
        "a machine that is unavailable for a moment counts as lost",
        [
            (
                REMOTE_PROCESS_PY,
                "            self._pending_snapshot = None  # Ray reports a lost machine with RayActorError",
                '            self.release_place("it does not answer")',
            )
        ],
        REMOTE_PROCESS,
    ),
    planted(
        "stale-address",
        "a restarted process keeps its old address until it announces another one",
        [(REMOTE_PROCESS_PY, 'self.address, self.failed = None, ""', 'self.failed = ""')],
        REMOTE_PROCESS,
    ),
    planted(
        "queued-forever",
        "a process that is no longer needed still waits for a place",
        [
            (
                REMOTE_PROCESS_PY,
                'self.release_place("it is not needed any more")  # it has no machine: there is nothing to stop',
                "pass",
            )
        ],
        REMOTE_PROCESS,
    ),
    planted(
        "shards-without-the-first",
        "no parameter shard is listed until all have started, although they wait for the first",
        [(MACHINES_PY, "places = places[:1]  # the first", "pass  # the first")],
        MACHINES,
    ),
    planted(
        "unavailable-is-unlisted",
        "a shard that is unavailable for a moment is removed from the list",
        [(MACHINES_PY, "if len(before) == len(places):", "if False:")],
        MACHINES,
    ),
    planted(
        "addresses-not-updated",
        "changed addresses are not sent to running processes",
        [(MACHINES_PY, "                process.put(now)\n", "                pass\n")],
        MACHINES,
    ),
    planted(
        "shards-on-one-bundle",
        "all shards ask for the first place of their group",
        [(MACHINES_PY, "placement_group_bundle_index=number", "placement_group_bundle_index=0")],
        MACHINES,
    ),
    planted(
        "servers-on-the-first-machine",
        "all RLX servers ask for the first machine",
        [
            (
                MACHINES_PY,
                "NodeAffinitySchedulingStrategy(machines[number], soft=True)",
                "NodeAffinitySchedulingStrategy(machines[0], soft=True)",
            )
        ],
        MACHINES,
    ),
    planted(
        "all-clients-are-evicted",
        "every check of a waiting shard ends another environment program",
        [(MACHINES_PY, "            self._freed_at = time.monotonic() + FREE_RESOURCES_SECONDS\n", "")],
        MACHINES,
    ),
    planted(
        "requests-ignored",
        "requested numbers of processes are ignored",
        [
            (
                MACHINES_PY,
                "        if role.name in self._requested:\n            return self._requested[role.name]\n",
                "",
            )
        ],
        MACHINES,
    ),
)

SOFT_TARGET_ERRORS = (
    planted(
        "soft-target-is-a-copy",
        "each renewal of a soft target network copies the parameters",
        [(TARGET_PY, "if self.interval.is_soft:", "if False:")],
        SOFT_TARGET,
    ),
    planted(
        "soft-target-of-shard-0-only",
        "shards other than 0 do not renew a soft target network",
        [(TARGET_PY, "self._counts = leads or interval.is_soft", "self._counts = leads")],
        SOFT_TARGET,
    ),
    planted(
        "soft-target-pulled-each-time",
        "the answer to a push has no target network, so that each push has a second round trip",
        [("relaax/server/parameter_server/service/service.py", 'request.HasField("have_target")', "False")],
        RECEIVED_SOFT_TARGET,
    ),
    planted(
        "read-target-is-overwritten",
        "the shard reuses the memory of a target network that a worker reads",
        [
            (
                "relaax/server/parameter_server/service/transports.py",
                "            self._hold(second, carrier.target)\n",
                "            pass\n",
            )
        ],
        RECEIVED_SOFT_TARGET,
    ),
    planted(
        "parts-apart-are-not-restored",
        "a soft target network whose parts are some updates apart is not restored",
        [(TARGET_PY, "(interval.is_soft or len(set(stored)) == 1)", "len(set(stored)) == 1")],
        RECEIVED_SOFT_TARGET,
    ),
)

RATE_ERRORS = (
    planted(
        "one-rate-for-all-ranges",
        "factors of the learning rate have no effect on the host",
        [("relaax/optim/host_optimizers.py", "np.float32(rate * factor)", "np.float32(rate)")],
        LEARNING_RATES,
    ),
    planted(
        "factors-of-the-first-shard",
        "every shard uses the factors of the first elements of the vector",
        [
            (
                "relaax/server/parameter_server/shard/model.py",
                "cut_rate_factors(spec.rate_factors, start, end)",
                "cut_rate_factors(spec.rate_factors, 0, end - start)",
            )
        ],
        SHARDED_LEARNING_RATES,
    ),
    planted(
        "hogwild-ignores-factors",
        "workers update memory with one learning rate although parts have others",
        [("relaax/server/parameter_server/shard/shard.py", "if not self._has_one_rate:", "if False:")],
        SHARDED_LEARNING_RATES,
    ),
    planted(
        "custom-optimizers-ignore-factors",
        "factors of the learning rate have no effect on an optimizer of an algorithm",
        [("relaax/optim/host_optimizers.py", "scaled(spec.create(size), factors)", "spec.create(size)")],
        LEARNING_RATES,
    ),
)

SYNCHRONOUS_PY = "relaax/server/parameter_server/shard/synchronous.py"
SYNCHRONOUS_SHARD = "tests/server/parameter_server/test_synchronous.py"
SYNCHRONOUS_AGENTS = "tests/learning/test_synchronous.py"

SYNCHRONOUS_ERRORS = (
    planted(
        "mean-without-weights",
        "the mean of a synchronous update ignores the numbers of environments",
        [
            (SYNCHRONOUS_PY, "np.multiply(gradient, np.float32(environments)", "np.multiply(gradient, np.float32(1)"),
            (SYNCHRONOUS_PY, "        self._weight += environments\n", "        self._weight += 1\n"),
        ],
        SYNCHRONOUS_SHARD,
    ),
    planted(
        "stale-gradient-in-the-mean",
        "a synchronous update uses gradients of older versions",
        [
            (
                "relaax/server/parameter_server/shard/shard.py",
                "        if push.base_version == self._counters.version:\n",
                "        if push.base_version <= self._counters.version:\n",
            ),
            (
                "relaax/server/parameter_server/shard/shard.py",
                "            return staleness > 0\n",
                "            return False\n",
            ),
        ],
        SYNCHRONOUS_SHARD,
    ),
    planted(
        "removed-worker-is-awaited",
        "a synchronous update waits for a worker that is gone",
        [(SYNCHRONOUS_PY, "        self._participants.pop(worker, None)\n", "")],
        SYNCHRONOUS_SHARD,
    ),
    planted(
        "update-without-patience",
        "a synchronous update waits for a slow worker without a bound",
        [(SYNCHRONOUS_PY, "(not self._missing() or self.seconds_left <= 0.0)", "not self._missing()")],
        SYNCHRONOUS_SHARD,
    ),
    planted(
        "stale-worker-is-not-awaited",
        "a worker whose gradient was stale does not take part in the next synchronous update",
        [
            (
                "relaax/server/parameter_server/shard/shard.py",
                "            updates.join(push.worker, push.environments)\n",
                "            pass\n",
            )
        ],
        SYNCHRONOUS_SHARD,
    ),
    planted(
        "worker-waits-at-two-shards",
        "a shard waits for a worker that waits for another shard",
        [(SYNCHRONOUS_PY, "            self._suspended.add(worker)\n", "            pass\n")],
        SYNCHRONOUS_SHARD,
    ),
    planted(
        "pending-sum-survives",
        "a restored shard keeps the gradients of an update that was pending",
        [
            (
                "relaax/server/parameter_server/shard/shard.py",
                "                self._synchronous.reset()\n",
                "                pass\n",
            )
        ],
        SYNCHRONOUS_SHARD,
    ),
    planted(
        "worker-does-not-await-updates",
        "a worker continues with old parameters while its synchronous update is pending",
        [("relaax/parameters/client.py", 'if first.HasField("pending"):', "if False:")],
        SYNCHRONOUS_AGENTS,
    ),
    planted(
        "each-gradient-is-clipped",
        "workers clip their gradients although the parameter server clips the mean",
        [
            (
                "relaax/algorithm_base/exchange.py",
                "config.gradient_norm_clipping if config.update_patience is None else None",
                "config.gradient_norm_clipping",
            )
        ],
        SYNCHRONOUS_AGENTS,
    ),
)

EVICTION_ERRORS = (
    planted(
        "evicts-high-priorities",
        "transitions of high priority are evicted more often",
        [(TREES_PY, "priorities**self._exponent", "priorities**-self._exponent")],
        INVERSE_PRIORITY,
    ),
    planted(
        "evicts-among-the-first-items",
        "items are drawn from a part of the tree only",
        [(TREES_PY, "numbers[i] * nodes[1]", "numbers[i]")],
        INVERSE_PRIORITY,
    ),
    planted(
        "evictions-are-not-seeded",
        "evicted items do not depend on the seed of the table",
        [
            (
                "relaax/replay/table/table.py",
                "inverse.pop(self._random.random(count))",
                "inverse.pop(np.random.random(count))",
            )
        ],
        INVERSE_PRIORITY,
    ),
    planted(
        "removal-exponent-ignored",
        "the exponent of removal is always the default",
        [("algorithms/_replay/model.py", "                config.removal_exponent,", "                -0.4,")],
        AGENT,
    ),
)

OPERATION_ERRORS = (
    *EVICTION_ERRORS,
    *RATE_ERRORS,
    *SYNCHRONOUS_ERRORS,
    *SOFT_TARGET_ERRORS,
    *LEARNING_ERRORS,
    *SERVER_ERRORS,
    *RUN_ERRORS,
    *PLANNING_ERRORS,
    *CLUSTER_ERRORS,
)
