"""The addon for Godot: its example is trained, plays from a file, and reports what it cannot do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relaax.policy
from environments.Godot.game import GodotGame, godot_for
from relaax import rlx
from relaax.algorithm_base import Box, Discrete
from relaax.client.connection.values import values_of
from relaax.policy.game_export import game_file_of
from relaax.rlx.connection import GRPC_PORT_ERROR
from support.client_languages import LANGUAGES, Language, placed, require
from support.policy_files import bundled, write
from support.programs import program
from support.rlx_peer import PeerConnection, RlxPeer, refuse
from support.run import Runs
from support.service import RELAAX

from .test_wrong_ports import grpc_server

GODOT = LANGUAGES["godot"].folder
PATIENCE = 240.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.checks(
        *("protocol/clients/godot", "environments/Godot", "config/ppo_godot_collector.yaml"),
        *("relaax/policy", "relaax/algorithm_base", "relaax/client/program", "relaax/rlx", "algorithms/ppo"),
    ),
]
Play = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(params=["godot", "godot4"])
def version(request: pytest.FixtureRequest) -> str:
    """Return the name of a client, for each version of Godot. The test is skipped without this Godot."""
    name: str = request.param
    require(LANGUAGES[name])
    return name


@pytest.fixture
def engine(built: Callable[[str], tuple[Language, Path]], version: str) -> list[str]:
    """Return the words that start this Godot with its example, the folder last."""
    language, out = built(version)
    return placed(language.play[2:], out)


@pytest.fixture
def project(engine: list[str]) -> Path:
    """Return the folder of the example for this version."""
    return Path(engine[-1])


@pytest.fixture
def play(tmp_path: Path, engine: list[str]) -> Play:
    """Return a function that runs Godot on the example to its end. The files of Godot are in `tmp_path`."""

    def run(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "godot" / "app_userdata" / "RELAAX").mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "LANG": "en", "XDG_DATA_HOME": str(tmp_path), **variables}
        command = ["sh", "-c", 'exec "$@"', "sh", *engine, *options]  # sh sets PWD
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )

    return run


def errors(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the sentences that the addon reported. All other errors of Godot fail the test."""
    assert "SCRIPT ERROR" not in done.stderr, done.stderr
    return [line.partition("RLX: ")[2] for line in done.stderr.splitlines() if line.startswith("ERROR")]


def policy_file(folder: Path, observed: int, actions: int = 5) -> Path:
    path, *_ = write(folder, bundled("da3c"), Box(shape=(observed,)), Discrete(actions))
    file = folder / "policy.rlxp"
    file.write_bytes(game_file_of(relaax.policy.load(path)))
    return file


def test_collector_is_learned_and_plays_without_server(runs: Runs, play: Play, project: Path, tmp_path: Path) -> None:
    target = 6
    options = ("--seed", "1", "--no-progress", "--target-return", str(target))
    named = ("--set", f"relaax-run.name={project}")
    run = runs.start(*options, *named, config="ppo_godot_collector")
    assert run.running.wait(600) == 0, run.running.report()
    summary = run.summary
    assert summary["status"] == "target_reached"
    file = tmp_path / "collector.rlxp"
    subprocess.run([*RELAAX, "checkpoints", "export", run.directory, file], check=True, timeout=PATIENCE)
    done = play("--policy", file.name, "--episodes", "96", "--agents", "16", "--speed", "1000", "--seed", "5")
    assert (done.returncode, errors(done)) == (0, []), done.stderr
    found = re.search(r"(\d+) steps, (\d+) episodes, mean return (\d+\.\d+)", done.stdout)
    assert found, done.stdout
    print(f"{summary['env_steps']} steps, {summary['seconds']} s, {found[0]}")
    assert float(found[3]) >= target, "random play returns 0.6"


@pytest.mark.parametrize("damage", ["missing", "text", "cut", "changed", "other observations", "other actions"])
def test_unusable_policy_is_refused_with_a_sentence(play: Play, tmp_path: Path, damage: str) -> None:
    file = policy_file(tmp_path, 7 if damage == "other observations" else 40, 3 if damage == "other actions" else 5)
    contents = file.read_bytes()
    if damage == "missing":
        file.unlink()
    elif damage == "text":
        file.write_text("a policy", "utf-8")
    elif damage == "cut":
        file.write_bytes(contents[:-5])
    elif damage == "changed":
        file.write_bytes(contents[:99] + bytes([contents[99] ^ 1]) + contents[100:])
    done = play("--policy", str(file), "--episodes", "1")
    sentence = {
        "missing": f"cannot read the policy {file}: does the file exist, and does the export of the game include"
        " *.rlxp?",
        "text": f"{file}: this is not a policy: `relaax checkpoints export LOCATION FILE.rlxp` writes one",
        "cut": f"{file}: the policy is damaged: its checksum differs",
        "changed": f"{file}: the policy is damaged: its checksum differs",
        "other observations": f"{file} is a policy for other observations: 7 float32, and the game has 40 float32",
        "other actions": f"{file} is a policy for other actions: choices [3], and the game has choices [5]",
    }[damage]
    assert (done.returncode, errors(done)) == (2, [sentence])


def test_game_reports_wrong_port_and_closed_port(play: Play) -> None:
    with grpc_server() as port:
        done = play("--rlx", f"127.0.0.1:{port}")
        assert (done.returncode, errors(done)) == (1, [f"127.0.0.1:{port}: {GRPC_PORT_ERROR}"])
    done = play("--rlx", f"127.0.0.1:{port}", "--retry-seconds", "0.1")
    question = f"cannot connect to 127.0.0.1:{port}: is an RLX server running there?"
    assert (done.returncode, errors(done)) == (1, [question])


@pytest.mark.parametrize("option", [("--speed", "fast"), ("--episodes",)])
def test_invalid_option_of_the_game_is_named(play: Play, option: tuple[str, ...]) -> None:
    done = play("--policy", "none.rlxp", *option)
    assert done.returncode == 2
    assert errors(done)[0].startswith(f"{option[0]} needs a ")


def test_refused_token_ends_the_game(play: Play) -> None:
    with RlxPeer(refuse(rlx.ErrorCode.UNAUTHENTICATED, "the token is wrong")) as peer:
        done = play("--rlx", peer.address, RELAAX_TOKEN="secret")
        assert (done.returncode, errors(done)) == (2, ["the token is wrong"])
        assert peer.connections[0].hello.token == "secret"


def finish(conn: PeerConnection, steps: int) -> None:
    conn.welcome()
    for _ in range(steps):
        conn.answer()
    conn.receive()
    conn.send(rlx.TrainingFinished("enough", steps))
    conn.close()


def test_game_reconnects_and_ends_with_training(play: Play) -> None:
    def cut(conn: PeerConnection) -> None:
        conn.welcome()
        for _ in range(5):
            conn.answer()
        conn.kill()

    with RlxPeer(cut, lambda conn: finish(conn, 70)) as peer:
        done = play("--rlx", peer.address, "--agents", "3", "--speed", "1000", "--name", "coins")
    assert done.returncode == 0, done.stderr
    assert "training has finished: enough" in done.stdout
    first, second = peer.connections
    assert second.hello.session_id == "session-1"
    hello = first.hello
    assert (hello.environment, hello.environments, hello.frame_skip) == ("coins", 3, 6)
    assert (hello.observation_space, hello.action_space) == (
        rlx.Box(-np.inf, np.inf, (40,), np.float32),
        rlx.Discrete(5),
    )
    steps = second.of(rlx.Step)
    ended = [at for at, step in enumerate(steps) if step.truncated is not None and np.any(step.truncated)]
    assert ended == [59]
    last = steps[59]
    assert np.all(last.truncated)
    assert not np.array_equal(last.final_observation[0], last.observation[0])


def test_person_takes_over_and_the_action_is_sent(play: Play) -> None:
    """The server answers 0, to stay. The person walks to the right (4), to the wall."""
    with RlxPeer(lambda conn: finish(conn, 20)) as peer:
        done = play("--script", "tests/takeover.gd", "--rlx", peer.address, "--agents", "2", "--speed", "100")
    assert done.returncode == 0, done.stderr
    conn = peer.connections[0]
    assert conn.hello.chosen_actions
    steps = conn.of(rlx.Step)
    assert all(step.chosen is not None and np.all(step.chosen) for step in steps)
    assert all(np.array_equal(step.action[0], [4, 4]) for step in steps)
    wall = conn.of(rlx.Step)[-1].observation[0][:, 1]  # the ray to the right
    assert np.all(wall > 0.9)


def test_camera_sees_a_window(tmp_path: Path, version: str, project: Path) -> None:
    windows = {"godot": "godot3-runner", "godot4": "godot"}
    if not shutil.which(windows[version]) or not shutil.which("xvfb-run"):
        pytest.skip("this machine draws nothing: apt-get install godot3-runner xvfb xauth libgl1-mesa-dri")
    command = ["xvfb-run", "-a", windows[version], "--audio-driver", "Dummy", "--path", str(project)]
    environment = {**os.environ, "LANG": "en", "XDG_DATA_HOME": str(tmp_path)}
    done = subprocess.run(
        [*command, "--script", "tests/camera.gd"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    red, blue = "255, 0, 0", "0, 0, 255"
    rows = ", ".join([red, red, blue, blue, blue, blue, blue, blue])
    assert f"picture [2, 4, 3] [{rows}]" in done.stdout, done.stdout + done.stderr


def test_camera_without_a_window_is_reported(play: Play) -> None:
    done = play("--script", "tests/camera.gd")
    (found,) = [line for line in errors(done) if line]
    assert "sees nothing, because this Godot draws nothing: run it with a window" in found


def test_reset_with_a_seed_starts_a_new_game(project: Path) -> None:
    """Without a seed, it returns the newest observation: the next episode has begun by itself."""
    godot_game = GodotGame(project, godot_for(project), 1, 1)
    seen, taken = (values_of(s) for s in (godot_game.single_observation_space, godot_game.single_action_space))
    idle = taken.from_leaves(iter([np.zeros((1, *e.shape), e.dtype) for e in taken.space.elements()]), False)

    def numbers(observations: Any) -> list[float]:
        return np.concatenate([leaf.ravel() for leaf in seen.to_leaves(observations, 1)]).tolist()

    def play(seed: int) -> list[list[float]]:
        return [numbers(godot_game.reset(seed=seed)[0]), *(numbers(godot_game.step(idle)[0]) for _ in range(20))]

    try:
        first, other, again = play(1), play(2), play(1)
        assert first == again
        assert first != other
        assert numbers(godot_game.reset()[0]) == again[-1]
    finally:
        godot_game.close()


def test_program_plays_at_random_and_checks_the_game(project: Path) -> None:
    done = program("Godot", "random", str(project), "8", "--steps", "1600", "--seed", "1")
    assert (done.returncode, done.stderr) == (0, "")
    found = re.fullmatch(r"1600 steps, 24 episodes, mean return (\d\.\d+) .*\n", done.stdout)
    assert found, done.stdout
    assert 0.2 < float(found[1]) < 1.2
    done = program("Godot", "check", str(project), "2")
    assert done.returncode == 0, done.stderr
    assert "no warnings" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nowhere",), "nowhere has no file project.godot: use collector, or the folder of a project of Godot"),
        (("collector", "--display"), "this game has no window: start Godot itself with --path FOLDER"),
        (("collector", "--connections", "2"), "a game has one connection"),
    ],
)
def test_program_refuses_what_a_game_cannot(arguments: tuple[str, ...], sentence: str) -> None:
    done = program("Godot", "random", *arguments, DISPLAY=":99")
    assert done.returncode == 2
    assert sentence in done.stderr


SCENE = """[gd_scene load_steps=2 format=2]
[ext_resource path="res://addons/relaax/trainer.gd" type="Script" id=1]
[node name="Trainer" type="Node"]
script = ExtResource( 1 )
"""


def test_program_reports_the_error_of_the_game(tmp_path: Path) -> None:
    """The scene has a trainer, but no agent."""
    require(LANGUAGES["godot"])
    shutil.copytree(GODOT / "addons", tmp_path / "addons")
    (tmp_path / "game.tscn").write_text(SCENE, "utf-8")
    text = 'config_version=4\n[application]\nconfig/name="game"\nrun/main_scene="res://game.tscn"\n'
    (tmp_path / "project.godot").write_text(text, "utf-8")
    done = program("Godot", "random", str(tmp_path))
    sentence = "the game ended before it connected: the scene has no agent: add a node with a script that extends"
    assert done.returncode == 1
    assert done.stderr.startswith(f"Godot/main: {sentence}"), done.stderr
    assert done.stderr.count("\n") == 1


OWN_SCENE = """[gd_scene load_steps=5 format=2]
[ext_resource path="res://player.gd" type="Script" id=1]
[ext_resource path="res://agent.gd" type="Script" id=2]
[ext_resource path="res://addons/relaax/sensors/ray_sensor_2d.gd" type="Script" id=3]
[ext_resource path="res://addons/relaax/trainer.gd" type="Script" id=4]
[node name="Game" type="Node2D"]
[node name="Player" type="Node2D" parent="."]
script = ExtResource( 1 )
[node name="Agent" type="Node2D" parent="Player"]
script = ExtResource( 2 )
max_decisions = 20
[node name="Rays" type="Node2D" parent="Player/Agent"]
script = ExtResource( 3 )
groups = [ "wall" ]
[node name="Trainer" type="Node" parent="."]
script = ExtResource( 4 )
"""
PLAYER = "extends Node2D\n\nfunc move(action):\n\tposition.x += action - 1\n\t$Agent.add_reward(0.5)\n"


def test_page_is_followed_in_an_empty_project(version: str, project: Path, tmp_path: Path) -> None:
    """The agent is that of the page. Its player moves in each of 4 frames of a decision."""
    shutil.copytree(project / "addons", tmp_path / "addons")
    page = (GODOT / "README.md").read_text("utf-8")
    (agent,) = re.findall(r"```text\n(extends \"res://addons/relaax/agent\.gd\".*?)```", page, re.DOTALL)
    files = {"agent.gd": agent, "player.gd": PLAYER, "game.tscn": OWN_SCENE}
    settings = f"config_version={4 if version == 'godot' else 5}\n"
    files["project.godot"] = settings + '[application]\nconfig/name="game"\nrun/main_scene="res://game.tscn"\n'
    for name, text in files.items():
        (tmp_path / name).write_text(text, "utf-8")
    done = program("Godot", "random", str(tmp_path), "--steps", "100")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("100 steps, 5 episodes, mean return 40.0 of"), done.stdout


def test_files_for_godot_4_replace_none(tmp_path: Path) -> None:
    """No call that only Godot 3 has remains."""
    program = [sys.executable, str(GODOT / "for_godot_4.py"), "new"]
    written = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert written.stdout.startswith(f"{len(list((tmp_path / 'new').rglob('*.*')))} files for Godot 4 in new;")
    scripts = "".join(path.read_text("utf-8") for path in (tmp_path / "new").rglob("*.gd"))
    assert not re.findall(r"\bPool\w+|\bexport\(|\bOS\.get_ticks|\.subarray\(|\bFile\.new", scripts)
    again = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (again.returncode, again.stderr) == (
        1,
        "new is not empty: give a new folder, and copy addons/relaax from there\n",
    )
    (tmp_path / "file").touch()
    into = subprocess.run([*program[:2], "file/new"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (into.returncode, into.stderr) == (1, "cannot write file/new: Not a directory\n")
