"""Where a server keeps its checkpoints: the configured store, its lease, and patience while it cannot be reached."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

from relaax.checkpoint import (
    Lease,
    LeaseWaitInterrupted,
    LocalStore,
    Store,
    StoreError,
    StoreUnavailable,
    highest_fence,
    open_store,
)
from relaax.configuration.sections import CheckpointKeys
from relaax.server.command.termination import EndRequests, Reason

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

STORE_PATIENCE = 60.0
"""Seconds that a starting server waits for an unreachable store."""
_PAUSE = 2.0
KEEPS_VERSIONS = "the bucket keeps old versions, also of deleted checkpoints and of the lease, which changes every 5 s"
EXPIRE_VERSIONS = "add a lifecycle rule with NoncurrentVersionExpiration, or turn versioning off"


def checkpoint_store(section: CheckpointKeys, quick: bool = False) -> Store | None:
    """Return the configured store of checkpoints, or None. Raises StoreError, ConfigurationError."""
    if section.checkpoint_aws_s3 is not None:
        return open_store(section.checkpoint_aws_s3, section.aws_keys, section.aws_endpoint, quick)
    return None if section.checkpoint_dir is None else LocalStore(section.checkpoint_dir)


def open_leased(
    section: CheckpointKeys, ends: EndRequests, closing: ExitStack, leads: bool = True
) -> tuple[Store, Lease | None] | None:
    """Return the configured store; None if no location is configured.

    Who `leads` writes manifests: it gets the lease, which `closing` gives back, and another server that takes it over
    is a reason to end. A shard that does not lead writes parts only. Waits up to the lease's TTL.

    Raises StoreError, also if another server writes there; ConfigurationError; and LeaseWaitInterrupted if there was
    a reason to end meanwhile, which stays in `ends`.
    """
    store = checkpoint_store(section)
    if store is None:
        return None
    retry_while_unavailable(store.check, ends)
    lease = None
    if leads:
        warn_of_versions(store)
        # A store of its own: a renewal must not wait behind a part that is being uploaded.
        small = checkpoint_store(section, quick=True)
        assert small is not None
        lease = Lease(small, lambda sentence: ends.put(Reason.SUPERSEDED))
        fence = retry_while_unavailable(lambda: highest_fence(store), ends)
        retry_while_unavailable(lambda: lease.acquire(fence, ends.has_reason_within), ends)
        closing.callback(lease.release)
    return store, lease


def warn_of_versions(store: Store) -> None:
    """Log a warning if the store keeps what is replaced and deleted."""
    try:
        if store.keeps_old_versions():
            _log.warning("%s: %s; %s", store.location, KEEPS_VERSIONS, EXPIRE_VERSIONS)
    except StoreError as error:
        _log.debug("whether old versions are kept is unknown: %s", error)


def retry_while_unavailable(call: Callable[[], _Result], ends: EndRequests) -> _Result:
    """Return the result of `call`; while its store is unreachable it is called again, for a bounded time.

    Raises StoreError, and LeaseWaitInterrupted if there was a reason to end meanwhile, which stays in `ends`.
    """
    begun, told = time.monotonic(), False
    while True:
        try:
            return call()
        except StoreUnavailable as error:
            if time.monotonic() - begun >= STORE_PATIENCE:
                raise
            if not told:
                _log.warning("%s; trying for up to %g s", error, STORE_PATIENCE)
                told = True
        if ends.has_reason_within(_PAUSE):
            raise LeaseWaitInterrupted("told to end while waiting for the store")
