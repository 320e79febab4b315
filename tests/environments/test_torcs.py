"""Races of TORCS with the real game and robot; skipped without them."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from environments.TORCS import build, race
from environments.TORCS.main import check_arguments, main, parser
from relaax import rlx
from relaax.client.command import UsageError
from relaax.client.connection.address import LOCAL
from relaax.client.program.agents import Game, playing
from support.machine import need, require
from support.processes import wait_until
from support.programs import PATIENCE, ROOT, program, signalled
from support.rlx_peer import RlxPeer, refuse
from support.run import Runs
from support.torcs import DEGREES, PLACE, RANGE, RAYS, SPEED, always, careful, observed

FAMILY, TRACK, LENGTH = "TORCS", "g-track-1", 2057.56
pytestmark = pytest.mark.timeout(1200)  # the first test may download 700 MB


def torcs(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that needs TORCS. The first one builds the robot, which takes a minute."""
    checks = pytest.mark.checks(
        *("environments/TORCS", "config/da3c_torcs.yaml", "relaax/client/program", "protocol/clients/c")
    )
    return pytest.mark.usefixtures("game")(pytest.mark.slow(checks(test)))


@pytest.fixture(scope="module")
def game() -> None:
    """TORCS with its robot, or the test is skipped."""
    require(FAMILY)


@pytest.fixture(scope="module")
def lap(game: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, RlxPeer, Path]:
    """Two laps of a careful driver: the finished program, its server, and the folder with the recorded path."""
    folder = tmp_path_factory.mktemp("lap")
    with RlxPeer(careful) as peer:
        done = program(FAMILY, peer.address, TRACK, "--episodes", "2", "--seed", "1", "--record", str(folder))
    return done, peer, folder


@torcs
def test_careful_driver_completes_two_laps(lap: tuple[Any, RlxPeer, Path]) -> None:
    done, peer, _ = lap
    assert (done.returncode, done.stderr) == (0, "")
    (conn,) = peer.connections
    assert (conn.hello.environment, conn.hello.environments, conn.hello.frame_skip) == (TRACK, 1, 5)
    assert conn.hello.mode is rlx.Mode.TRAIN
    assert conn.hello.observation_space == rlx.Box(-np.inf, np.inf, (32,), np.float32)
    assert conn.hello.action_space == rlx.Box(-1, 1, (2,), np.float32)
    ends = conn.of(rlx.Reset)
    assert [end.truncated.tolist() for end in ends] == [[True], [True]]
    assert all(end.final_observation is not None for end in ends)
    rewards = [message.reward[0] for message in conn.of(rlx.Step, rlx.Reset)]
    assert sum(rewards) == pytest.approx(2 * LENGTH, abs=5)  # metres
    assert done.stdout.startswith(f"{len(rewards)} steps, 2 episodes, mean return 2,05")
    assert {metric for message in conn.of(rlx.Metrics) for metric, _ in scalars(message)} == {
        "distance",
        "mean_speed",
        "lap_seconds",
    }


def scalars(message: rlx.Metrics) -> Iterator[tuple[str, float]]:
    yield from message.scalars


@torcs
def test_episodes_with_same_actions_are_equal(lap: tuple[Any, RlxPeer, Path]) -> None:
    _, peer, _ = lap
    (conn,) = peer.connections
    messages = conn.of(rlx.Init, rlx.Step, rlx.Reset)
    second = next(k for k, message in enumerate(messages) if k and isinstance(message, rlx.Init))
    assert len(messages) == 2 * second
    for one, other in zip(messages[:second], messages[second:], strict=True):
        if not isinstance(one, rlx.Reset):
            assert (observed(one) == observed(other)).all()


@torcs
def test_observations_match_recorded_track(lap: tuple[Any, RlxPeer, Path]) -> None:
    _, peer, folder = lap
    steps = np.stack([observed(step)[0] for step in peer.connections[0].of(rlx.Step)])
    track = [{key: float(value) for key, value in row.items()} for row in rows(folder / "track.csv")]
    width = np.hypot(track[0]["left_x"] - track[0]["right_x"], track[0]["left_y"] - track[0]["right_y"])
    straight = np.abs(steps[:, 0]) < 0.01
    across = (steps[straight][:, RAYS.start] + steps[straight][:, RAYS.stop - 1]) * RANGE
    assert np.median(across) == pytest.approx(width, rel=0.02)
    right = steps[straight][:, RAYS.start] * RANGE
    assert np.allclose(right, width / 2 * (1 + steps[straight][:, PLACE]), atol=0.6)
    # On a straight, the angle of a ray determines its distance from an edge.
    ahead = list(DEGREES).index(15)
    first = steps[0]
    assert first[RAYS][ahead] * RANGE == pytest.approx(
        width / 2 * (1 - first[PLACE]) / np.sin(np.radians(15) - first[0]), rel=0.05
    )
    assert 0.2 < steps[:, SPEED].max() < 0.6  # a speed of 1 is 50 m/s
    assert np.isfinite(steps).all()
    assert steps.std(axis=0).all()  # every element varies


@torcs
def test_path_is_recorded_and_drawn(lap: tuple[Any, RlxPeer, Path], tmp_path: Path) -> None:
    _, _, folder = lap
    path = [row for row in rows(folder / "path.csv") if row["episode"] == "2"]
    assert float(path[-1]["along"]) < 1  # just after the start line
    moved = [np.hypot(float(b["x"]) - float(a["x"]), float(b["y"]) - float(a["y"])) for a, b in pairwise(path)]
    assert max(moved) < 1  # metres: the path has no jumps
    picture = tmp_path / "lap.png"
    draw = [sys.executable, "-W", "error", str(ROOT / "environments/TORCS/draw"), str(folder), str(picture)]
    subprocess.run(draw, check=True, timeout=PATIENCE)
    assert picture.read_bytes().startswith(b"\x89PNG")
    done = subprocess.run([*draw, "7"], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (1, f"draw: {folder / 'path.csv'} has no episode 7\n")


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="ascii", newline="") as lines:
        return list(csv.DictReader(lines))


@torcs
@pytest.mark.parametrize(
    ("steering", "pedal", "most_steps"),
    [(1.0, 1.0, 200), (0.0, -1.0, 51)],  # off the track; 5 s at rest
    ids=["left", "stuck"],
)
def test_leaving_track_or_standing_costs_20_metres(steering: float, pedal: float, most_steps: int) -> None:
    with RlxPeer(always(steering, pedal)) as peer:
        done = program(FAMILY, peer.address, TRACK, "--episodes", "1", "--seed", "1")
    assert done.returncode == 0, done.stderr
    (conn,) = peer.connections
    (end,) = conn.of(rlx.Reset)
    assert end.truncated is None or not end.truncated.any()
    assert end.reward[0] < -15
    assert 0 < len(conn.of(rlx.Step)) < most_steps
    assert all(step.reward[0] > -1 for step in conn.of(rlx.Step))


@torcs
def test_start_anywhere_varies_place_and_track() -> None:
    with RlxPeer(always(0.0, 0.0)) as peer:
        options = ["--start", "anywhere", "--steps", "40", "--seed", "3", "--exploit", "--frame-skip", "2"]
        done = program(FAMILY, peer.address, f"{TRACK},alpine-1", "2", *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("40 steps")
    assert len(peer.connections) == 2
    first = [observed(conn.of(rlx.Init)[0])[0] for conn in peer.connections]
    assert (first[0] != first[1]).any()
    for conn in peer.connections:
        assert (conn.hello.mode, conn.hello.frame_skip, len(conn.of(rlx.Step))) == (rlx.Mode.EXPLOIT, 2, 20)
        places = {float(observed(begin)[0][PLACE]) for begin in conn.of(rlx.Init)}
        assert all(abs(place) < 0.6 for place in places)


@torcs
def test_json_codec_is_relayed_by_program(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret")
    measured = tmp_path / "measured"
    with RlxPeer(always(1.0, 1.0)) as peer:
        options = ["--codec", "json", "--token-file", str(token), "--episodes", "2", "--measure", str(measured)]
        done = program(FAMILY, peer.address, TRACK, *options)
    assert done.returncode == 0, done.stderr
    (conn,) = peer.connections
    assert (conn.connection.codec, conn.hello.token, conn.hello.frame_skip) == ("json", "s3cret", 5)
    assert len([step for step in conn.of(rlx.Step) if step.terminated is not None]) == 2
    assert "act_ms" in json.loads(measured.read_text().splitlines()[-1])


@torcs
def test_robot_sends_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret")
    with RlxPeer(careful) as peer:
        done = program(FAMILY, peer.address, TRACK, "--token-file", str(token), "--steps", "3")
    assert (done.returncode, done.stdout.startswith("3 steps, 0 episodes")) == (0, True), done.stderr
    assert peer.connections[0].hello.token == "s3cret"
    assert peer.connections[0].of(rlx.Bye)


@torcs
def test_final_server_message_is_printed() -> None:
    with RlxPeer(refuse(rlx.ErrorCode.UNAUTHENTICATED, "the token is wrong")) as peer:
        done = program(FAMILY, peer.address, TRACK, "2")
    assert (done.returncode, done.stderr) == (2, "TORCS/main: the token is wrong\n")

    def finished(conn: Any) -> None:
        conn.welcome()
        conn.answer()
        conn.receive()
        conn.send(rlx.TrainingFinished("all 500 steps are done", 500))
        conn.close()

    with RlxPeer(finished) as peer:
        done = program(FAMILY, peer.address, TRACK, "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("training finished: all 500 steps are done")


@torcs
def test_lost_connection_costs_one_episode() -> None:
    def short(conn: Any) -> None:
        conn.welcome()
        for _ in range(5):
            conn.answer()
        conn.kill()

    with RlxPeer(short, always(0.0, 1.0)) as peer:
        done = program(FAMILY, peer.address, TRACK, "--steps", "30")
        first, second = peer.connections
    assert done.returncode == 0, done.stderr
    assert first.of(rlx.Init)
    assert second.of(rlx.Init)
    assert len(second.of(rlx.Step)) > 20


class Standing:
    """A player of two games whose car stands still. The first game is cut off."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def set_environment(self, *_: Any) -> None:
        pass

    def games(self) -> Iterator[Game]:
        yield Game(0, 1, max_steps=5)
        yield Game(1, 2, max_steps=7)

    def act(self, observation: Any, first: bool, place: int) -> Any:
        return np.zeros(2, np.float32)

    def record_game(self, game: Game, episode: rlx.Episode, steps: int, cut: bool) -> None:
        self.lengths.append(steps)


@torcs
def test_evaluation_starts_a_new_race_after_a_cut_off_one() -> None:
    player = Standing()
    with playing(player):
        main(parser().parse_args([LOCAL, TRACK]))
    assert player.lengths == [5, 7]


@torcs
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_signal_ends_all_races(number: signal.Signals, code: int) -> None:
    ended, processes = signalled(FAMILY, TRACK, number)
    assert ended == code
    assert "torcs-bin" in processes.values()  # the second race may still be starting
    wait_until(lambda: not any(one.is_running() for one in processes), "every process has ended", PATIENCE)


@torcs
def test_check_and_random_agent_run_without_server() -> None:
    done = program(FAMILY, "check", f"{TRACK},alpine-1", "2", "--seed", "0", "--steps", "100")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2] == "observations Box(float32, [32]), actions Box(float32, [2], -1..1)"
    done = program(FAMILY, "random", TRACK, "2", "--episodes", "4", "--seed", "1", "--start", "anywhere")
    assert done.returncode == 0, done.stderr
    assert " 4 episodes, mean return -" in done.stdout  # the reward is negative, because it stays near its start


@torcs
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("127.0.0.1:1", "g-track-7"), "TORCS has no track 'g-track-7'; the nearest is 'g-track-"),
        (("127.0.0.1:1", "g-track-1,"), "TORCS has no track ''; the nearest is "),
        (("127.0.0.1:1", TRACK, "--car", "car1"), "TORCS has no car 'car1'; the nearest is 'car"),
        (("127.0.0.1:1", TRACK, "--retry-seconds", "0"), "cannot connect to 127.0.0.1:1"),
        (("127.0.0.1:1", TRACK, "--record", "/no/such"), "--record: there is no folder /no/such"),
    ],
)
def test_invalid_arguments_are_refused_with_one_line(arguments: tuple[str, ...], sentence: str) -> None:
    done = program(FAMILY, *arguments)
    assert done.returncode == (1 if "connect" in sentence else 2)
    assert done.stderr.startswith(f"TORCS/main: {sentence}")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--video", "films"], "these races have no screen: --record FOLDER writes where the first car drives"),
        (["--display"], "these races have no screen: --record FOLDER writes where the first car drives"),
        (["--metric", "speed"], "--metric: the robot sends distance, mean_speed and lap_seconds by itself"),
        (["--record", ".", "--connections", "2"], "--record is for one connection, and there are 2"),
    ],
)
def test_unsupported_options_are_refused(options: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_arguments(parser().parse_args(["127.0.0.1:1", TRACK, *options]))
    assert str(refused.value) == sentence


def test_missing_game_or_robot_error_names_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(race, "PLACES", (str(tmp_path),))
    with pytest.raises(
        UsageError, match="there is no TORCS on this machine: install it; Debian: apt-get install torcs"
    ):
        race.program()
    monkeypatch.setattr(race, "DRIVER", tmp_path / "relaax.so")
    with pytest.raises(UsageError, match=r"there is no .*relaax\.so: run /.*/TORCS/build$"):
        race.require_driver()


def test_build_without_compiler_names_package(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "environments/TORCS/build")]
    bare = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(command, env=bare, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (
        1,
        "TORCS/build: there is no g++: install it; Debian: apt-get install g++\n",
    )


@torcs
def test_source_option_builds_from_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("g++")
    monkeypatch.setattr(build, "HERE", tmp_path / "driver")
    shutil.copytree(build.INCLUDE.parent, tmp_path / "driver", ignore=shutil.ignore_patterns("include", "*.so"))
    monkeypatch.setattr(build, "INCLUDE", tmp_path / "driver" / "include")
    with pytest.raises(build.NotBuiltError, match=r"the source of TORCS has no car\.h: name the folder"):
        build.build(tmp_path)
    for folder, place in build.FOLDERS.items():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for header in (ROOT / "environments/TORCS/driver/include" / place).glob("*.h"):
            shutil.copy(header, tmp_path / folder)
    build.build(tmp_path)
    assert (tmp_path / "driver" / "relaax.so").read_bytes().startswith(b"\x7fELF")


@torcs
def test_agent_learns_to_drive(runs: Runs, short: bool) -> None:
    """The targets are from the study `torcs`. A random agent returns -13: 7 metres, minus 20 for standing still."""
    target = "150" if short else "600"
    run = runs.start("--target-return", target, "--seed", "1", "--no-progress", config="da3c_torcs")
    assert run.running.wait(1100) == 0, run.running.report()
    assert run.summary["status"] == "target_reached"
