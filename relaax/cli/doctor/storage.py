"""Check the checkpoint store: write access, other writers, free space and its clock."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path

from relaax.cli.doctor.finding import FIX, Finding, Subject, ok, warning, wrong
from relaax.configuration import ConfigurationError, ParameterServerSection
from relaax.configuration.sections import CheckpointKeys

_GIGABYTE = 1e9
_SIGNATURE_SECONDS = 15 * 60
"""Difference of clocks above which S3 refuses a signature."""
_SKEW_SECONDS = 60


def store(subject: Subject) -> Iterator[Finding]:
    """Write a temporary value as a parameter server does, and as replay servers do if they save their memory."""
    section, replay = subject.configuration.parameter_server, subject.configuration.replay_server
    if section.checkpoint_aws_s3 is None and section.checkpoint_dir is None:
        yield warning("no checkpoint store is configured", "set checkpoint_dir or checkpoint_aws_s3")
    else:
        yield from _store(section)
    if replay.is_persistent:
        yield from _store(replay)


def _store(section: CheckpointKeys) -> Iterator[Finding]:
    from relaax.checkpoint import StoreError
    from relaax.server.checkpoints.storage import EXPIRE_VERSIONS, KEEPS_VERSIONS, checkpoint_store

    try:
        if section.checkpoint_dir is not None and not Path(section.checkpoint_dir).is_dir():
            yield _check_creation(Path(section.checkpoint_dir))
            return
        opened = checkpoint_store(section, quick=True)
        assert opened is not None, "a location is configured"
        _probe(opened)
    except ConfigurationError as error:
        yield wrong(str(error), FIX)
    except ModuleNotFoundError as error:
        yield wrong(f"{error.name} is not installed", "pip install 'relaax[s3]'")
    except StoreError as error:
        yield wrong(str(error), f"{FIX}; the server would exit, or checkpoints would be late")
    else:
        yield ok(f"{opened.location} can be written, read, written conditionally and cleared")
        with contextlib.suppress(StoreError):
            if opened.keeps_old_versions():
                yield warning(f"{opened.location}: {KEEPS_VERSIONS}", EXPIRE_VERSIONS)
        yield from _lease(opened)


def _check_creation(folder: Path) -> Finding:
    parent = _nearest(folder)
    try:
        with tempfile.TemporaryDirectory(dir=parent):
            pass
    except OSError as error:
        return wrong(
            f"{folder} cannot be made: {parent}: {error.strerror}", "change checkpoint_dir, or its permissions"
        )
    return ok(f"{folder} does not exist yet and can be made")


def _nearest(folder: Path) -> Path:
    """Return the folder itself, or its nearest existing parent."""
    absolute = folder.absolute()
    return next(path for path in (absolute, *absolute.parents) if path.is_dir())


def _probe(opened: object) -> None:
    """Write, read and delete a temporary value. Raises StoreError."""
    from relaax.checkpoint import Store, StoreError

    assert isinstance(opened, Store)
    key, value = f"doctor-{uuid.uuid4().hex}", b"relaax doctor"
    try:
        tag = opened.put_if(key, value, None)
        opened.put_if(key, value * 2, tag)
        opened.put(key, value)
        if opened.get(key) != value:
            raise StoreError(f"{opened.location} returns another value than the written one")
    finally:
        with contextlib.suppress(StoreError):
            opened.delete(key)


def _lease(opened: object) -> Iterator[Finding]:
    from relaax.checkpoint import NotFound, Store
    from relaax.checkpoint.lease import KEY, TTL, Holder

    assert isinstance(opened, Store)
    try:
        lease = json.loads(opened.get(KEY))
        holder, released = Holder.of(lease), bool(lease["released"])
    except NotFound:
        return
    except (ValueError, TypeError, KeyError):
        yield warning(f"{opened.location}/{KEY} is not a lease", "remove it if no parameter server uses this store")
        return
    if released:
        yield ok(f"the lease is free: {holder} released it")
    elif holder.is_dead():
        yield ok(f"{holder} holds the lease and has ended: the next server takes it over at once")
    else:
        way_out = f"a second server is refused while this one runs; the lease expires {TTL:g} s after its end"
        yield warning(f"{holder} holds the lease on {opened.location}", way_out)


def disk(subject: Subject) -> Iterator[Finding]:
    """Check the free space for all checkpoints to keep, by the size of the largest existing one."""
    section, replay = subject.configuration.parameter_server, subject.configuration.replay_server
    if section.checkpoint_dir is not None:
        kept = section.checkpoints_kept + section.best_checkpoints_kept + 1
        yield from _disk(Path(section.checkpoint_dir), "*", kept, "keep fewer (checkpoints_kept)")
    if replay.checkpoint_dir is not None:
        kept = 2 * max(1, replay.shards)  # the next one of each shard is written next to the last one
        yield from _disk(Path(replay.checkpoint_dir), "*/*", kept, "use another folder (checkpoint_dir)")


def _disk(folder: Path, checkpoints: str, kept: int, way_out: str) -> Iterator[Finding]:
    free = shutil.disk_usage(_nearest(folder)).free
    found = folder.glob(f"{checkpoints}/manifest.json")
    sizes = [sum(file.stat().st_size for file in path.parent.iterdir()) for path in found]
    needed = max(sizes, default=0) * max(0, kept - len(sizes)) + _GIGABYTE / 10
    sentence = f"{free / _GIGABYTE:.1f} GB are free for checkpoints in {folder}"
    if free < needed:
        yield wrong(f"{sentence}, {needed / _GIGABYTE:.1f} GB are needed", f"free some space, or {way_out}")
    elif free < _GIGABYTE:
        yield warning(sentence, "free some space: a full disk delays checkpoints")
    else:
        yield ok(sentence)


def clock(subject: Subject) -> Iterator[Finding]:
    """Compare this machine's clock with the store's. Only S3's signatures and certificates depend on clocks."""
    section = subject.configuration.parameter_server
    if section.checkpoint_aws_s3 is None and section.metrics_aws_s3 is None:
        return
    skew = _skew(section)
    if skew is None:
        return  # the store is unreachable, which is reported elsewhere
    sentence = f"this machine's clock and the store's differ by {abs(skew):.0f} s"
    way_out = "set the clock (NTP): S3 refuses signatures of another time, and certificates depend on it"
    if abs(skew) > _SIGNATURE_SECONDS:
        yield wrong(sentence, way_out)
    elif abs(skew) > _SKEW_SECONDS:
        yield warning(sentence, way_out)
    else:
        yield ok(sentence)


def _skew(section: ParameterServerSection) -> float | None:
    url = section.aws_endpoint or "https://s3.amazonaws.com"
    try:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=5) as answer:
                date = answer.headers.get("Date")
        except urllib.error.HTTPError as error:  # it refuses the request, but sends its time
            with error:
                date = error.headers.get("Date")
        return None if date is None else time.time() - parsedate_to_datetime(date).timestamp()
    except (OSError, ValueError, TypeError, http.client.HTTPException):
        return None
