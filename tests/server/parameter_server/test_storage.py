"""Checkpoint locations of a parameter server: the command line, an S3 server, and two servers at one location."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from relaax.checkpoint import CheckpointManager, LeaseWaitInterrupted, LocalStore, Store, StoreError
from relaax.checkpoint.s3 import read_keys
from relaax.configuration import ConfigurationError, ParameterServerSection
from relaax.metrics.writer import EventFile
from relaax.server.command.termination import EndRequests, Reason
from relaax.server.parameter_server import main
from relaax.server.parameter_server.command.assembly import metrics_folder, open_manager
from support.parameter_server_processes import start, trained, worker, write_configuration
from support.parameter_servers import parameter_client
from support.processes import Processes, Running, wait_until
from support.s3_server import KEYS, S3Proxy, S3Server, keys_file

pytestmark = pytest.mark.checks("relaax/server", "relaax/checkpoint")


@pytest.fixture
def ends() -> Iterator[EndRequests]:
    made = EndRequests()
    yield made
    made.close()


def section(**keys: Any) -> ParameterServerSection:
    return ParameterServerSection.model_validate(keys)


def print_config(tmp_path: Path, *arguments: str) -> Any:
    path = write_configuration(tmp_path)
    return CliRunner().invoke(main.app, ["--config", str(path), "--print-config", *arguments])


def test_location_on_the_command_line_overrides_the_file(tmp_path: Path) -> None:
    output = print_config(tmp_path, "--checkpoint-aws-s3", "models", "pong").output
    assert "checkpoint-dir: null" in output
    assert "checkpoint-aws-s3: [models, pong]" in output
    path = tmp_path / "s3.yaml"
    path.write_text("relaax-parameter-server:\n  checkpoint-aws-s3: [models, pong]\nalgorithm:\n  path: da3c\n")
    output = CliRunner().invoke(main.app, ["--config", str(path), "--print-config", "--checkpoint-dir", "d"]).output
    assert "checkpoint-dir: d" in output
    assert "checkpoint-aws-s3: null" in output


def test_two_locations_are_refused(tmp_path: Path) -> None:
    result = print_config(tmp_path, "--checkpoint-aws-s3", "models", "pong", "--checkpoint-dir", "x")
    assert result.exit_code == 2
    assert "--checkpoint-dir and --checkpoint-aws-s3 exclude each other: give one of them" in result.stderr
    result = print_config(tmp_path, "--set", "parameter-server.checkpoint_aws_s3=[a, b]")
    assert result.exit_code == 2
    assert "relaax-parameter-server: checkpoint_dir and checkpoint_aws_s3 are both given" in result.stderr


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "no such file"),
        ("- a", "the file must have two lines, `access: ...` and `secret: ...`"),
        ("access: abc\nsecert: hush", "unknown key 'secert'; did you mean 'secret'?"),
        ("access: abc", "'secret' is missing"),
        ("access: abc\nsecret: 5551234", "'secret' is not a text; put it in quotes"),
    ],
)
def test_invalid_keys_file_is_refused_without_its_secrets(
    tmp_path: Path, ends: EndRequests, text: str | None, sentence: str
) -> None:
    path = tmp_path / "keys.yaml"
    if text is not None:
        path.write_text(text)
    with ExitStack() as closing, pytest.raises(ConfigurationError) as caught:
        open_manager(section(checkpoint_aws_s3=["b", "k"], aws_keys=str(path)), ends, closing)
    assert sentence in str(caught.value)
    assert "hush" not in str(caught.value)
    assert "5551234" not in str(caught.value)


def test_keys_file_may_be_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_keys(f"~/{keys_file(tmp_path).name}") == KEYS


def test_keys_file_readable_by_all_users_is_warned_about(
    s3: S3Server, tmp_path: Path, ends: EndRequests, caplog: pytest.LogCaptureFixture
) -> None:
    path = keys_file(tmp_path)
    path.chmod(0o644)
    keys = section(checkpoint_aws_s3=[s3.bucket(), "k"], aws_keys=str(path), aws_endpoint=f"http://{s3.address}")
    with ExitStack() as closing:
        assert open_manager(keys, ends, closing) is not None
    assert f"all users of this machine can read {path}" in caplog.text
    assert KEYS.secret not in caplog.text


def test_termination_interrupts_the_wait_for_the_lease(tmp_path: Path, ends: EndRequests) -> None:
    keys = section(checkpoint_dir=str(tmp_path))
    with ExitStack() as closing:
        assert open_manager(keys, ends, closing) is not None
        ends.put(Reason.TERMINATED)
        with pytest.raises(LeaseWaitInterrupted):
            open_manager(keys, ends, closing)
        assert ends.get(0) is Reason.TERMINATED


@pytest.mark.slow
def test_start_waits_for_an_unreachable_store(
    proxy: S3Proxy, s3: S3Server, tmp_path: Path, ends: EndRequests, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = s3.bucket()
    keys = section(checkpoint_aws_s3=[bucket, "run"], aws_keys=str(keys_file(tmp_path)), aws_endpoint=proxy.url)
    proxy.fail("InternalError")
    healing = threading.Thread(
        target=lambda: (wait_until(lambda: "retrying for up to" in caplog.text, "the server waits"), proxy.heal())
    )
    healing.start()
    with ExitStack() as closing:
        manager = open_manager(keys, ends, closing)
        assert manager is not None
        assert manager.published() == []
    healing.join()


def test_termination_interrupts_the_wait_for_the_store(
    proxy: S3Proxy, s3: S3Server, tmp_path: Path, ends: EndRequests
) -> None:
    keys = section(checkpoint_aws_s3=[s3.bucket(), "run"], aws_keys=str(keys_file(tmp_path)), aws_endpoint=proxy.url)
    proxy.fail("InternalError")
    ends.put(Reason.TERMINATED)
    with ExitStack() as closing, pytest.raises(LeaseWaitInterrupted):
        open_manager(keys, ends, closing)
    assert ends.get(0) is Reason.TERMINATED


def test_only_the_leading_shard_acquires_the_lease(tmp_path: Path, ends: EndRequests) -> None:
    keys = section(checkpoint_dir=str(tmp_path))
    with ExitStack() as closing:
        leader = open_manager(keys, ends, closing)
        other = open_manager(keys, ends, closing, leads=False)
        assert leader is not None
        assert other is not None
        assert other.lease is None
        assert leader.lease is not None
        assert leader.lease.fence == 1


def test_only_metrics_files_are_copied_to_s3(s3: S3Server, tmp_path: Path) -> None:
    bucket = s3.bucket()
    keys = section(
        metrics_aws_s3=[bucket, "run"], aws_keys=str(keys_file(tmp_path)), aws_endpoint=f"http://{s3.address}"
    )
    with ExitStack() as closing:
        folder = metrics_folder(keys, closing)
        assert folder is not None
        (folder / "events.out.tfevents.1.host.2").write_bytes(b"abc")
        (folder / "something else").write_bytes(b"not copied")
    assert not folder.exists()
    store = s3.store(bucket)
    objects = s3.client.list_objects_v2(Bucket=bucket)["Contents"]
    assert [entry["Key"] for entry in objects] == ["run/events.out.tfevents.1.host.2"]
    assert store.list() == []


def test_new_metrics_file_sorts_after_those_in_s3(s3: S3Server, tmp_path: Path) -> None:
    """The folder is temporary, and the clock may be behind the clock of the previous machine."""
    bucket = s3.bucket()
    keys = section(
        metrics_aws_s3=[bucket, "run"], aws_keys=str(keys_file(tmp_path)), aws_endpoint=f"http://{s3.address}"
    )
    for name in ("0000000007.b", "4000000000.a"):
        s3.client.put_object(Bucket=bucket, Key=f"run/events.out.tfevents.{name}", Body=b"x")
    with ExitStack() as closing:
        folder = metrics_folder(keys, closing)
        assert folder is not None
        events = EventFile(folder)
        events.flush()
        events.close()
    names = [entry["Key"] for entry in s3.client.list_objects_v2(Bucket=bucket)["Contents"]]
    assert len(names) == 3
    assert max(names).startswith("run/events.out.tfevents.4000000001.")


def test_missing_metrics_bucket_is_refused(s3: S3Server, tmp_path: Path) -> None:
    keys = section(
        metrics_aws_s3=["nobodys", "run"], aws_keys=str(keys_file(tmp_path)), aws_endpoint=f"http://{s3.address}"
    )
    with ExitStack() as closing, pytest.raises(StoreError, match="has no bucket 'nobodys'"):
        metrics_folder(keys, closing)


def s3_arguments(tmp_path: Path, url: str, bucket: str) -> tuple[str, ...]:
    return (
        *("--checkpoint-aws-s3", bucket, "some/run"),
        *("--aws-keys", str(keys_file(tmp_path)), "--aws-endpoint", url),
    )


def assert_refused(server: Running, code: int, sentence: str) -> None:
    assert server.wait(120) == code, server.report()
    assert sentence in server.stderr
    assert "Traceback" not in server.stderr
    assert KEYS.secret not in server.stderr
    assert KEYS.access not in server.stderr


@pytest.mark.slow
def test_unusable_bucket_ends_the_start_with_the_reason(
    processes: Processes, s3: S3Server, proxy: S3Proxy, tmp_path: Path
) -> None:
    path = write_configuration(tmp_path)

    def start_server(url: str, bucket: str) -> Running:
        return processes.start("relaax-parameter-server", "--config", path, *s3_arguments(tmp_path, url, bucket))

    expired, forbidden = s3.bucket(), s3.bucket()
    proxy.fail("ExpiredToken", hits=lambda method, path: expired in path)
    proxy.fail("AccessDenied", hits=lambda method, path: forbidden in path)
    servers = [
        start_server(url, name) for url, name in [(proxy.url, expired), (proxy.url, forbidden), (proxy.url, "nobodys")]
    ]
    servers.append(start_server("http://127.0.0.1:1", "models"))
    assert_refused(servers[0], 1, "rejects the keys: they have expired")
    assert_refused(servers[1], 1, "denies it for these keys (AccessDenied)")
    assert_refused(servers[2], 1, "has no bucket 'nobodys'; create it first, because RELAAX does not create buckets")
    assert_refused(servers[3], 1, "http://127.0.0.1:1 cannot be reached")


@pytest.mark.slow
def test_training_continues_while_s3_is_unreachable(
    processes: Processes, s3: S3Server, proxy: S3Proxy, tmp_path: Path
) -> None:
    path, bucket = write_configuration(tmp_path), s3.bucket()
    arguments = (
        *s3_arguments(tmp_path, proxy.url, bucket),
        *("--metrics-aws-s3", bucket, "metrics", "--set", "parameter-server.checkpoint_interval=0.2"),
    )
    manager = CheckpointManager(s3.store(bucket))
    server, address = start(processes, path, *arguments)
    with parameter_client(address) as client:
        client.register(worker(path))
        trained(client, 1)
        wait_until(lambda: manager.published(), "the first checkpoint is in the bucket")
        for kind in ("InternalError", "AccessDenied", "reset", "stall"):
            proxy.fail(kind)
            before = len(proxy.requests)
            trained(client, 3)
            wait_until(lambda before=before: len(proxy.requests) > before, "a request is sent")  # type: ignore[misc]
            if kind == "AccessDenied":
                wait_until(lambda: "is late: cannot " in server.stderr, "the late checkpoint is logged")
            trained(client, 3)
            proxy.heal()
        step = client.global_step
        newest = wait_until(
            lambda: manager.published()[0].split("-")[1] == str(step) and manager.published()[0],
            "the newest state is in the bucket",
            timeout=120,
        )
    assert server.stop(timeout=120) == 0
    assert manager.load(newest).manifest["global_step"] == step
    events = [entry["Key"] for entry in s3.client.list_objects_v2(Bucket=bucket, Prefix="metrics/")["Contents"]]
    assert events, "metrics are in the bucket"
    second, address = start(processes, path, *arguments)
    with parameter_client(address) as client:
        assert client.register(worker(path)).global_step == step
    assert second.stop(timeout=120) == 0


Location = tuple[tuple[str, ...], Store]


@pytest.fixture(params=["directory", "S3"])
def location(request: pytest.FixtureRequest, s3: S3Server, tmp_path: Path) -> Location:
    """A location for two servers: its command line arguments, and its store."""
    if request.param == "directory":
        return ("--checkpoint-dir", str(tmp_path / "both")), LocalStore(tmp_path / "both")
    bucket = s3.bucket()
    return s3_arguments(tmp_path, f"http://{s3.address}", bucket), s3.store(bucket)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_second_server_at_a_location_is_refused_or_takes_over(
    processes: Processes, location: Location, tmp_path: Path
) -> None:
    arguments, store = location
    path, manager = write_configuration(tmp_path), CheckpointManager(store)
    first, address = start(processes, path, *arguments)
    with parameter_client(address) as client:
        client.register(worker(path))
        trained(client, 2)
        second = processes.start("relaax-parameter-server", "--config", path, *arguments)
        assert_refused(second, 1, f"process {first.pid} on ")
        assert "writes its checkpoints to" in second.stderr
        trained(client, 1)
    first.kill()
    third, address = start(processes, path, *arguments)
    assert "took over the lease on " in third.stderr and f"from process {first.pid} on " in third.stderr
    with parameter_client(address) as client:
        client.register(worker(path))
        trained(client, 1)
    third.send_signal(signal.SIGSTOP)
    fourth, _ = start(processes, path, *arguments)
    assert "has not renewed its lease on" in fourth.stderr
    third.send_signal(signal.SIGCONT)
    assert_refused(third, 1, f"is held by process {fourth.pid} on ")
    assert manager.published() == [], "a superseded server does not write"
    assert fourth.stop() == 0
    fifth, address = start(processes, path, *arguments)
    assert "took over the lease" not in fifth.stderr, "a server that ends normally releases its lease"
    with parameter_client(address) as client:
        client.register(worker(path))
        trained(client, 1)
    assert fifth.stop() == 0
    assert [checkpoint_id.rpartition("-")[2] for checkpoint_id in manager.published()] == ["f4"]
