"""The service with tokens and TLS on both ports: accepted and refused connections, and secrets kept out of output."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from relaax import rlx
from relaax.client import Client, Failure
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters import parameter_server_pb2_grpc as rpc
from relaax.rlx import ErrorCode
from relaax.server.parameter_server.command.credentials import JOIN
from relaax.transport.channel import Target, open_channel
from relaax.transport.segments import SUPPORTED
from support.keys import OTHER_TOKEN, Keys, unknown_authority
from support.processes import Processes, Running, wait_until
from support.raw_grpc import PUSH
from support.rlx_line import Line
from support.rlx_pair import make_hello
from support.service import PARAMETER_SERVER, RELAAX, RLX_SERVER

SPACES = {"observation_space": rlx.Box(-1, 1, (3,)), "action_space": rlx.Discrete(2)}


class Guarded:
    """A parameter server and an RLX server with all tokens and certificates that `relaax keys` makes."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self.processes, self.folder = processes, folder
        self.keys = Keys(folder / "keys")
        self.parameter_server, self.parameter_server_address = processes.start_server(
            *PARAMETER_SERVER, "--config", self.config("good"), fresh=True
        )
        self.rlx_server, self.address = self.start_rlx_server("good", fresh=True)

    def config(self, name: str, **rlx_server: object) -> Path:
        """Write a configuration. `rlx_server` overrides keys of the RLX server; None unsets a key."""
        section = {**self.keys.rlx_server(), **rlx_server}
        document = {
            "relaax-parameter-server": {
                "bind": "127.0.0.1:0",
                "checkpoint-dir": str(self.folder / "checkpoints"),
                "metrics-dir": str(self.folder / "metrics"),
                **self.keys.parameter_server(),
            },
            "relaax-rlx-server": {"bind": "127.0.0.1:0", "heartbeat": 1, **section},
            "algorithm": {"path": "da3c", "network": {"dense": [8]}, "seed": 1},
        }
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(document), encoding="utf-8")  # JSON is YAML
        return path

    def start_rlx_server(self, name: str, fresh: bool = False, **settings: object) -> tuple[Running, str]:
        return self.processes.start_server(
            *RLX_SERVER,
            *("--config", self.config(name, **settings)),
            *("--parameter-server", self.parameter_server_address),
            fresh=fresh,
        )

    def client(self, address: str | None = None, **settings: object) -> Client:
        given = {"token": self.keys.token, "tls_ca": self.keys.path("ca.pem"), "retry_seconds": 0.0, **settings}
        return Client(address or self.address, **SPACES, **given)  # type: ignore[arg-type]

    def target(self, token: str | None = None) -> Target:
        """Return the parameter server with the credentials of a worker."""
        read = self.keys.read
        shown = self.keys.parameter_server_token if token is None else token
        return Target(self.parameter_server_address, shown, read("ca.pem"), read("worker.pem"), read("worker-key.pem"))


@pytest.fixture
def guarded(processes: Processes, tmp_path: Path) -> Guarded:
    return Guarded(processes, tmp_path)


def train(client: Client, steps: int = 50) -> None:
    client.init(np.zeros(3, np.float32))
    for _ in range(steps):
        client.send(1.0, np.zeros(3, np.float32))
    client.reset(1.0)


def refusal(client: Client) -> Failure:
    with client, pytest.raises(Failure) as failure:
        client.connect()
    return failure.value


def test_secrets_appear_in_no_output_of_the_service(guarded: Guarded, tmp_path: Path) -> None:
    keys = guarded.keys
    with guarded.client() as client:
        train(client)
        lines = command_lines(guarded)

    # Each of these connections is refused with its own error.
    stranger, _ = unknown_authority()
    (tmp_path / "stranger.pem").write_bytes(stranger.certificate)
    assert refusal(guarded.client(token="")).code is ErrorCode.UNAUTHENTICATED
    assert refusal(guarded.client(token=OTHER_TOKEN)).code is ErrorCode.UNAUTHENTICATED
    assert "cannot be trusted" in str(refusal(guarded.client(tls_ca=tmp_path / "stranger.pem")))
    plain = Client(guarded.address, **SPACES, token=keys.token, retry_seconds=0.0)  # type: ignore[arg-type]
    assert "this port uses TLS" in str(refusal(plain))
    for token, text in (("", "but the call has none"), (OTHER_TOKEN, "is not this parameter server's")):
        with open_channel(guarded.target(token)) as channel, pytest.raises(grpc.RpcError, match=text):
            rpc.ParameterServerServiceStub(channel).GetStatus(pb.GetStatusRequest(), timeout=20)

    # gRPC itself refuses this connection; its own log lines must not appear.
    bare = Target(guarded.parameter_server_address, keys.parameter_server_token, keys.read("ca.pem"))
    with open_channel(bare) as channel, pytest.raises(grpc.RpcError):
        rpc.ParameterServerServiceStub(channel).GetStatus(pb.GetStatusRequest(), timeout=20)
    assert "andshake failed" not in guarded.parameter_server.report()

    # Other connections are not affected.
    with guarded.client() as client:
        train(client)
    with open_channel(guarded.target()) as channel:
        status = rpc.ParameterServerServiceStub(channel).GetStatus(pb.GetStatusRequest(), timeout=20)
    assert status.global_step >= 100

    printed = guarded.processes.start(*RLX_SERVER, "--config", guarded.config("good"), "--print-config")
    assert printed.wait(120) == 0
    assert guarded.rlx_server.stop() == guarded.parameter_server.stop() == 0
    assert ("using shared memory for vectors" in guarded.rlx_server.stderr) == SUPPORTED, (
        "shared memory is offered after authentication"
    )
    reports = [running.report() for running in (guarded.rlx_server, guarded.parameter_server, printed)]
    written = [
        path.read_bytes()
        for folder in ("checkpoints", "metrics")
        for path in (tmp_path / folder).rglob("*")
        if path.is_file()
    ]
    assert written
    everything = [*written, *(text.encode() for text in (*reports, *lines))]
    private = [line for name in ("server-key.pem", "worker-key.pem") for line in keys.read(name).splitlines()[1:-1]]
    for secret in (keys.token.encode(), keys.parameter_server_token.encode(), OTHER_TOKEN.encode(), *private):
        assert not any(secret in text for text in everything)


def command_lines(guarded: Guarded) -> list[str]:
    """Return the command lines of the servers and their workers, which all users of the machine can see."""
    running = [*guarded.rlx_server.session(), *guarded.parameter_server.session()]
    assert len(running) >= 3
    found = [" ".join(psutil.Process(process.pid).cmdline()) for process in running]
    assert any("--config" in line for line in found), "the servers are among the processes"
    return found


@pytest.mark.slow
def test_client_gets_the_error_of_an_unauthenticated_worker(guarded: Guarded, tmp_path: Path) -> None:
    stranger, _ = unknown_authority()
    (tmp_path / "stranger.pem").write_bytes(stranger.certificate)
    (tmp_path / "token").write_text(OTHER_TOKEN, encoding="utf-8")
    certificate, key = guarded.keys.put("other", stranger.issue("worker"))
    for name, settings, text in (
        ("token", {"parameter_server_token_file": str(tmp_path / "token")}, "is not this parameter server's"),
        ("authority", {"parameter_server_ca": str(tmp_path / "stranger.pem")}, "cannot be trusted"),
        (
            "certificate",
            {"parameter_server_certificate": certificate, "parameter_server_key": key},
            "one that it does not accept",
        ),
        (
            "none",
            {"parameter_server_certificate": None, "parameter_server_key": None},
            "shown no certificate",
        ),
    ):
        server, address = guarded.start_rlx_server(name, **settings)
        failure = refusal(guarded.client(address))
        assert failure.code is ErrorCode.AGENT_FAILED
        assert text in str(failure)
        assert server.stop() == 0
        assert OTHER_TOKEN not in server.report()
    with guarded.client() as client:
        train(client, 5)


def test_certificate_is_valid_only_for_its_own_role(processes: Processes, tmp_path: Path) -> None:
    """A server certificate is refused for a worker's calls, and a worker certificate for a shard's.

    A certificate without a role is valid for both.
    """
    keys = Keys(tmp_path / "keys")
    section = {"bind": "127.0.0.1:0", "metrics-dir": None, **keys.parameter_server(), "shards": 2}
    config = tmp_path / "experiment.yaml"
    config.write_text(json.dumps({"relaax-parameter-server": section, "algorithm": {"path": "da3c"}}), encoding="utf-8")
    server, address = processes.start_server(*PARAMETER_SERVER, "--config", config)
    client, both = ExtendedKeyUsageOID.CLIENT_AUTH, (ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH)
    pairs = {
        "worker": (keys.read("worker.pem"), keys.read("worker-key.pem")),
        "server": (keys.read("server.pem"), keys.read("server-key.pem")),
        "none": keys.issue("caller", ()),
        "client": keys.issue("caller", (client,)),
        "both": keys.issue("caller", both),
    }
    errors: dict[tuple[str, str], str] = {}
    for name, pair in pairs.items():
        target = Target(address, keys.parameter_server_token, keys.read("ca.pem"), *pair)
        with open_channel(target) as channel:
            rpc.ParameterServerServiceStub(channel).GetStatus(pb.GetStatusRequest(), timeout=60)
            for method, call in (
                ("Push", lambda: channel.unary_unary(PUSH)(b"", timeout=60)),
                ("Join", lambda: list(channel.stream_stream(JOIN)(iter([b""]), timeout=60))),
            ):
                with pytest.raises(grpc.RpcError) as ended:
                    call()
                error = ended.value
                refused = error.code() is grpc.StatusCode.UNAUTHENTICATED
                errors[name, method] = error.details() if refused else ""
    assert {key for key, sentence in errors.items() if sentence} == {
        ("server", "Push"), ("both", "Push"), ("worker", "Join"), ("client", "Join")
    }  # fmt: skip
    assert "is a server's" in errors["server", "Push"] and "parameter_server_certificate" in errors["server", "Push"]
    assert "is a worker's" in errors["worker", "Join"] and "tls_certificate" in errors["worker", "Join"]
    assert "refused a call from 127.0.0.1: a certificate of another role" in server.stderr

    # Without clientAuth, TLS refuses the certificate of a caller.
    only = Target(address, keys.parameter_server_token, keys.read("ca.pem"), *keys.issue("only", both[1:]))
    with open_channel(only) as channel, pytest.raises(grpc.RpcError) as ended:
        rpc.ParameterServerServiceStub(channel).GetStatus(pb.GetStatusRequest(), timeout=60)
    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE


def test_shards_join_with_a_server_certificate(processes: Processes, tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys")
    section = {"bind": "127.0.0.1:0", "metrics-dir": None, **keys.parameter_server()}
    config = tmp_path / "experiment.yaml"
    config.write_text(json.dumps({"relaax-parameter-server": section, "algorithm": {"path": "da3c"}}), encoding="utf-8")
    first, address = processes.start_server(*PARAMETER_SERVER, "--config", config, "--shard", "0/2")
    second, _ = processes.start_server(
        *PARAMETER_SERVER,
        *("--config", config, "--shard", "1/2", "--set", f"relaax-parameter-server.first_shard={address}"),
    )
    wait_until(lambda: "all 2 shards have joined" in first.stderr, "both serve", 120)
    assert second.stop() == first.stop() == 0


@pytest.mark.slow
@pytest.mark.checks("relaax/server", "relaax/client")
def test_client_gets_the_error_of_a_wrong_worker_certificate(guarded: Guarded) -> None:
    settings = {
        "parameter_server_certificate": guarded.keys.path("server.pem"),
        "parameter_server_key": guarded.keys.path("server-key.pem"),
    }
    _, address = guarded.start_rlx_server("server", **settings)
    failure = refusal(guarded.client(address))
    assert failure.code is ErrorCode.AGENT_FAILED
    assert "is a server's" in str(failure)


@pytest.mark.slow
@pytest.mark.checks("relaax/server", "relaax/transport", "relaax/parameters")
def test_only_a_worker_of_another_configuration_is_refused(guarded: Guarded) -> None:
    with guarded.client() as client:
        train(client, 5)
    with Line(guarded.address, tls=guarded.keys.context()) as line:
        line.send(
            make_hello(token=guarded.keys.token, observation_space=rlx.Box(-1, 1, (7,)), action_space=rlx.Discrete(2))
        )
        error = line.receive()
        while not isinstance(error, rlx.Error):
            error = line.receive()
        assert error.code is ErrorCode.SPACE_MISMATCH
    with guarded.client() as client:
        train(client, 5)


def test_public_address_needs_a_token(processes: Processes, tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys")
    config = tmp_path / "open.yaml"
    for section, command in (("relaax-parameter-server", PARAMETER_SERVER), ("relaax-rlx-server", RLX_SERVER)):
        document = {section: {"bind": "0.0.0.0:0"}, "algorithm": {"path": "da3c"}}
        config.write_text(json.dumps(document), encoding="utf-8")
        refused = processes.start(*command, "--config", config)
        assert refused.wait(120) == 2
        assert "relaax keys DIR" in refused.stderr
        document[section]["token_file"] = keys.path("token")
        config.write_text(json.dumps(document), encoding="utf-8")
        checked = processes.start(*command, "--config", config, "--check-config")
        assert checked.wait(120) == 0, checked.report()


@pytest.mark.slow
def test_tokens_of_a_run_appear_in_no_file_or_command_line(processes: Processes, tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys")
    directory = tmp_path / "run"
    run = processes.start(
        *RELAAX,
        *("run", "da3c_gym_cartpole", "--run-dir", directory, "--no-progress", "--max-steps", "2000"),
        *("--set", f"rlx-server.token_file={keys.path('token')}"),
        *("--set", f"parameter-server.token_file={keys.path('parameter-server-token')}"),
        *("--set", f"rlx-server.tls_certificate={keys.path('server.pem')}"),
        *("--set", f"rlx-server.tls_key={keys.path('server-key.pem')}"),
    )
    log = directory / "logs" / "rlx-server.log"
    lines: set[str] = set()

    def clients_are_admitted() -> bool:
        with contextlib.suppress(psutil.Error):  # a process may have just ended
            lines.update(" ".join(each.cmdline()) for each in psutil.Process(run.pid).children(recursive=True))
        return log.exists() and "actors" in log.read_text(errors="replace")

    wait_until(clients_are_admitted, "clients are admitted", 200, interval=0.1)
    for part in ("parameter_server.main", "rlx_server.main", "CartPole"):
        assert any(part in line for line in lines), lines
    assert run.wait(300) in (0, 3), run.report()
    files = [path for path in directory.rglob("*") if path.is_file()]
    everything = [*(path.read_bytes() for path in files), run.report().encode(), " ".join(lines).encode()]
    for secret in (keys.token, keys.parameter_server_token):
        assert not any(secret.encode() in text for text in everything)
