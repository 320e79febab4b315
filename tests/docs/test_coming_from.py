"""Pages for users of other libraries: their programs run, before and after, and the names of their tables exist."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.machine import peer_python
from support.pages import DOCS, files
from support.ports import free_ports
from support.processes import Processes, wait_until
from support.service import PARAMETER_SERVER, RELAAX, RLX_SERVER
from support.unity import compiled

SB3, RLLIB, ML_AGENTS = (DOCS / f"from-{name}.md" for name in ("stable-baselines3", "rllib", "ml-agents"))
SERVERS = ("relaax/client", "relaax/server", "relaax/parameters", "algorithms/ppo", "algorithms/da3c")
PEERS = ("tests/benchmarks/peers/venvs.py",)


def checks(page: Path, *paths: str) -> pytest.MarkDecorator:
    return pytest.mark.checks(f"docs/{page.name}", *paths)


def written(page: Path, folder: Path) -> Path:
    """Write the files of a page into a folder."""
    for name, text in files(page).items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def rows(page: Path, head: str) -> list[tuple[list[str], list[str]]]:
    """Return the code in the first two columns of the table with this head, without values."""
    text = page.read_text("utf-8")
    table = text[text.index(f"| {head} |") :].split("\n\n")[0].splitlines()[2:]
    cells = [re.split(r"(?<!\\\\) \| ", line.strip("| "))[:2] for line in table]
    return [
        (
            [re.split("[=:(]", code)[0] for code in re.findall("`([^`]+)`", one)],
            [re.split("[=:(]", code)[0] for code in re.findall("`([^`]+)`", other)],
        )
        for one, other in cells
    ]


def is_open(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("localhost", port)) == 0


TABLES = [(SB3, "`PPO(...)`"), (SB3, "`SAC(...)`"), (RLLIB, "`PPOConfig().training(...)`")]


@pytest.mark.parametrize(("page", "head"), TABLES, ids=["sb3-ppo", "sb3-sac", "rllib-ppo"])
def test_keys_of_tables_exist(page: Path, head: str) -> None:
    known = set(re.findall(r"(?m)^\| `([\w.-]+)` \|", (DOCS / "configuration.md").read_text("utf-8"))) | {
        "network.dense"
    }
    found = [name for _, names in rows(page, head) for name in names]
    assert len(found) > 8
    assert [name for name in found if name not in known] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@checks(SB3, *PEERS)
@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_names_of_stable_baselines3_exist(name: str) -> None:
    code = "import inspect, sys, stable_baselines3 as s; print(*inspect.signature(getattr(s, sys.argv[1])).parameters)"
    done = subprocess.run(
        [peer_python("sb3"), "-c", code, name], capture_output=True, text=True, check=True, timeout=600
    )
    names = {one for names, _ in rows(SB3, f"`{name}(...)`") for one in names}
    assert names - set(done.stdout.split()) == set()


@pytest.mark.slow
@pytest.mark.timeout(900)
@checks(RLLIB, *PEERS)
def test_names_of_rllib_exist() -> None:
    code = "from ray.rllib.algorithms.ppo import PPOConfig as P; c = P(); print(*vars(c), *c.model)"
    python = peer_python("rllib_client")
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    names = {one for names, _ in rows(RLLIB, "`PPOConfig().training(...)`") for one in names}
    assert names - set(done.stdout.split()) == set()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@checks(SB3, *PEERS)
def test_program_of_stable_baselines3_runs(tmp_path: Path, processes: Processes) -> None:
    written(SB3, tmp_path)
    running = processes.start(peer_python("sb3"), "cartpole_sb3.py", "2000", cwd=tmp_path)
    assert running.wait(900) == 0, running.report()
    assert any(re.match(r"mean return \d", line) for line in running.lines), running.report()
    assert running.lines[-1] in ("action 0", "action 1")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@checks(SB3, *SERVERS, "relaax/cli/run", "relaax/policy")
def test_configuration_for_stable_baselines3_learns(tmp_path: Path, processes: Processes) -> None:
    written(SB3, tmp_path)
    options = ("--target-return", "195", "--seed", "1", "--no-progress")
    run = processes.start(*RELAAX, "run", "cartpole.yaml", *options, cwd=tmp_path)
    assert run.wait(900) == 0, run.report()
    export = ("checkpoints", "export", "runs/cartpole", "cartpole.safetensors")
    exported = processes.start(*RELAAX, *export, cwd=tmp_path)
    assert exported.wait(120) == 0, exported.report()
    act = processes.start(sys.executable, "act.py", cwd=tmp_path)
    assert act.wait(120) == 0, act.report()
    assert act.lines[-1] in ("action 0", "action 1")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@checks(RLLIB, *PEERS)
def test_programs_of_rllib_run(tmp_path: Path, processes: Processes) -> None:
    """The client plays by HTTP until the server has trained twice."""
    written(RLLIB, tmp_path)
    python, (port,) = peer_python("rllib_client"), free_ports(1)
    server = processes.start(python, "server.py", str(port), "2", cwd=tmp_path)
    wait_until(lambda: server.returncode is not None or is_open(port), "the server listens", 600, 1)
    game = processes.start(python, "game_rllib.py", f"localhost:{port}", cwd=tmp_path)
    wait_until(lambda: server.returncode is not None, "the server has trained", 900, 1)  # Ray may abort at its exit
    assert sum(line.startswith("mean return ") for line in server.lines) == 2, server.report() + game.report()
    assert (tmp_path / "checkpoint").is_dir()


@pytest.mark.slow
@pytest.mark.timeout(900)
@checks(RLLIB, *SERVERS)
def test_programs_for_users_of_rllib_learn(tmp_path: Path, processes: Processes) -> None:
    written(RLLIB, tmp_path)
    config = ("--config", tmp_path / "room.yaml", "--bind", "127.0.0.1:0")
    places = ("--checkpoint-dir", tmp_path / "checkpoints", "--metrics-dir", tmp_path / "metrics")
    _, parameters = processes.start_server(*PARAMETER_SERVER, *config, *places)
    _, address = processes.start_server(*RLX_SERVER, *config, "--parameter-server", parameters)
    game = processes.start(sys.executable, "-W", "error", "game.py", address, "600", cwd=tmp_path)
    assert game.wait(600) == 0, game.report()
    returns = [float(line.split()[1]) for line in game.lines]
    assert sum(returns[-50:]) / 50 > sum(returns[:50]) / 50 + 5


@pytest.mark.slow
@pytest.mark.timeout(1200)
@checks(ML_AGENTS, *SERVERS, "protocol/clients/csharp", "relaax/cli/run")
@pytest.mark.parametrize("frames", [(), ("--frames", "1")], ids=["waits", "keeps_frame_rate"])
def test_roller_of_unity_learns(tmp_path: Path, processes: Processes, frames: tuple[str, ...], short: bool) -> None:
    """The scene runs in a console program: see protocol/clients/csharp/tests."""
    written(ML_AGENTS, tmp_path)
    compiled(tmp_path / "roller.exe", "tests/Roller.cs", tmp_path / "RollerAgent.cs")
    player = tmp_path / "roller"
    player.write_text(f'#!/bin/sh\nexec mono "{tmp_path}/roller.exe" "$@" {" ".join(frames)}\n', "utf-8")
    player.chmod(0o755)
    target = "0.6" if short or frames else "0.9"
    options = ("--seed", "1", "--no-progress", "--target-return", target)
    run = processes.start(*RELAAX, "run", "roller.yaml", *options, cwd=tmp_path)
    assert run.wait(900) == 0, run.report()
    summary = json.loads((tmp_path / "runs/roller/summary.json").read_text("utf-8"))
    print(summary["env_steps"], summary["seconds"])
    assert summary["status"] == "target_reached"
