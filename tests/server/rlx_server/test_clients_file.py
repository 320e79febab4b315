"""Tests of the file of named clients: valid and invalid contents, and when it is reloaded."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from relaax.configuration import ConfigurationError
from relaax.server.rlx_server.clients.accounts import UNNAMED_CLIENT, Authentication, ClientAccounts, Identity
from relaax.server.security.tokens import Token
from support.named_clients import ClientsFile, token_of

LAB = hashlib.sha256(token_of("lab").encode()).hexdigest()


@pytest.fixture
def file(tmp_path: Path) -> ClientsFile:
    return ClientsFile(tmp_path)


def authentication(token: str | None = None) -> Authentication:
    return Authentication(None if token is None else Token(token), names={})


def test_valid_file_gives_names_tokens_and_quotas(file: ClientsFile, tmp_path: Path) -> None:
    (tmp_path / "room.token").write_text(token_of("room") + "\n")
    (tmp_path / "room.token").chmod(0o600)
    file.write_text(
        f"lab:\n  token-sha256: {LAB.upper()}\n  steps-per-second: 1e3\n  max-connections: 4\n"
        "room: {token-file: room.token, bytes-per-second: 1.5e6, max-environments: 64}\n"
    )
    authenticator = authentication(token="of-all-others-0123456789")
    clients = ClientAccounts(str(file.path), authenticator)
    lab, room = clients.get("lab"), clients.get("room")
    assert lab is not None and room is not None
    assert (lab.digest, lab.steps_per_second, lab.max_connections, lab.bytes_per_second) == (LAB, 1000.0, 4, None)
    assert (room.bytes_per_second, room.max_environments) == (1.5e6, 64)
    assert authenticator.identify(token_of("lab")) == Identity("lab", LAB)
    assert authenticator.identify("of-all-others-0123456789") == UNNAMED_CLIENT
    assert isinstance(authenticator.identify("anything else"), str)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"lab: {{token-sha256: {LAB}, step-per-second: 5}}", "did you mean 'steps_per_second'"),
        (f"lab: {{token-sha256: {LAB}, max-connections: 0}}", "max_connections"),
        (f"lab: {{token-sha256: {LAB}, steps-per-second: true}}", "a number is required, not a bool"),
        ("lab: {token-sha256: the-token-itself-0123}", "64 hexadecimal digits in quotes"),
        ("lab: {token-sha256: 12345678901234567890}", "64 hexadecimal digits in quotes"),
        ("lab: {}", "set exactly one of token-file and token-sha256"),
        (f"lab: {{token-sha256: {LAB}, token-file: x}}", "set exactly one of token-file and token-sha256"),
        (f"lab: {{token-sha256: {LAB}}}\nroom: {{token-sha256: {LAB}}}", "room and lab have the same token"),
        (f"lab: {{token-sha256: {LAB}}}\nlab: {{token-sha256: {LAB}}}", "appears twice"),
        (f"'la b': {{token-sha256: {LAB}}}", "'la b' is not a valid client name"),
        ("lab: {token-file: nowhere}", "cannot be read"),
        ("- lab", "expected client names with keys and values"),
        ("", "expected client names with keys and values"),
    ],
)
def test_invalid_clients_file_is_refused_with_the_reason(file: ClientsFile, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=message.replace("(", r"\(")) as caught:
        ClientAccounts(str(file.path), authentication())
    assert str(file.path) in str(caught.value)
    assert "the-token-itself" not in str(caught.value) and "1234567890" not in str(caught.value)


def test_client_with_the_token_of_unnamed_clients_is_refused(file: ClientsFile) -> None:
    file.write(lab={})
    with pytest.raises(ConfigurationError, match="lab has the token of unnamed clients"):
        ClientAccounts(str(file.path), authentication(token_of("lab")))


def test_world_writable_clients_file_is_warned_about(file: ClientsFile, caplog: pytest.LogCaptureFixture) -> None:
    file.write(lab={})
    file.path.chmod(0o666)
    ClientAccounts(str(file.path), authentication())
    assert "can add clients" in caplog.text


def test_changed_file_is_reloaded_after_its_writes_end(
    file: ClientsFile, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock: list[float] = [0.0]
    token = tmp_path / "lab.token"
    token.write_text(token_of("lab"))
    token.chmod(0o600)
    entry: dict[str, Any] = {"token-file": str(token)}
    file.write_text(f"lab: {entry}")
    authenticator = authentication()
    clients = ClientAccounts(str(file.path), authenticator, lambda: clock[0])

    def check() -> bool:
        clock[0] += 1.0
        return clients.reload_if_changed()

    assert not check() and not check()
    with file.path.open("a") as stream:  # as an editor does, in parts
        stream.write("\nroom:\n")
        stream.flush()
        assert not check(), "the file may still be written"
        stream.write(f"  token-sha256: {'ab' * 32}\n")
        stream.flush()
        assert not check()
    assert clients.get("room") is None
    assert check()
    assert clients.get("room") is not None
    token.write_text(token_of("other"))
    assert not check()
    assert check(), "a changed token file is detected as well"
    assert isinstance(authenticator.identify(token_of("lab")), str)
    assert authenticator.identify(token_of("other")) != UNNAMED_CLIENT
    file.path.unlink()
    assert not check() and not check() and not check()
    assert caplog.text.count("keeping the previous 2 clients") == 1, "the error is logged once"
    assert isinstance(authenticator.identify(token_of("other")), Identity)
    clients.request_reload()
    assert not clients.reload_if_changed()
    assert caplog.text.count("keeping the previous 2 clients") == 2, "an explicit request logs the error again"
    os.close(os.open(file.path, os.O_CREAT | os.O_WRONLY))
    file.write()
    assert not check()
    assert check()
    assert list(clients) == []
