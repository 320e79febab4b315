"""The keys of a section whose process keeps checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class CheckpointKeys(Protocol):
    """Where checkpoints are kept: in a folder, in S3, or nowhere."""

    @property
    def checkpoint_dir(self) -> str | None:
        """The folder."""

    @property
    def checkpoint_aws_s3(self) -> Sequence[str] | None:
        """Bucket and key."""

    @property
    def aws_keys(self) -> str | None:
        """The file with the credentials for S3."""

    @property
    def aws_endpoint(self) -> str | None:
        """The URL of a store that is not Amazon's."""


def require_one_place(keys: CheckpointKeys) -> None:
    """Raise ValueError for two locations."""
    if keys.checkpoint_dir is not None and keys.checkpoint_aws_s3 is not None:
        raise ValueError("checkpoint_dir and checkpoint_aws_s3 are both given: checkpoints are kept in one place")
