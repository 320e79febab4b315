"""`relaax doctor` on set-ups that are broken for real: each has its sentence, and no secret is in any."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
import socket
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from relaax.cli.doctor import machine, storage
from relaax.cli.doctor.command import checks, line, run_checks
from relaax.cli.doctor.finding import Finding, Severity, Subject, warning
from relaax.configuration.roles import WORKERS_TOKEN
from relaax.transport import segments
from relaax.transport.frames import Frame, FrameSocket
from support.keys import Keys
from support.offline import start_offline_server
from support.processes import Processes, project_command, wait_until
from support.s3_server import S3Server, keys_file, s3_server
from support.scrape import status_url

SECRET = "a-token-that-nobody-may-read"
OTHER = "another-token-that-is-not-it"
SERVER, RLX = "relaax-parameter-server", "relaax-rlx-server"


@pytest.fixture(autouse=True)
def _no_tokens_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RELAAX_TOKEN", WORKERS_TOKEN):
        monkeypatch.delenv(variable, raising=False)


def written(folder: Path, **sections: dict[str, Any]) -> Path:
    """A configuration; `server`, `rlx` and `algorithm` have keys of their sections."""
    document = {
        SERVER: {"bind": "127.0.0.1:0", "checkpoint_dir": str(folder / "checkpoints"), **sections.get("server", {})},
        RLX: {"bind": "127.0.0.1:0", "parameter_server": ["127.0.0.1:0"], **sections.get("rlx", {})},
        "relaax-replay-server": sections.get("replay", {}),
        "relaax-run": sections.get("run", {}),
        "algorithm": {"path": "da3c", "network": {"dense": [8]}, **sections.get("algorithm", {})},
    }
    path = folder / "experiment.yaml"
    path.write_text(json.dumps(document))
    return path


def found(config: Path, name: str) -> list[Finding]:
    """What one check finds, after those of configuration and algorithm."""
    subject = Subject(str(config))
    findings: list[Finding] = []
    for check in checks():
        if check.name in ("configuration", name) or (check.name, name) == ("algorithm", "parameter server"):
            findings = list(check.run(subject))
        if check.name == name:
            break
    for finding in findings:
        assert SECRET not in line(name, finding) and OTHER not in line(name, finding)
    return findings


def only(findings: list[Finding], level: Severity) -> str:
    """The one sentence of this level, with its way out."""
    chosen = [finding for finding in findings if finding.level is level]
    assert len(chosen) == 1, findings
    return line("", chosen[0])


def token(folder: Path, name: str, secret: str = SECRET, mode: int = 0o600) -> str:
    path = folder / name
    path.write_text(secret)
    path.chmod(mode)
    return str(path)


class Authority:
    """Makes certificates, good and bad."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = self._write(name, self._certificate(self._name, self._key.public_key(), "authority", 100, True))

    def pair(self, name: str, host: str = "127.0.0.1", days: float = 100) -> tuple[str, str]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._certificate(subject, key.public_key(), host, days, False)
        secret = self.folder / f"{name}.key"
        secret.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        secret.chmod(0o600)
        return self._write(name, certificate), str(secret)

    def _certificate(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, host: str, days: float, is_authority: bool
    ) -> x509.Certificate:
        now = datetime.now(timezone.utc)
        alternative: x509.GeneralName = x509.DNSName(host)
        if host[0].isdigit():
            alternative = x509.IPAddress(ipaddress.ip_address(host))
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=200))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def _write(self, name: str, certificate: x509.Certificate) -> str:
        path = self.folder / f"{name}.pem"
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return str(path)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


def test_a_configuration_that_cannot_be(tmp_path: Path) -> None:
    findings = found(written(tmp_path, rlx={"max_wrokers": 3}), "configuration")
    assert "max_wrokers" in only(findings, Severity.WRONG)
    assert "did you mean" in only(findings, Severity.WRONG)


def test_a_port_for_everybody_is_asked_for(tmp_path: Path) -> None:
    findings = found(written(tmp_path, rlx={"status_bind": "0.0.0.0:0"}), "configuration")
    assert "status_bind 0.0.0.0:0 can be reached from other machines" in only(findings, Severity.WRONG)


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/doctor", "environments/OpenAI_Gym", "relaax/client")
def test_environments_are_made_where_that_can_be(tmp_path: Path) -> None:
    gym = {"environment": "OpenAI_Gym", "name": "CartPole-v1"}
    assert "CartPole-v1 can be made: obs" in only(found(written(tmp_path, run=gym), "environment"), Severity.OK)
    findings = found(written(tmp_path, run={**gym, "name": "CartPoel-v1"}), "environment")
    assert "'CartPoel-v1'; the nearest is 'CartPole-v1'" in only(findings, Severity.WARNING)
    findings = found(written(tmp_path, run={**gym, "name": "Pendulum-v1"}), "environment")
    assert "da3c cannot handle the action space Box(float32, [1], -2..2)" in only(findings, Severity.WARNING)
    (tmp_path / "mine.py").write_text("open('started', 'w')")
    findings = found(written(tmp_path, run={"environment": "mine.py", "name": "any"}), "environment")
    assert "mine.py is your own program, and was not started" in only(findings, Severity.OK)
    assert found(written(tmp_path), "environment") == []


def test_versions_are_those_that_it_was_tried_with(tmp_path: Path) -> None:
    findings = found(written(tmp_path), "versions")
    assert {finding.level for finding in findings} <= {Severity.OK, Severity.WARNING}
    assert "tensorflow" in findings[-1].sentence


def test_an_algorithm_with_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise RuntimeError('half written')")
    sentence = only(found(written(tmp_path, algorithm={"path": "./mine.py"}), "configuration"), Severity.WRONG)
    assert "mine.py" in sentence and "half written" in sentence


@pytest.mark.parametrize(
    ("secret", "mode", "level", "sentence"),
    [
        (SECRET, 0o600, Severity.OK, "a token is set"),
        (SECRET, 0o640, Severity.WARNING, "(mode 640). Chmod 600"),
        ("short", 0o600, Severity.WRONG, "must have 16 to 4096 characters"),
        ("", 0o600, Severity.WRONG, "is empty"),
    ],
)
def test_tokens(tmp_path: Path, secret: str, mode: int, level: Severity, sentence: str) -> None:
    config = written(tmp_path, rlx={"token_file": token(tmp_path, "token", secret, mode)})
    assert sentence in only(found(config, "tokens"), level)


def test_a_token_file_that_is_not_there(tmp_path: Path) -> None:
    config = written(tmp_path, server={"token_file": str(tmp_path / "none")})
    assert "cannot be read" in only(found(config, "tokens"), Severity.WRONG)


def test_workers_with_another_token(tmp_path: Path) -> None:
    ours, theirs = token(tmp_path, "ours"), token(tmp_path, "theirs", OTHER)
    config = written(tmp_path, server={"token_file": ours}, rlx={"parameter_server_token_file": theirs})
    assert "workers would send another or none" in only(found(config, "tokens"), Severity.WRONG)


def test_certificates_that_are_fine(tmp_path: Path, authority: Authority) -> None:
    certificate, key = authority.pair("server")
    config = written(
        tmp_path,
        server={"tls_certificate": certificate, "tls_key": key},
        rlx={"parameter_server_ca": authority.file},
    )
    findings = found(config, "certificates")
    assert [finding.level for finding in findings] == [Severity.OK, Severity.OK], findings
    assert "is valid for 99 days" in findings[0].sentence
    assert "has signed" in findings[1].sentence


@pytest.mark.parametrize(
    ("days", "host", "level", "sentence"),
    [
        (-1, "127.0.0.1", Severity.WRONG, " expired on "),
        (5, "127.0.0.1", Severity.WARNING, "expires in 4 days"),
        (100, "elsewhere.example", Severity.WARNING, "is for elsewhere.example, the server binds 127.0.0.1"),
    ],
)
def test_certificates(
    tmp_path: Path, authority: Authority, days: float, host: str, level: Severity, sentence: str
) -> None:
    certificate, key = authority.pair("server", host, days)
    config = written(tmp_path, rlx={"tls_certificate": certificate, "tls_key": key})
    assert sentence in only(found(config, "certificates"), level)


def test_a_key_of_another_certificate(tmp_path: Path, authority: Authority) -> None:
    certificate, _ = authority.pair("server")
    _, key = authority.pair("another")
    config = written(tmp_path, rlx={"tls_certificate": certificate, "tls_key": key})
    assert "is not the key of the certificate" in only(found(config, "certificates"), Severity.WRONG)


def test_an_authority_that_has_not_signed(tmp_path: Path, authority: Authority) -> None:
    certificate, key = authority.pair("server")
    other = Authority(tmp_path, "other")
    config = written(
        tmp_path, server={"tls_certificate": certificate, "tls_key": key}, rlx={"parameter_server_ca": other.file}
    )
    assert "has not signed" in only(found(config, "certificates"), Severity.WRONG)


@pytest.mark.parametrize(
    ("server", "rlx", "sentence"),
    [
        (("tls_client_ca",), (), "tls_client_ca: clients send certificates only over TLS"),
        (
            (),
            ("parameter_server_certificate", "parameter_server_key"),
            "parameter_server_certificate: sent only over TLS",
        ),
        (("tls_certificate", "tls_key", "shards"), ("parameter_server_ca",), "tls_ca: required by shards"),
    ],
)
def test_keys_that_need_another_one(
    tmp_path: Path, server: tuple[str, ...], rlx: tuple[str, ...], sentence: str
) -> None:
    keys = Keys(tmp_path / "keys")
    all_keys = {**keys.parameter_server(), **keys.rlx_server(), "shards": 2}
    config = written(tmp_path, server={key: all_keys[key] for key in server}, rlx={key: all_keys[key] for key in rlx})
    assert sentence in only(found(config, "certificates"), Severity.WRONG)


def test_shards_that_workers_are_not_told_of(tmp_path: Path) -> None:
    config = written(tmp_path, server={"shards": 3}, rlx={"parameter_server": ["127.0.0.1:0", "127.0.0.1:0"]})
    assert "shards is 3, relaax-rlx-server.parameter_server names 2" in only(
        found(config, "parameter server"), Severity.WARNING
    )


def test_an_address_of_another_machine(tmp_path: Path) -> None:
    sentence = only(found(written(tmp_path, rlx={"bind": "192.0.2.1:7001"}), "ports"), Severity.WRONG)
    assert sentence.endswith("Cannot assign requested address. Choose another address, or port 0 for a free one")


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/doctor")
def test_a_port_of_another_program(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        taken.settimeout(0)  # it accepts nobody and says nothing
        status = only(found(written(tmp_path, rlx={"status_bind": address}), "ports"), Severity.WRONG)
    assert f"{address} is in use by" in status
    assert f"(process {os.getpid()})" in status
    assert only(found(written(tmp_path, rlx={"bind": address}), "ports")[-1:], Severity.OK).endswith("is free")


def test_status_port_is_asked_without_a_proxy(
    tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _ = start_offline_server(processes, tmp_path, "--status-bind", "127.0.0.1:0")
    address = status_url(server).removeprefix("http://")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nothing listens there
    wait_until(lambda: "(serving)" in sentences(tmp_path, address), "relaax doctor names the server")


def sentences(folder: Path, address: str) -> str:
    """Return what the check of ports finds of a status port."""
    return " ".join(line("", finding) for finding in found(written(folder, rlx={"status_bind": address}), "ports"))


def test_a_port_of_a_program_that_speaks_something_else(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        def greet() -> None:
            with contextlib.suppress(OSError), taken.accept()[0] as connected:
                connected.recv(4096)
                connected.sendall(b"220 not of the web\r\n" * 2)

        threading.Thread(target=greet, daemon=True).start()
        sentence = only(found(written(tmp_path, rlx={"status_bind": address}), "ports"), Severity.WRONG)
    assert f"{address} is in use by" in sentence


def test_a_parameter_server_that_only_workers_can_reach(tmp_path: Path, processes: Processes) -> None:
    """Without tls_ca no shard could, and of one alone nobody asks for it."""
    keys = Keys(tmp_path / "keys")
    server = {**keys.parameter_server(), "tls_ca": None}
    _, address = processes.start_server("relaax-parameter-server", "--config", written(tmp_path, server=server))
    config = written(
        tmp_path, server={**server, "bind": address}, rlx={**keys.rlx_server(), "parameter_server": [address]}
    )
    findings = found(config, "ports")
    assert f"a RELAAX parameter server, at global step 0, answers at {address} already" in line("", findings[0])
    assert findings[0].level is Severity.OK


def test_a_port_of_a_running_server(tmp_path: Path, processes: Processes) -> None:
    _, address = start_offline_server(processes, tmp_path)
    findings = found(written(tmp_path, rlx={"bind": address}), "ports")
    assert f"an RLX server answers at {address} already" in line("", findings[-1])
    assert findings[-1].level is Severity.OK


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = written(tmp_path, server={"checkpoint_dir": "/proc/relaax/checkpoints"})
    assert "/proc/relaax/checkpoints cannot be made" in only(found(config, "store"), Severity.WRONG)
    config = written(tmp_path, server={"checkpoint_dir": "/proc"})
    assert "/proc" in only(found(config, "store"), Severity.WRONG)


def test_the_folder_of_a_replay_memory_is_looked_at_too(tmp_path: Path) -> None:
    kept = str(tmp_path / "memory")
    for name, says in (("store", f"{kept} does not exist yet and can be made"), ("disk", f"checkpoints in {kept}")):
        findings = found(written(tmp_path, replay={"checkpoint_dir": kept}), name)
        assert len(findings) == 2 and says in line(name, findings[-1])
    findings = found(written(tmp_path, replay={"checkpoint_dir": "/proc/relaax/memory"}), "store")
    assert "/proc/relaax/memory cannot be made" in line("store", findings[-1])
    assert [finding.level for finding in findings] == [Severity.OK, Severity.WRONG]


def test_a_folder_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    assert "can be written, read" in only(found(written(tmp_path), "store"), Severity.OK)
    assert [path for path in (tmp_path / "checkpoints").rglob("*") if path.stat().st_size] == []
    (tmp_path / "checkpoints").rename(tmp_path / "gone")
    assert "can be made" in only(found(written(tmp_path), "store"), Severity.OK)
    assert not (tmp_path / "checkpoints").exists()


def test_s3(tmp_path: Path, s3: S3Server) -> None:
    keys = {"checkpoint_dir": None, "aws_keys": str(keys_file(tmp_path)), "aws_endpoint": f"http://{s3.address}"}
    bucket = s3.bucket()
    config = written(tmp_path, server={**keys, "checkpoint_aws_s3": [bucket, "run"]})
    assert f"s3://{bucket}/run can be written" in only(found(config, "store"), Severity.OK)
    assert "contents" not in s3.client.list_objects_v2(Bucket=bucket)
    assert "differ by" in only(found(config, "clock"), Severity.OK)
    s3.client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    (versions,) = (each for each in found(config, "store") if each.level is Severity.WARNING)
    assert "the bucket keeps old versions" in line("", versions)
    config = written(tmp_path, server={**keys, "checkpoint_aws_s3": ["no-such-bucket", "run"]})
    assert "no-such-bucket" in only(found(config, "store"), Severity.WRONG)


def test_a_clock_that_is_wrong(tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    now = storage.time.time
    monkeypatch.setattr(storage.time, "time", lambda: now() + 3600)
    config = written(
        tmp_path,
        server={"checkpoint_dir": None, "checkpoint_aws_s3": ["b", "k"], "aws_endpoint": f"http://{s3.address}"},
    )
    assert "differ by 36" in only(found(config, "clock"), Severity.WRONG)


def test_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = written(tmp_path, rlx={"memory_reserve": 10**9})
    assert "room for about 0 workers" in only(found(config, "memory"), Severity.WRONG)
    monkeypatch.setattr("resource.getrlimit", lambda which: (1024, 4096))
    config = written(tmp_path, rlx={"max_workers": 10**6})
    assert "too few for 1000000 workers" in only(found(config, "open files"), Severity.WARNING)
    assert "GB are free" in found(config, "disk")[0].sentence


def test_memory_that_is_shared(tmp_path: Path) -> None:
    for bridge in ("auto", "shared_memory", "hogwild"):
        findings = found(written(tmp_path, rlx={"bridge": bridge}), "shared memory")
        assert f"can share memory (bridge: {bridge})" in only(findings, Severity.OK)
    assert found(written(tmp_path, rlx={"bridge": "grpc"}), "shared memory") == []


def test_memory_that_cannot_be_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_itself = written(tmp_path)
    (tmp_path / "hogwild").mkdir()
    always = written(tmp_path / "hogwild", rlx={"bridge": "hogwild"})

    def refused(*arguments: object) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    def nothing_is_handed_over(self: FrameSocket) -> tuple[Frame, None]:
        return Frame(0, b""), None

    for place, name, value, why in (
        (os, "memfd_create", refused, "Function not implemented"),
        (FrameSocket, "receive", nothing_is_handed_over, "the system passes no descriptors"),
        (segments, "SUPPORTED", False, "this system cannot pass memory between processes"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(place, name, value)
            usual = only(found(by_itself, "shared memory"), Severity.WARNING)
            needed = only(found(always, "shared memory"), Severity.WRONG)
        assert f"so workers use gRPC: {why}" in usual
        assert f"bridge is hogwild, and processes cannot share memory on this machine: {why}" in needed


def test_an_algorithm_that_cannot_do_with_the_bridge(tmp_path: Path) -> None:
    config = written(tmp_path, rlx={"bridge": "hogwild"}, algorithm={"optimizer": "adam"})
    assert "adam is not one of rms_prop, momentum, adagrad" in only(found(config, "algorithm"), Severity.WRONG)


def test_a_check_that_fails_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(subject: Subject) -> Iterator[Finding]:
        raise RuntimeError("a mistake")
        yield warning("", "")

    monkeypatch.setattr(machine, "memory", broken)
    names = dict(run_checks(Subject(str(written(tmp_path)))))
    assert "RuntimeError: a mistake" in names["memory"].sentence
    assert "GB are free" in names["disk"].sentence


def test_the_parameter_server_that_is_there(tmp_path: Path, processes: Processes) -> None:
    """The command as a process, a server with a token, and three configurations."""
    ours, theirs = token(tmp_path, "ours"), token(tmp_path, "theirs", OTHER)
    server, address = processes.start_server(
        "relaax-parameter-server", "--config", written(tmp_path, server={"token_file": ours})
    )
    good = written(
        tmp_path,
        server={"bind": address, "token_file": ours},
        rlx={"parameter_server": [address], "parameter_server_token_file": ours, "memory_reserve": 0},
    )
    done = processes.start(project_command("relaax"), "doctor", good, "--json")
    assert done.wait(120) == 0, done.report()
    said = json.loads("\n".join(done.lines))
    assert said["ok"] and SECRET not in "".join(done.lines) + done.stderr
    sentences = {finding["check"]: finding["sentence"] for finding in said["findings"]}
    assert sentences["parameter server"] == f"parameter server {address} answers, at global step 0, with 0 workers"
    assert any(f"answers at {address} already" in finding["sentence"] for finding in said["findings"])
    assert sentences["fork"].startswith("workers can be forked")

    wrong_token = written(tmp_path, rlx={"parameter_server": [address], "parameter_server_token_file": theirs})
    assert "token" in only(found(wrong_token, "parameter server"), Severity.WRONG)

    other = written(
        tmp_path,
        rlx={"parameter_server": [address], "parameter_server_token_file": ours},
        algorithm={"rewards_gamma": 0.5},
    )
    findings = found(other, "parameter server")
    assert (
        "is configured differently: configuration.rewards_gamma: 0.99 at the server, 0.5 in this configuration"
        in only(findings, Severity.WRONG)
    )
    server.stop()
    sentence = only(found(other, "parameter server"), Severity.WARNING)
    assert "is unreachable: Connection refused" in sentence
    assert "`relaax run`, which starts its own" in sentence


@pytest.mark.parametrize(
    ("text", "level", "says"),
    [("{}", Severity.OK, "0 named clients"), ("lab: {token: x}", Severity.WRONG, "did you mean 'token_file'")],
)
def test_a_file_of_clients_with_names(tmp_path: Path, text: str, level: Severity, says: str) -> None:
    (tmp_path / "clients.yaml").write_text(text)
    config = written(tmp_path, rlx={"clients_file": str(tmp_path / "clients.yaml")})
    assert any(finding.level is level and says in finding.sentence for finding in found(config, "tokens"))
