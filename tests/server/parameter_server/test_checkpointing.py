from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from relaax.checkpoint import CheckpointManager, Lease, StoreError
from relaax.server.checkpoints import checkpointing
from relaax.server.checkpoints.checkpointing import LOOK_SECONDS, Checkpointer, CheckpointLate, ModelState, Saved
from relaax.server.checkpoints.spool import Spool
from support.processes import wait_until
from support.stores import MemoryStore


class Model:
    """A function that returns the state of a model; `step` is its global step."""

    def __init__(self) -> None:
        self.step: int | None = 0

    def __call__(self) -> ModelState | None:
        step = self.step  # read once: the test changes it in another thread
        if step is None:
            return None
        return ModelState(step, {"shard-0": {"p": np.full(2, step)}}, {"mean_return": None}, step)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def make(model: Model, store: MemoryStore) -> Callable[..., tuple[Checkpointer, queue.SimpleQueue[Saved]]]:
    def make(interval: float, retry: float = 10.0) -> tuple[Checkpointer, queue.SimpleQueue[Saved]]:
        saved: queue.SimpleQueue[Saved] = queue.SimpleQueue()
        return Checkpointer(CheckpointManager(store), model, interval, saved.put, retry), saved

    return make


Make = Callable[..., tuple[Checkpointer, "queue.SimpleQueue[Saved]"]]


def test_new_state_is_saved_at_the_interval(model: Model, store: MemoryStore, make: Make) -> None:
    checkpointer, saved = make(0.01)
    checkpointer.start()
    try:
        assert saved.get(timeout=10).global_step == 0
        model.step = 5
        second = saved.get(timeout=10)
        assert (second.global_step, second.location) == (5, "memory/00000002-5")
    finally:
        checkpointer.stop()
    assert checkpointer.save()
    assert len(CheckpointManager(store).published()) == 2


def test_number_of_steps_saves_before_the_interval(model: Model, store: MemoryStore) -> None:
    saved: queue.SimpleQueue[Saved] = queue.SimpleQueue()
    checkpointer = Checkpointer(
        CheckpointManager(store), model, 1000, saved.put, steps=10, step=lambda: model.step or 0
    )
    checkpointer.start()
    try:
        model.step = 9
        with pytest.raises(queue.Empty):
            saved.get(timeout=3 * LOOK_SECONDS)
        for step in (10, 25):
            model.step = step
            assert saved.get(timeout=10).global_step == step
        model.step = 34
        with pytest.raises(queue.Empty):
            saved.get(timeout=3 * LOOK_SECONDS)
    finally:
        checkpointer.stop()


@pytest.mark.parametrize("steps", [None, 10])
def test_passing_a_multiple_of_steps_saves(model: Model, store: MemoryStore, steps: int | None) -> None:
    saved: queue.SimpleQueue[Saved] = queue.SimpleQueue()
    model.step = 120
    checkpointer = Checkpointer(
        CheckpointManager(store), model, 1000, saved.put, steps=steps, every=50, step=lambda: model.step or 0
    )
    checkpointer.start()
    try:
        saving = {130, 140, 150} if steps else {150, 260, 300}
        for step in (130, 140, 149, 150) if steps else (149, 150, 199, 260, 299, 300):
            model.step = step
            if step in saving:
                assert saved.get(timeout=10).global_step == step
            else:
                with pytest.raises(queue.Empty):
                    saved.get(timeout=3 * LOOK_SECONDS)
    finally:
        checkpointer.stop()


def test_missing_model_is_not_saved(model: Model, store: MemoryStore, make: Make) -> None:
    model.step = None
    assert make(1000)[0].save()
    assert store.values == {}


def test_unchanged_state_is_not_copied(model: Model, store: MemoryStore) -> None:
    copied: list[int | None] = []

    def copy_state() -> ModelState | None:
        copied.append(model.step)
        return model()

    manager = CheckpointManager(store)
    checkpointer = Checkpointer(manager, copy_state, 1000, lambda saved: None, mark=lambda: model.step, saved=0)
    assert checkpointer.save()
    model.step = 1
    assert checkpointer.save()
    assert checkpointer.save()
    assert copied == [1]
    assert len(manager.published()) == 1


def test_failing_store_delays_the_checkpoint_and_is_logged(
    model: Model, store: MemoryStore, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    store.failing = StoreError("no space left")
    checkpointer, saved = make(0.02, retry=0.01)
    checkpointer.start()
    try:
        wait_until(lambda: "is late: no space left" in caplog.text, "the failure is logged")
        model.step = 7
        store.failing = None
        while saved.get(timeout=10).global_step != 7:
            pass
    finally:
        checkpointer.stop()


def test_error_in_the_state_function_does_not_end_saving(
    model: Model, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer, saved = make(0.01, retry=0.01)
    model.step = "none"  # type: ignore[assignment]
    checkpointer.start()
    try:
        wait_until(lambda: "the checkpoint thread hit an unexpected error" in caplog.text, "the error is logged")
        model.step = 3
        assert saved.get(timeout=10).global_step == 3
    finally:
        checkpointer.stop()


def test_last_checkpoint_is_retried(store: MemoryStore, make: Make) -> None:
    store.failing = StoreError("unreachable")
    checkpointer, _ = make(1000, retry=0.0)
    assert not checkpointer.save(seconds=0.05)
    put, fails = store.put, iter([True, False, False, False])
    store.failing = None

    def put_sometimes(key: str, value: bytes) -> None:
        if next(fails):
            raise StoreError("unreachable")
        put(key, value)

    store.put = put_sometimes  # type: ignore[method-assign]
    assert checkpointer.save(seconds=60)


def test_stop_before_start_is_allowed(make: Make) -> None:
    make(1000)[0].stop()


def test_late_checkpoint_is_logged_once_a_minute(
    model: Model, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    unavailable = True

    def copy_state() -> ModelState | None:
        if unavailable:
            raise CheckpointLate("shard 1 of 2 is unavailable")
        return model()

    checkpointer = Checkpointer(CheckpointManager(store), copy_state, 1000, lambda saved: None)
    assert [checkpointer.save() for _ in range(3)] == [False] * 3
    store.failing = StoreError("no space left")
    unavailable = False
    assert not checkpointer.save()
    assert [record.message for record in caplog.records if "is late" in record.message] == [
        "the checkpoint is late: shard 1 of 2 is unavailable",
        "the checkpoint at global step 0 is late: no space left",
    ]


def test_store_error_after_a_checkpoint_is_logged_at_once(
    model: Model, store: MemoryStore, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer, _ = make(1000)
    for step in (1, 2):  # within the minute in which the same error is logged once
        model.step, store.failing = step, StoreError("no space left")
        assert [checkpointer.save() for _ in range(3)] == [False] * 3
        store.failing = None
        assert checkpointer.save()
    assert [record.message for record in caplog.records if "is late" in record.message] == [
        f"the checkpoint at global step {step} is late: no space left" for step in (1, 2)
    ]


class Clock:
    """A simulated clock in minutes: `wait` advances it and calls `during` with the time."""

    def __init__(self, minutes: float, during: Callable[[float], None] = lambda minute: None) -> None:
        self.now = 0.0
        self._end = minutes
        self._during = during

    def wait(self, seconds: float) -> bool:
        self.now += seconds / 60
        self._during(self.now)
        return self.now > self._end


def minutes_of_checkpoints(
    model: Model, interval: float, until: float, made: int = 0, during: Callable[[float], None] | None = None
) -> list[float]:
    """Return the minutes of the checkpoints. The model trains all the time unless `during` sets its step."""

    def train(minute: float) -> None:
        model.step = int(minute * 60) + 1

    clock, saved = Clock(until, during or train), []
    checkpointer = Checkpointer(
        CheckpointManager(MemoryStore()),
        model,
        interval,
        lambda it: saved.append(clock.now),
        made=made,
        wait=clock.wait,
    )
    checkpointer.start()
    checkpointer._thread.join()
    return saved


def test_first_checkpoints_are_earlier_than_the_interval(model: Model) -> None:
    assert minutes_of_checkpoints(model, 900, 60) == [1, 2, 4, 8, 23, 38, 53]
    assert minutes_of_checkpoints(model, 180, 14) == [1, 2, 4, 7, 10, 13]
    assert minutes_of_checkpoints(model, 30, 2.2) == [0.5, 1, 1.5, 2]


def test_resumed_training_continues_the_early_checkpoints(model: Model) -> None:
    assert minutes_of_checkpoints(model, 900, 25, made=2) == [2, 6, 21]
    assert minutes_of_checkpoints(model, 900, 32, made=7) == [15, 30]


def test_early_checkpoints_wait_until_training_starts(model: Model) -> None:
    def train_late(minute: float) -> None:
        model.step = None if minute < 20.5 else int(minute * 60)

    assert minutes_of_checkpoints(model, 900, 45, during=train_late) == [21, 22, 24, 28, 43]


def test_checkpoint_is_saved_soon_after_the_start(
    model: Model, store: MemoryStore, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointing, "EARLY", (0.01, 0.01))
    checkpointer, saved = make(3600)
    checkpointer.start()
    try:
        assert saved.get(timeout=10).global_step == 0
        model.step = 5
        assert saved.get(timeout=10).global_step == 5
    finally:
        checkpointer.stop()


@contextmanager
def leased(store: MemoryStore) -> Iterator[CheckpointManager]:
    lease = Lease(store, ttl=1e6)
    lease.acquire()
    yield CheckpointManager(store, lease=lease)
    lease.release()


def test_last_checkpoint_of_a_failing_store_is_delivered_later(
    model: Model, store: MemoryStore, tmp_path: Path
) -> None:
    with leased(store) as manager:
        checkpointer = Checkpointer(manager, model, 1000, lambda saved: None, spool=Spool(tmp_path, manager, None))
        model.step, store.failing = 3, StoreError("unreachable")
        assert not checkpointer.save(last=True)
        assert checkpointer.has_local_copy
        store.failing = None
        assert manager.published() == []
    with leased(store) as manager:
        Spool(tmp_path, manager, "http://another").deliver()
        assert manager.published() == []
        Spool(tmp_path, manager, None).deliver()
        assert [name.partition("-")[2] for name in manager.published()] == ["3-f1"]
    assert not list(tmp_path.iterdir())


def test_copy_is_removed_once_the_store_has_the_checkpoint(model: Model, store: MemoryStore, tmp_path: Path) -> None:
    with leased(store) as manager:
        spool = Spool(tmp_path, manager, None)
        checkpointer = Checkpointer(manager, model, 1000, lambda saved: None, retry=0.01, spool=spool)
        store.failing = StoreError("unreachable")
        saving = threading.Thread(target=checkpointer.save, args=(60.0, True))
        saving.start()
        wait_until(lambda: spool.has_copy and checkpointer.failures > 5, "a copy is kept, and the save is retried")
        store.failing = None
        saving.join(60)
        assert not spool.has_copy and not list(tmp_path.iterdir())
        assert len(manager.published()) == 1
