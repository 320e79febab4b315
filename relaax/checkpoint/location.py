"""Open the store that a person names: a folder, or `s3://BUCKET/KEY`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from relaax.checkpoint.local import LocalStore
from relaax.checkpoint.store import Store, StoreError

_S3 = "s3://"


def s3_location(text: str) -> tuple[str, str] | None:
    """Return bucket and key of `s3://BUCKET/KEY`; None if the text does not begin like that. Raises StoreError."""
    if not text.startswith(_S3):
        return None
    bucket, _, key = text.removeprefix(_S3).partition("/")
    key = key.strip("/")
    if not bucket or not key:
        raise StoreError(f"{text} is no place in S3: s3://BUCKET/KEY is needed, such as s3://models/pong")
    return bucket, key


def open_location(text: str, aws_keys: str | None = None, aws_endpoint: str | None = None) -> Store:
    """Open the store at `s3://BUCKET/KEY`, in a folder, or in the run directory that a folder is. Sends no request yet.

    Raises StoreError and ConfigurationError.
    """
    s3 = s3_location(text)
    return LocalStore(checkpoints_of(Path(text))) if s3 is None else open_store(s3, aws_keys, aws_endpoint)


def checkpoints_of(folder: Path) -> Path:
    """Return the folder of checkpoints in a run directory, and any other folder as it is."""
    inner = folder / "checkpoints"
    return inner if inner.is_dir() or (folder / "configuration.yaml").is_file() else folder


def open_store(
    s3: Sequence[str], aws_keys: str | None = None, aws_endpoint: str | None = None, quick: bool = False
) -> Store:
    """Open the store below a bucket and a key of S3, without sending a request yet.

    `aws_keys`: a YAML file with `access` and `secret`; without it, what boto3 finds by itself. `aws_endpoint`: URL of
    a store that is not Amazon's. `quick`: for small values, with short timeouts. Raises StoreError and
    ConfigurationError, and ModuleNotFoundError if boto3 is not installed.
    """
    # boto3 takes a while to import, and is not there without the extra `s3`.
    from relaax.checkpoint.s3 import S3Store, read_keys

    bucket, key = s3
    keys = None if aws_keys is None else lambda: read_keys(aws_keys)
    return S3Store(bucket, key, keys, aws_endpoint, quick)
