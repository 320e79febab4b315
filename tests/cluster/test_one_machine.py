"""`relaax cluster` on a Ray cluster of one machine, with a token."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.cluster_training import ClusterTraining, of_role
from support.processes import Processes, wait_until
from support.ray_nodes import RayNodes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.checks("relaax/cluster", "relaax/cli/cluster", "relaax/cli/tune/places.py", "relaax/supervision"),
]
CARTPOLE = "da3c_gym_cartpole"
ENDLESS = ("--set", "run.clients=2", "--set", "run.target_return=null")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    folder = tmp_path_factory.mktemp("ray")
    with Processes(folder) as processes, RayNodes(processes) as made:
        made.start(0, 8)
        yield made


def test_training_outlives_its_command_and_ends_with_checkpoint(nodes: RayNodes, tmp_path: Path) -> None:
    with ClusterTraining(nodes, CARTPOLE, tmp_path, "--set", "parameter-server.shards=2", *ENDLESS) as training:
        status = training.wait_running()
        assert {process["name"] for process in status["processes"]} == {
            *("parameter-server", "parameter-server-1", "rlx-server", "client-0", "client-1"),
        }
        assert nodes.relaax("cluster", "status").stdout.startswith("it: running")
        shown = nodes.relaax("cluster", "status", "it").stdout
        assert "rlx-server" in shown
        training.wait_until(lambda said: of_role(said, "rlx-server")[0]["connections"] == 2, "both play")
        asked = nodes.relaax("cluster", "scale", "it", "--clients", "1", "--rlx-servers", "2")
        assert asked.returncode == 0, asked.stderr
        training.wait_until(
            lambda said: len(of_role(said, "rlx-server")) == 2 and len(of_role(said, "client")) == 1, "it is so"
        )
        again = nodes.relaax("cluster", "start", CARTPOLE, "--name", "it")
        assert (again.returncode, "it is running" in again.stderr) == (2, True), again.stdout + again.stderr
        summary = training.stop()
    assert summary["status"] == "interrupted"
    assert summary["lost_steps"] == 0
    assert summary["env_steps"] > 0
    assert Path(summary["checkpoint"]).is_file()
    assert list((training.folder / "metrics").iterdir()), "TensorBoard has nothing to show"
    assert nodes.relaax("cluster", "status").stdout == "no training; relaax cluster start CONFIG starts one\n"


def test_run_on_ray_ends_like_a_local_run(nodes: RayNodes, tmp_path: Path) -> None:
    ended = nodes.relaax(
        *("run", CARTPOLE, "--on", "ray", "--run-dir", str(tmp_path / "run"), "--max-steps", "2000", "--no-progress"),
        *("--target-return", "500", "--summary", str(tmp_path / "summary.json")),
    )
    assert ended.returncode == 3, ended.stdout + ended.stderr
    assert "max_steps" in ended.stdout
    assert not re.search(r"^ *\d+ s  ", ended.stdout, re.MULTILINE), "unwanted progress numbers"
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "max_steps"


@pytest.mark.checks("relaax/cluster", "relaax/cli/cluster", "relaax/cli/web", "relaax/cli/run/live_page.py")
def test_live_page_shows_a_training_on_ray(nodes: RayNodes, processes: Processes, tmp_path: Path) -> None:
    run = tmp_path / "run"
    watching = processes.start(
        *(sys.executable, "-m", "relaax.cli.main", "run", CARTPOLE, "--on", "ray", "--run-dir", run, "--web"),
        *("--max-steps", "100000", *ENDLESS),
        env=nodes.environment,
    )
    for sentence in ("live page at ", "environments connect to"):  # in either order
        watching.wait_for_line(sentence, 180.0)
    (url,) = re.findall(r"http://\S+", " ".join(line for line in watching.lines if "live page" in line))

    def page() -> dict[str, Any]:
        with urllib.request.urlopen(f"{url.rstrip('/')}/data", timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    wait_until(lambda: len(page()["tables"]["workers"]["rows"]) == 2, "the page lists both workers", 180.0)
    wait_until(lambda: "episode/mean_return_100" in page()["curves"], "the page has the curve of returns", 180.0)
    watching.interrupt_group()
    assert watching.wait(60.0) == 130
    assert nodes.relaax("cluster", "stop", CARTPOLE).returncode == 0


def test_control_c_ends_the_command_but_not_the_training(nodes: RayNodes, processes: Processes, tmp_path: Path) -> None:
    watching = processes.start(
        *(sys.executable, "-m", "relaax.cli.main", "run", CARTPOLE, "--on", "ray", "--run-dir", tmp_path / "run"),
        env=nodes.environment,
    )
    watching.wait_for_line("environments connect to", 180.0)
    watching.interrupt_group()
    assert watching.wait(60.0) == 130
    assert any("continues; relaax cluster stop" in line for line in watching.lines)
    assert nodes.relaax("cluster", "status").stdout.startswith(f"{CARTPOLE}: running")
    assert nodes.relaax("cluster", "stop", CARTPOLE).returncode == 0


def test_killed_search_finds_its_trials_on_the_cluster(nodes: RayNodes, processes: Processes, tmp_path: Path) -> None:
    command = ("tune", CARTPOLE, "--on", "ray", "--dir", tmp_path / "study", "--trials", "3", "--jobs", "2")
    keys = ("run.target_return=null", "run.clients=1", "run.checkpoint_interval=1")
    words = (*command, "--max-steps", "4000", *(word for key in keys for word in ("--set", key)))
    first = processes.start(sys.executable, "-m", "relaax.cli.main", *words, env=nodes.environment)
    first.wait_for_line("trial 1: algorithm", 180.0)
    first.kill()
    again = nodes.relaax(*map(str, words), timeout=900.0)
    assert again.returncode == 0, again.stdout + again.stderr
    for number in range(3):
        summary = json.loads((tmp_path / "study" / f"trial-{number}" / "summary.json").read_text())
        assert summary["env_steps"] >= 4000
    assert "2 begun before" in again.stdout
    assert (tmp_path / "study" / "best.yaml").is_file()
    assert nodes.relaax("cluster", "status").stdout == "no training; relaax cluster start CONFIG starts one\n"


def test_invalid_requests_end_with_a_clear_error(nodes: RayNodes, tmp_path: Path) -> None:
    unknown = nodes.relaax("cluster", "attach", "nothing")
    assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1), unknown.stderr
    assert "nothing" in unknown.stderr
    config = nodes.relaax("cluster", "start", CARTPOLE, "--set", "run.name=Cartpoole", "--run-dir", str(tmp_path))
    assert (config.returncode, "Cartpoole" in config.stderr) == (2, True), config.stdout + config.stderr
    with RayNodes(Processes(tmp_path)) as stranger:  # with another token
        refused = stranger.relaax("cluster", "status", "--address", nodes.address)
    assert refused.returncode == 2
    assert "needs its token" in refused.stderr
    assert "Traceback" not in refused.stderr
    nobody = nodes.relaax("cluster", "status", "--address", "127.0.0.1:1")
    assert (nobody.returncode, "no Ray cluster at 127.0.0.1:1" in nobody.stderr) == (2, True), nobody.stderr


def test_dead_process_is_restarted(nodes: RayNodes, tmp_path: Path) -> None:
    with ClusterTraining(nodes, CARTPOLE, tmp_path, *ENDLESS) as training:
        training.wait_until(lambda said: of_role(said, "rlx-server")[0]["connections"] == 2, "both play")
        server = of_role(training.wait_running(), "parameter-server")[0]
        os.kill(server["pid"], signal.SIGKILL)
        training.wait_until(
            lambda status: of_role(status, "parameter-server")[0]["restarts"] == 1, "it is started again"
        )
        training.wait_until(lambda status: of_role(status, "rlx-server")[0]["connections"] == 2, "both play again")
        summary = training.stop()
    assert summary["lost_steps"] == 0


def test_process_with_missing_folder_gets_a_new_one(nodes: RayNodes, tmp_path: Path) -> None:
    with ClusterTraining(nodes, CARTPOLE, tmp_path, *ENDLESS) as training:
        training.wait_until(lambda said: of_role(said, "rlx-server")[0]["connections"] == 2, "both play")
        server = of_role(training.wait_running(), "rlx-server")[0]
        (folder,) = set(re.findall(r"/\S*/relaax-keeper-[^/\s]*", " ".join(psutil.Process(server["pid"]).cmdline())))
        shutil.rmtree(folder)
        os.kill(server["pid"], signal.SIGKILL)
        training.wait_until(
            lambda said: of_role(said, "rlx-server")[0]["restarts"] > 1, "it fails once where it was, then starts"
        )
        training.wait_until(lambda said: of_role(said, "rlx-server")[0]["connections"] == 2, "both play again")
        summary = training.stop()
    assert summary["lost_steps"] == 0
    assert "its keeper failed" in (training.folder / "logs/rlx-server.log").read_text()
