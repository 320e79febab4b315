"""Policy files with random parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from relaax.algorithm_base import AgentBase, Space, load_algorithm
from relaax.algorithm_base.testing import FakeParameters, make_agent
from relaax.bundled import bundled_folder
from relaax.checkpoint import Checkpoint
from relaax.files import write_whole
from relaax.hosting.fingerprint import fingerprint, parse_fingerprint
from relaax.hosting.loader import Algorithm
from relaax.parameters.moments import Moments
from relaax.policy.file import policy_of


def write(
    folder: Path, algorithm: Algorithm, observation: Space, action: Space, noise: float = 0.3, **keys: Any
) -> tuple[Path, AgentBase, FakeParameters]:
    """Write a policy file with random parameters, and make an agent of 3 environments with the same parameters.

    `noise`: standard deviation of the numbers that are added to the initial parameters.
    """
    config = algorithm.configure({"path": str(algorithm.source), **keys})
    declared = algorithm.ParameterServer(config, observation, action)
    rng = np.random.default_rng(7)
    initial = declared.initial_parameters(0)
    parameters = (initial + rng.normal(0, noise, len(initial))).astype(np.float32)
    statistics = {name: Moments.of(rng.normal(2, 3, (9, size))) for name, size in declared.statistics().items()}
    bridge = FakeParameters(parameters, statistics=declared.statistics())
    bridge.publish(parameters, statistics)
    agent, _ = make_agent(algorithm, config, observation, action, environments=3, exploit=True, parameters=bridge)
    description, *_ = parse_fingerprint(fingerprint(algorithm.name, config, observation, action))
    middle = len(parameters) // 3
    arrays = {
        f"statistics/{name}/{part}": np.atleast_1d(getattr(moments, part))
        for name, moments in statistics.items()
        for part in ("count", "mean", "m2")
    }
    checkpoint = Checkpoint(
        "00000004-120",
        {"shard-1": {"parameters": parameters[middle:]}, "shard-0": {"parameters": parameters[:middle], **arrays}},
        {
            "fingerprint": description,
            "configuration": {"relaax-rlx-server": {"token": "secret"}},
            "global_step": 120,
            "time": 5.0,
            "shards": [
                {"part": "shard-0", "start": 0, "end": middle},
                {"part": "shard-1", "start": middle, "end": len(parameters)},
            ],
        },
    )
    path = folder / "policy.safetensors"
    write_whole(path, policy_of(checkpoint))
    return path, agent, bridge


def bundled(name: str) -> Algorithm:
    return load_algorithm(name, bundled_folder("algorithms"))
