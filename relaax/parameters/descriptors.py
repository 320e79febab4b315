"""Raise the limit of descriptors of a process: each vector that it shares, or that is shared with it, takes some."""

from __future__ import annotations

import contextlib
import resource

_ENOUGH = 2**16


def allow_descriptors() -> None:
    """As many as the system lets it have: a worker takes up to six of either side, and 1024 are a common limit."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = _ENOUGH if most == resource.RLIM_INFINITY else min(_ENOUGH, most)
    if limit != resource.RLIM_INFINITY and limit < enough:
        with contextlib.suppress(OSError, ValueError):  # the system allows fewer than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (enough, most))
