"""`relaax keys`: its files, their permissions, and the configuration lines that it prints."""

from __future__ import annotations

import hashlib
import shlex
import ssl
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from typer.testing import CliRunner

from relaax.cli.app import app
from relaax.configuration import LearnerSection, ParameterServerSection, ReplayServerSection, RlxServerSection
from relaax.server.rlx_server.clients.accounts import Authentication, ClientAccounts, Identity
from support.keys import Keys

FILES = {
    *("token", "parameter-server-token", "replay-server-token", "ca.pem", "ca-key.pem"),
    *("server.pem", "server-key.pem", "worker.pem", "worker-key.pem"),
}


def test_generated_keys_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "deep" / "keys")
    assert {path.name for path in keys.folder.iterdir()} == FILES
    assert keys.folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in keys.folder.iterdir()} == {0o600}
    assert len(keys.token) >= 40
    tokens = {keys.read(name).decode().strip() for name in FILES if name.endswith("token")}
    assert len(tokens) == 3
    assert not [token for token in tokens if token in keys.output]


@pytest.mark.parametrize("folder", ["keys", "my keys: #1 'new'"])
def test_printed_lines_are_a_valid_configuration(tmp_path: Path, folder: str) -> None:
    keys = Keys(tmp_path / folder)
    lines = keys.output.splitlines()
    begin = lines.index("relaax-parameter-server:")
    end = lines.index("", begin)
    sections = yaml.safe_load("\n".join(lines[begin:end]))
    named = {name: {key.replace("-", "_"): value for key, value in keys_.items()} for name, keys_ in sections.items()}
    assert ParameterServerSection(**named["relaax-parameter-server"]) == ParameterServerSection(
        **keys.parameter_server()
    )
    assert RlxServerSection(**named["relaax-rlx-server"]) == RlxServerSection(**keys.rlx_server())
    assert ReplayServerSection(**named["relaax-replay-server"]) == ReplayServerSection(**keys.replay_server())
    assert LearnerSection(**named["relaax-learner"]) == LearnerSection(**keys.learner())
    assert shlex.split(lines[-1]) == ["--token-file", keys.path("token"), "--tls-ca", keys.path("ca.pem")]


def test_certificates_have_the_given_hosts_and_duration(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    made = CliRunner().invoke(app, ["keys", str(folder), "--host", "a.example", "--host", "10.0.0.5", "--days", "3"])
    assert made.exit_code == 0, made.output
    certificate = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "a.example"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1", "10.0.0.5"]
    assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days == 3
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "worker.pem", folder / "worker-key.pem")


def test_given_host_opens_servers_to_other_machines(tmp_path: Path) -> None:
    made = CliRunner().invoke(app, ["keys", str(tmp_path / "keys"), "--host", "a.example"])
    assert "\n  bind: 0.0.0.0:7000\n  token-file:" in made.output
    assert "\n  bind: 0.0.0.0:7001\n  token-file:" in made.output
    assert "bind" not in Keys(tmp_path / "others").output


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys")
    token = keys.token
    again = CliRunner().invoke(app, ["keys", str(keys.folder)])
    assert again.exit_code == 2
    assert "is not empty, and its files are not overwritten" in again.output
    assert keys.token == token


def test_invalid_host_is_refused_before_any_file_is_written(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["keys", str(tmp_path / "keys"), "--host", "a b"])
    assert refused.exit_code == 2
    assert "'a b' is neither a host name nor an IP address" in refused.output
    assert not (tmp_path / "keys").exists()


def test_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = CliRunner().invoke(app, ["keys", str(tmp_path / "file")])
    assert refused.exit_code == 2
    assert refused.output == f"relaax keys: {tmp_path / 'file'}: File exists\n"


def test_token_of_a_named_client_is_accepted(tmp_path: Path) -> None:
    """The printed lines authenticate the client, and the output does not contain the token."""
    folder = tmp_path / "keys"
    Keys(folder)
    made = CliRunner().invoke(app, ["keys", str(folder), "--client", "lab", "--client", "room-7"])
    assert made.exit_code == 0, made.output
    tokens = {name: (folder / f"{name}.token").read_text().strip() for name in ("lab", "room-7")}
    assert {(folder / f"{name}.token").stat().st_mode & 0o777 for name in tokens} == {0o600}
    assert not [token for token in tokens.values() if token in made.output]
    lines = made.output.splitlines()
    begin = lines.index("lab:")
    file = tmp_path / "clients.yaml"
    file.write_text("\n".join(lines[begin : lines.index("", begin)]))
    authentication = Authentication(names={})
    ClientAccounts(str(file), authentication)
    assert {name: authentication.identify(token) for name, token in tokens.items()} == {
        name: Identity(name, hashlib.sha256(token.encode()).hexdigest()) for name, token in tokens.items()
    }
    assert f"--token-file {folder}/lab.token" in made.output
    before = (folder / "lab.token").read_bytes()
    for names in (["lab"], ["new", "lab"], ["a/b"], ["../x"]):
        again = CliRunner().invoke(app, ["keys", str(folder), *(word for name in names for word in ("--client", name))])
        assert again.exit_code == 2
    assert (folder / "lab.token").read_bytes() == before
    assert not (folder / "new.token").exists()
