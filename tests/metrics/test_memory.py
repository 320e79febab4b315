"""Available memory of this process, within the limits of its control groups."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from relaax.configuration import ReplayServerSection
from relaax.metrics import system
from relaax.server.replay_server import main as replay_server
from relaax.server.rlx_server.listening.admission import Admission

UNLIMITED_V1 = 9223372036854771712


class Groups:
    """Control groups, as files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.own = folder / "own"
        self.mounts = folder / "mounts"

    def own_groups(self, *lines: str) -> None:
        self.own.write_text("".join(f"{line}\n" for line in lines))

    def v2(self, group: str, limit: int | str, used: int, cache: int = 0) -> None:
        folder = self.mounts / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cache}\nactive_file 7\n")

    def v1(self, group: str, limit: int, used: int, cache: int = 0) -> None:
        folder = self.mounts / "memory" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {cache}\n")


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Groups:
    """Files of control groups, and a machine with 50 of 64 GB available."""
    groups = Groups(tmp_path)
    machine = SimpleNamespace(total=64 * 10**9, available=50 * 10**9)
    monkeypatch.setattr(system.psutil, "virtual_memory", lambda: machine)
    monkeypatch.setattr(system, "_OWN_GROUPS", groups.own)
    monkeypatch.setattr(system, "_MOUNTS", groups.mounts)
    return groups


def expect(available: int, total: int) -> None:
    assert system.available_memory() == available
    assert system.total_memory() == total


def test_without_groups_memory_is_that_of_machine(groups: Groups) -> None:
    expect(50 * 10**9, 64 * 10**9)


def test_limit_of_a_container_v2(groups: Groups) -> None:
    groups.own_groups("0::/")
    groups.v2("", 4 * 10**9, 10**9, cache=2 * 10**8)
    expect(3_200_000_000, 4 * 10**9)


def test_lowest_limit_among_parent_groups_v2(groups: Groups) -> None:
    groups.own_groups("0::/pods/one/server")
    groups.v2("", "max", 30 * 10**9)
    groups.v2("pods", 8 * 10**9, 6 * 10**9)
    groups.v2("pods/one", 7 * 10**9, 10**9)
    groups.v2("pods/one/server", "max", 10**9)
    expect(2 * 10**9, 7 * 10**9)


def test_limit_of_a_container_v1(groups: Groups) -> None:
    """The path is that of the host; the mount is the group of the container."""
    groups.own_groups("5:cpu,cpuacct:/docker/1234", "4:memory:/docker/1234", "0::/system.slice")
    groups.v1("", 2 * 10**9, 5 * 10**8, cache=10**8)
    expect(1_600_000_000, 2 * 10**9)


def test_lowest_limit_among_parent_groups_v1(groups: Groups) -> None:
    groups.own_groups("4:hugetlb,memory:/a/b")
    groups.v1("", UNLIMITED_V1, 30 * 10**9)
    groups.v1("a", 3 * 10**9, 10**9)
    groups.v1("a/b", UNLIMITED_V1, 10**9)
    expect(2 * 10**9, 3 * 10**9)


def test_group_over_its_limit_has_no_memory_left(groups: Groups) -> None:
    groups.own_groups("0::/")
    groups.v2("", 10**9, 2 * 10**9)
    expect(0, 10**9)


@pytest.mark.parametrize("shards", [1, 2])
def test_replay_server_uses_share_of_container_memory(groups: Groups, shards: int) -> None:
    groups.own_groups("0::/")
    groups.v2("", 4 * 10**9, 10**9)
    assert replay_server._memory(ReplayServerSection(shards=shards)) == 3 * 10**9 // (2 * shards)


def test_rlx_server_refuses_workers_beyond_container_memory(groups: Groups) -> None:
    groups.own_groups("0::/")
    groups.v2("", 10**9, 950 * 10**6)
    assert "MB of memory left" in (Admission(max_workers=100, reserve_megabytes=0).refusal([]) or "")
