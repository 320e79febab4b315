"""docs/getting-started.md and docs/seeds.md, followed from top to bottom in an empty folder."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from support.pages import DOCS, block
from support.processes import Processes, Running

PAGE = DOCS / "getting-started.md"
PARAMETER_SERVER, RLX_SERVER = "localhost:7000", "localhost:7001"


class Folder:
    """An empty folder with a shell in it, in which the commands of the project are found."""

    def __init__(self, path: Path, processes: Processes) -> None:
        self._path = path
        self._processes = processes

    def start(self, command: str) -> Running:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return self._processes.start("bash", "-euc", command, cwd=self._path, env={"PATH": path})

    def do(self, command: str) -> list[str]:
        """Run a block of a page; what it printed."""
        shell = self.start(command)
        assert shell.wait(1200) == 0, shell.report()
        return shell.lines

    def write(self, name: str) -> None:
        (self._path / name).write_text(block(PAGE, name), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, processes: Processes) -> Folder:
    path = tmp_path / "empty"
    path.mkdir()
    return Folder(path, processes)


def limited(text: str, short: bool) -> str:
    """In the short form a training ends early, and does not mind."""
    return re.sub(r"--target-return \d+$", r"\g<0> --max-steps 8000 || true", text.strip()) if short else text


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_from_nothing_to_a_trained_agent(folder: Folder, short: bool) -> None:
    trained = folder.do(limited(block(PAGE, "train"), short))
    assert short or any(line.startswith("target_reached") for line in trained), trained
    assert any("drawn into plot.png" in line for line in folder.do(block(PAGE, "plot")))

    resumed = folder.do(block(PAGE, "resume"))
    assert sum("(resuming)" in line for line in resumed) == 1
    acts(folder, expected=0 if short else 400)

    folder.write("mine.yaml")
    assert any("drawn into" in line for line in folder.do(block(PAGE, "settings")))
    learned = folder.do(block(PAGE, "mine"))
    assert any(line.startswith("target_reached") for line in learned), learned


def acts(folder: Folder, expected: float) -> None:
    """The part of the page with servers: those that it starts, at ports that are free."""
    first, second = block(PAGE, "servers").splitlines()
    parameter_server = folder.start("exec " + first.replace(PARAMETER_SERVER, "localhost:0"))
    address = parameter_server.wait_for_address()
    assert "resuming from" in parameter_server.stderr
    rlx_server = folder.start(f"exec {second.replace(RLX_SERVER, 'localhost:0')} --parameter-server {address}")
    address = rlx_server.wait_for_address()

    (played,) = folder.do(block(PAGE, "exploit").replace(RLX_SERVER, address))
    counted = re.search(r"20 episodes, mean return ([\d.]+)", played)
    assert counted
    assert float(counted[1]) >= expected

    folder.write("play.py")
    (last,) = folder.do(block(PAGE, "play").replace(RLX_SERVER, address))
    assert float(last) >= expected / 2
    for server in (rlx_server, parameter_server):
        assert server.stop(signal.SIGINT, timeout=60) == 130, server.report()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_one_client_repeats_bit_for_bit(folder: Folder, short: bool) -> None:
    commands = block(DOCS / "seeds.md", "one")
    assert folder.do(commands.replace("=20000", "=3000") if short else commands)[-1] == "the same"
