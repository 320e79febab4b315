"""`relaax doctor` on broken set-ups: each problem is reported in a sentence, and no output contains a secret."""

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
from relaax.machine_code import build, prebuilt
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


def write_configuration(folder: Path, **sections: dict[str, Any]) -> Path:
    """Write a configuration; `server`, `rlx`, `replay`, `run` and `algorithm` are keys of its sections."""
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


def findings_of(config: Path, name: str) -> list[Finding]:
    """Run one check after the checks that it depends on, and return its findings."""
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


def only_line(findings: list[Finding], level: Severity) -> str:
    """Return the only finding of this level as a line, with its way out."""
    chosen = [finding for finding in findings if finding.level is level]
    assert len(chosen) == 1, findings
    return line("", chosen[0])


def write_token(folder: Path, name: str, secret: str = SECRET, mode: int = 0o600) -> str:
    path = folder / name
    path.write_text(secret)
    path.chmod(mode)
    return str(path)


class Authority:
    """A certificate authority that signs valid and invalid certificates."""

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


def test_unknown_key_is_wrong_and_has_a_suggestion(tmp_path: Path) -> None:
    findings = findings_of(write_configuration(tmp_path, rlx={"max_wrokers": 3}), "configuration")
    assert "max_wrokers" in only_line(findings, Severity.WRONG)
    assert "did you mean" in only_line(findings, Severity.WRONG)


def test_port_open_to_other_machines_is_wrong(tmp_path: Path) -> None:
    findings = findings_of(write_configuration(tmp_path, rlx={"status_bind": "0.0.0.0:0"}), "configuration")
    assert "status_bind 0.0.0.0:0 can be reached from other machines" in only_line(findings, Severity.WRONG)


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/doctor", "environments/OpenAI_Gym", "relaax/client")
def test_environments_are_made_if_possible(tmp_path: Path) -> None:
    gym = {"environment": "OpenAI_Gym", "name": "CartPole-v1"}
    assert "CartPole-v1 can be made: obs" in only_line(
        findings_of(write_configuration(tmp_path, run=gym), "environment"), Severity.OK
    )
    findings = findings_of(write_configuration(tmp_path, run={**gym, "name": "CartPoel-v1"}), "environment")
    assert "'CartPoel-v1'; the nearest is 'CartPole-v1'" in only_line(findings, Severity.WARNING)
    pendulum = write_configuration(tmp_path, run={**gym, "name": "Pendulum-v1"}, algorithm={"path": "n_step_q"})
    findings = findings_of(pendulum, "environment")
    assert "n_step_q cannot handle the action space Box(float32, [1], -2..2)" in only_line(findings, Severity.WARNING)
    (tmp_path / "mine.py").write_text("open('started', 'w')")
    findings = findings_of(write_configuration(tmp_path, run={"environment": "mine.py", "name": "any"}), "environment")
    assert "mine.py is your own program, and was not started" in only_line(findings, Severity.OK)
    assert findings_of(write_configuration(tmp_path), "environment") == []


def test_versions_are_compared_with_the_tested_ones(tmp_path: Path) -> None:
    findings = findings_of(write_configuration(tmp_path), "versions")
    assert {finding.level for finding in findings} <= {Severity.OK, Severity.WARNING}
    assert "tensorflow" in findings[-1].sentence


def test_kernels_that_numba_must_compile_are_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_configuration(tmp_path)
    assert "compiled kernels for " in only_line(findings_of(config, "kernels"), Severity.OK)
    one = next(kernel for kernel in build.declared() if kernel.function.__name__ == "_blocks_kernel")
    changed = one._replace(fastmath=frozenset({"nnan"}))
    monkeypatch.setattr(build, "declared", lambda: [changed])
    assert "numba compiles _blocks_kernel, which changed" in only_line(findings_of(config, "kernels"), Severity.WARNING)
    monkeypatch.setattr(prebuilt, "library", lambda: prebuilt.Library(None, reason="it is away"))
    sentence = only_line(findings_of(config, "kernels"), Severity.WARNING)
    assert "it is away. To compile them: python -m relaax.machine_code.build" in sentence


def test_algorithm_with_an_error_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise RuntimeError('half written')")
    sentence = only_line(
        findings_of(write_configuration(tmp_path, algorithm={"path": "./mine.py"}), "configuration"), Severity.WRONG
    )
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
def test_token_file_is_checked(tmp_path: Path, secret: str, mode: int, level: Severity, sentence: str) -> None:
    config = write_configuration(tmp_path, rlx={"token_file": write_token(tmp_path, "token", secret, mode)})
    assert sentence in only_line(findings_of(config, "tokens"), level)


def test_missing_token_file_is_wrong(tmp_path: Path) -> None:
    config = write_configuration(tmp_path, server={"token_file": str(tmp_path / "none")})
    assert "cannot be read" in only_line(findings_of(config, "tokens"), Severity.WRONG)


def test_workers_with_another_token_are_wrong(tmp_path: Path) -> None:
    ours, theirs = write_token(tmp_path, "ours"), write_token(tmp_path, "theirs", OTHER)
    config = write_configuration(tmp_path, server={"token_file": ours}, rlx={"parameter_server_token_file": theirs})
    assert "workers would send another or none" in only_line(findings_of(config, "tokens"), Severity.WRONG)


def test_valid_certificates_are_ok(tmp_path: Path, authority: Authority) -> None:
    certificate, key = authority.pair("server")
    config = write_configuration(
        tmp_path,
        server={"tls_certificate": certificate, "tls_key": key},
        rlx={"parameter_server_ca": authority.file},
    )
    findings = findings_of(config, "certificates")
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
def test_certificate_dates_and_hosts_are_checked(
    tmp_path: Path, authority: Authority, days: float, host: str, level: Severity, sentence: str
) -> None:
    certificate, key = authority.pair("server", host, days)
    config = write_configuration(tmp_path, rlx={"tls_certificate": certificate, "tls_key": key})
    assert sentence in only_line(findings_of(config, "certificates"), level)


def test_key_of_another_certificate_is_wrong(tmp_path: Path, authority: Authority) -> None:
    certificate, _ = authority.pair("server")
    _, key = authority.pair("another")
    config = write_configuration(tmp_path, rlx={"tls_certificate": certificate, "tls_key": key})
    assert "is not the key of the certificate" in only_line(findings_of(config, "certificates"), Severity.WRONG)


def test_authority_of_another_certificate_is_wrong(tmp_path: Path, authority: Authority) -> None:
    certificate, key = authority.pair("server")
    other = Authority(tmp_path, "other")
    config = write_configuration(
        tmp_path, server={"tls_certificate": certificate, "tls_key": key}, rlx={"parameter_server_ca": other.file}
    )
    assert "has not signed" in only_line(findings_of(config, "certificates"), Severity.WRONG)


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
def test_tls_key_without_its_counterpart_is_wrong(
    tmp_path: Path, server: tuple[str, ...], rlx: tuple[str, ...], sentence: str
) -> None:
    keys = Keys(tmp_path / "keys")
    all_keys = {**keys.parameter_server(), **keys.rlx_server(), "shards": 2}
    config = write_configuration(
        tmp_path, server={key: all_keys[key] for key in server}, rlx={key: all_keys[key] for key in rlx}
    )
    assert sentence in only_line(findings_of(config, "certificates"), Severity.WRONG)


def test_shards_unknown_to_workers_are_a_warning(tmp_path: Path) -> None:
    config = write_configuration(
        tmp_path, server={"shards": 3}, rlx={"parameter_server": ["127.0.0.1:0", "127.0.0.1:0"]}
    )
    assert "shards is 3, relaax-rlx-server.parameter_server names 2" in only_line(
        findings_of(config, "parameter server"), Severity.WARNING
    )


def test_address_of_another_machine_is_wrong(tmp_path: Path) -> None:
    sentence = only_line(
        findings_of(write_configuration(tmp_path, rlx={"bind": "192.0.2.1:7001"}), "ports"), Severity.WRONG
    )
    assert sentence.endswith("Cannot assign requested address. Choose another address, or port 0 for a free one")


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/doctor")
def test_port_of_another_program_is_wrong(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        taken.settimeout(0)  # it never accepts a connection
        status = only_line(
            findings_of(write_configuration(tmp_path, rlx={"status_bind": address}), "ports"), Severity.WRONG
        )
    assert f"{address} is in use by" in status
    assert f"(process {os.getpid()})" in status
    assert only_line(
        findings_of(write_configuration(tmp_path, rlx={"bind": address}), "ports")[-1:], Severity.OK
    ).endswith("is free")


def test_status_port_is_requested_without_a_proxy(
    tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _ = start_offline_server(processes, tmp_path, "--status-bind", "127.0.0.1:0")
    address = status_url(server).removeprefix("http://")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # no server listens there
    wait_until(lambda: "(serving)" in sentences(tmp_path, address), "relaax doctor names the server")


def sentences(folder: Path, address: str) -> str:
    """Return the findings about a status port as one text."""
    return " ".join(
        line("", finding) for finding in findings_of(write_configuration(folder, rlx={"status_bind": address}), "ports")
    )


def test_port_of_a_program_without_http_is_wrong(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        def greet() -> None:
            with contextlib.suppress(OSError), taken.accept()[0] as connected:
                connected.recv(4096)
                connected.sendall(b"220 not an HTTP server\r\n" * 2)

        threading.Thread(target=greet, daemon=True).start()
        sentence = only_line(
            findings_of(write_configuration(tmp_path, rlx={"status_bind": address}), "ports"), Severity.WRONG
        )
    assert f"{address} is in use by" in sentence


def test_single_parameter_server_without_tls_ca_is_recognized(tmp_path: Path, processes: Processes) -> None:
    """Only shards need tls_ca, to reach each other; workers reach a single shard without it."""
    keys = Keys(tmp_path / "keys")
    server = {**keys.parameter_server(), "tls_ca": None}
    _, address = processes.start_server(
        "relaax-parameter-server", "--config", write_configuration(tmp_path, server=server)
    )
    config = write_configuration(
        tmp_path, server={**server, "bind": address}, rlx={**keys.rlx_server(), "parameter_server": [address]}
    )
    findings = findings_of(config, "ports")
    assert f"a RELAAX parameter server, at global step 0, answers at {address} already" in line("", findings[0])
    assert findings[0].level is Severity.OK


def test_port_of_a_running_server_is_ok(tmp_path: Path, processes: Processes) -> None:
    _, address = start_offline_server(processes, tmp_path)
    findings = findings_of(write_configuration(tmp_path, rlx={"bind": address}), "ports")
    assert f"an RLX server answers at {address} already" in line("", findings[-1])
    assert findings[-1].level is Severity.OK


def test_folder_that_cannot_be_written_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = write_configuration(tmp_path, server={"checkpoint_dir": "/proc/relaax/checkpoints"})
    assert "/proc/relaax/checkpoints cannot be made" in only_line(findings_of(config, "store"), Severity.WRONG)
    config = write_configuration(tmp_path, server={"checkpoint_dir": "/proc"})
    assert "/proc" in only_line(findings_of(config, "store"), Severity.WRONG)


def test_folder_of_a_replay_memory_is_checked(tmp_path: Path) -> None:
    kept = str(tmp_path / "memory")
    for name, expected in (("store", f"{kept} does not exist yet and can be made"), ("disk", f"checkpoints in {kept}")):
        findings = findings_of(write_configuration(tmp_path, replay={"checkpoint_dir": kept}), name)
        assert len(findings) == 2 and expected in line(name, findings[-1])
    findings = findings_of(write_configuration(tmp_path, replay={"checkpoint_dir": "/proc/relaax/memory"}), "store")
    assert "/proc/relaax/memory cannot be made" in line("store", findings[-1])
    assert [finding.level for finding in findings] == [Severity.OK, Severity.WRONG]


def test_check_leaves_the_folder_unchanged(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    assert "can be written, read" in only_line(findings_of(write_configuration(tmp_path), "store"), Severity.OK)
    assert [path for path in (tmp_path / "checkpoints").rglob("*") if path.stat().st_size] == []
    (tmp_path / "checkpoints").rename(tmp_path / "gone")
    assert "can be made" in only_line(findings_of(write_configuration(tmp_path), "store"), Severity.OK)
    assert not (tmp_path / "checkpoints").exists()


def test_s3_store_is_checked(tmp_path: Path, s3: S3Server) -> None:
    keys = {"checkpoint_dir": None, "aws_keys": str(keys_file(tmp_path)), "aws_endpoint": f"http://{s3.address}"}
    bucket = s3.bucket()
    config = write_configuration(tmp_path, server={**keys, "checkpoint_aws_s3": [bucket, "run"]})
    assert f"s3://{bucket}/run can be written" in only_line(findings_of(config, "store"), Severity.OK)
    assert "contents" not in s3.client.list_objects_v2(Bucket=bucket)
    assert "differ by" in only_line(findings_of(config, "clock"), Severity.OK)
    s3.client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    (versions,) = (each for each in findings_of(config, "store") if each.level is Severity.WARNING)
    assert "the bucket keeps old versions" in line("", versions)
    config = write_configuration(tmp_path, server={**keys, "checkpoint_aws_s3": ["no-such-bucket", "run"]})
    assert "no-such-bucket" in only_line(findings_of(config, "store"), Severity.WRONG)


def test_clock_that_differs_from_s3_is_wrong(tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    now = storage.time.time
    monkeypatch.setattr(storage.time, "time", lambda: now() + 3600)
    config = write_configuration(
        tmp_path,
        server={"checkpoint_dir": None, "checkpoint_aws_s3": ["b", "k"], "aws_endpoint": f"http://{s3.address}"},
    )
    assert "differ by 36" in only_line(findings_of(config, "clock"), Severity.WRONG)


def test_memory_open_files_and_disk_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_configuration(tmp_path, rlx={"memory_reserve": 10**9})
    assert "room for about 0 workers" in only_line(findings_of(config, "memory"), Severity.WRONG)
    monkeypatch.setattr("resource.getrlimit", lambda which: (1024, 4096))
    config = write_configuration(tmp_path, rlx={"max_workers": 10**6})
    assert "too few for 1000000 workers" in only_line(findings_of(config, "open files"), Severity.WARNING)
    assert "GB are free" in findings_of(config, "disk")[0].sentence


def test_shared_memory_is_ok_if_supported(tmp_path: Path) -> None:
    for bridge in ("auto", "shared_memory", "hogwild"):
        findings = findings_of(write_configuration(tmp_path, rlx={"bridge": bridge}), "shared memory")
        assert f"can share memory (bridge: {bridge})" in only_line(findings, Severity.OK)
    assert findings_of(write_configuration(tmp_path, rlx={"bridge": "grpc"}), "shared memory") == []


def test_unsupported_shared_memory_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    automatic = write_configuration(tmp_path)
    (tmp_path / "hogwild").mkdir()
    required = write_configuration(tmp_path / "hogwild", rlx={"bridge": "hogwild"})

    def unsupported(*arguments: object) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    def receive_no_descriptor(self: FrameSocket) -> tuple[Frame, None]:
        return Frame(0, b""), None

    for place, name, value, why in (
        (os, "memfd_create", unsupported, "Function not implemented"),
        (FrameSocket, "receive", receive_no_descriptor, "the system passes no descriptors"),
        (segments, "SUPPORTED", False, "this system cannot pass memory between processes"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(place, name, value)
            fallback = only_line(findings_of(automatic, "shared memory"), Severity.WARNING)
            mandatory = only_line(findings_of(required, "shared memory"), Severity.WRONG)
        assert f"so workers use gRPC: {why}" in fallback
        assert f"bridge is hogwild, and processes cannot share memory on this machine: {why}" in mandatory


def test_optimizer_unsupported_by_hogwild_is_wrong(tmp_path: Path) -> None:
    config = write_configuration(tmp_path, rlx={"bridge": "hogwild"}, algorithm={"optimizer": "adam"})
    assert "adam is not one of rms_prop, momentum, adagrad" in only_line(
        findings_of(config, "algorithm"), Severity.WRONG
    )


def test_failing_check_does_not_hide_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(subject: Subject) -> Iterator[Finding]:
        raise RuntimeError("a mistake")
        yield warning("", "")

    monkeypatch.setattr(machine, "memory", broken)
    names = dict(run_checks(Subject(str(write_configuration(tmp_path)))))
    assert "RuntimeError: a mistake" in names["memory"].sentence
    assert "GB are free" in names["disk"].sentence


def test_running_parameter_server_is_checked(tmp_path: Path, processes: Processes) -> None:
    """Run the command against a server with a token, and check three configurations."""
    ours, theirs = write_token(tmp_path, "ours"), write_token(tmp_path, "theirs", OTHER)
    server, address = processes.start_server(
        "relaax-parameter-server", "--config", write_configuration(tmp_path, server={"token_file": ours})
    )
    good = write_configuration(
        tmp_path,
        server={"bind": address, "token_file": ours},
        rlx={"parameter_server": [address], "parameter_server_token_file": ours, "memory_reserve": 0},
    )
    done = processes.start(project_command("relaax"), "doctor", good, "--json")
    assert done.wait(120) == 0, done.report()
    report = json.loads("\n".join(done.lines))
    assert report["ok"] and SECRET not in "".join(done.lines) + done.stderr
    sentences = {finding["check"]: finding["sentence"] for finding in report["findings"]}
    assert sentences["parameter server"] == f"parameter server {address} answers, at global step 0, with 0 workers"
    assert any(f"answers at {address} already" in finding["sentence"] for finding in report["findings"])
    assert sentences["fork"].startswith("workers can be forked")

    wrong_token = write_configuration(
        tmp_path, rlx={"parameter_server": [address], "parameter_server_token_file": theirs}
    )
    assert "token" in only_line(findings_of(wrong_token, "parameter server"), Severity.WRONG)

    other = write_configuration(
        tmp_path,
        rlx={"parameter_server": [address], "parameter_server_token_file": ours},
        algorithm={"rewards_gamma": 0.5},
    )
    findings = findings_of(other, "parameter server")
    assert (
        "is configured differently: configuration.rewards_gamma: 0.99 at the server, 0.5 in this configuration"
        in only_line(findings, Severity.WRONG)
    )
    server.stop()
    sentence = only_line(findings_of(other, "parameter server"), Severity.WARNING)
    assert "is unreachable: Connection refused" in sentence
    assert "`relaax run`, which starts its own" in sentence


@pytest.mark.parametrize(
    ("text", "level", "expected"),
    [("{}", Severity.OK, "0 named clients"), ("lab: {token: x}", Severity.WRONG, "did you mean 'token_file'")],
)
def test_clients_file_is_checked(tmp_path: Path, text: str, level: Severity, expected: str) -> None:
    (tmp_path / "clients.yaml").write_text(text)
    config = write_configuration(tmp_path, rlx={"clients_file": str(tmp_path / "clients.yaml")})
    assert any(finding.level is level and expected in finding.sentence for finding in findings_of(config, "tokens"))
