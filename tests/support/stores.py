"""What every store of checkpoints must do, as tests to inherit, and a store that fails on demand."""

from __future__ import annotations

import pytest

from relaax.checkpoint import NotFound, Store, StoreError


class StoreCompliance:
    """Subclass it with a fixture `store` that gives an empty store."""

    def test_gives_back_what_was_put(self, store: Store) -> None:
        for value in (b"", b"1", bytes(range(256)) * 5000):
            store.put("some/key.bin", value)
            assert store.get("some/key.bin") == value

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

    @pytest.mark.parametrize("key", ["", "/a", "a/", "../a", "a/../b", "a//b", ".hidden", "a b", "a\0"])
    def test_refuses_what_is_no_key(self, store: Store, key: str) -> None:
        for method in (store.get, store.delete):
            with pytest.raises(ValueError, match="cannot be a key"):
                method(key)
        with pytest.raises(ValueError, match="cannot be a key"):
            store.put(key, b"")

    def test_has_a_name(self, store: Store) -> None:
        assert store.location

    def test_cleaning_keeps_values(self, store: Store) -> None:
        store.put("a/x", b"1")
        store.clean()
        assert store.get("a/x") == b"1"


class MemoryStore(Store):
    """Values in memory. While `failing` is set, writing raises it."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.failing: StoreError | None = None
        self.puts: list[str] = []

    @property
    def location(self) -> str:
        return "memory"

    def put(self, key: str, value: bytes) -> None:
        if self.failing:
            raise self.failing
        self.puts.append(key)
        self.values[key] = value

    def get(self, key: str) -> bytes:
        if key not in self.values:
            raise NotFound(f"{key} is not there")
        return self.values[key]

    def list(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self.values if key.startswith(prefix))

    def delete(self, key: str) -> None:
        self.values.pop(key, None)
