"""The programs environments/*/main as real processes against a scripted server."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading

import gymnasium
import numpy as np
import pytest
from ale_py import roms

from environments.ALE import main as ale
from environments.OpenAI_Gym import main as gym
from environments.OpenAI_Gym import naming
from relaax import rlx
from relaax.client.command import UsageError
from relaax.client.program.process import run_then_close
from relaax.rlx import ErrorCode
from support.programs import PATIENCE, ROOT, interrupt_group, program, refusal, running
from support.rlx_peer import PeerConnection, RlxPeer, refuse, serve
from support.unused_address import unused_address

GYM, ALE, LAB = "OpenAI_Gym", "ALE", "DeepMind_Lab"


def random_serve(conn: PeerConnection) -> None:
    rng = np.random.default_rng(3)
    conn.policy = lambda message, conn: [rng.integers(conn.hello.action_space.n, size=conn.hello.environments)]
    serve(conn)


def assert_quiet(stderr):
    """Assert that stderr has only log lines: no traceback, no warning."""
    assert all("relaax.client:" in line for line in stderr.splitlines()), stderr


@pytest.mark.parametrize("family", [GYM, ALE, LAB, "ViZDoom", "MiniWorld", "MiniWoB", "PettingZoo", "TORCS"])
def test_main_is_an_executable_link(family):
    link = ROOT / "environments" / family / "main"
    assert os.readlink(link) == "main.py"
    assert link.stat().st_mode & stat.S_IXUSR
    assert link.read_text().startswith("#!/usr/bin/env python3\n")


@pytest.mark.parametrize(
    ("family", "extra"),
    [
        (GYM, "gym"),
        (ALE, "atari"),
        (LAB, "gym"),
        ("ViZDoom", "vizdoom"),
        ("MiniWorld", "miniworld"),
        ("MiniWoB", "miniwob"),
        ("PettingZoo", "pettingzoo"),
    ],
)
def test_python_without_relaax_gets_install_hint(family, extra):
    script = ROOT / "environments" / family / "main.py"
    bare = [sys.executable, "-S", "-I", str(script), "localhost:1", "any"]  # without site-packages
    done = subprocess.run(bare, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1
    way_out = f"activate its environment, or pip install '.[{extra}]' in a checkout"
    assert done.stderr == f"this Python has no relaax: {way_out}\n"


def test_cart_poles_use_own_vector_form():
    with RlxPeer(random_serve) as peer:
        done = program(GYM, peer.address, "CartPole-v1", "4", "--steps", "300", "--seed", "7")
        hello, init, *_ = peer.connections[0].received
    assert done.returncode == 0
    assert_quiet(done.stderr)
    assert "mean return" in done.stdout
    assert (hello.environment, hello.environments, hello.frame_skip) == ("CartPole-v1", 4, 1)
    assert list(hello.autoreset) == [rlx.Autoreset.NEXT_STEP]  # the own vector form of gymnasium, in numpy
    assert init.observation[0].shape == (4, 4)


@pytest.mark.slow
def test_parallel_connections_register_minatar_once():
    with RlxPeer(random_serve) as peer:
        done = program(GYM, peer.address, "MinAtar/Breakout-v1", "2", "--steps", "20", "--connections", "3")
        hello = peer.connections[0].hello
    assert done.returncode == 0, done.stderr
    assert_quiet(done.stderr)
    assert (hello.environment, hello.observation_space.shape) == ("MinAtar/Breakout-v1", (10, 10, 4))
    assert hello.observation_space.dtype == np.bool_


def test_unknown_minatar_id_suggests_nearest_id():
    with pytest.raises(UsageError, match=r"no environment 'MinAtar/Brakeout-v1'; the nearest is 'MinAtar/Breakout-v1'"):
        naming.find("MinAtar/Brakeout-v1")


def test_options_are_sent_to_server(tmp_path):
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    with RlxPeer(random_serve) as peer:
        options = ["--exploit", "--episodes", "3", "--codec", "json", "--token-file", str(token)]
        done = program(GYM, peer.address, "CartPole-v1", *options)
        conn = peer.connections[0]
    assert done.returncode == 0
    assert "3 episodes" in done.stdout
    assert (conn.hello.mode, conn.hello.token, conn.hello.environments) == (rlx.Mode.EXPLOIT, "s3cret", 1)
    assert conn.connection.codec == "json"
    assert "s3cret" not in done.stdout + done.stderr


def test_probe_prints_spaces_of_one_environment(tmp_path):
    (tmp_path / "measured").write_text("of another run")
    done = program(GYM, "probe", "CartPole-v1", "--connections", "3", "--measure", str(tmp_path / "measured"))
    assert done.returncode == 0, done.stderr
    observations, actions = map(rlx.space_from_dict, json.loads(done.stdout))
    assert (observations.shape, actions) == ((4,), rlx.Discrete(2))
    assert (tmp_path / "measured").read_text() == "of another run"


def test_token_is_read_from_environment_variable():
    with RlxPeer(random_serve) as peer:
        program(GYM, peer.address, "CartPole-v1", "--steps", "3", RELAAX_TOKEN="outside")
        assert peer.connections[0].hello.token == "outside"


def test_environment_without_vector_form_uses_sync():
    with RlxPeer() as peer:
        done = program(GYM, peer.address, "Pendulum-v1", "2", "--steps", "402")
        conn = peer.connections[0]
    assert done.returncode == 0
    assert_quiet(done.stderr)
    assert list(conn.hello.autoreset) == [rlx.Autoreset.SAME_STEP]
    assert conn.hello.action_space == rlx.Box(-2, 2, (1,))
    (cut,) = [step for step in conn.of(rlx.Step) if step.truncated is not None]  # the time limit of 200 steps
    assert cut.truncated.tolist() == [True, True]
    assert cut.final_observation is not None


def test_gymnasium_boxing_has_usual_preprocessing():
    with RlxPeer(random_serve) as peer:
        done = program(GYM, peer.address, "ALE/Boxing-v5", "2", "--steps", "60", "--seed", "1")
        hello, init, *rest = peer.connections[0].received
    assert done.returncode == 0
    assert_quiet(done.stderr)
    assert (hello.environment, hello.frame_skip, hello.environments) == ("ALE/Boxing-v5", 4, 2)
    assert hello.observation_space == rlx.Box(0, 255, (84, 84), np.uint8)
    frames = np.stack([init.observation[0], *[m.observation[0] for m in rest if isinstance(m, rlx.Step)]])
    assert frames.std() > 10
    assert (frames[0] != frames[-1]).any()


@pytest.mark.slow
@pytest.mark.checks("environments", "relaax/client")
def test_gymnasium_games_with_life_loss_report_whole_games():
    with RlxPeer(random_serve) as peer:
        done = program(
            GYM, peer.address, "BreakoutNoFrameskip-v4", "2", "--life-loss", "--episodes", "2", "--seed", "1"
        )
        steps = peer.connections[0].of(rlx.Step)
        assert peer.connections[0].hello.reports_episodes
    assert done.returncode == 0
    assert_quiet(done.stderr)
    games = [episode for step in steps for episode in step.episodes]
    ends = sum(int(step.terminated.sum()) for step in steps if step.terminated is not None)
    assert len(games) >= 2
    assert ends >= 5 * len(games)
    for game in games[:1]:
        until = next(k for k, step in enumerate(steps) if game in step.episodes)
        assert game.length == until + 1
        assert game.episode_return == sum(step.reward[game.environment] for step in steps[: until + 1])


@pytest.mark.slow
@pytest.mark.checks("environments", "relaax/client")
def test_boxing_rom_runs_against_server():
    with RlxPeer(random_serve) as peer:
        done = program(ALE, peer.address, "boxing", "4", "--steps", "400", "--seed", "1")
        hello, init, *_ = peer.connections[0].received
        steps = peer.connections[0].of(rlx.Step)
    assert done.returncode == 0
    assert_quiet(done.stderr)
    assert (hello.environment, hello.frame_skip, hello.environments) == ("boxing", 4, 4)
    assert hello.observation_space == rlx.Box(0, 255, (84, 84), np.uint8)
    assert hello.action_space == rlx.Discrete(18)
    assert not hello.reports_episodes
    assert init.observation[0].shape == (4, 84, 84)
    assert len(steps) == 100
    assert any((step.reward != 0).any() for step in steps)


@pytest.mark.slow
@pytest.mark.checks("environments", "relaax/client")
def test_ale_program_options_are_applied():
    with RlxPeer(random_serve) as peer:
        options = ["--life-loss", "--episodes", "2", "--frame-skip", "5", "--threads", "1", "--full-action-space"]
        done = program(ALE, peer.address, "ALE/Breakout-v5", "2", *options)
        conn = peer.connections[0]
        reported = [episode for step in conn.of(rlx.Step) for episode in step.episodes]
    assert done.returncode == 0
    assert_quiet(done.stderr)
    assert conn.hello.reports_episodes
    assert (conn.hello.frame_skip, conn.hello.action_space.n) == (5, 18)
    assert {episode.environment for episode in reported} == {0, 1}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((gym, "127.0.0.1:1", "CartPol-v1"), "'CartPole-v1'"),
        ((gym, "127.0.0.1:1", "NoSuchThingAtAll-v99"), "NoSuchThingAtAll"),
        ((gym, ":7001", "CartPole-v1"), "HOST:PORT"),
        ((gym, "127.0.0.1:1", "CartPole-v1", "displya"), "'displya' is neither a number nor the word display"),
        ((gym, "127.0.0.1:1", "CartPole-v1", "0"), "less than 1"),
        ((gym, "127.0.0.1:1", "CartPole-v1", "--life-loss"), "Atari"),
        ((gym, "127.0.0.1:1", "CartPole-v1", "--token-file", "/no/such/file"), "/no/such/file"),
        ((gym, "127.0.0.1:1", "ALE/Boxing-v5", "--vectorization", "vector_entry_point"), "environments/ALE"),
        ((gym, "127.0.0.1:1", "Pendulum-v1", "--vectorization", "vector_entry_point"), "Pendulum-v1"),
        ((ale, "127.0.0.1:1", "boxng"), "'boxing'"),
        ((ale, "127.0.0.1:1", "combat"), "combat is for several players"),
        ((ale, "127.0.0.1:1", "boxing", "--roms", "/no/such"), "there is no folder /no/such for --roms"),
        ((ale, "127.0.0.1:1", "boxing", "--sticky", "2"), "probability"),
        ((ale, "127.0.0.1:1", "boxing", "--retry-seconds", "-1"), "seconds"),
    ],
)
def test_invalid_arguments_are_refused_with_reason(arguments, sentence):
    assert sentence in refusal(*arguments)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            (GYM, "127.0.0.1:1", "CartPol-v1"),
            "OpenAI_Gym/main: gymnasium has no environment 'CartPol-v1'; the nearest is",
        ),
        (
            (ALE, "127.0.0.1:1", "boxing", "--sticky", "2"),
            "ALE/main: error: argument --sticky: expected a probability, not 2",
        ),
    ],
)
def test_usage_error_exits_with_code_2(arguments, sentence):
    done = program(*arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert done.stderr.splitlines()[-1].startswith(sentence)


def test_server_error_is_printed_in_one_line():
    with RlxPeer(refuse(ErrorCode.UNAUTHENTICATED, "the token is wrong")) as peer:
        done = program(GYM, peer.address, "CartPole-v1")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"OpenAI_Gym/main: {peer.address}: the token is wrong"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("code", [ErrorCode.UNSUPPORTED_SPACE, ErrorCode.SPACE_MISMATCH])
def test_rejected_spaces_are_not_retried(code):
    with RlxPeer(refuse(code, "these spaces are not those")) as peer:
        done = program(GYM, peer.address, "CartPole-v1")
    assert done.returncode == 2
    assert done.stderr.count("these spaces are not those") == 1


def test_training_finished_exits_with_code_0():
    def script(conn: PeerConnection) -> None:
        conn.welcome()
        conn.answer()
        conn.receive()
        conn.send(rlx.TrainingFinished("all 500 steps are done", 500))
        conn.close()

    with RlxPeer(script) as peer:
        done = program(GYM, peer.address, "CartPole-v1", "2")
    assert done.returncode == 0
    assert "all 500 steps are done" in done.stdout
    assert_quiet(done.stderr)


@pytest.mark.parametrize(
    ("family", "arguments", "number", "code"),
    [
        (GYM, ["CartPole-v1", "2"], signal.SIGINT, 130),
        (GYM, ["Acrobot-v1", "2", "--vectorization", "async"], signal.SIGINT, 130),
        (GYM, ["Acrobot-v1", "2", "--vectorization", "async"], signal.SIGTERM, 0),
        (ALE, ["boxing", "2"], signal.SIGTERM, 0),
    ],
)
def test_signal_disconnects_and_exits_quietly(family, arguments, number, code):
    started = threading.Event()

    def script(conn: PeerConnection) -> None:
        conn.welcome()
        for _ in range(20):
            conn.answer()
        started.set()
        while True:
            conn.answer()

    with RlxPeer(script) as peer, running(family, peer.address, *arguments) as process:
        assert started.wait(PATIENCE)
        if number == signal.SIGINT:
            interrupt_group(process)
        else:
            process.send_signal(number)
        _, stderr = process.communicate(timeout=PATIENCE)
        peer.finish()
        assert isinstance(peer.connections[0].received[-1], rlx.Bye)
    assert_quiet(stderr)
    assert process.returncode == code, stderr


@pytest.mark.slow
@pytest.mark.checks("environments", "relaax/client")
def test_signal_swallowed_by_callback_is_repeated(tmp_path):
    """Callbacks through cffi swallow SystemExit, those of pymunk for instance."""
    (tmp_path / "engine.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Engine(CartPoleEnv):\n"
        "    asked = False\n"
        "    def step(self, action):\n"
        "        try:\n"
        "            if not Engine.asked: print('in the callback', flush=True)\n"
        "            while not Engine.asked: pass\n"
        "        except SystemExit:\n"
        "            Engine.asked = True\n"
        "        return super().step(action)\n"
        "gymnasium.register(id='Engine-v0', entry_point=Engine)\n"
    )
    with (
        RlxPeer() as peer,
        running(GYM, peer.address, "engine:Engine-v0", "--path", str(tmp_path)) as process,
    ):
        assert process.stdout.readline() == "in the callback\n"
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=PATIENCE)
        assert isinstance(peer.connections[0].received[-1], rlx.Bye)
    assert_quiet(stderr)
    assert process.returncode == 0


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_interrupted_step_closes_environments(mode):
    made = gymnasium.make_vec("Acrobot-v1", 2, vectorization_mode=mode)
    made.reset(seed=1)
    if mode == "async":
        made.step_async(np.zeros(2, np.int64))  # the step is interrupted

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_then_close(made, interrupted)  # a warning would be an error
    assert made.closed


def test_interrupt_during_retries_exits_with_130():
    with unused_address() as address, running(GYM, address, "CartPole-v1", "--retry-seconds", "600") as process:
        assert "trying again" in process.stderr.readline()
        interrupt_group(process)
        _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert_quiet(stderr)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("boxing", ("boxing", 0.0)),
        ("ALE/Boxing-v5", ("boxing", 0.25)),
        ("BoxingNoFrameskip-v4", ("boxing", 0.0)),
        ("BoxingDeterministic-v0", ("boxing", 0.25)),
        ("ms_pacman", ("ms_pacman", 0.0)),
        ("MsPacman-v4", ("ms_pacman", 0.0)),
        ("SpaceInvaders", ("space_invaders", 0.0)),
        ("ALE/KungFuMaster-v5", ("kung_fu_master", 0.25)),
    ],
)
def test_rom_is_found_by_name_or_id(name, expected):
    assert ale.find(name) == expected


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_rom_can_be_played(short):
    """One process plays all roms, because an unplayable rom ends it. The short form plays every tenth."""
    code = (
        "import numpy as np\n"
        "from ale_py import roms\n"
        "from environments.ALE.games import Games\n"
        "from environments.ALE.main import SEVERAL_PLAYERS, find\n"
        "import sys\n"
        "for rom in sorted(set(roms.get_all_rom_ids()) - set(SEVERAL_PLAYERS))[:: int(sys.argv[1])]:\n"
        "    games = Games(find(rom)[0], 1, threads=1, noop_max=0)\n"
        "    games.reset(seed=1)\n"
        "    observations, *_ = games.step(np.zeros(1, np.int64))\n"
        "    assert observations.shape == (1, 84, 84)\n"
        "    games.close()\n"
        "    print(rom)\n"
    )
    command = [sys.executable, "-c", code, "10" if short else "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == (11 if short else 104)


def test_roms_option_loads_and_checks_roms_of_folder(tmp_path, monkeypatch):
    shutil.copy(roms.get_rom_path("boxing"), tmp_path)
    with RlxPeer(random_serve) as peer:
        done = program(ALE, peer.address, "boxing", "2", "--steps", "20", "--roms", str(tmp_path))
    assert (done.returncode, done.stdout.startswith("20 steps")) == (0, True), done.stderr
    missing = f"{tmp_path} has no pong.bin: put it there, or name a folder that has it with --roms"
    monkeypatch.setenv("ALE_ROMS_DIR", "")  # the program sets it
    monkeypatch.delenv("ALE_ROMS_DIR")
    assert refusal(ale, "127.0.0.1:1", "pong", "--roms", str(tmp_path)) == missing
    monkeypatch.setenv("RELAAX_ROMS", str(tmp_path))
    assert refusal(ale, "127.0.0.1:1", "pong") == missing
    (tmp_path / "pong.bin").write_bytes(b"another game")
    said = refusal(ale, "127.0.0.1:1", "pong", "--roms", str(tmp_path))
    assert "replace it by the rom that ale-py expects" in said and "\n" not in said
    monkeypatch.delenv("ALE_ROMS_DIR")
    monkeypatch.setenv("RELAAX_ROMS", "/no/such")  # images set it even if no folder is mounted
    ale.make(ale.parser().parse_args(["probe", "pong"])).close()


def test_unknown_name_error_suggests_nearest_name():
    with pytest.raises(UsageError, match="'space_invaders'"):
        ale.find("SpaceInvader")
    with pytest.raises(UsageError, match="'MountainCar-v0'"):
        naming.find("MountanCar-v0")
