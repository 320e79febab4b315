"""The lease, with a simulated clock. tests/server/parameter_server/test_storage.py tests it with real servers."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import relaax.checkpoint.lease as lease_module
from relaax.checkpoint import (
    CheckpointManager,
    Conflict,
    Lease,
    LeaseHeld,
    LeaseLost,
    LeaseWaitInterrupted,
    LocalStore,
    StoreError,
    highest_fence,
)
from relaax.checkpoint.lease import Holder
from support.stores import MemoryStore


class Clock:
    """A simulated clock that advances when a caller waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False


@contextmanager
def held(store: MemoryStore | LocalStore, on_lost: Callable[[str], None] = lambda _: None) -> Iterator[Lease]:
    """A lease that only the test renews."""
    lease = Lease(store, on_lost, ttl=1e6)
    lease.acquire()
    try:
        yield lease
    finally:
        lease.release()


def read(store: MemoryStore | LocalStore) -> dict[str, object]:
    return dict(json.loads(store.get("lease.json")))


def test_each_holder_has_a_higher_fence() -> None:
    store = MemoryStore()
    fences = []
    for _ in range(3):
        with held(store) as lease:
            fences.append(lease.fence)
    assert fences == [1, 2, 3]


def test_a_fence_is_higher_than_that_of_every_checkpoint() -> None:
    store = MemoryStore()
    store.put("00000004-10-f7/shard-0.safetensors", b"")
    lease = Lease(store, ttl=1e6)
    lease.acquire(highest_fence(store))
    assert lease.fence == 8
    lease.release()


def test_a_fence_exceeds_those_of_lease_and_checkpoints() -> None:
    store = MemoryStore()
    with held(store):
        pass
    for above, fence in ((7, 8), (2, 9)):  # first the checkpoints have the highest fence, then the lease
        lease = Lease(store, ttl=1e6)
        lease.acquire(above)
        assert lease.fence == fence
        lease.release()


def test_a_second_release_does_nothing(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    with held(store) as first:
        first.release()
        with held(store):
            before = store.get("lease.json")
            first.release()
            assert store.get("lease.json") == before
    assert caplog.messages == []


def test_acquiring_is_refused_after_the_holder_renews() -> None:
    store, clock = MemoryStore(), Clock()
    with held(store) as first:

        def wait(seconds: float) -> bool:
            if clock.now >= 4.0:
                first.check()
            return clock.wait(seconds)

        with pytest.raises(LeaseHeld, match=rf"process {os.getpid()} on \S+ writes its checkpoints to memory: end it"):
            Lease(store, clock=clock).acquire(wait=wait)
        assert clock.now < 5.5
        first.check()


def test_a_holder_silent_for_the_ttl_is_superseded() -> None:
    store, clock = MemoryStore(), Clock()
    lost: queue.Queue[str] = queue.Queue()
    with held(store, lost.put) as first:
        second = Lease(store, clock=clock)
        second.acquire(wait=clock.wait)
        assert 15.0 <= clock.now < 16.0
        assert second.fence == 2
        with pytest.raises(LeaseLost, match=r"held by process \d+ on \S+ with fence 2 now: this server, with fence 1"):
            first.check()
        with pytest.raises(LeaseLost):
            first.check_known()
        assert lost.qsize() == 1
        second.check()
    assert read(store)["fence"] == 2
    assert not read(store)["released"], "a lost lease is not released"
    second.release()
    assert read(store)["released"]


def test_the_renewing_thread_detects_a_lost_lease() -> None:
    store, clock = MemoryStore(), Clock()
    lost: queue.Queue[str] = queue.Queue()
    first = Lease(store, lost.put, ttl=0.3)
    first.acquire()
    while True:  # on a busy machine `first` may have just renewed the lease
        try:
            second = Lease(store, ttl=1e6, poll=1e6, clock=clock)
            second.acquire(wait=clock.wait)
            break
        except LeaseHeld:
            continue
    assert "fence 2 now" in lost.get(timeout=30)
    first.release()
    second.release()


def test_a_dead_process_on_this_machine_is_superseded_at_once(tmp_path: Path) -> None:
    code = (
        "import os, sys; from relaax.checkpoint import Lease, LocalStore\n"
        "Lease(LocalStore(sys.argv[1])).acquire(); os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert ended.returncode == -9
    store, clock = LocalStore(tmp_path), Clock()
    lease = Lease(store, clock=clock)
    lease.acquire(wait=clock.wait)
    assert (lease.fence, clock.now) == (2, 0.0)
    lease.release()


def test_another_process_with_the_same_pid_is_not_the_holder() -> None:
    here = Holder.here()
    assert not here.is_dead()
    others = {**asdict(here), "started": "1"}
    assert Holder.of(others).is_dead()
    assert Holder.of({**asdict(here), "pid": 2**22 + 1}).is_dead()


@pytest.mark.parametrize("field", ["boot", "pid_namespace"])
def test_processes_on_other_hosts_are_not_known_to_be_dead(field: str) -> None:
    assert not Holder.of({**asdict(Holder.here()), "pid": 2**22 + 1, field: "elsewhere"}).is_dead()


def test_a_zombie_process_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19]
    holder = Holder.of({**asdict(Holder.here()), "pid": child.pid, "started": started})
    assert not holder.is_dead()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert holder.is_dead()
    child.communicate()


def test_one_of_two_concurrent_servers_acquires_the_lease() -> None:
    store, clock = MemoryStore(), Clock()
    with held(store):
        second, third = Lease(store, clock=clock), Lease(store, clock=clock)

        def wait(seconds: float) -> bool:
            if clock.now >= 14.0:
                second.acquire(wait=clock.wait)
            return clock.wait(seconds)

        with pytest.raises(LeaseHeld):
            third.acquire(wait=wait)
        assert second.fence == 2
        second.release()


def test_waiting_can_be_interrupted() -> None:
    store = MemoryStore()
    with held(store), pytest.raises(LeaseWaitInterrupted, match="while waiting for the lease on memory"):
        Lease(store).acquire(wait=lambda seconds: True)


def test_an_unavailable_store_does_not_end_the_lease(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    tried: queue.Queue[None] = queue.Queue()
    put_if = store.put_if

    def away(key: str, value: bytes, tag: str | None) -> str:
        tried.put(None)
        raise StoreError("away")

    monkeypatch.setattr(lease_module, "_RENEWALS_PER_TTL", 100)
    lease = Lease(store, ttl=1.0)
    lease.acquire()
    store.put_if = away  # type: ignore[method-assign]
    for _ in range(5):
        tried.get(timeout=30)
    with pytest.raises(StoreError, match="away"):
        lease.check()
    store.put_if = put_if  # type: ignore[method-assign]
    lease.check()
    lease.release()
    assert caplog.text.count("the lease could not be renewed, retrying: away") == 1
    assert read(store)["released"]


def test_a_renewal_with_a_lost_answer_keeps_the_lease() -> None:
    store = MemoryStore()
    put_if = store.put_if

    def store_and_fail(key: str, value: bytes, tag: str | None) -> str:
        put_if(key, value, tag)
        raise StoreError("no answer")

    with held(store) as lease:
        store.put_if = store_and_fail  # type: ignore[method-assign]
        with pytest.raises(StoreError, match="no answer"):
            lease.check()
        store.put_if = put_if  # type: ignore[method-assign]
        lease.check()


@pytest.mark.parametrize("lost", [StoreError("no answer"), Conflict("it arrived, and was sent again")])
def test_an_acquisition_with_a_lost_answer_is_retried_at_once(lost: StoreError) -> None:
    store = MemoryStore()
    put_if = store.put_if

    def store_and_fail(key: str, value: bytes, tag: str | None) -> str:
        put_if(key, value, tag)
        store.put_if = put_if  # type: ignore[method-assign]
        raise lost

    lease = Lease(store, ttl=1e6)
    store.put_if = store_and_fail  # type: ignore[method-assign]
    if not isinstance(lost, Conflict):
        with pytest.raises(StoreError, match="no answer"):
            lease.acquire()
    lease.acquire(wait=lambda seconds: pytest.fail("it waits"))
    lease.acquire(wait=lambda seconds: pytest.fail("it waits"))  # it holds the lease already
    lease.check()
    assert read(store)["fence"] == lease.fence
    lease.release()
    assert read(store)["released"]


@pytest.mark.parametrize("value", [b"", b"{}", b"[1]", b'{"fence": "x"}'])
def test_an_invalid_lease_file_has_no_holder(value: bytes) -> None:
    store = MemoryStore()
    store.put("lease.json", value)
    with held(store) as lease:
        store.delete("lease.json")
        lease.check()
        assert read(store)["fence"] == lease.fence


PARTS = {"shard-0": {"parameters": np.zeros(3, np.float32)}}


def test_a_superseded_server_publishes_nothing() -> None:
    store, clock = MemoryStore(), Clock()
    with held(store) as first:
        old = CheckpointManager(store, lease=first)
        assert old.save(10, PARTS, {}).checkpoint_id == "00000001-10-f1"
        second = Lease(store, clock=clock)
        second.acquire(wait=clock.wait)
        with pytest.raises(LeaseLost):
            old.save(20, PARTS, {})
        assert old.published() == ["00000001-10-f1"]
        assert not [key for key in store.list() if key.startswith("00000002")]
        with pytest.raises(LeaseLost):
            old.begin_checkpoint(30)
        second.release()


def test_late_checkpoints_of_a_superseded_server_are_older(caplog: pytest.LogCaptureFixture) -> None:
    """A server may be suspended after it checked its lease, and publish after another server has taken over."""
    store, clock = MemoryStore(), Clock()
    with held(store) as first:
        old = CheckpointManager(store, keep=2, keep_best=0, lease=first)
        old.save(10, PARTS, {})
        second = Lease(store, clock=clock)
        second.acquire(wait=clock.wait)
        new = CheckpointManager(store, keep=2, keep_best=0, lease=second)
        new.save(15, PARTS, {})
        first.check = lambda: None  # type: ignore[method-assign]
        assert old.save(20, PARTS, {}).checkpoint_id == "00000003-20-f1"
        restored = new.restore()
        assert restored is not None
        assert restored.checkpoint_id == "00000002-15-f2"
        assert restored.manifest["fence"] == 2
        new.save(25, PARTS, {})
        assert new.published() == ["00000004-25-f2", "00000002-15-f2"]
        second.release()


def test_checkpoints_without_a_fence_are_older() -> None:
    store = MemoryStore()
    CheckpointManager(store).save(5, PARTS, {})
    with held(store) as lease:
        manager = CheckpointManager(store, lease=lease)
        manager.save(3, PARTS, {})
        assert manager.published() == ["00000002-3-f1", "00000001-5"]


_KILLED = """
import os, sys
from relaax.checkpoint import Lease, LocalStore

EVENTS = ("open", "os.", "shutil.", "tempfile.", "fcntl.")

def child(path, kill_at):
    seen = 0
    def hook(event, arguments):
        nonlocal seen
        if event.startswith(EVENTS):
            seen += 1
            if seen == kill_at:
                os.kill(os.getpid(), 9)
    sys.addaudithook(hook)
    for _ in range(2):
        lease = Lease(LocalStore(path), ttl=1e6)
        lease.acquire()
        lease.release()
    os._exit(0)

kill_at = 0
while True:
    kill_at += 1
    pid = os.fork()
    if pid == 0:
        child(os.path.join(sys.argv[1], str(kill_at)), kill_at)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        break
print(kill_at)
"""


def test_killed_at_any_file_operation_the_lease_is_available(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path)], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert answer.returncode == 0, answer.stderr
    kills = int(answer.stdout)
    fences = []
    for kill_at in range(1, kills + 1):
        lease = Lease(LocalStore(tmp_path / str(kill_at)))
        lease.acquire(wait=lambda seconds: pytest.fail("it waits"))
        fences.append(lease.fence)
        lease.release()
    assert kills > 15
    assert fences == sorted(fences)
    assert set(fences) == {1, 2, 3}
