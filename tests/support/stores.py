"""Tests that every store of checkpoints must pass, and a store that fails on demand."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator

import pytest

from relaax.checkpoint import Conflict, NotFound, Store, StoreError, Value
from relaax.checkpoint.store import buffers_of


class StoreCompliance:
    """Tests of a store. Subclasses add a fixture `store` that returns an empty store."""

    def test_gives_back_what_was_put(self, store: Store) -> None:
        for value in (b"", b"1", bytes(range(256)) * 5000):
            store.put("some/key.bin", value)
            assert store.get("some/key.bin") == value

    def test_takes_buffers_and_gives_pieces(self, store: Store) -> None:
        value = bytes(range(256)) * 9000
        store.put("a/x", [memoryview(value)[:1], memoryview(b""), memoryview(value)[1:]])
        assert store.get("a/x") == value
        assert b"".join(store.pieces("a/x")) == value
        with pytest.raises(NotFound):
            list(store.pieces("a/y"))

    def test_puts_only_where_nothing_is(self, store: Store) -> None:
        tag = store.put_if("a/x", b"1", None)
        with pytest.raises(Conflict):
            store.put_if("a/x", b"2", None)
        assert store.get_with_tag("a/x") == (b"1", tag)

    def test_puts_only_in_place_of_what_was_seen(self, store: Store) -> None:
        with pytest.raises(StoreError):
            store.put_if("x", b"1", "nothing has this tag")
        first = store.put_if("x", b"1", None)
        second = store.put_if("x", b"2", first)
        with pytest.raises(Conflict):
            store.put_if("x", b"3", first)
        assert store.get_with_tag("x") == (b"2", second)
        store.delete("x")
        with pytest.raises(StoreError):
            store.put_if("x", b"3", second)
        with pytest.raises(NotFound):
            store.get_with_tag("x")

    def test_of_several_writers_one_succeeds(self, store: Store) -> None:
        tag = store.put_if("x", b"0", None)
        won: list[bytes] = []

        def attempt(value: bytes) -> None:
            try:
                store.put_if("x", value, tag)
            except Conflict:
                return
            won.append(value)

        threads = [threading.Thread(target=attempt, args=(b"%d" % number,)) for number in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert won == [store.get("x")]

    def test_lists_by_prefix(self, store: Store) -> None:
        assert store.list() == []
        for key in ("b/y", "a/x", "a/z", "c"):
            store.put(key, b"")
        assert store.list() == ["a/x", "a/z", "b/y", "c"]
        assert store.list("a/") == ["a/x", "a/z"]

    def test_deletes(self, store: Store) -> None:
        store.put("a/x", b"1")
        store.delete("a/x")
        store.delete("a/x")
        store.delete("never/there")
        assert store.list() == []
        with pytest.raises(NotFound):
            store.get("a/x")

    def test_does_not_know_what_was_never_put(self, store: Store) -> None:
        with pytest.raises(NotFound):
            store.get("a/x")

    def test_refuses_what_is_no_key(self, store: Store) -> None:
        for key in ("", "/a", "a/", "../a", "a/../b", "a//b", ".hidden", "a b", "a\0"):
            for method in (store.get, store.delete):
                with pytest.raises(ValueError, match="is not a valid key"):
                    method(key)
            with pytest.raises(ValueError, match="is not a valid key"):
                store.put(key, b"")
            with pytest.raises(ValueError, match="is not a valid key"):
                store.put_if(key, b"", None)

    def test_has_a_name(self, store: Store) -> None:
        assert store.location

    def test_cleaning_keeps_values(self, store: Store) -> None:
        store.put("a/x", b"1")
        store.clean()
        assert store.get("a/x") == b"1"


class MemoryStore(Store):
    """A store in memory. While `failing` is set, writes raise it."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.failing: StoreError | None = None
        self.puts: list[str] = []
        self._lock = threading.Lock()

    @property
    def location(self) -> str:
        return "memory"

    def put(self, key: str, value: Value) -> None:
        if self.failing:
            raise self.failing
        data = b"".join(buffers_of(value))
        self.puts.append(key)
        self.values[key] = data

    def put_if(self, key: str, value: bytes, tag: str | None) -> str:
        with self._lock:
            there = self.values.get(key)
            if (None if there is None else _tag(there)) != tag:
                raise Conflict(f"{key} has changed")
            self.put(key, value)
            return _tag(value)

    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        value = self.get(key)
        return value, _tag(value)

    def pieces(self, key: str) -> Iterator[bytes]:
        yield self.get(key)

    def get(self, key: str) -> bytes:
        if key not in self.values:
            raise NotFound(f"{key} does not exist")
        return self.values[key]

    def size(self, key: str) -> int:
        return len(self.get(key))

    def list(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self.values if key.startswith(prefix))

    def delete(self, key: str) -> None:
        self.values.pop(key, None)


def _tag(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()
