"""The program of docs/trackers.md that copies a training to Weights & Biases, without an account."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from relaax.server.tracker.event_tail import EventTail
from support.pages import DOCS, block
from support.run import PATIENCE, SMALL, Runs

FOLDER = Path("~/.cache/relaax-wandb").expanduser()
PAGE = DOCS / "trackers.md"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1000),
    pytest.mark.checks("docs/trackers.md", "relaax/metrics", "relaax/configuration", "tests/support/install-trackers"),
    pytest.mark.skipif(
        not (FOLDER / "wandb").is_dir(), reason="wandb is not installed; tests/support/install-trackers installs it"
    ),
]
READ = """\
import json, struct, sys
from pathlib import Path
from wandb.proto.wandb_internal_pb2 import Record
content, at, data, rows, config = Path(sys.argv[1]).read_bytes(), 7, b"", [], {}
assert content[:4] == b":W&B"
while at + 7 <= len(content):
    if 32768 - at % 32768 < 7:  # the end of a block is empty
        at += 32768 - at % 32768
        continue
    _, length, kind = struct.unpack_from("<IHB", content, at)
    data, at = data + content[at + 7 : at + 7 + length], at + 7 + length
    if kind not in (1, 4):  # the record continues
        continue
    record, data = Record.FromString(data), b""
    if record.HasField("run"):
        config |= {one.key: json.loads(one.value_json) for one in record.run.config.update}
    if record.HasField("history"):
        rows.append({"/".join(one.nested_key) or one.key: json.loads(one.value_json) for one in record.history.item})
print(json.dumps([config, rows]))
"""
"""Reads the configuration and the rows of an offline run: records of W&B in the format of LevelDB's log."""


def test_documented_commands_copy_a_training(runs: Runs, tmp_path: Path) -> None:
    secret = "run.kwargs={api_key: swordfish}"
    run = runs.start(*SMALL, "--max-steps", "3000", "--set", "run.target_return=null", config="da3c_gym_cartpole")
    assert run.running.wait(PATIENCE + 120) == 0, run.running.report()
    configuration = run.directory / "configuration.yaml"
    shown = configuration.read_text("utf-8")
    assert "kwargs: {}" in shown
    configuration.write_text(shown.replace("kwargs: {}", secret.replace("run.kwargs=", "kwargs: ")), "utf-8")
    here = tmp_path / "here"
    (here / "runs").mkdir(parents=True)
    (here / "runs" / "da3c_gym_cartpole").symlink_to(run.directory)
    (here / "to_wandb.py").write_text(block(PAGE, "to_wandb.py"), "utf-8")
    (line,) = re.findall(r"^(WANDB_MODE=.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    assignment, program, *arguments = shlex.split(line)
    assert program == "python"
    name, _, value = assignment.partition("=")
    done = _python(here, *arguments, **{name: value})
    assert done.returncode == 0, done.stderr

    (folder,) = here.glob("wandb/offline-run-*")  # as in the command of the page
    (file,) = folder.glob("run-*.wandb")
    assert b"swordfish" not in file.read_bytes()
    read = _python(here, "-c", READ, str(file))
    assert read.returncode == 0, read.stderr
    config, rows = json.loads(read.stdout)
    assert config["relaax-run"]["name"] == "CartPole-v1"
    scalars = EventTail(run.directory / "metrics").read(10**6)
    written = [(one.step, one.value) for one in scalars if one.name == "episode/return"]
    copied = [(row["global_step"], row["episode/return"]) for row in rows if "episode/return" in row]
    assert len(copied) >= 2
    assert [step for step, _ in copied] == [step for step, _ in written]
    assert [value for _, value in copied] == pytest.approx([value for _, value in written])


def _python(here: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(FOLDER)])
    environment = {**os.environ, "PYTHONPATH": path, "HOME": str(here), "WANDB_ERROR_REPORTING": "false", **variables}
    environment.pop("WANDB_API_KEY", None)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=here,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
