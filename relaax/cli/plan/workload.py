"""Compute the workload of a configuration from the spaces of its environment."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np

from relaax.algorithm_base import ConfigBase
from relaax.algorithm_base.config import space_size
from relaax.algorithm_base.network import AgentConfig, agent_network
from relaax.cli.run.plan import Plan
from relaax.configuration import ConfigurationError
from relaax.hosting.loader import Algorithm, load_algorithm
from relaax.nn.specification import NetworkSpec
from relaax.planning.workload import ReplayWorkload, Workload
from relaax.rlx import Space

_FRAME_BYTES = 9.0
"""Bytes of a step of one environment besides observation and actions: the reward and the ends of episodes."""
_ROLLOUTS = ("episode_len", "update_interval")
_OPTIMIZER_VECTORS = {"rms_prop": 1, "adam": 2, "momentum": 1, "adagrad": 1}


def make_workload(plan: Plan, spaces: tuple[Space, Space], environments: int, rate: float | None) -> Workload:
    """Return the workload of `environments`. `spaces`: of observations and actions. Raises ConfigurationError."""
    found = plan.configuration
    logging.getLogger("relaax.hosting").setLevel(logging.ERROR)
    algorithm = load_algorithm(found.algorithm_path, found.folder)
    config = algorithm.configure(found.algorithm)
    refusal = algorithm.refusal(config, *spaces)
    if refusal is not None:
        raise ConfigurationError(refusal.sentence)
    server = algorithm.ParameterServer(config, *spaces)
    parameters = len(np.asarray(server.initial_parameters(config.seed)))
    connections = math.ceil(environments / plan.run.envs_per_client)
    replay = replay_workload(plan, algorithm, config, spaces, connections)
    learners = found.learner.learners if replay is not None else 0
    length, key = rollout(config, learners, plan.run.envs_per_client)
    centered = getattr(config.optimizer_section, "centered", False)
    return Workload(
        environments=environments,
        per_connection=plan.run.envs_per_client,
        rate=rate,
        observation_bytes=_bytes(spaces[0]) + _bytes(spaces[1]) + _FRAME_BYTES,
        parameters=parameters,
        multiplications=_multiplications(config, spaces, parameters),
        rollout=length,
        rollout_key=key,
        slots=0 if config.optimizer.startswith("worker_") else _OPTIMIZER_VECTORS[config.optimizer] + bool(centered),
        target=server.target_interval() is not None,
        sync_interval=config.sync_interval,
        wire_bytes=4 if found.rlx_server.wire_precision == "float32" else 2,
        overlap=bool(getattr(config, "overlap", True)),
        workers_push=learners == 0,
        shards=found.parameter_server.shards,
        learners=learners,
        replay=replay,
        max_staleness=config.staleness_bound,
        max_workers=found.rlx_server.max_workers,
    )


def rollout(config: ConfigBase, learners: int, environments: int) -> tuple[int, str]:
    """Return the number of messages of a connection between two pushes of its worker, and the key that sets it.

    A worker that learns from its own memory pushes once per batch, and `samples_per_insert` sets the rate of batches.
    """
    if learners:
        return int(getattr(config, "actor_interval", 100)), "algorithm.actor_interval"
    for name in _ROLLOUTS:
        if hasattr(config, name):
            return int(getattr(config, name)), f"algorithm.{name}"
    batch, share = getattr(config, "batch_size", None), getattr(config, "samples_per_insert", None)
    if batch and share:
        return max(1, round(batch / share / environments)), "algorithm.batch_size"
    return 1, ""


def replay_workload(
    plan: Plan, algorithm: Algorithm, config: Any, spaces: tuple[Space, Space], connections: int
) -> ReplayWorkload | None:
    """Return the replay memory; None if the algorithm has none."""
    if algorithm.Replay is None:
        return None
    declaration = algorithm.Replay(config, *spaces).table()
    shards = max(1, plan.configuration.replay_server.shards)
    spec = declaration.spec_of_shard(shards)
    tables = connections if algorithm.Replay.bundled(config) else 1
    plain = sum(np.dtype(field.dtype).itemsize * math.prod(field.shape) for field in spec.plain.values())
    frame = 0 if spec.frame is None else math.prod(spec.frame)
    frames = sum(field.frames for field in spec.stacked.values())
    return ReplayWorkload(
        shards=shards,
        table_bytes=float(tables * spec.bytes()),
        insert_bytes=float(plain + frame + 8 * frames),
        sample_bytes=float(plain + frames * frame),
        batch=int(getattr(config, "batch_size", 32)),
        samples_per_insert=declaration.samples_per_insert,
    )


def _bytes(space: Space) -> float:
    return float(sum(np.dtype(e.dtype).itemsize * math.prod(e.shape) for e in space.elements()))


def _multiplications(config: Any, spaces: tuple[Space, Space], parameters: int) -> float:
    """Return the multiplications of one example. An algorithm with its own network counts one per parameter."""
    if not isinstance(config, AgentConfig):
        return float(parameters)
    heads = {"actions": space_size(spaces[1]), "value": 1}
    return multiplications(agent_network(config, spaces[0], heads, (("actions",), ("value",))))


def multiplications(spec: NetworkSpec) -> float:
    """Return the multiplications of a forward pass of one example: each kernel's elements times its positions."""
    shapes = spec.layout().shapes
    places: dict[int, int] = {}
    if spec.convolutions:
        height, width, _ = spec.convolved
        for index, layer in enumerate(spec.convolutions):
            height, width = ((side - layer.kernel) // layer.stride + 1 for side in (height, width))
            places[index] = height * width
    total = 0.0
    for name, shape in shapes.items():
        if name.endswith("/kernel"):
            layer_name = name.split("/")[-2]
            index = int(layer_name[4:]) if layer_name.startswith("conv") and layer_name[4:].isdigit() else -1
            total += math.prod(shape) * places.get(index, 1)
    return total
