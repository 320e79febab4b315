"""Paths with `~` if the home directory is unknown, as in a container without HOME and without the user's entry."""

from __future__ import annotations

import pwd
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from relaax import machine_code
from relaax.checkpoint import CheckpointManager, LocalStore
from relaax.checkpoint.s3 import read_keys
from relaax.configuration import ConfigurationError, ParameterServerSection
from relaax.configuration.validation import validate_section
from relaax.machine_code import just_in_time
from relaax.server.command.termination import EndRequests
from relaax.server.parameter_server.command.assembly import open_spool
from relaax.server.rlx_server.clients.accounts import OPEN, ClientAccounts
from relaax.server.security.tls import authority
from relaax.server.security.tokens import read_token


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the working directory of a process without a home directory."""

    def unknown(_: object) -> pwd.struct_passwd:
        raise KeyError

    for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "NUMBA_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def section(**keys: object) -> ParameterServerSection:
    return validate_section(ParameterServerSection, keys, "relaax-parameter-server")


READERS: dict[str, Callable[[], object]] = {
    "checkpoint_dir": lambda: section(checkpoint_dir="~/file"),
    "metrics_dir": lambda: section(metrics_dir="~/file"),
    "token_file": lambda: read_token("~/file", "relaax-rlx-server.token_file", "RELAAX_TOKEN"),
    "tls_ca": lambda: authority("~/file", "relaax-rlx-server.tls_ca"),
    "aws_keys": lambda: read_keys("~/file"),
    "clients_file": lambda: ClientAccounts("~/file", OPEN),
}


@pytest.mark.parametrize("key", READERS)
def test_path_in_an_unknown_home_is_refused(homeless: Path, key: str) -> None:
    with pytest.raises(ConfigurationError, match="~/file: the home directory is unknown: set HOME; or give") as refused:
        READERS[key]()
    assert key in str(refused.value)
    assert not list(homeless.iterdir())


def test_home_of_an_unknown_user_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="~no-such-user/x: the home directory of no-such-user is unknown"):
        section(checkpoint_dir="~no-such-user/x")


def test_without_home_no_spool_folder_is_made(homeless: Path, caplog: pytest.LogCaptureFixture) -> None:
    in_s3 = section(checkpoint_aws_s3=["bucket", "key"])
    with closing(EndRequests()) as ends:
        assert open_spool(in_s3, CheckpointManager(LocalStore(homeless)), ends) is None
    assert "the last checkpoint is lost if S3 is unreachable at the end: set checkpoint_spool" in caplog.text
    assert not (homeless / "~").exists()


def test_without_home_kernels_are_cached_beside_their_module(homeless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(values: object) -> None:
        pass

    assert machine_code.compiled_once(machine_code.FLAT)(kernel)().stats.cache_path
    monkeypatch.setattr(just_in_time.os, "access", lambda *_: False)
    assert machine_code.compiled_once(machine_code.FLAT)(kernel)().stats.cache_path is None
