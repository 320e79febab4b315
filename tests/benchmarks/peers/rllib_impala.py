#!/usr/bin/env python3
"""The training speed of RLlib's IMPALA on an Atari game.

The Python of its virtual environment runs this script (see venvs.py). Each environment runner is a process with the
vector environment of ale-py. The learner runs in a separate process or in the driver. The network is the same as in
`da3c_ale_boxing`. Writes JSON to the standard output.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import ray
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.tune import register_env
from rllib_parts import Network, vector

POLL_SECONDS = 0.01
"""Time for which the driver waits for rollouts. By default it polls without a pause and uses a whole core."""
LEAST_SECONDS = 1.0  # minimum duration of an iteration


def config(options: argparse.Namespace) -> IMPALAConfig:
    """Return IMPALA's defaults with our network, batch shape and entropy, and faster sampling unless --as-is is set."""
    register_env("games", vector)
    faster = {} if options.as_is else {"timeout_s_sampler_manager": POLL_SECONDS}
    made: IMPALAConfig = (
        IMPALAConfig()
        .environment("games", env_config={"rom": options.name})
        .env_runners(
            num_env_runners=options.runners,
            num_envs_per_env_runner=options.environments,
            rollout_fragment_length=options.fragment,
            gym_env_vectorize_mode="vector_entry_point",
            **({} if options.as_is else {"max_requests_in_flight_per_env_runner": 2}),
            num_cpus_per_env_runner=0.1,
        )
        .learners(num_learners=options.learners, num_cpus_per_learner=0.1)
        .rl_module(rl_module_spec=RLModuleSpec(module_class=Network))
        .training(
            train_batch_size_per_learner=options.fragment * options.environments,
            entropy_coeff=0.01,
            **faster,
        )
        .reporting(min_time_s_per_iteration=LEAST_SECONDS)
        .debugging(log_level="ERROR")  # no seed: it selects torch's deterministic kernels, which are slower
    )
    return made


def counts(result: dict[str, Any]) -> tuple[int, int]:
    """Return the environment steps sampled and trained on until now."""
    sampled = result["env_runners"].get("num_env_steps_sampled_lifetime", 0)
    modules = result.get("learners", {})
    return int(sampled), int(modules.get("__all_modules__", {}).get("num_env_steps_trained_lifetime", 0))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="a rom, such as boxing")
    parser.add_argument("--runners", type=int, default=2, help="runner processes (%(default)s)")
    parser.add_argument("--environments", type=int, default=8, help="environments of each runner (%(default)s)")
    parser.add_argument(
        "--as-is", action="store_true", help="use RLlib's defaults for the driver's waiting and requests"
    )
    parser.add_argument(
        "--learners", type=int, default=1, help="learner processes; 0: learn in the driver (%(default)s)"
    )
    parser.add_argument("--fragment", type=int, default=20, help="steps of a rollout (%(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the measurement (%(default)s)")
    parser.add_argument("--warm-up", type=float, default=10.0, help="seconds before the measurement (%(default)s)")
    options = parser.parse_args()
    path = os.pathsep.join(filter(None, [str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH")]))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Enough for every process; they share the actual cores.
    ray.init(
        num_cpus=8,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}},
    )
    algorithm = config(options).build_algo()
    marks: list[tuple[float, tuple[int, int]]] = []
    begun = time.monotonic()
    while len(marks) < 2 or marks[-1][0] - marks[0][0] < options.seconds:
        result = algorithm.train()
        now = time.monotonic()
        if now - begun >= options.warm_up and counts(result)[1]:
            marks.append((now, counts(result)))
    (first, before), (last, after) = marks[0], marks[-1]
    seconds = last - first
    sampled, trained = (b - a for a, b in zip(before, after, strict=True))
    algorithm.stop()
    ray.shutdown()
    # Steps that are sampled but not trained on do not count.
    speeds = {"sampled_per_second": sampled / seconds, "trained_per_second": trained / seconds}
    print(json.dumps({"steps_per_second": min(speeds.values()), **speeds, "seconds": seconds}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
