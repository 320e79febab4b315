"""Stores by location: a folder, or `s3://BUCKET/KEY`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from relaax.checkpoint.local import LocalStore
from relaax.checkpoint.store import Store, StoreError

_S3 = "s3://"


def s3_location(text: str) -> tuple[str, str] | None:
    """Return bucket and key of `s3://BUCKET/KEY`; None for other texts. Raises StoreError."""
    if not text.startswith(_S3):
        return None
    bucket, _, key = text.removeprefix(_S3).partition("/")
    key = key.strip("/")
    if not bucket or not key:
        raise StoreError(f"{text} is not a location in S3: use s3://BUCKET/KEY, such as s3://models/pong")
    return bucket, key


def open_location(text: str, aws_keys: str | None = None, aws_endpoint: str | None = None) -> Store:
    """Open the store at `s3://BUCKET/KEY`, in a folder of checkpoints, or in a run directory. Sends no request.

    Raises StoreError and ConfigurationError.
    """
    s3 = s3_location(text)
    return LocalStore(checkpoints_of(Path(text))) if s3 is None else open_store(s3, aws_keys, aws_endpoint)


def checkpoints_of(folder: Path) -> Path:
    """Return the folder of checkpoints if `folder` is a run directory; else `folder`."""
    inner = folder / "checkpoints"
    return inner if inner.is_dir() or (folder / "configuration.yaml").is_file() else folder


def open_store(
    s3: Sequence[str], aws_keys: str | None = None, aws_endpoint: str | None = None, quick: bool = False
) -> Store:
    """Open the store below a bucket and a key of S3. Sends no request.

    `aws_keys`: a YAML file with `access` and `secret`; without it, boto3 searches for keys. `aws_endpoint`: URL of a
    store that is not Amazon's. `quick`: short timeouts, for small values. Raises StoreError and ConfigurationError, and
    ModuleNotFoundError if boto3 is not installed.
    """
    # Importing boto3 is slow, and it is installed only with the extra `s3`.
    from relaax.checkpoint.s3 import S3Store, read_keys

    bucket, key = s3
    keys = None if aws_keys is None else lambda: read_keys(aws_keys)
    return S3Store(bucket, key, keys, aws_endpoint, quick)
