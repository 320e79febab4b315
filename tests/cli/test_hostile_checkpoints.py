"""`relaax checkpoints`, the summary of `relaax run`, and `relaax.policy` with forged files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import relaax.policy
from relaax.checkpoint import CheckpointManager, LocalStore
from relaax.checkpoint.array_file import to_buffers
from relaax.cli.app import app
from relaax.cli.run.experiment import _newest_checkpoint
from relaax.cli.run.run_directory import RunDirectory
from relaax.policy.file import FORMAT
from support.forged_checkpoints import all_forgeries, duplicated

SPACE = {"kind": "discrete", "n": 2}
FIRST, SECOND = "00000001-10", "00000002-10"
# Only servers use these parts, so a checkpoint with such a fault can still be listed and exported.
FOR_SERVERS = (
    *("no incarnation", "no counters", "no returns", "a ledger with an unknown reason"),
    "an empty fingerprint",
    "a slot below zero",
)


def checkpoints(*arguments: str | Path) -> Result:
    done = CliRunner().invoke(app, ["checkpoints", *map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with two checkpoints."""
    folder = tmp_path / "run" / "checkpoints"
    vector = np.arange(10, dtype=np.float32)
    counters = {"version": 1, "env_steps": 10, "frames": 10}
    described = {"part": "shard-0", "start": 0, "end": 10, "version": 1, "counters": counters, "ledger": {}}
    manifest = {
        "fingerprint": {"algorithm": "mine", "configuration": {}, "observation_space": SPACE, "action_space": SPACE},
        "incarnation": 5,
        "shards": [described],
        "actors": {"s": [[0, 1]], "t": [[2, 9]]},
        "returns": {"episodes": 0, "last": [], "best": None},
        "mean_return": 1.0,
    }
    parts = {"shard-0": {"parameters": vector, "slots/mean_square": np.ones(10, np.float32)}}
    CheckpointManager(LocalStore(folder)).save(10, parts, manifest)
    duplicated(folder / FIRST, 2)
    return tmp_path / "run"


@pytest.mark.parametrize("name", all_forgeries())
def test_forged_checkpoint_is_refused_in_one_sentence(run: Path, tmp_path: Path, name: str) -> None:
    change, sentence = all_forgeries()[name]
    change(run / "checkpoints" / SECOND)
    assert checkpoints(run).exit_code == 0
    listed = {one["id"]: one for one in json.loads(checkpoints(run, "--json").stdout)["checkpoints"]}
    assert listed[FIRST]["damaged"] is None
    exported = checkpoints("export", run, tmp_path / "out", "--id", SECOND)
    if name in FOR_SERVERS:
        assert exported.exit_code in (0, 1)
        return
    assert exported.exit_code == 1
    assert sentence in exported.output
    assert checkpoints("export", run, tmp_path / "first", "--id", FIRST).exit_code == 0
    assert checkpoints("verify", run, FIRST).exit_code == 0
    verified, copied = checkpoints("verify", run), checkpoints("copy", run, tmp_path / "to", SECOND)
    inside = ("is nan", "has nothing for", "which numpy does not support", "longer than its part")
    if not any(part in f"{sentence} {name}" for part in inside):  # the bytes of these faults have a valid checksum
        assert (verified.exit_code, copied.exit_code) == (1, 1)
        assert sentence in verified.output
    path, _ = _newest_checkpoint(RunDirectory(run))
    assert path is not None
    assert Path(path).parent.name in (FIRST, SECOND)


def test_remove_deletes_only_unusable_checkpoints(run: Path) -> None:
    folder = run / "checkpoints"
    third = duplicated(folder / FIRST, 3)
    (third / "shard-0.safetensors").unlink()
    os.mkfifo(third / "shard-0.safetensors")
    refused = checkpoints("remove", run, FIRST, third.name)
    assert refused.exit_code == 2
    assert f"{FIRST} in {folder}: intact and not set aside" in refused.stderr
    assert third.exists()
    CheckpointManager(LocalStore(folder)).restore()
    (line,) = [line for line in checkpoints(run).output.splitlines() if line.startswith(f"{third.name} was set aside")]
    assert "it is not a regular file" in line
    assert json.loads(checkpoints(run, "--json").stdout)["checkpoints"][-1]["set_aside"]
    assert checkpoints("copy", run, run.parent / "to").exit_code == 0, "a checkpoint that was set aside is not copied"
    done = checkpoints("remove", run, third.name)
    assert (done.exit_code, done.stdout) == (0, f"removed from {folder}: {third.name}\n")
    assert not third.exists()
    assert (folder / FIRST).exists()


def test_repaired_checkpoint_set_aside_names_the_way_back(run: Path) -> None:
    folder = run / "checkpoints"
    part = folder / SECOND / "shard-0.safetensors"
    whole = part.read_bytes()
    part.write_bytes(b"")
    CheckpointManager(LocalStore(folder)).restore()
    part.write_bytes(whole)
    assert f"delete {folder}/{SECOND}/damaged.json to use it again" in checkpoints("verify", run, SECOND).output
    (folder / SECOND / "damaged.json").unlink()
    restored = CheckpointManager(LocalStore(folder)).restore()
    assert restored is not None
    assert restored.checkpoint_id == SECOND


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _endless_shape(path: Path) -> None:
    text = json.dumps({"parameters": {"dtype": "F32", "shape": [0, 10**30], "data_offsets": [0, 0]}}).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text)


def _not_a_number(path: Path) -> None:
    path.write_bytes(b"".join(to_buffers({"parameters": np.full(3, np.nan, np.float32)}, {"format": FORMAT})))


@pytest.mark.parametrize("make", [_pipe, _endless_shape, _not_a_number])
def test_forged_policy_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "policy.safetensors"
    make(path)
    with pytest.raises(relaax.policy.PolicyError):
        relaax.policy.load(path)
