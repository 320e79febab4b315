"""Tests of the environment variables of clients, as used in containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from environments.OpenAI_Gym import main as gym
from relaax import rlx
from relaax.client.connection.client import tls_context
from support.programs import program, refusal
from support.rlx_peer import RlxPeer


def token_sent(**variables: str) -> str:
    with RlxPeer() as peer:
        done = program("OpenAI_Gym", peer.address, "CartPole-v1", "--steps", "3", **variables)
        assert done.returncode == 0, done.stderr
        return peer.connections[0].hello.token


def test_token_variable_overrides_the_token_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("of the file\n")
    file = {"RELAAX_TOKEN_FILE": str(tmp_path / "token")}
    assert token_sent(**file) == "of the file"
    assert token_sent(**file, RELAAX_TOKEN="of the variable\n") == "of the variable"


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"RELAAX_TOKEN_FILE": "/no/such"}, "cannot read /no/such, which RELAAX_TOKEN_FILE names"),
        ({"RELAAX_TLS": "yes"}, "the environment variable RELAAX_TLS is 'yes': set it to 1 for TLS, or to 0"),
        ({"RELAAX_TLS_CA": "/no/such"}, "/no/such: cannot read a certificate (PEM) from it"),
    ],
)
def test_invalid_environment_variable_is_named(
    variables: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert sentence in refusal(gym, "127.0.0.1:1", "CartPole-v1")


def test_tls_variable_applies_if_the_program_does_not_set_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELAAX_TLS_CA", raising=False)
    for text, uses_tls in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv("RELAAX_TLS", text)
        assert (tls_context(None, None) is not None) is uses_tls
    monkeypatch.setenv("RELAAX_TLS", "1")
    assert tls_context(False, None) is None


def test_alive_file_is_written_while_the_agent_answers(tmp_path: Path) -> None:
    file = tmp_path / "alive"
    with RlxPeer() as peer:
        done = program("OpenAI_Gym", peer.address, "CartPole-v1", "--steps", "3", RELAAX_ALIVE_FILE=str(file))
    assert done.returncode == 0
    assert isinstance(peer.connections[0].received[-1], rlx.Bye)
    assert file.is_file()
    done = program("OpenAI_Gym", "random", "CartPole-v1", "--steps", "3", RELAAX_ALIVE_FILE=str(tmp_path / "other"))
    assert done.returncode == 0
    assert not (tmp_path / "other").exists()
