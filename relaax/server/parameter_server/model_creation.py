"""Make the model of a shard from a fingerprint."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from relaax.nn.devices import computes_on_gpu
from relaax.nn.recycled_memory import Empty, own_memory
from relaax.server.parameter_server.model import ModelFactory, ModelRefused, ModelSpec
from relaax.server.parameter_server.shard import Shard
from relaax.server.parameter_server.shard_position import ShardPosition
from relaax.transport.grpc_options import MAX_PARAMETERS
from relaax.transport.process_resources import keep_freed_memory


@dataclass(frozen=True, slots=True)
class Model:
    """A model that is being trained: its description, its constants and its shard.

    `spec.initial` is that of the shard's range; `parameters` is the length of the whole vector.
    """

    fingerprint: str
    spec: ModelSpec
    shard: Shard
    parameters: int

    @property
    def spaces(self) -> str:
        """Return the spaces of the fingerprint, canonical JSON as that is."""
        description = json.loads(self.fingerprint)
        spaces = {name: description.get(name) for name in ("action_space", "observation_space")}
        return json.dumps(spaces, sort_keys=True, separators=(",", ":"))


def make_model(factory: ModelFactory, fingerprint: str, position: ShardPosition, empty: Empty = own_memory) -> Model:
    """Return the model before its first update, with the range of the vector that the shard owns. Raises ModelRefused.

    `empty` makes the memory of snapshots.
    """
    spec = factory(fingerprint)
    parameters = len(spec.initial)
    if parameters < position.count:
        raise ModelRefused(f"the model has {parameters} parameters: too few for {position.count} shards")
    start, end = position.range(parameters)
    if end - start > MAX_PARAMETERS:
        raise ModelRefused(
            f"the model has {parameters} parameters: one shard holds up to {MAX_PARAMETERS}, so at least "
            f"{-(-parameters // MAX_PARAMETERS)} are needed"
        )
    keep_freed_memory(4 * (end - start))
    if position.count > 1:  # what other shards own is not kept; statistics are shard 0's
        own = spec.statistics if position.index == 0 else {}
        spec = replace(spec, initial=spec.initial[start:end].copy(), statistics=own)
    shard = Shard(
        spec.initial,
        spec.optimizer,
        spec.schedule,
        start=start,
        max_staleness=spec.max_staleness,
        statistics=spec.statistics,
        compensation=spec.compensation,
        target=spec.target,
        on_device=computes_on_gpu(),
        empty=empty,
    )
    return Model(fingerprint, spec, shard, parameters)
