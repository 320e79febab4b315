"""The storage of a parameter server: its checkpoints under a lease, and the copy of its metrics."""

from __future__ import annotations

import logging
import tempfile
from contextlib import ExitStack
from pathlib import Path

from relaax.checkpoint import CheckpointManager, StoreAway, open_store
from relaax.configuration import ParameterServerSection
from relaax.configuration.home import NoHome
from relaax.metrics.copying import MetricsCopy
from relaax.metrics.writer import newest_number
from relaax.server.checkpoints.spool import Spool, default_folder
from relaax.server.checkpoints.storage import open_leased, patiently, warn_of_versions
from relaax.server.command.termination import EndRequests

_log = logging.getLogger(__name__)


def open_manager(
    section: ParameterServerSection, ends: EndRequests, closing: ExitStack, leads: bool = True
) -> CheckpointManager | None:
    """Return the manager of checkpoints; None if no location is configured. See `open_leased`."""
    opened = open_leased(section, ends, closing, leads)
    if opened is None:
        return None
    store, lease = opened
    return CheckpointManager(store, section.checkpoints_kept, section.best_checkpoints_kept, lease)


def open_spool(section: ParameterServerSection, manager: CheckpointManager, ends: EndRequests) -> Spool | None:
    """Return the spool for a last checkpoint; None if checkpoints are in a folder, or go to several shards, which keep
    a part each. Delivers what an earlier process has left there.

    Raises StoreError and LeaseWaitInterrupted.
    """
    if section.checkpoint_aws_s3 is None or section.shards > 1:
        return None
    try:
        folder = Path(section.checkpoint_spool) if section.checkpoint_spool else default_folder()
    except NoHome:
        _log.warning(
            "the last checkpoint is lost if S3 is unreachable then: set checkpoint_spool, XDG_STATE_HOME or HOME"
        )
        return None
    spool = Spool(folder, manager, section.aws_endpoint)
    patiently(spool.deliver, ends)
    return spool


def metrics_folder(section: ParameterServerSection, closing: ExitStack) -> Path | None:
    """Return the folder of the TensorBoard run; None if there is none. Copying to S3 lasts until `closing` ends it.

    Raises StoreError and ConfigurationError.
    """
    if section.metrics_aws_s3 is None:
        return None if section.metrics_dir is None else Path(section.metrics_dir)
    store = open_store(section.metrics_aws_s3, section.aws_keys, section.aws_endpoint)
    names = []
    try:
        store.check()
        warn_of_versions(store)
        names = [name for name in store.list() if newest_number([name])]
    except StoreAway as error:
        _log.warning("metrics are copied later: %s", error)
    if section.metrics_dir is None:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="relaax-metrics-")))
    else:
        folder = Path(section.metrics_dir)
    if names:  # later files must sort after those in the store, too
        folder.mkdir(parents=True, exist_ok=True)
        (folder / max(names, key=lambda name: newest_number([name]))).touch()
    copy = MetricsCopy(folder, store)
    copy.start()
    closing.callback(copy.close)
    return folder
