"""A keeper and its process, without Ray around it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from relaax.cluster.keeper import FOLDER, HOST, LOG_BYTES, METRICS, Keeper, ProcessSnapshot
from support.processes import wait_until

TOKEN = "a-token-of-sixteen-characters-and-more"
LISTENS = """
import sys, time
print("told", *sys.argv[1:], flush=True)
print("it is listening on", sys.argv[1], flush=True)
time.sleep(1000)
"""


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    kept = Keeper("it", "10.1.2.3", True, {"RELAAX_TOKEN": TOKEN})
    yield kept
    kept.close()


def snapshot_with(keeper: Keeper, until: str, **more: object) -> ProcessSnapshot:
    """Return a snapshot once the log contains `until`."""
    wait_until(lambda: until in keeper.snapshot(0).log.decode(), f"the log has {until!r}")
    return keeper.snapshot(0, **more)  # type: ignore[arg-type]


def test_command_receives_its_machine_and_folder(keeper: Keeper) -> None:
    keeper.start([sys.executable, "-c", LISTENS, f"{HOST}:0", f"{FOLDER}/peers"], {"peers": f"{HOST}:7\n"})
    wait_until(lambda: keeper.snapshot(0).announced, "it is ready")
    snapshot = keeper.snapshot(0)
    assert snapshot.address == "10.1.2.3:0"
    assert snapshot.host == "10.1.2.3"
    told, peers = snapshot.log.decode().splitlines()[0].split()[1:]
    assert told == "10.1.2.3:0"
    assert Path(peers).read_text() == "10.1.2.3:7\n"
    keeper.put({"peers": "10.9.9.9:7\n"})
    assert Path(peers).read_text() == "10.9.9.9:7\n"
    assert keeper.read("peers") == "10.9.9.9:7\n"
    assert keeper.read("nothing") == ""


def test_snapshots_return_the_log_in_pieces(keeper: Keeper) -> None:
    lines = "print('\\n'.join('x' * 99 for _ in range(10_000)), flush=True); print('end', flush=True)"
    keeper.start([sys.executable, "-c", lines], {})
    wait_until(lambda: keeper.snapshot(0).exit_code == 0, "it has ended")
    text, snapshot = b"", keeper.snapshot(0)
    assert len(snapshot.log) == LOG_BYTES
    while snapshot.log and len(text) < 2_000_000:  # twice the length of the log
        text += snapshot.log
        snapshot = keeper.snapshot(snapshot.log_end)
    assert text.decode().splitlines() == ["x" * 99] * 10_000 + ["end"]


def test_snapshots_return_metrics_after_the_known_offset(keeper: Keeper) -> None:
    writes = """
import pathlib, sys
folder = pathlib.Path(sys.argv[1]); (folder / "a").mkdir(parents=True)
(folder / "a" / "events").write_bytes(b"0123456789"); (folder / "more").write_bytes(b"ab")
print("written", flush=True)
"""
    keeper.start([sys.executable, "-c", writes, f"{FOLDER}/{METRICS}"], {})
    assert snapshot_with(keeper, "written").new_metrics == {"a/events": (0, b"0123456789"), "more": (0, b"ab")}
    assert snapshot_with(keeper, "written", ends={"a/events": 4, "more": 2}).new_metrics == {"a/events": (4, b"456789")}


def test_command_receives_only_the_tokens_of_the_training(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAAX_PARAMETER_SERVER_TOKEN", "another training's")
    says = "import os; print({k: v for k, v in os.environ.items() if k.startswith('RELAAX_')}, 'all', flush=True)"
    keeper.start([sys.executable, "-c", says], {})
    assert snapshot_with(keeper, "all").log.decode().splitlines()[0] == f"{ {'RELAAX_TOKEN': TOKEN} } all"


def test_close_removes_process_and_folder(keeper: Keeper) -> None:
    child = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)']);"
    keeper.start([sys.executable, "-c", child + LISTENS, "here:1", f"{FOLDER}"], {})
    snapshot = snapshot_with(keeper, "listening")
    assert snapshot.pid is not None
    family = [psutil.Process(snapshot.pid), *psutil.Process(snapshot.pid).children(recursive=True)]
    folder = Path(snapshot.log.decode().splitlines()[0].split()[-1])
    assert folder.is_dir()
    keeper.close()
    wait_until(lambda: not any(map(running, family)), "all of them have ended")
    assert not folder.exists()


def running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
@pytest.mark.checks("relaax/cluster")
def test_figures_match_the_status_page(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nothing listens there
    keeper.start(
        [
            *(sys.executable, "-m", "relaax.server.rlx_server.main", "--config", "da3c_gym_cartpole"),
            *("--bind", "127.0.0.1:0", "--status-bind", "127.0.0.1:0", "--set", "rlx-server.max_workers=7"),
        ],
        {},
    )
    wait_until(
        lambda: keeper.snapshot(0).figures.get("relaax_rlx_server_free_places") == 7, "the figure is reported", 120.0
    )
    figures = keeper.snapshot(0).figures
    assert figures["relaax_rlx_server_workers"] == 0
    assert figures['relaax_rlx_server_refusals_total{reason="max_workers"}'] == 0
