"""Tokens and certificates of the configuration: which are accepted, and the errors for the others."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from relaax.configuration import ConfigurationError, ParameterServerSection, RlxServerSection
from relaax.server.access import shard_target, targets
from relaax.server.address import AddressError
from relaax.server.command.configuration import require_private_ports
from relaax.server.parameter_server.command.credentials import read_credentials
from relaax.server.rlx_server.clients.accounts import NO_TOKEN, UNNAMED_CLIENT, read_authentication
from relaax.server.security.certificates import LOCAL, Authority
from relaax.server.security.tokens import Token, read_token
from support.keys import OTHER_TOKEN, Keys

KEY, VARIABLE = "relaax-rlx-server.token_file", "RELAAX_TOKEN"


@pytest.fixture(autouse=True)
def unset_token_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RELAAX_TOKEN", "RELAAX_PARAMETER_SERVER_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys") / "made")


def write_token(folder: Path, content: str | bytes, mode: int = 0o600) -> str:
    path = folder / "token"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)
    return str(path)


def test_token_file_overrides_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_token(None, KEY, VARIABLE) is None
    monkeypatch.setenv(VARIABLE, f" {OTHER_TOKEN}\n")
    assert read_token(None, KEY, VARIABLE) == OTHER_TOKEN
    assert read_token(write_token(tmp_path, "x" * 16 + "\r\n"), KEY, VARIABLE) == "x" * 16


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "is empty; `relaax keys DIR` makes a token"),
        (" \n", "is empty"),
        ("x" * 15, "must have 16 to 4096"),
        ("x" * 4097, "must have 16 to 4096"),
        ("x" * 100_000, "must have 16 to 4096"),
        ("two words are no token", "without spaces"),
        ("one-to-a-line\nand-another-one", "printable"),
        ("sécurité-sécurité-sécurité", "printable ASCII"),
        (b"\x00" * 20, "printable"),
    ],
)
def test_invalid_token_is_refused_and_not_quoted(tmp_path: Path, content: str | bytes, text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_token(write_token(tmp_path, content), KEY, VARIABLE)
    assert text in str(refused.value)
    assert str(refused.value).startswith(KEY)
    if len(content) > 2:
        assert str(content)[:8] not in str(refused.value)


def test_empty_token_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    with pytest.raises(ConfigurationError, match="RELAAX_TOKEN: its token is empty"):
        read_token(None, KEY, VARIABLE)


def test_missing_token_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"{KEY}: the token file .*nowhere cannot be read: No such file"):
        read_token(str(tmp_path / "nowhere"), KEY, VARIABLE)


def test_token_file_readable_by_all_users_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    read_token(write_token(tmp_path, OTHER_TOKEN), KEY, VARIABLE)
    assert not caplog.records
    read_token(write_token(tmp_path, OTHER_TOKEN, 0o644), KEY, VARIABLE)
    assert "can read the token file" in caplog.text
    assert OTHER_TOKEN not in caplog.text


def test_token_matches_itself_and_has_no_readable_repr() -> None:
    token = Token(OTHER_TOKEN)
    assert token.matches(OTHER_TOKEN)
    for other in ("", OTHER_TOKEN[:-1], OTHER_TOKEN + "x", "ä\udc80"):
        assert not token.matches(other)
    assert OTHER_TOKEN not in repr(token)


def test_generated_keys_are_accepted_by_both_servers(keys: Keys) -> None:
    parameter_server = ParameterServerSection(**keys.parameter_server())
    credentials = read_credentials(parameter_server)
    assert credentials.authenticate and credentials.mutual
    assert credentials.token is not None and credentials.token.matches(keys.parameter_server_token)
    assert shard_target(parameter_server).token == keys.parameter_server_token
    rlx_server = RlxServerSection(parameter_server=["a:1", "b:2"], **keys.rlx_server())
    authentication = read_authentication(rlx_server)
    assert (
        authentication.is_required
        and authentication.identify(keys.token) == UNNAMED_CLIENT
        and authentication.identify("") == NO_TOKEN
    )
    first, second = targets(rlx_server)
    assert (first.address, second.address) == ("a:1", "b:2")
    assert first.token == second.token == keys.parameter_server_token
    assert keys.token not in repr(authentication) + repr(credentials)


def test_without_keys_no_authentication_is_required() -> None:
    assert not read_credentials(ParameterServerSection()).authenticate
    assert not read_authentication(RlxServerSection()).is_required
    (target,) = targets(RlxServerSection())
    assert (target.token, target.ca) == ("", None)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"tls_key": None}, "relaax-rlx-server.tls_key: required if"),
        ({"tls_certificate": None}, "relaax-rlx-server.tls_certificate: required if"),
        ({"tls_key": "worker-key.pem"}, "is not the key of the certificate"),
        ({"tls_key": "token"}, "is not a usable private key"),
        ({"tls_certificate": "token"}, "does not contain a certificate"),
        ({"tls_certificate": "nowhere.pem"}, "cannot be read"),
    ],
)
def test_unusable_certificate_is_refused(keys: Keys, wrong: dict[str, str | None], text: str) -> None:
    given = {name: None if file is None else keys.path(file) for name, file in wrong.items()}
    with pytest.raises(ConfigurationError) as refused:
        read_authentication(RlxServerSection(**{**keys.rlx_port(), **given}))
    assert text in str(refused.value)
    assert keys.token not in str(refused.value)


def test_expired_certificate_is_refused_and_early_expiry_logged(keys: Keys, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    authority = Authority(30)
    certificate, key = keys.put("expired", authority.issue("server", LOCAL, days=-1))
    with pytest.raises(ConfigurationError, match="expired on .*; make a new one"):
        read_authentication(RlxServerSection(tls_certificate=certificate, tls_key=key))
    assert not caplog.records
    certificate, key = keys.put("soon", authority.issue("server", LOCAL, days=5))
    read_authentication(RlxServerSection(tls_certificate=certificate, tls_key=key))
    assert "expires on" in caplog.text


def test_client_certificates_without_tls_are_refused(keys: Keys) -> None:
    pair = {
        "parameter_server_certificate": keys.path("worker.pem"),
        "parameter_server_key": keys.path("worker-key.pem"),
    }
    with pytest.raises(ConfigurationError, match="a certificate needs TLS: set relaax-rlx-server.parameter_server_ca"):
        targets(RlxServerSection(**pair))
    with pytest.raises(ConfigurationError, match="certificates need TLS: set relaax-parameter-server.tls_certificate"):
        read_credentials(ParameterServerSection(tls_client_ca=keys.path("ca.pem")))


def test_public_address_needs_authentication(keys: Keys) -> None:
    everywhere = {"bind": "0.0.0.0:7000"}
    for section in (ParameterServerSection, RlxServerSection):
        with pytest.raises(AddressError, match="relaax keys DIR"):
            require_private_ports(section(**everywhere))
        require_private_ports(section(**everywhere, allow_anonymous=True))
        require_private_ports(section(**everywhere, token_file=keys.path("token")))
    certificate = {"tls_certificate": keys.path("server.pem"), "tls_key": keys.path("server-key.pem")}
    require_private_ports(ParameterServerSection(**everywhere, **certificate, tls_client_ca=keys.path("ca.pem")))
    for section in (ParameterServerSection, RlxServerSection):
        with pytest.raises(AddressError):  # TLS alone authenticates no caller
            require_private_ports(section(**everywhere, **certificate))
