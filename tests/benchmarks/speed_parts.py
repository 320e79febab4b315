"""The parts of the speed study. Each part measures RELAAX and its peers for one round, and returns the figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from peer_runs import Peer, run
from relaax_runs import alone, fastest_alone, learned, networked, plan_of, service, training

from relaax.cli.bench.programs import EmulatorForm
from relaax.cli.bench.results import percentile
from relaax.cli.run.plan import Plan

BOXING, CARTPOLE, PPO_CARTPOLE = "da3c_ale_boxing", "da3c_gym_cartpole", "ppo_gym_cartpole"
ID = "CartPole-v1"
TARGET = 475.0
FIRST_SEED = 10
STARTS = 5
UPDATES = 1000
LEAST_SECONDS = 3.0
THREADS = [["--threads", "1"], ["--threads", "2"]]
IMPALAS = [
    ["--learners", "1", "--fragment", "20"],
    ["--learners", "1", "--fragment", "50"],
    ["--learners", "0", "--fragment", "50"],
]
A2C = ["boxing", "--environments", "16"]
Figures = dict[str, float]


@dataclass
class Study:
    """The settings of all parts. `seconds`: length of a window; `keys`: settings of RELAAX, as for --set."""

    seconds: float
    venvs: Path
    keys: Sequence[str]
    updates: int
    report_progress: Callable[[str], None]
    _forms: dict[str, EmulatorForm] = field(default_factory=dict)
    _peers: dict[str, Peer] = field(default_factory=dict)

    def plan(self, config: str, clients: int, environments: int) -> Plan:
        return plan_of(config, clients, environments, self.keys)

    def emulator(self, plan: Plan) -> float:
        """Return the speed of the environments alone, in the form that was fastest in a first trial."""
        key = f"{plan.name} {plan.run.clients} x {plan.run.envs_per_client}"
        if key not in self._forms:
            self._forms[key] = fastest_alone(plan, self.report_progress)
        return alone(self._forms[key], self.seconds)

    def peer(self, name: str, peer: str, script: str, arguments: Sequence[str], forms: list[list[str]]) -> float:
        """Return a peer's speed, in the form that was fastest in a first trial."""
        made = self._peers.setdefault(name, Peer(peer, script, arguments, forms, self.venvs))
        return made.speed(self.seconds, self.report_progress)


def boxing_2x8(study: Study, round_: int) -> Figures:
    plan = study.plan(BOXING, 2, 8)
    return {
        "emulator_only": study.emulator(plan),
        "with_network": networked(plan, study.seconds),
        "training": training(plan, study.seconds).steps_per_second,
        "impala": study.peer("impala", "rllib", "rllib_impala.py", ["boxing"], IMPALAS),
        "impala_as_is": study.peer("impala-as-is", "rllib", "rllib_impala.py", ["boxing", "--as-is"], IMPALAS[1:]),
        "a2c": study.peer("a2c", "sb3", "sb3_a2c.py", A2C, THREADS),
        "a2c_as_is": study.peer("a2c-as-is", "sb3", "sb3_a2c.py", [*A2C, "--as-is"], THREADS),
    }


def boxing_8x1(study: Study, round_: int) -> Figures:
    """Measure 8 connections of one environment, in two client processes.

    Eight processes would cost more: each has its own Python and ale-py.
    """
    plan = plan_of(BOXING, 2, 1, ["run.connections_per_client=4", *study.keys])
    return {
        "emulator_only": study.emulator(plan),
        "with_network": networked(plan, study.seconds),
        "training": training(plan, study.seconds).steps_per_second,
    }


def cartpole_2x8(study: Study, round_: int) -> Figures:
    arguments, plan = [ID, "--environments", "16"], study.plan(CARTPOLE, 2, 8)
    return {
        "with_network": networked(plan, study.seconds),
        "training": training(plan, study.seconds).steps_per_second,
        "a2c": study.peer("a2c-cartpole", "sb3", "sb3_a2c.py", arguments, THREADS),
    }


def cartpole_ppo_2x8(study: Study, round_: int) -> Figures:
    """Measure ppo, and the peer with the same rollouts, minibatches, epochs and networks."""
    plan = study.plan(PPO_CARTPOLE, 2, 8)
    keys = plan.configuration.algorithm
    steps, epochs = keys["episode_len"], keys["epochs"]
    minibatch = steps * plan.run.envs_per_client // keys["minibatches"]
    rollout = {"--environments": 16, "--steps": steps, "--minibatch": minibatch, "--epochs": epochs}
    arguments = [ID, *(str(part) for pair in rollout.items() for part in pair)]
    return {
        "training": training(plan, study.seconds).steps_per_second,
        "ppo": study.peer("ppo-cartpole", "sb3", "sb3_ppo.py", arguments, THREADS),
    }


def cartpole_475(study: Study, round_: int) -> Figures:
    """Measure one seed. RELAAX's time is from the first connection until the run reports the target."""
    seed = FIRST_SEED + round_ - 1
    summary = learned(CARTPOLE, seed, TARGET, study.keys)
    arguments = [ID, "--environments", "8", "--seed", str(seed), "--target", f"{TARGET:g}"]
    peer = run("sb3", "sb3_a2c.py", arguments, study.venvs)
    return {
        "training_s": summary["seconds"],
        "training_steps": summary["env_steps"],
        "training_reached": summary["status"] == "target_reached",
        "a2c_s": peer["seconds"],
        "a2c_steps": peer["steps"],
        "a2c_reached": peer["reached"],
    }


def connections_64(study: Study, round_: int) -> Figures:
    """Measure 64 connections of one client process.

    64 processes would mostly measure 64 copies of Python and gymnasium.
    """
    keys = ["run.connections_per_client=64", "algorithm.episode_len=20", *study.keys]
    with service(plan_of(CARTPOLE, 1, 1, keys)) as started:
        window = started.window(study.seconds)
        warnings = started.warnings()
    for line in warnings:
        study.report_progress(line)
    speeds = window.of_connections
    return {
        "training": window.steps_per_second,
        "act_p50_ms": percentile(window.act_ms, 0.5),
        "act_p99_ms": percentile(window.act_ms, 0.99),
        "slowest_over_mean": min(speeds) / statistics.fmean(speeds),
        "warnings": len(warnings),
    }


def latency(study: Study, round_: int) -> Figures:
    found: Figures = {}
    for name, config in (("cartpole", CARTPOLE), ("atari", BOXING)):
        with service(study.plan(config, 1, 1)) as started:
            act_ms, *_ = started.latencies(max(study.seconds / 2, LEAST_SECONDS))
        found |= {f"{name}_p50_ms": percentile(act_ms, 0.5), f"{name}_p99_ms": percentile(act_ms, 0.99)}
    return found


def worker(study: Study, round_: int) -> Figures:
    found: Figures = {}
    for name, config in (("cartpole", CARTPOLE), ("atari", BOXING)):
        with service(study.plan(config, 2, 8)) as started:
            memory = started.window(LEAST_SECONDS, study.updates, bound=900.0).memory
            starts = [started.start_seconds() for _ in range(STARTS)]
        assert memory is not None
        found |= {
            f"{name}_mb": max(memory.megabytes),
            f"{name}_updates": memory.updates,
            f"{name}_start_s": statistics.median(starts),
        }
    return found


PARTS: dict[str, Callable[[Study, int], Figures]] = {
    "boxing-2x8": boxing_2x8,
    "boxing-8x1": boxing_8x1,
    "cartpole-2x8": cartpole_2x8,
    "cartpole-ppo-2x8": cartpole_ppo_2x8,
    "cartpole-475": cartpole_475,
    "connections-64": connections_64,
    "latency": latency,
    "worker": worker,
}
"""Functions by the part's name. Each takes the study and the number of the round."""
