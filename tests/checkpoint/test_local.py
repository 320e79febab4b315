from __future__ import annotations

import os
from pathlib import Path

import pytest

from relaax.checkpoint import LocalStore, NotFound, Store, StoreError
from support.stores import StoreCompliance


class TestLocalStore(StoreCompliance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return LocalStore(tmp_path / "made" / "when needed")


def test_files_of_a_killed_writer_are_ignored_and_cleaned(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a/x", b"1")
    (tmp_path / "a" / ".unfinished-abc").write_bytes(b"half")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / ".unfinished-def").write_bytes(b"half")
    assert store.list() == ["a/x"]
    store.clean()
    assert sorted(path.name for path in tmp_path.rglob("*") if path.name != ".lock") == ["a", "x"]


def test_a_full_disk_is_reported_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    store.put("x", b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"cannot write .*/x: No space left on device"):
        store.put("x", b"new")
    monkeypatch.undo()
    assert store.get("x") == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_an_unreadable_file_is_an_error_and_not_absent(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(StoreError, match="cannot read") as caught:
        LocalStore(tmp_path).get("x")
    assert not isinstance(caught.value, NotFound)


def test_a_file_in_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        LocalStore(tmp_path / "file").put("a/x", b"1")
