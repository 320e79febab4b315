"""The command `relaax-replay-server` as a process: logs, errors, metrics and access."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from relaax.configuration import LearnerSection, ReplayServerSection, RlxServerSection
from relaax.replay import replay_pb2 as pb
from relaax.replay.client.client import ReplayClient
from relaax.replay.interfaces import ReplayError, ReplayUnauthenticated
from relaax.replay.replay_pb2_grpc import ReplayServiceStub
from relaax.server.access import replay_targets
from relaax.server.replay_server.grpc_service import SERVICE
from relaax.server.replay_server.main import app
from relaax.server.replay_server.prometheus import REPLAY_FAMILIES
from relaax.server.replay_server.server import read_replay_credentials
from relaax.server.replay_server.service import table_bytes
from relaax.transport.channel import Target, open_channel
from relaax.transport.segments import SUPPORTED
from support.keys import OTHER_TOKEN, Keys, unknown_authority
from support.metrics_page import documented_for_prometheus
from support.processes import Processes, wait_until
from support.refusals import outcome_of, refusal
from support.replay_servers import (
    CONFIGURATION,
    client_of,
    command,
    numbered,
    numbers,
    serving,
    start_replay_server,
    write_replay_configuration,
)
from support.scrape import health, scraped, status_url

pytestmark = pytest.mark.checks("relaax/server", "relaax/replay")

PREFIX = "relaax_replay_server_"
TOKEN_FILE, OTHER_FILE = "replay-server-token", "other-token"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_replay_configuration(tmp_path)


def test_metrics_page_lists_all_replay_families() -> None:
    assert documented_for_prometheus(PREFIX) == {family.name for family in REPLAY_FAMILIES}


def test_metrics_describe_the_replay_memory(processes: Processes, config: Path) -> None:
    server, address = start_replay_server(processes, config, "--status-bind", "127.0.0.1:0", "--memory", "0.5")
    url = status_url(server)
    code, before = health(url)
    assert (code, before["serving"], before["server"], before["tables"]) == (200, True, "relaax-replay-server", 0)
    with grpc.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        said = health_pb2_grpc.HealthStub(channel).Check(request, timeout=60).status
        assert said == health_pb2.HealthCheckResponse.SERVING
    with client_of([address], numbered(4), session="s") as client:
        client.writers[0].insert(numbers(1, 2, 3, 4))
        found = client.sample(8, 30.0)
        assert found is not None
        client.writers[0].insert(numbers(5, 6, 7, 8))
        label = '{table="numbers"}'
        wait_until(lambda: scraped(url)[f"{PREFIX}inserts_total{label}"] == 8, "pipelined inserts are stored")
        client.update_priorities(found, np.ones(8))
        wait_until(lambda: scraped(url)[f"{PREFIX}stale_updates_total{label}"] == 8, "updates are counted")
        values = scraped(url)
        wanted = {"items": 4, "capacity": 4, "inserts_total": 8, "samples_total": 8, "samples_per_insert": 1.0}
        wanted |= {"overruns_total": 0, "duplicates_total": 0, "tables": 1}
        assert {name: values[f"{PREFIX}{name}{label}"] for name in wanted} == wanted
        assert 0 < values[f"{PREFIX}sample_age{label}"] < 4
        assert values[f"{PREFIX}table_bytes{label}"] == numbered(4).spec.bytes()
        assert values[f"{PREFIX}memory_bytes"] == 5e8
        assert values[f'{PREFIX}calls_total{{code="OK",method="Insert"}}'] == 2
        assert values[f'{PREFIX}bridge_calls_total{{bridge="shared_memory",method="Insert"}}'] == 2 * SUPPORTED
        assert values[f"{PREFIX}connections_by_shared_memory"] == 2 * SUPPORTED
        assert health(url)[1]["items"] == 4
        stub = ReplayServiceStub(client._group.links[0]._channel)
        status = stub.GetStatus(pb.ReplayServiceGetStatusRequest(), timeout=60)
        assert (status.shard, status.shards, status.memory) == (0, 1, 5 * 10**8)
        assert [(table.name, table.size, table.inserts) for table in status.tables] == [("numbers", 4, 8)]
    assert server.stop() == 0
    with pytest.raises(OSError):
        health(url)


@pytest.mark.parametrize("shards", [0, 1, 2, 5])
def test_default_limit_of_all_shards_is_half_the_memory(shards: int) -> None:
    assert max(shards, 1) * table_bytes(ReplayServerSection(shards=shards), 80.0) == pytest.approx(40.0)
    assert table_bytes(ReplayServerSection(shards=shards, memory=3), 80.0) == 3e9


def test_shard_logs_its_share_of_the_memory(processes: Processes, config: Path) -> None:
    server, _ = start_replay_server(processes, config, "--shard", "1/2")
    wait_until(
        lambda: "1/4 of the available memory; set relaax-replay-server.memory" in server.stderr, "the log has the limit"
    )


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 0)]
)
def test_second_signal_does_not_disturb_the_shutdown(
    processes: Processes, config: Path, number: int, code: int
) -> None:
    server, _ = start_replay_server(processes, config)
    assert "replay tables may use" in server.stderr and "half of the available memory" in server.stderr
    for _ in range(3):
        server.send_signal(number)
    assert server.wait() == code
    assert "Traceback" not in server.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--shard", "2/2"], "relaax-replay-server.shard: must be from 0 to 1 "),
        (["--shard", "one"], "--shard: 'one' is not I/K"),
        (["--shard", "0/0"], "--shard: '0/0' is not I/K"),
        (["--bind", "0.0.0.0:0"], "can be reached from other machines"),
        (["--memory", "-1"], "relaax-replay-server.memory"),
        (["--set", "replay-server.token-file=/nowhere"], "relaax-replay-server.token_file: the token file /nowhere"),
        (["--set", "replay-server.tls-client-ca=/nowhere"], "relaax-replay-server.tls_client_ca"),
    ],
)
def test_invalid_options_are_one_error_line(config: Path, arguments: list[str], says: str) -> None:
    assert says in refusal(app, "--config", config, *arguments)


def test_replay_server_that_refuses_exits_with_2(processes: Processes, config: Path) -> None:
    with serving() as (shard,):
        server = processes.start(*command(config, "--bind", shard.address))
        assert server.wait(120) == 2
        assert f"cannot listen on {shard.address}" in server.stderr
        assert "Traceback" not in server.stderr


def test_configuration_is_checked_without_a_start(config: Path) -> None:
    checked = outcome_of(app, "--config", config, "--check-config")
    assert checked.exit_code == 0
    assert "is valid: algorithm" in checked.stdout.splitlines()[0]


def test_table_beyond_memory_is_rejected_with_both_numbers(processes: Processes, config: Path) -> None:
    _, address = start_replay_server(processes, config, "--memory", "0.001")
    needed = f"{numbered(10**6).spec.bytes() / 1e9:.4f} GB"
    with pytest.raises(ReplayError, match=f"needs {needed} on this shard, and the limit is 0.00100 GB: increase"):
        ReplayClient([address], numbered(10**6))


@pytest.mark.slow
def test_table_of_a_silent_session_is_dropped(processes: Processes, tmp_path: Path) -> None:
    text = CONFIGURATION.replace("bind:", "session-timeout: 1s\n  bind:")
    server, address = start_replay_server(processes, write_replay_configuration(tmp_path, text))
    with client_of([address], numbered(), session="a") as client, client_of([address], numbered()) as whole:
        client.writers[0].insert(numbers(1))
        whole.writers[0].insert(numbers(2))
        wait_until(
            lambda: "dropped replay table 'numbers' of session a, 1 items" in server.stderr, "the table is dropped"
        )
        client.writers[0].insert(numbers(3))
        found = client.sample(8, 30.0)
        assert found is not None and set(found.columns["number"].tolist()) == {3}
        found = whole.sample(8, 30.0)
        assert found is not None and set(found.columns["number"].tolist()) == {2}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    made = Keys(tmp_path_factory.mktemp("keys") / "made")
    other = made.folder / OTHER_FILE
    other.write_text(OTHER_TOKEN)
    other.chmod(0o600)
    return made


@pytest.fixture(scope="module")
def guarded(keys: Keys) -> Iterator[str]:
    section = ReplayServerSection(**keys.replay_server())
    with serving(credentials=read_replay_credentials(section)) as (shard,):
        yield shard.address


def target(keys: Keys, address: str, **changes: str | None) -> Target:
    given = {
        "token_file": keys.path(TOKEN_FILE),
        "ca": keys.path("ca.pem"),
        "certificate": keys.path("worker.pem"),
        "key": keys.path("worker-key.pem"),
        **changes,
    }
    section = LearnerSection(replay_server=[address], **{f"replay_server_{name}": file for name, file in given.items()})
    (found,) = replay_targets(section)
    return found


def test_authenticated_client_is_served(keys: Keys, guarded: str) -> None:
    client = ReplayClient([target(keys, guarded)], numbered(), actors=[0])
    client.writers[0].insert(numbers(1))
    assert client.sample(1, 30.0) is not None
    client.close()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"token_file": None}, "this replay server requires a token, but the call has none"),
        ({"token_file": OTHER_FILE}, "is not this replay server's: see replay_server_token_file"),
        ({"certificate": None, "key": None}, "no certificate, or one that it does not accept"),
        ({"certificate": "server.pem", "key": "server-key.pem"}, "the certificate is a server's"),
        ({"ca": None, "certificate": None, "key": None}, "set relaax-learner.replay_server_ca"),
    ],
    ids=["no token", "another token", "no certificate", "a server's certificate", "no tls"],
)
def test_unauthenticated_client_is_refused(keys: Keys, guarded: str, changes: dict[str, str | None], says: str) -> None:
    files = {name: None if file is None else keys.path(file) for name, file in changes.items()}
    with pytest.raises(ReplayUnauthenticated) as refused:
        ReplayClient([target(keys, guarded, **files)], numbered(), patience=30.0)
    assert says in str(refused.value)
    assert keys.parameter_server_token not in str(refused.value)


def test_server_with_wrong_certificate_is_refused(keys: Keys, tmp_path: Path) -> None:
    _, pair = unknown_authority()
    certificate, key = keys.put("stranger", pair)
    section = ReplayServerSection(tls_certificate=certificate, tls_key=key)
    refused = pytest.raises(ReplayUnauthenticated, match=r"cannot be trusted.*relaax-learner.replay_server_ca")
    with serving(credentials=read_replay_credentials(section)) as (shard,), refused:
        ReplayClient([target(keys, shard.address)], numbered(), patience=30.0)


def test_health_check_needs_no_token(keys: Keys, guarded: str) -> None:
    bare = Target(guarded, "", keys.read("ca.pem"), keys.read("worker.pem"), keys.read("worker-key.pem"))
    with open_channel(bare) as channel:
        said = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60).status
    assert said == health_pb2.HealthCheckResponse.SERVING


def test_targets_match_the_section(keys: Keys) -> None:
    assert replay_targets(RlxServerSection()) == []
    section = RlxServerSection(replay_server=["a:1", "b:2"], replay_server_token_file=keys.path(TOKEN_FILE))
    first, second = replay_targets(section)
    assert (first.address, second.address, str(second)) == ("a:1", "b:2", "replay server b:2")
    assert first.token == second.token == keys.read(TOKEN_FILE).decode().strip()
    assert first.keys == "relaax-rlx-server.replay_server"
    pair = {"replay_server_certificate": keys.path("worker.pem"), "replay_server_key": keys.path("worker-key.pem")}
    with pytest.raises(Exception, match="a certificate needs TLS: set relaax-learner.replay_server_ca"):
        replay_targets(LearnerSection(**pair))
