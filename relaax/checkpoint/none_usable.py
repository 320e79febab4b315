"""Report that there are checkpoints but none to continue from: why, and the ways out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relaax.checkpoint.manifest import OfLaterVersion
from relaax.checkpoint.store import StoreError

_SHOWN = 20  # checkpoints that one error describes


class NoneUsable(StoreError):
    """There are checkpoints, and training can continue from none of them. The message says why, and the ways out."""


def none_usable(location: str, reasons: Mapping[str, str]) -> NoneUsable:
    """Return the error for checkpoints each of which has a reason not to be used."""
    ids = list(reasons)
    named = [f"  {checkpoint_id}: {reasons[checkpoint_id]}" for checkpoint_id in ids[:_SHOWN]]
    named += [f"  and {len(ids) - _SHOWN} more"] if len(ids) > _SHOWN else []
    return NoneUsable(
        "\n".join(
            [
                f"none of the {len(ids)} checkpoints in {location} can be used, and none is deleted:",
                *named,
                "Put back what is damaged from a copy; or begin anew at another checkpoint location; or, to begin anew "
                f"at this one, remove them: relaax checkpoints remove {location} {' '.join(ids)}",
            ]
        )
    )


def in_the_way(location: str, checkpoint_id: str, later: OfLaterVersion, ids: Sequence[str]) -> NoneUsable:
    """Return the error for a checkpoint of a later version that comes first; without `ids` an older one can be used."""
    return NoneUsable(
        f"checkpoint {checkpoint_id} in {location} cannot be read: {later}. Nothing is changed. Go on with that "
        "version, or use another checkpoint location; or, to lose what it holds and go on from what is before it, "
        f"remove it: relaax checkpoints remove {location} {' '.join(ids)}"
    )
