"""The S3 store, with a server in its own process and a proxy that injects failures."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import relaax.checkpoint.s3 as s3_module
from relaax.checkpoint import (
    CheckpointManager,
    Conflict,
    Lease,
    NotFound,
    Store,
    StoreError,
    open_location,
    s3_location,
)
from relaax.checkpoint.s3 import AwsKeys, S3Store
from relaax.libraries import missing
from support.s3_server import KEYS, S3Proxy, S3Server, keys_file
from support.stores import StoreCompliance


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use short pauses and few attempts. The timeout is long, for slow servers; see `short_timeouts`."""
    monkeypatch.setattr(s3_module, "READ_SECONDS", 20.0)
    monkeypatch.setattr(s3_module, "ATTEMPTS", 3)
    monkeypatch.setattr(s3_module, "_PAUSE", 0.01)


def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten timeouts, for servers that never answer."""
    monkeypatch.setattr(s3_module, "READ_SECONDS", 1.0)
    monkeypatch.setattr(s3_module, "ATTEMPTS", 2)


class TestS3Store(StoreCompliance):
    @pytest.fixture
    def store(self, s3: S3Server, proxy: S3Proxy) -> Store:
        return s3.store(endpoint=proxy.url)


def save(manager: CheckpointManager, step: int, mean_return: float | None = None) -> str:
    parts = {"shard-0": {"parameters": np.full(1000, step, np.float32)}}
    return manager.save(step, parts, {"mean_return": mean_return}).checkpoint_id


def test_newest_and_best_are_kept_and_newest_is_restored(s3: S3Server) -> None:
    manager = CheckpointManager(s3.store(), keep=2, keep_best=1)
    for step, mean_return in {1: 5.0, 2: 90.0, 3: None, 4: 20.0}.items():
        save(manager, step, mean_return)
    assert [checkpoint_id.split("-")[1] for checkpoint_id in manager.published()] == ["4", "3", "2"]
    checkpoint = CheckpointManager(manager.store).restore()
    assert checkpoint is not None
    np.testing.assert_array_equal(checkpoint.parts["shard-0"]["parameters"], np.full(1000, 4, np.float32))
    assert len(manager.store.list()) == 6


def test_more_keys_than_one_page_are_listed(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_module, "_PAGE", 2)
    store = s3.store()
    keys = [f"k/{number}" for number in range(5)]
    for key in keys:
        store.put(key, b"")
    assert store.list("k/") == keys


def test_objects_of_others_in_the_bucket_are_ignored(s3: S3Server) -> None:
    store = s3.store()
    bucket = store.location.split("/")[2]
    for key in ("other/x", "some/running/x", "some/run/", "x"):
        s3.client.put_object(Bucket=bucket, Key=key, Body=b"")
    store.put("y", b"")
    assert store.list() == ["y"]


@pytest.mark.parametrize("kind", ["InternalError", "reset", "stall", "lost"])
def test_temporary_failures_are_retried(
    s3: S3Server, proxy: S3Proxy, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "stall":
        short_timeouts(monkeypatch)
    store = s3.store(endpoint=proxy.url)
    for method in ("GET",) if kind == "stall" else ("PUT", "GET", "DELETE"):
        proxy.fail(kind, 1, lambda asked, path, method=method: asked == method)
    manager = CheckpointManager(store, keep=1, keep_best=0)
    save(manager, 1)
    save(manager, 2)
    assert manager.published() == ["00000002-2"]
    assert len(store.list()) == 2


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("InternalError", r"cannot write s3://\S+: http://127\.0\.0\.1:\d+ cannot do it now \(InternalError\)"),
        ("SlowDown", r"cannot do it now \(SlowDown\)"),
        ("stall", "does not answer in time"),
        ("reset", r"the connection to \S+ broke"),
        ("ExpiredToken", "rejects the keys: they have expired"),
        ("AccessDenied", r"denies it for these keys \(AccessDenied\)"),
    ],
)
def test_permanent_failures_are_reported_and_publish_nothing(
    s3: S3Server, proxy: S3Proxy, kind: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "stall":
        short_timeouts(monkeypatch)
    manager = CheckpointManager(s3.store(endpoint=proxy.url))
    save(manager, 1)
    proxy.fail(kind, hits=lambda method, path: method == "PUT")
    with pytest.raises(StoreError, match=sentence) as caught:
        save(manager, 2)
    for secret in (KEYS.access, KEYS.secret):
        assert secret not in str(caught.value)
    proxy.heal()
    assert manager.published() == ["00000001-1"]
    assert save(manager, 3) == "00000003-3"


def test_leftovers_are_kept_while_cleaning_fails(
    s3: S3Server, proxy: S3Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    manager = CheckpointManager(s3.store(endpoint=proxy.url))
    left = "00000007-9/shard-0.safetensors"
    manager.store.put(left, b"of a writer that was killed")
    for method in ("GET", "DELETE"):  # listing fails; then only deleting fails
        proxy.fail("InternalError", hits=lambda asked, path, method=method: asked == method)
        manager.clean()
        assert "are kept for now: cannot " in caplog.messages[-1]
        proxy.heal()
        assert manager.store.list() == [left]
    manager.clean()
    assert manager.store.list() == []


def test_an_interrupted_transfer_is_resumed(s3: S3Server, proxy: S3Proxy) -> None:
    store = s3.store(endpoint=proxy.url)
    value = np.random.default_rng(1).bytes(5_000_000)
    store.put("x", value)
    proxy.fail("half", 2, lambda method, path: method == "GET")
    assert store.get("x") == value
    proxy.fail("half")
    with pytest.raises(StoreError, match=r"cannot read s3://\S+: the connection to \S+ broke"):
        store.get("x")


@pytest.mark.parametrize("length", [4_000_000, 6_000_000])
def test_a_value_replaced_during_a_read_is_not_mixed(s3: S3Server, proxy: S3Proxy, length: int) -> None:
    store = s3.store(endpoint=proxy.url)
    value, other = b"a" * 5_000_000, b"b" * length
    store.put("x", value)
    proxy.fail("half", 1, lambda method, path: method == "GET")
    pieces = store.pieces("x")
    read = next(pieces)
    store.put("x", other)
    with pytest.raises(StoreError, match=r"cannot read s3://\S+/x"):
        for piece in pieces:
            read += piece
    assert set(read) == set(b"a")
    assert len(read) < len(value)
    assert store.get("x") == other


def test_a_conditional_write_whose_answer_was_lost_has_succeeded(s3: S3Server, proxy: S3Proxy) -> None:
    store = s3.store(endpoint=proxy.url)
    proxy.fail("lost", 1, lambda method, path: method == "PUT")
    tag = store.put_if("x", b"1", None)
    proxy.fail("lost", 1, lambda method, path: method == "PUT")
    tag = store.put_if("x", b"2", tag)
    assert store.get_with_tag("x") == (b"2", tag)


def test_a_store_without_conditional_writes_is_warned_about(
    s3: S3Server, proxy: S3Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    store = s3.store(endpoint=proxy.url)
    proxy.fail("NotImplemented", 1, lambda method, path: method == "PUT")
    tag = store.put_if("x", b"1", None)
    with pytest.raises(Conflict):
        store.put_if("x", b"2", None)
    store.put_if("x", b"2", tag)
    with pytest.raises(Conflict):
        store.put_if("x", b"3", tag)
    assert store.get("x") == b"2"
    assert caplog.text.count("does not support conditional writes") == 1


def test_failed_deletions_are_repeated_later(s3: S3Server, proxy: S3Proxy, caplog: pytest.LogCaptureFixture) -> None:
    manager = CheckpointManager(s3.store(endpoint=proxy.url), keep=1, keep_best=0)
    save(manager, 1)
    proxy.fail("AccessDenied", hits=lambda method, path: method == "DELETE")
    save(manager, 2)
    assert "cannot delete" in caplog.text
    assert manager.published() == ["00000002-2", "00000001-1"]
    assert manager.load("00000001-1").parts
    proxy.heal()
    save(manager, 3)
    assert manager.published() == ["00000003-3"]
    assert len(manager.store.list()) == 2


def test_a_missing_bucket_is_not_created(s3: S3Server) -> None:
    store = s3.store("nobody-made-this")
    for ask in (store.check, store.list, lambda: store.put("x", b""), lambda: store.put_if("x", b"", None)):
        with pytest.raises(
            StoreError,
            match="has no bucket 'nobody-made-this'; create it first, because RELAAX does not create buckets",
        ):
            ask()
    assert "nobody-made-this" not in [bucket["Name"] for bucket in s3.client.list_buckets()["Buckets"]]


def test_a_missing_value_is_not_found(s3: S3Server) -> None:
    with pytest.raises(NotFound, match=r"s3://models-\d+/some/run/x: it does not exist"):
        s3.store().get("x")


def test_an_unreachable_endpoint_is_reported() -> None:
    store = S3Store("b" * 8, "k", lambda: KEYS, "http://127.0.0.1:1")
    with pytest.raises(StoreError, match=r"^cannot list s3://bbbbbbbb/k: http://127.0.0.1:1 cannot be reached$"):
        store.check()


@pytest.mark.parametrize(
    ("endpoint", "named"),
    [
        ("somewhere else", "'somewhere else'"),
        ("127.0.0.1:9000", "'127.0.0.1:9000'"),
        ("http://[x", "'http://[x'"),
        ("http://h:99999", "'http://h:99999'"),
        ("ftp://h", "'ftp://h'"),
        ("http://h/?q", "'http://h/?q'"),
        ("http://a b", "'http://a b'"),
        ("me:hidden@h", "'h'"),
    ],
)
def test_an_invalid_endpoint_is_refused(endpoint: str, named: str) -> None:
    with pytest.raises(StoreError) as caught:
        S3Store("bucket", "k", lambda: KEYS, endpoint)
    assert str(caught.value).startswith(f"{named} is not an endpoint: use a URL")


def test_an_invalid_bucket_name_is_refused(s3: S3Server) -> None:
    with pytest.raises(StoreError, match="cannot be the name of a bucket"):
        s3.store("no bucket!").check()


def test_missing_keys_are_reported(s3: S3Server) -> None:
    with pytest.raises(StoreError, match=r"there are no keys for http://\S+; set --aws-keys FILE"):
        S3Store(s3.bucket(), "k", None, f"http://{s3.address}").check()


def test_a_password_in_the_endpoint_is_not_shown() -> None:
    store = S3Store("bucket", "k", lambda: KEYS, "http://me:hidden@127.0.0.1:1")
    with pytest.raises(StoreError) as caught:
        store.check()
    assert "hidden" not in str(caught.value)


def test_locations_are_parsed(tmp_path: Path) -> None:
    assert s3_location("s3://models/a/b/") == ("models", "a/b")
    assert s3_location("models/a") is None
    for text in ("s3://models", "s3://", "s3:///a"):
        with pytest.raises(StoreError, match="use s3://BUCKET/KEY"):
            s3_location(text)
    assert open_location(str(tmp_path)).location == str(tmp_path)
    keys = str(keys_file(tmp_path))
    assert open_location("s3://models/a", keys, "http://127.0.0.1:1").location == "s3://models/a"


def test_keys_are_not_in_repr() -> None:
    assert KEYS.access not in repr(KEYS)
    assert repr(KEYS) == repr(AwsKeys("x", "y"))


def test_without_boto3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "relaax.checkpoint.s3")
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ModuleNotFoundError) as caught:
        open_location("s3://models/a")
    assert missing(caught.value) == "boto3 is not installed; pip install 'relaax[s3]'"


@pytest.mark.slow
@pytest.mark.checks("relaax/checkpoint", "tests/support/s3_server.py")
def test_slow_store_loses_no_lease(s3: S3Server, proxy: S3Proxy) -> None:
    bucket = s3.bucket()
    lost: list[str] = []
    lease = Lease(s3.store(bucket, proxy.url, quick=True), lost.append)
    proxy.fail("slow")
    lease.acquire()
    lease.check()
    proxy.heal()
    lease.release()
    assert not lost
    assert len(proxy.requests) == 4, "no request was repeated"


def test_bucket_that_keeps_old_versions_is_detected(s3: S3Server) -> None:
    bucket = s3.bucket()
    store = s3.store(bucket)
    assert not store.keeps_old_versions()
    s3.client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    assert store.keeps_old_versions()
    rule = {"ID": "old", "Status": "Enabled", "Filter": {"Prefix": ""}}
    rule["NoncurrentVersionExpiration"] = {"NoncurrentDays": 1}
    s3.client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [rule]})
    assert not store.keeps_old_versions()


def test_keys_without_permission_for_versioning_are_accepted(s3: S3Server, proxy: S3Proxy) -> None:
    store = s3.store(s3.bucket(), proxy.url)
    proxy.fail("AccessDenied")
    assert not store.keeps_old_versions()
