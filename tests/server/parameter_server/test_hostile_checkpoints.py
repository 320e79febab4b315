"""Damaged, forged and newer checkpoints, which the real server does not delete."""

from __future__ import annotations

import json
import shutil
import signal
import urllib.request
from pathlib import Path

import pytest

from relaax.checkpoint import CheckpointManager, LocalStore
from relaax.server.parameter_server.main import app
from support.forged_checkpoints import all_forgeries, duplicated, forge, put, with_number
from support.parameter_server_processes import start, trained, worker, write_configuration
from support.parameter_servers import parameter_client
from support.processes import Processes
from support.refusals import refusal

pytestmark = pytest.mark.checks("relaax/server", "relaax/checkpoint")

KEPT = 5


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one checkpoint, of global step 10, that the real server has written."""
    folder = tmp_path_factory.mktemp("made")
    config = write_configuration(folder)
    with Processes(folder) as processes:
        server, address = start(processes, config)
        with parameter_client(address) as client:
            client.register(worker(config))
            trained(client, 1)
        assert server.stop(signal.SIGTERM) == 0
    return folder / "from-the-file"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_configuration(tmp_path)


@pytest.fixture
def folder(made: Path, config: Path) -> Path:
    """The checkpoint folder of `config`, with five checkpoints."""
    folder = config.parent / "from-the-file"
    shutil.copytree(made, folder)
    for number in range(2, KEPT + 1):
        duplicated(folder / "00000001-10-f1", number)
    return folder


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("0*/*")}


def assert_refused_without_changes(config: Path, folder: Path, *sentences: str) -> None:
    before = bytes_of(folder)
    for _ in range(2):  # as if a supervisor restarted the server
        message = refusal(app, "--config", config)
        for sentence in sentences:
            assert sentence in message
    assert bytes_of(folder) == before


def test_server_ends_if_all_checkpoints_are_damaged(config: Path, folder: Path) -> None:
    for checkpoint in folder.glob("0*"):
        part = checkpoint / "shard-0.safetensors"
        part.write_bytes(part.read_bytes()[:-1])
    ids = sorted((path.name for path in folder.glob("0*")), reverse=True)
    assert_refused_without_changes(
        config,
        folder,
        f"none of the 5 checkpoints in {folder} can be used, and none is deleted",
        "00000003-10-f1: 00000003-10-f1/shard-0.safetensors has ",
        f"relaax checkpoints remove {folder} {' '.join(ids)}",
    )


@pytest.mark.parametrize("of_later_version", [KEPT, 1], ids=["all", "the newest"])
def test_server_ends_if_a_checkpoint_has_a_newer_format(config: Path, folder: Path, of_later_version: int) -> None:
    newest = sorted(path.name for path in folder.glob("0*"))[-of_later_version:]
    for name in newest:
        forge(folder / name, put("format", value=2))
        forge(folder / name, put("versions", "relaax", value="7.1"))
    assert_refused_without_changes(
        config,
        folder,
        "it was saved by version '7.1' of RELAAX in format 2; this version supports 1",
        f"relaax checkpoints remove {folder} {' '.join(sorted(newest, reverse=True))}",
    )


@pytest.mark.slow
def test_forged_checkpoints_are_logged_skipped_and_kept(processes: Processes, config: Path, folder: Path) -> None:
    for name in ("00000002-10-f1", "00000003-10-f1", "00000004-10-f1", "00000005-10-f1"):
        shutil.rmtree(folder / name)
    good, forgeries = folder / "00000001-10-f1", all_forgeries()
    forged = {name: duplicated(good, number) for number, name in enumerate(forgeries, 2)}
    for name, (change, _) in forgeries.items():
        change(forged[name])
    server, address = start(processes, config, "--status-bind", "127.0.0.1:0")
    for name, (_, sentence) in forgeries.items():
        logged = f"checkpoint {forged[name].name} in {folder} is damaged and skipped: "
        (line,) = [line for line in server.stderr.splitlines() if logged in line]
        assert sentence in line, name
    status = server.wait_for_line("status at").rpartition(" ")[2]
    with parameter_client(address) as client:
        assert client.register(worker(config)).global_step == 10
        trained(client, 1)
        assert b"relaax_" in urllib.request.urlopen(f"{status}/metrics", timeout=60).read()
    assert server.stop() == 0, server.report()
    assert "Traceback" not in server.stderr
    manager = CheckpointManager(LocalStore(folder))
    assert sorted(manager.aside()) == sorted(path.name for path in forged.values())
    newest, *_ = manager.published()
    assert newest.split("-")[1] == "20"
    again, _ = start(processes, config)
    assert "is damaged and skipped" not in again.stderr, "checkpoints that were set aside are not read"
    assert again.stop() == 0
    assert len(list(folder.glob("0*"))) == len(forged) + 2


@pytest.mark.slow
def test_manifest_copied_over_a_newer_one_is_skipped(processes: Processes, config: Path, made: Path) -> None:
    folder = config.parent / "from-the-file"
    shutil.copytree(made, folder)
    for _ in range(2):  # two more checkpoints, of global steps 20 and 30
        server, address = start(processes, config)
        with parameter_client(address) as client:
            client.register(worker(config))
            trained(client, 1)
        assert server.stop() == 0
    oldest, middle, newest = sorted(folder.glob("0*"))
    shutil.copy(oldest / "manifest.json", newest / "manifest.json")
    server, address = start(processes, config)
    with parameter_client(address) as client:
        assert client.register(worker(config)).global_step == 20
    assert f"the manifest in the folder of {newest.name} belongs to '{oldest.name}'" in server.stderr
    assert server.stop() == 0
    assert json.loads((newest / "damaged.json").read_text())["damaged"].startswith("the manifest in the folder of ")
    assert (middle / "manifest.json").exists()


def test_checkpoint_with_nan_parameters_is_skipped(processes: Processes, config: Path, folder: Path) -> None:
    for number in (4, 5):
        with_number("parameters")(folder / f"0000000{number}-10-f1")
    server, address = start(processes, config)
    assert "of 'parameters' is nan" in server.stderr
    with parameter_client(address) as client:
        client.register(worker(config))
        assert trained(client, 1).max() < 1e3
    assert server.stop() == 0
    assert sorted(CheckpointManager(LocalStore(folder)).aside()) == ["00000004-10-f1", "00000005-10-f1"]


@pytest.mark.parametrize("name", [".lock", "lease.json"])
def test_symlink_in_place_of_a_store_file_is_not_followed(config: Path, folder: Path, name: str) -> None:
    target = config.parent / "elsewhere"
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(target)
    assert "it is not a regular file" in refusal(app, "--config", config, code=1)
    assert not target.exists()
