"""`relaax checkpoints` lists, verifies, copies and exports checkpoints on disk and in S3."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from typer.testing import CliRunner, Result

import relaax.policy
from relaax.algorithm_base import Box, Discrete, load_algorithm
from relaax.bundled import bundled_folder
from relaax.checkpoint import CheckpointManager, Lease, LocalStore, StoreError, highest_fence
from relaax.cli.app import app
from relaax.cli.checkpoints import catalogue
from relaax.hosting.fingerprint import fingerprint, parse_fingerprint
from relaax.policy.game_export import game_file_of
from support.s3_server import S3Server, keys_file, s3_server
from support.stores import MemoryStore

SPACE = {"kind": "discrete", "n": 2}


def checkpoints(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["checkpoints", *map(str, arguments)])


def save(folder: Path, global_step: int, mean_return: float | None = None, shards: int = 1) -> str:
    """Save a checkpoint of ten parameters and return its id."""
    vector = np.arange(10, dtype=np.float32) + global_step
    ranges = [(i * 10 // shards, (i + 1) * 10 // shards) for i in range(shards)]
    parts: dict[str, Any] = {
        f"shard-{i}": {"parameters": vector[start:end], "slots/mean_square": np.ones(end - start, np.float32)}
        for i, (start, end) in enumerate(ranges)
    }
    moments = {"count": np.array([4.0]), "mean": np.zeros(1), "m2": np.ones(1)}
    parts["shard-0"].update((f"statistics/reward/{name}", array) for name, array in moments.items())
    manifest = {
        "fingerprint": {"algorithm": "mine", "configuration": {"api_key": "abc"}, "observation_space": SPACE},
        "configuration": {"algorithm": {"api_key": "abc"}},
        "updates": global_step // 5,
        "mean_return": mean_return,
        "shards": [{"part": f"shard-{i}", "start": start, "end": end} for i, (start, end) in enumerate(ranges)],
    }
    return CheckpointManager(LocalStore(folder)).save(global_step, parts, manifest).checkpoint_id


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with three checkpoints: the second is the best."""
    for global_step, mean_return in ((10, None), (2000, 31.25), (30, 7.0)):
        save(tmp_path / "run" / "checkpoints", global_step, mean_return, shards=2)
    return tmp_path / "run"


FIRST, SECOND, THIRD = "00000001-10", "00000002-2000", "00000003-30"


def damage(run: Path, checkpoint_id: str, part: str = "shard-1.safetensors") -> None:
    path = run / "checkpoints" / checkpoint_id / part
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("arguments", [(), ("list",)])
@pytest.mark.parametrize("folder", ["run", "run/checkpoints"])
def test_checkpoints_of_a_location_are_listed(run: Path, folder: str, arguments: tuple[str, ...]) -> None:
    done = checkpoints(*arguments, run.parent / folder)
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.output.splitlines() if line.strip().startswith("0000")]
    assert [row[0] for row in rows] == [THIRD, SECOND, FIRST]
    assert rows[1][3:7] == ["2,000", "400", "31.2", "2"]
    assert [row[-1] for row in rows] == ["newest", "best", "B"]


def test_json_list_describes_each_checkpoint(run: Path) -> None:
    damage(run, THIRD, "manifest.json")
    (run / "checkpoints" / FIRST / "shard-0.safetensors").unlink()
    found = json.loads(checkpoints(run, "--json").output)
    assert found["location"] == str(run / "checkpoints")
    third, second, first = found["checkpoints"]
    assert third["id"] == THIRD
    assert third["damaged"] in (
        "the manifest is incomplete",
        "the manifest was changed: its SHA-256 differs",
    )
    assert (second["newest"], second["best"], second["damaged"]) == (True, True, None)
    assert (second["global_step"], second["updates"], second["mean_return"], second["shards"]) == (2000, 400, 31.25, 2)
    files = (run / "checkpoints" / SECOND).glob("*.safetensors")
    assert second["size"] == sum(file.stat().st_size for file in files)
    assert first["damaged"] == f"{FIRST}/shard-0.safetensors is missing"
    assert "00000001-10 is damaged: 00000001-10/shard-0.safetensors is missing\n" in checkpoints(run).output


def test_verify_names_damaged_checkpoints(run: Path) -> None:
    done = checkpoints("verify", run)
    assert (done.exit_code, done.output.count("is intact")) == (0, 3)
    damage(run, SECOND)
    done = checkpoints("verify", run)
    assert done.exit_code == 1
    assert f"{SECOND}  is damaged: {SECOND}/shard-1.safetensors was changed" in done.stdout
    assert done.stderr == f"relaax checkpoints: damaged in {run / 'checkpoints'}: {SECOND}\n"
    assert checkpoints("verify", run, FIRST, THIRD).exit_code == 0
    found = json.loads(checkpoints("verify", run, SECOND, "--json").stdout)
    assert list(found["checkpoints"]) == [SECOND]
    assert "SHA-256 differs" in found["checkpoints"][SECOND]


def test_reading_changes_no_file_and_takes_no_lease(run: Path, tmp_path: Path) -> None:
    lease = Lease(LocalStore(run / "checkpoints"), ttl=1e6)  # a renewal would change the folder
    lease.acquire()
    try:
        before = sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*") if path.name != "lease.json")
        for command in ((run,), ("verify", run), ("export", run, tmp_path / "x"), ("copy", run, tmp_path / "to")):
            assert checkpoints(*command).exit_code == 0
        after = sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*") if path.name != "lease.json")
        assert after == before
        lease.check()
    finally:
        lease.release()


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("0*/*")}


@pytest.mark.parametrize(
    ("options", "copied"),
    [((), [FIRST, SECOND, THIRD]), (("--newest",), [THIRD]), (("--best",), [SECOND]), ((FIRST, THIRD), [FIRST, THIRD])],
)
def test_copied_files_have_the_same_bytes(
    run: Path, tmp_path: Path, options: tuple[str, ...], copied: list[str]
) -> None:
    done = checkpoints("copy", run, tmp_path / "to", *options)
    assert done.exit_code == 0, done.output
    source, target = files_of(run / "checkpoints"), files_of(tmp_path / "to")
    assert target == {name: data for name, data in source.items() if name.partition("/")[0] in copied}
    again = checkpoints("copy", run, tmp_path / "to", *options)
    assert again.exit_code == 2
    assert "would be overwritten" in again.output
    assert copied[0] in again.output


def test_copy_stops_at_a_damaged_checkpoint(run: Path, tmp_path: Path) -> None:
    damage(run, SECOND)
    done = checkpoints("copy", run, tmp_path / "to")
    assert done.exit_code == 1
    assert f"damaged: {SECOND}/shard-1.safetensors was changed" in done.output
    assert {name.partition("/")[0] for name in files_of(tmp_path / "to")} == {FIRST}
    (run / "checkpoints" / THIRD / "manifest.json").write_text("{")
    assert f"damaged: {THIRD}: the manifest is incomplete" in checkpoints("copy", run, tmp_path / "new", THIRD).output


def test_copy_to_the_store_of_a_running_server_is_refused(run: Path, tmp_path: Path) -> None:
    target = LocalStore(tmp_path / "to")
    lease = Lease(target, ttl=1.0)
    lease.acquire(4)
    try:
        done = checkpoints("copy", run, tmp_path / "to")
        assert done.exit_code == 1
        assert "writes its checkpoints to" in done.output
    finally:
        lease.release()
    assert checkpoints("copy", run, tmp_path / "to").exit_code == 0
    assert highest_fence(target) == 0  # the copied checkpoints keep their ids
    nxt = Lease(target)
    nxt.acquire()  # the copy released its lease
    assert nxt.fence == 7
    nxt.release()


def test_copy_into_a_run_directory_goes_to_its_checkpoints(run: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "configuration.yaml").touch()
    assert checkpoints("copy", run, tmp_path / "new", "--best").exit_code == 0
    assert CheckpointManager(LocalStore(tmp_path / "new" / "checkpoints")).published() == [SECOND]


@pytest.mark.parametrize(
    ("options", "step"), [((), 30), (("--best",), 2000), (("--id", FIRST), 10)], ids=["newest", "best", "id"]
)
def test_export_is_one_file_without_secrets(run: Path, tmp_path: Path, options: tuple[str, ...], step: int) -> None:
    file = tmp_path / "policy.safetensors"
    done = checkpoints("export", run, file, *options, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["global_step"] == step
    with safetensors.safe_open(file, "np") as opened:
        assert opened.get_tensor("parameters").tolist() == (np.arange(10) + step).tolist()
        assert set(opened.keys()) == {"parameters", *(f"statistics/reward/{part}" for part in ("count", "mean", "m2"))}
        described = json.loads(opened.metadata()["description"])
    assert described["global_step"] == step
    assert described["fingerprint"]["algorithm"] == "mine"
    assert described["fingerprint"]["configuration"] == {"api_key": "(hidden)"}
    assert b"abc" not in file.read_bytes()
    assert list(tmp_path.glob(".unfinished*")) == []


def test_existing_file_is_replaced_only_with_force(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "there"
    file.write_text("mine")
    done = checkpoints("export", run, file)
    assert (done.exit_code, file.read_text()) == (2, "mine")
    assert checkpoints("export", run, file, "--force").exit_code == 0
    assert file.stat().st_size > 100


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("{}/none",), 2, "no such folder"),
        (("{}/file",), 2, "is a file, not a folder"),
        (("ftp://x/y",), 2, "is not a location"),
        (("s3://bucket",), 2, "use s3://BUCKET/KEY"),
        (("copy", "{}/run", ""), 2, "'' is not a location"),
        (("verify", "{}/empty"), 2, "there are no checkpoints in"),
        (("verify", "{}/run", "00000003-31"), 2, "unknown checkpoint '00000003-31'; did you mean '00000003-30'?"),
        (("copy", "{}/run", "{}/to", FIRST, "--best"), 2, "only one of the three"),
        (("export", "{}/run", "{}/file", "--id", FIRST, "--best"), 2, "--id and --best cannot be combined"),
        (("export", "{}/run", "{}/policy.onx"), 2, "policy.onx has the suffix .onx; did you mean .onnx?"),
        (("export", "{}/run", "{}/none/x"), 1, "/none/x cannot be written: No such file or directory"),
        (("verfy", "{}/run"), 2, "Did you mean 'verify'?"),
    ],
)
def test_invalid_command_is_refused_in_one_sentence(
    run: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    done = checkpoints(*(argument.format(tmp_path) for argument in arguments))
    assert (done.exit_code, sentence in " ".join(done.output.split())) == (code, True), done.output
    assert "Traceback" not in done.output


def test_failed_write_is_reported_in_one_sentence(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # otherwise Python would keep truncated bytecode files
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
    try:
        done = checkpoints("export", run, tmp_path / "x")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (done.exit_code, "File too large" in done.output, "None" in done.output) == (1, True, False), done.output
    assert not (tmp_path / "x").exists()


class DeletingStore(LocalStore):
    """A store that deletes checkpoint SECOND right after the n-th listing."""

    listings = 1

    def list(self, prefix: str = "") -> list[str]:
        keys = super().list(prefix)
        self.listings -= 1
        if not self.listings:
            for key in [key for key in keys if key.startswith(SECOND)]:
                self.delete(key)
        return keys


def test_checkpoint_deleted_meanwhile_is_skipped(run: Path) -> None:
    store = DeletingStore(run / "checkpoints")
    store.listings = 2
    assert [entry.checkpoint_id for entry in catalogue.entries(store)] == [THIRD, FIRST]
    save(run / "checkpoints", 40)
    wanted, target = catalogue.entries(store), MemoryStore()
    (run / "checkpoints" / FIRST / "manifest.json").unlink()
    assert catalogue.copy(store, target, wanted, lambda _: None) == ["00000004-40", THIRD]
    assert CheckpointManager(target).published() == ["00000004-40", THIRD]


class ReplyLosingStore(MemoryStore):
    """A store that writes manifests but loses the replies."""

    def put_if(self, key: str, value: bytes, tag: str | None) -> str:
        tag = super().put_if(key, value, tag)
        if key.endswith("/manifest.json"):
            raise StoreError("no reply")
        return tag


def test_copy_with_unknown_outcome_leaves_no_partial_files(run: Path) -> None:
    source, target = LocalStore(run / "checkpoints"), ReplyLosingStore()
    with pytest.raises(StoreError, match="no reply"):
        catalogue.copy(source, target, catalogue.entries(source), lambda _: None)
    assert [key for key in target.list() if key != "lease.json"] == []


def test_best_is_refused_if_no_episode_has_ended(tmp_path: Path) -> None:
    save(tmp_path, 10)
    assert "no episode had ended" in checkpoints("export", tmp_path, tmp_path / "x", "--best").output
    (tmp_path / "empty").mkdir()
    done = checkpoints(tmp_path / "empty")
    assert (done.exit_code, "there are no checkpoints in" in done.output) == (0, True)


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    with s3_server(tmp_path) as server:
        yield server


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/checkpoints", "relaax/checkpoint")
def test_checkpoints_are_copied_to_s3_and_back(run: Path, tmp_path: Path, s3: S3Server) -> None:
    bucket = s3.bucket()
    options = ("--aws-keys", keys_file(tmp_path), "--aws-endpoint", f"http://{s3.address}")
    there, elsewhere = f"s3://{bucket}/models/mine", f"s3://{bucket}/copy"
    assert checkpoints("copy", run, there, *options).exit_code == 0
    assert checkpoints("copy", there, elsewhere, "--newest", *options).exit_code == 0
    assert checkpoints("copy", there, tmp_path / "back", *options).exit_code == 0
    assert files_of(tmp_path / "back") == files_of(run / "checkpoints")
    assert checkpoints("verify", elsewhere, *options).output.startswith(f"{THIRD}  is intact")
    found = json.loads(checkpoints(there, "--json", *options).output)
    assert (found["location"], [entry["id"] for entry in found["checkpoints"]]) == (there, [THIRD, SECOND, FIRST])
    assert checkpoints("export", elsewhere, tmp_path / "x.safetensors", *options).exit_code == 0
    done = checkpoints(f"s3://{bucket}-none/x", *options)
    assert done.exit_code == 1
    assert "Traceback" not in done.output


def test_target_network_is_copied_but_not_exported(tmp_path: Path) -> None:
    vector = np.arange(10, dtype=np.float32)
    shards = [
        {"part": f"shard-{i}", "start": 5 * i, "end": 5 * i + 5, "target_generation": 3, "version": 0} for i in (0, 1)
    ]
    parts = {f"shard-{i}": {"parameters": vector[5 * i : 5 * i + 5], "target": np.full(5, i, "<f4")} for i in (0, 1)}
    described = {"algorithm": "mine", "configuration": {}, "observation_space": SPACE}
    manifest = {"fingerprint": described, "configuration": {}, "shards": shards}
    made = CheckpointManager(LocalStore(tmp_path / "from")).save(10, parts, manifest)
    assert checkpoints("verify", tmp_path / "from").exit_code == 0
    assert checkpoints("copy", tmp_path / "from", tmp_path / "to").exit_code == 0
    copied = CheckpointManager(LocalStore(tmp_path / "to")).load(made.checkpoint_id)
    assert copied.manifest["shards"] == shards
    assert [copied.parts[f"shard-{i}"]["target"].tolist() for i in (0, 1)] == [[0.0] * 5, [1.0] * 5]
    exported = checkpoints("export", tmp_path / "to", tmp_path / "policy.safetensors")
    assert exported.exit_code == 0, exported.output
    with safetensors.safe_open(tmp_path / "policy.safetensors", "np") as file:
        assert list(file.keys()) == ["parameters"]
        np.testing.assert_array_equal(file.get_tensor("parameters"), vector)
    damaged = tmp_path / "from" / made.manifest["parts"]["shard-1"]["key"]
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    assert checkpoints("verify", tmp_path / "from").exit_code == 1


def test_export_for_games_is_the_file_of_the_policy(tmp_path: Path) -> None:
    algorithm = load_algorithm("da3c", bundled_folder("algorithms"))
    observation, action = Box(shape=(3,)), Discrete(2)
    config = algorithm.configure({"path": str(algorithm.source), "normalize_rewards": None})
    described, *_ = parse_fingerprint(fingerprint("da3c", config, observation, action))
    vector = algorithm.ParameterServer(config, observation, action).initial_parameters(0)
    shards = [{"part": "shard-0", "start": 0, "end": len(vector)}]
    manifest = {"fingerprint": described, "configuration": {}, "shards": shards}
    CheckpointManager(LocalStore(tmp_path / "from")).save(10, {"shard-0": {"parameters": vector}}, manifest)
    game, file = tmp_path / "policy.rlxp", tmp_path / "policy.safetensors"
    for target in (game, file):
        exported = checkpoints("export", tmp_path / "from", target)
        assert exported.exit_code == 0, exported.output
    assert game.read_bytes() == game_file_of(relaax.policy.load(file))
