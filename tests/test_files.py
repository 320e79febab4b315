"""An operator's files that are pipes, devices or too long are refused without waiting."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from relaax.client.connection.client import secret, tls_context
from relaax.configuration import ConfigurationError
from relaax.configuration.yaml_file import read_yaml
from relaax.files import MAX_BYTES, read_bounded
from relaax.server.rlx_server.clients.accounts import Authentication, read_clients
from relaax.server.security.tls import authority
from relaax.server.security.tokens import read_token
from relaax.transport.channel import read_addresses


def _secret(path: Path) -> None:
    os.environ["RELAAX_TOKEN_FILE"] = str(path)
    try:
        secret("RELAAX_TOKEN")
    finally:
        del os.environ["RELAAX_TOKEN_FILE"]


READERS: dict[str, Callable[[Path], object]] = {
    "token": lambda path: read_token(str(path), "key", "VARIABLE"),
    "certificate": lambda path: authority(str(path), "key"),
    "configuration": read_yaml,
    "clients": lambda path: read_clients(path, Authentication(None, names={})),
    "shards": lambda path: read_addresses(f"@{path}"),
    "token of a client": _secret,
    "authority of a client": lambda path: tls_context(None, path),
}


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "file")
    return folder / "file"


def endless(_folder: Path) -> Path:
    return Path("/dev/zero")


def long(folder: Path) -> Path:
    (folder / "file").write_bytes(bytes(MAX_BYTES + 1))
    return folder / "file"


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize(
    ("made", "message"),
    [(pipe, "not a regular file"), (endless, "not a regular file"), (long, "longer than 1,048,576 bytes")],
)
def test_pipe_device_or_long_file_is_refused(
    read: Callable[[Path], object], made: Callable[[Path], Path], message: str, tmp_path: Path
) -> None:
    with pytest.raises((ConfigurationError, ValueError), match=message):
        read(made(tmp_path))


def test_folder_instead_of_file_leaks_no_descriptor(tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    for _ in range(3):
        with pytest.raises(OSError, match="Is a directory"):
            read_bounded(tmp_path)
    assert len(os.listdir("/dev/fd")) == before


def test_file_of_maximum_length_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * MAX_BYTES)
    assert len(read_bounded(tmp_path / "file")) == MAX_BYTES
