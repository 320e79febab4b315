"""The configured store of a server's checkpoints: opening it, its lease, and retries while it is unavailable."""

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
"""Seconds for which a starting server retries an unavailable store."""
_PAUSE = 2.0
KEEPS_VERSIONS = "the bucket keeps old versions, also of deleted checkpoints and of the lease, which changes every 5 s"
EXPIRE_VERSIONS = "add a lifecycle rule with NoncurrentVersionExpiration, or turn versioning off"


def checkpoint_store(section: CheckpointKeys, quick: bool = False) -> Store | None:
    """Return the configured store of checkpoints, or None. Raises StoreError and ConfigurationError."""
    if section.checkpoint_aws_s3 is not None:
        return open_store(section.checkpoint_aws_s3, section.aws_keys, section.aws_endpoint, quick)
    return None if section.checkpoint_dir is None else LocalStore(section.checkpoint_dir)


def open_leased(
    section: CheckpointKeys, ends: EndRequests, closing: ExitStack, leads: bool = True
) -> tuple[Store, Lease | None] | None:
    """Return the configured store and the lease; None if no location is configured.

    A server that `leads` writes manifests. It acquires the lease, for which it waits up to the TTL; `closing` releases
    it. If another server takes the lease over, this one is asked to end. A shard that does not lead writes parts only
    and gets no lease.

    Raises StoreError, also if another server holds the lease; ConfigurationError; and LeaseWaitInterrupted if the
    server was asked to end meanwhile: the reason stays in `ends`.
    """
    store = checkpoint_store(section)
    if store is None:
        return None
    retry_while_unavailable(store.check, ends)
    lease = None
    if leads:
        warn_of_versions(store)
        # A separate store, because a renewal must not wait for the upload of a part.
        small = checkpoint_store(section, quick=True)
        assert small is not None
        lease = Lease(small, lambda sentence: ends.put(Reason.SUPERSEDED))
        fence = retry_while_unavailable(lambda: highest_fence(store), ends)
        retry_while_unavailable(lambda: lease.acquire(fence, ends.has_reason_within), ends)
        closing.callback(lease.release)
    return store, lease


def warn_of_versions(store: Store) -> None:
    """Log a warning if the store keeps replaced and deleted values."""
    try:
        if store.keeps_old_versions():
            _log.warning("%s: %s; %s", store.location, KEEPS_VERSIONS, EXPIRE_VERSIONS)
    except StoreError as error:
        _log.debug("cannot find out whether old versions are kept: %s", error)


def retry_while_unavailable(call: Callable[[], _Result], ends: EndRequests) -> _Result:
    """Return the result of `call`, which is repeated for up to `STORE_PATIENCE` while its store is unavailable.

    Raises StoreError, and LeaseWaitInterrupted if the server was asked to end meanwhile; the reason stays in `ends`.
    """
    begun, logged = time.monotonic(), False
    while True:
        try:
            return call()
        except StoreUnavailable as error:
            if time.monotonic() - begun >= STORE_PATIENCE:
                raise
            if not logged:
                _log.warning("%s; retrying for up to %g s", error, STORE_PATIENCE)
                logged = True
        if ends.has_reason_within(_PAUSE):
            raise LeaseWaitInterrupted("asked to end while waiting for the store")
