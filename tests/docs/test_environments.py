"""The programs of the pages about environments run against a server of the protocol."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from environments.OpenAI_Gym import main
from relaax import rlx
from relaax.cli.app import app
from relaax.cli.run.plan import make_plan
from relaax.client import command
from support.pages import DOCS, block, blocks
from support.processes import Processes
from support.rlx_peer import PeerConnection, RlxPeer, serve

PAGES = [DOCS / f"{name}.md" for name in ("environments", "many-environments", "gymnasium", "environment-programs")]
CHECKED = [f"docs/{page.name}" for page in PAGES]
ADDRESS = "localhost:7001"


def random_serve(conn: PeerConnection) -> None:
    rng = np.random.default_rng(3)
    conn.policy = lambda message, conn: [rng.integers(conn.hello.action_space.n, size=conn.hello.environments)]
    serve(conn)


def text_of(name: str) -> str:
    """Return the text of the block with this name on one of the pages."""
    (page,) = [page for page in PAGES if any(name in (made.file, made.name) for made in blocks(page))]
    return block(page, name)


def lines(name: str) -> list[list[str]]:
    """Return the commands of a block of the pages, as words."""
    return [shlex.split(line) for line in text_of(name).splitlines()]


def connections_of(command: list[str], folder: Path, processes: Processes) -> tuple[list[PeerConnection], list[str]]:
    """Run a command of the page. Return its connections and the lines that it printed."""
    program = command[1]
    for name in ("room.py", "room_env.py", program):
        (folder / name).write_text(text_of(name), encoding="utf-8")
    with RlxPeer(random_serve) as peer:
        assert ADDRESS in command
        words = [peer.address if word == ADDRESS else word for word in command[1:]]
        running = processes.start(sys.executable, "-W", "error", *words, cwd=folder)
        assert running.wait(60) == 0, running.report()
        return peer.connections, running.lines


def test_program_for_one_environment_runs(tmp_path: Path, processes: Processes) -> None:
    (command,) = lines("one")
    (conn,), printed = connections_of(command, tmp_path, processes)
    resets = conn.of(rlx.Reset)
    assert len(resets) == len(printed) == int(command[-1])
    assert conn.hello.autoreset == (rlx.Autoreset.DISABLED,)
    cut = [reset.truncated is not None for reset in resets]
    assert any(cut)
    assert all((reset.final_observation is not None) for reset in resets)
    assert {name for message in conn.of(rlx.Metrics) for name, _ in message.scalars} >= {"last_temperature"}


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_program_for_many_environments_runs(autoreset: str, tmp_path: Path, processes: Processes) -> None:
    (command,) = [command for command in lines("many") if autoreset in command[1]]
    (conn,), _ = connections_of(command, tmp_path, processes)
    steps = conn.of(rlx.Step)
    assert len(steps) == int(command[-1])
    assert conn.hello.environments == int(command[-2])
    assert conn.hello.autoreset == (rlx.Autoreset[autoreset.upper()],)
    assert any(step.truncated is not None for step in steps)
    assert any(step.first is not None for step in steps) == (autoreset == "next_step")


def test_gymnasium_program_runs(tmp_path: Path, processes: Processes) -> None:
    (command,) = lines("gymnasium")
    (single, vector), printed = connections_of(command, tmp_path, processes)
    assert (single.hello.environments, vector.hello.environments) == (1, 4)
    assert all(f"steps={command[-1]}" in line for line in printed)


def test_program_reports_whole_episodes(tmp_path: Path, processes: Processes) -> None:
    (command,) = lines("lives")
    (conn,), printed = connections_of(command, tmp_path, processes)
    resets, episodes = conn.of(rlx.Reset), int(command[-1])
    assert conn.hello.reports_episodes
    assert len(resets) == 3 * episodes
    assert [len(reset.episodes) for reset in resets] == [0, 0, 1] * episodes
    assert len(printed) == episodes


@pytest.mark.slow
@pytest.mark.checks(*CHECKED, "relaax/client", "environments/OpenAI_Gym")
def test_slow_program_sends_pings(tmp_path: Path, processes: Processes) -> None:
    (command,) = lines("slow")
    (conn,), printed = connections_of(command, tmp_path, processes)
    assert len(conn.of(rlx.Ping)) >= len(printed) >= 1


def test_template_runs_with_spaces_of_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, lines("family")[0][1:]).exit_code == 0
    text = (tmp_path / "my_world" / "main.py").read_text(encoding="utf-8")
    world, found = re.compile(r"class World:.*?(?=\n\n\n|\Z)", re.DOTALL), "from relaax.client import Box, Discrete,"
    assert found in text
    text = world.sub(lambda _: world.findall(text_of("my_spaces.py"))[0].rstrip(), text, count=1)
    (tmp_path / "my_world" / "main.py").write_text(text.replace(found, found.replace(",", ", Dict,", 1)))
    with RlxPeer() as peer:
        line = command.parser("my_world/main", "", "").parse_args([peer.address, "robots", "3", "--steps", "600"])
        summary = runpy.run_path("my_world/main.py")["main"](line)
        (conn,) = peer.connections
    assert summary.steps == 600
    assert isinstance(conn.hello.observation_space, rlx.Dict)
    assert len(conn.of(rlx.Step)) == 200


def test_configurations_of_page_give_their_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("car.yaml").write_text(text_of("car.yaml"), encoding="utf-8")
    Path("lake.yaml").write_text(text_of("lake.yaml"), encoding="utf-8")
    ((*_, lake, _, slippery, _, size, _, _),) = lines("any")
    _, _, *words = make_plan("car.yaml", ["run.envs_per_client=1"]).client_command("random", 0)
    hello = hello_of(words)
    assert (str(hello.observation_space), hello.frame_skip) == ("Box(uint8, [84, 84], 0..255)", 4)
    plan = make_plan(lake, [slippery, size])
    assert plan.run.kwargs == {"is_slippery": False, "map_name": "8x8"}


@pytest.mark.slow
@pytest.mark.checks(*CHECKED, "relaax/client", "environments/OpenAI_Gym")
def test_options_of_page_give_same_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("my_package").mkdir()
    Path("my_package/__init__.py").write_text(text_of("my_package/__init__.py"))
    Path("room.py").write_text(text_of("room.py"))
    Path("my_package/room.py").write_text(text_of("room_env.py"))
    Path("my_package/wrappers.py").write_text(
        "import gymnasium\nclass Scaled(gymnasium.RewardWrapper):\n"
        "    def __init__(self, env, by):\n        super().__init__(env)\n        self.by = by\n"
        "    def reward(self, reward):\n        return self.by * reward\n"
    )
    found = [hello_of(words[3:]) for words in lines("needs servers")]
    assert [str(hello.observation_space) for hello in found] == [
        "Discrete(64)", "Box(float32, [8])", "Box(uint8, [84, 84], 0..255)", "Box(float32, [2], -5..5)",
        "Box(bool, [10, 10, 4], 0..1)",
    ]  # fmt: skip
    assert found[1].action_space == rlx.Box(-1, 1, (2,))


def hello_of(words: list[str]) -> rlx.Hello:
    """Run environments/OpenAI_Gym/main with these words, and return its Hello message."""
    with RlxPeer() as peer:
        main.main(main.parser().parse_args([peer.address, *words[1:], "--steps", "8"]))
        (conn,) = peer.connections
    return conn.hello
