"""Introductions of shards, and the check that they belong together."""

from __future__ import annotations

import os
import uuid

from relaax.hosting.fingerprint import first_difference
from relaax.server.parameter_server.coordination import coordination_pb2 as pb
from relaax.server.parameter_server.shard_position import ShardPosition

# Seconds.
HOLD = 2.0
"""Maximum time updates wait for the barrier of a checkpoint; then they resume and the checkpoint is abandoned."""

PARAMETERS = 2**20
"""Elements that fit into the longest message between shards: with many workers a shard's ledger is long."""


def introduction(position: ShardPosition, description: str, location: str) -> pb.Introduction:
    """Return this process's introduction. `location`: of the store, for people; empty if no checkpoints are kept."""
    if location and "://" not in location:
        location = os.path.realpath(location)
    return pb.Introduction(
        shard=position.index,
        shards=position.count,
        instance=uuid.uuid4().hex,
        description=description,
        location=location,
    )


def refusal(theirs: pb.Introduction, ours: pb.Introduction) -> str | None:
    """Return why a shard cannot join shard 0, whose introduction is `ours`; None if it can."""
    who = f"shard {theirs.shard} of {theirs.shards} cannot join"
    if theirs.shards != ours.shards:
        return f"{who}: shard 0 was started as one of {ours.shards}; give all of them the same number"
    if not 1 <= theirs.shard < ours.shards:
        return f"{who}: there are shards 0 to {ours.shards - 1}, and this is shard 0"
    try:
        difference = first_difference(theirs.description, ours.description, f"at shard {theirs.shard}", "at shard 0")
    except (ValueError, RecursionError):
        return f"{who}: its description is no JSON"
    if difference:
        return f"{who}: its configuration differs from shard 0: {difference}"
    if theirs.location != ours.location:
        first, other = (location or "no checkpoints" for location in (ours.location, theirs.location))
        return f"{who}: it keeps {_kept(other)}, shard 0 keeps {_kept(first)}; all shards need the same location"
    return None


def _kept(location: str) -> str:
    return location if location == "no checkpoints" else f"checkpoints in {location}"
