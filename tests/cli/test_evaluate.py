"""`relaax eval`: reproducible scores, published protocols, and each way to name a policy."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ale_py
import numpy as np
import psutil
import pytest
from ale_py import roms

from environments.ALE import games
from environments.ALE import main as ale
from environments.OpenAI_Gym import main as gym
from relaax.algorithm_base import Box, Discrete
from relaax.checkpoint import CheckpointManager, LocalStore
from relaax.client import Episode
from relaax.client.connection.address import LOCAL
from relaax.client.program.agents import Game, playing
from relaax.evaluation.playing import seed_of
from relaax.files import write_whole
from relaax.policy.file import PARAMETERS, policy_of, read
from support.policy_files import bundled, write
from support.processes import Processes, project_command, wait_until
from support.programs import completed
from support.video_frames import read_video

CARTPOLE = Box(np.array([-4.8, -np.inf, -0.42, -np.inf]), np.array([4.8, np.inf, 0.42, np.inf]), (4,))
CONFIG = """
relaax-run: {environment: OpenAI_Gym, name: CartPole-v1}
algorithm: {path: da3c, normalize_rewards: null}
"""


def relaax(*arguments: str | Path, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = completed([project_command("relaax"), *map(str, arguments)], dict(os.environ), cwd)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def evaluate(*arguments: str | Path, cwd: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(relaax("eval", *arguments, "--json", "-", cwd=cwd).stdout)
    return result


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a configuration, its run directory with two checkpoints, and the policy of the first."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "poles.yaml").write_text(CONFIG, encoding="utf-8")
    run = folder / "runs" / "poles"
    run.mkdir(parents=True)
    (run / "configuration.yaml").write_text(CONFIG, encoding="utf-8")
    nameless = folder / "nameless"
    nameless.mkdir()
    path, *_ = write(nameless, bundled("da3c"), CARTPOLE, Discrete(2), normalize_rewards=None)
    found = read(path)
    manager = CheckpointManager(LocalStore(run / "checkpoints"))
    for global_step, mean_return in ((120, 30.0), (240, 20.0)):
        parameters = found.parameters * np.float32(1 if global_step == 120 else -1)
        manifest = {
            "fingerprint": dict(found.description.fingerprint),
            "configuration": {"relaax-run": {"environment": "OpenAI_Gym", "name": "CartPole-v1"}},
            "mean_return": mean_return,
            "shards": [{"part": "shard-0", "start": 0, "end": len(parameters)}],
        }
        manager.save(global_step, {"shard-0": {PARAMETERS: parameters}}, manifest)
    write_whole(folder / "policy.safetensors", policy_of(manager.load("00000001-120")))
    return folder


SEEDED = ("--episodes", "6", "--sample", "--seed", "3")


@pytest.fixture(scope="module")
def by_configuration(place: Path) -> dict[str, Any]:
    """The evaluation of the first checkpoint by three programs."""
    return evaluate("poles.yaml", "--best", *SEEDED, "--jobs", "3", cwd=place)


def test_best_checkpoint_is_played_with_another_seed(place: Path, by_configuration: dict[str, Any]) -> None:
    assert by_configuration["checkpoint"] == "00000001-120"
    assert by_configuration["global_step"] == 120
    assert not by_configuration["greedy"]
    assert by_configuration["lengths"] == by_configuration["returns"], "a step of CartPole is rewarded by 1"
    assert by_configuration["steps"] == by_configuration["frames"] == sum(by_configuration["lengths"])
    options = ("--episodes", "6", "--sample", "--seed", "4", "--jobs", "1")
    assert evaluate("poles.yaml", "--best", *options, cwd=place)["returns"] != by_configuration["returns"]


@pytest.mark.parametrize(
    "named",
    [
        pytest.param(("poles", "--id", "00000001-120"), marks=pytest.mark.slow),  # runs/poles
        pytest.param(("runs/poles/checkpoints", "--best"), marks=pytest.mark.slow),
        ("policy.safetensors",),
    ],
    ids=lambda named: named[0],
)
def test_same_seed_gives_the_same_returns_for_any_source(
    place: Path, by_configuration: dict[str, Any], named: tuple[str, ...]
) -> None:
    again = evaluate(*named, *SEEDED, "--jobs", "1", cwd=place)
    assert (again["returns"], again["interval_95"]) == (by_configuration["returns"], by_configuration["interval_95"])


def test_newest_checkpoint_is_played_greedily_by_default(place: Path) -> None:
    newest = evaluate("poles.yaml", "--episodes", "2", "--jobs", "1", cwd=place)
    assert (newest["checkpoint"], newest["greedy"], newest["protocol"]) == ("00000002-240", True, {"name": "none"})
    assert newest["training_mean_return"] == 20.0
    assert "human_normalized" not in newest


def test_run_of_the_named_environment_is_preferred(place: Path, tmp_path: Path) -> None:
    """Without such a run, the run in the environment of the file plays in the named one."""
    shutil.copytree(place, tmp_path / "place")
    place = tmp_path / "place"
    options = ("poles.yaml", "--set", "run.name=CartPole-v0", "--episodes", "1", "--jobs", "1")
    assert evaluate(*options, cwd=place)["environment"] == "CartPole-v0"
    other = place / "runs" / "poles-CartPole-v0"
    shutil.copytree(place / "runs" / "poles", other)
    shutil.rmtree(other / "checkpoints" / "00000002-240")
    assert evaluate(*options, cwd=place)["checkpoint"] == "00000001-120"


@pytest.mark.slow
@pytest.mark.checks("relaax/evaluation", "relaax/cli/evaluate.py", "relaax/cli/run")
def test_run_is_evaluated_with_its_own_overrides(place: Path, tmp_path: Path) -> None:
    run = tmp_path / "short"
    shutil.copytree(place / "runs" / "poles", run)
    changed = CONFIG.replace("CartPole-v1", "CartPole-v0").replace("null", "null, greedy_exploit: false")
    (run / "configuration.yaml").write_text(changed, encoding="utf-8")
    here = evaluate("poles.yaml", "--run-dir", run, "--episodes", "3", "--jobs", "1", cwd=place)
    assert (here["environment"], here["greedy"]) == ("CartPole-v0", False)
    options = ("--config", "poles.yaml", "--episodes", "3", "--jobs", "1")
    elsewhere = evaluate("poles.yaml", "--run-dir", run, *options, cwd=place)
    assert (elsewhere["environment"], elsewhere["greedy"]) == ("CartPole-v1", True)
    drawn = evaluate(run, *options, "--sample", cwd=place)
    assert here["returns"] == drawn["returns"] != elsewhere["returns"]


@pytest.mark.slow
@pytest.mark.checks("relaax/evaluation", "relaax/policy", "relaax/cli/evaluate.py", "algorithms/da3c")
def test_greedy_exploit_false_equals_option_sample(place: Path) -> None:
    options = ("poles.yaml", "--episodes", "3")
    by_key = evaluate(*options, "--set", "algorithm.greedy_exploit=false", cwd=place)
    by_option = evaluate(*options, "--sample", cwd=place)
    assert not by_key["greedy"]
    assert by_key["returns"] == by_option["returns"]


@pytest.mark.slow
@pytest.mark.checks("relaax/evaluation", "relaax/cli/evaluate.py", "relaax/client")
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_stopped_evaluation_leaves_no_process_or_file(place: Path, tmp_path: Path, number: signal.Signals) -> None:
    videos, temporary = tmp_path / "videos", tmp_path / "temporary"
    temporary.mkdir()
    options = ("--episodes", "1000000", "--jobs", "2", "--video", videos)
    with Processes(tmp_path) as processes:
        process = processes.start("relaax", "eval", "poles.yaml", *options, cwd=place, env={"TMPDIR": str(temporary)})
        wait_until(lambda: list(videos.glob("*.mp4")), "it plays", 120)
        playing = psutil.Process(process.pid).children(recursive=True)
        assert process.stop(number) == 130, process.report()
        _, alive = psutil.wait_procs(playing, timeout=30)
    assert len(playing) >= 2  # two programs, and the processes that write their videos
    assert alive == []
    assert list(temporary.glob("relaax-eval-*")) == []


def test_table_json_and_video_are_written(place: Path) -> None:
    options = ("--episodes", "2", "--jobs", "1", "--json", "result.json", "--video", "videos", "--video-every", "2")
    output = relaax("eval", "poles.yaml", *options, cwd=place).stdout
    assert "CartPole-v1: checkpoint 00000002-240 at global step 240, greedy, seed 0" in output
    assert "95 % interval of the mean" in output
    assert "videos in videos" in output
    assert [path.name for path in (place / "videos").iterdir()] == ["cartpole-v1-000000.mp4"]
    assert json.loads((place / "result.json").read_text())["episodes"] == 2


@pytest.mark.slow
@pytest.mark.checks("relaax/evaluation", "relaax/cli/evaluate.py", "relaax/client")
def test_videos_of_every_second_episode_are_readable(place: Path, tmp_path: Path) -> None:
    options = ("--episodes", "4", "--jobs", "1", "--video-every", "2")
    result = evaluate("poles.yaml", *options, "--video", tmp_path / "v", cwd=place)
    assert sorted(path.name for path in (tmp_path / "v").iterdir()) == [
        "cartpole-v1-000000.mp4",
        "cartpole-v1-000002.mp4",
    ]
    images, fps = read_video(tmp_path / "v" / "cartpole-v1-000002.mp4")
    assert fps == 50
    assert len(images) == result["lengths"][2], "the first observation, and one after each step except the last"
    assert images[0].shape == (400, 600, 3)
    assert any((image != images[0]).any() for image in images)


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["nothing"], 2, "unknown configuration 'nothing'"),
        (["da3c_gym_acrobot"], 2, "there is no run of da3c_gym_acrobot in runs/da3c_gym_acrobot: train with"),
        (["poles.yaml", "--protocol", "nop"], 2, "--protocol: unknown protocol 'nop'; did you mean 'noop'?"),
        (["poles.yaml", "--protocol", "noop"], 2, "--protocol noop is for Atari games"),
        (["poles.yaml", "--sticky", "0.25"], 2, "--sticky is for Atari games"),
        (["da3c_ale_pong", "--random", "--protocol", "human-starts"], 2, "were never published"),
        (["poles.yaml", "--random", "--best"], 2, "--random uses no checkpoint"),
        (["poles.yaml", "--random", "--greedy"], 2, "--random cannot be combined with --greedy or --sample"),
        (["poles.yaml", "--id", "00000009-1"], 2, "unknown checkpoint '00000009-1'"),
        (["poles.yaml", "--video-every", "3"], 2, "--video-every is for --video"),
        (["poles.yaml", "--json", "no/such/file.json"], 2, "--json no/such/file.json: its folder does not exist"),
        (["poles.yaml", "--json", "nameless"], 2, "--json nameless must be a file, not a folder"),
        (["nameless/policy.safetensors"], 2, "give its configuration with --config FILE"),
        (
            ["poles.yaml", "--set", "algorithm.lstm=true"],
            2,
            "algorithm.lstm is false in the checkpoint, true in",
        ),
        (["policy.safetensors", "--config", "da3c_gym_acrobot"], 2, "but the policy was trained on Box(float32, [4])"),
    ],
)
def test_invalid_evaluation_is_refused_in_one_sentence(
    place: Path, arguments: list[str], code: int, sentence: str
) -> None:
    output = relaax("eval", *arguments, cwd=place, code=code).stderr
    assert output.startswith("relaax eval: ")
    assert sentence in output.replace("\n", " ")


@pytest.mark.slow
@pytest.mark.checks("relaax/evaluation", "relaax/cli/evaluate.py")
def test_failed_program_names_the_cause(place: Path) -> None:
    output = relaax("eval", "poles.yaml", "--set", "run.name=NoSuchPole-v1", cwd=place, code=2).stderr
    assert "NoSuchPole" in output
    (place / "broken.py").write_text("raise SystemExit(7)\n", encoding="utf-8")
    output = relaax("eval", "poles.yaml", "--set", "run.environment=broken.py", cwd=place, code=1).stderr
    assert "the environment's program ended with code 7" in output


class RecordedGames(games.Games):
    """Games that record their no-ops, actions and rewards."""

    noops: int
    frames: int
    actions: list[int]
    rewards: list[float]

    def reset(self, **options: Any) -> Any:
        observations, infos = super().reset(**options)
        RecordedGames.noops, RecordedGames.actions, RecordedGames.rewards = (
            int(infos["episode_frame_number"][0]),
            [],
            [],
        )
        return observations, infos

    def step(self, actions: Any) -> Any:
        outcome = super().step(actions)
        RecordedGames.actions.append(int(actions[0]))
        RecordedGames.rewards.append(float(outcome[1][0]))
        return outcome


class FixedPlayer:
    """A player of one game whose actions are a function of the step number."""

    def __init__(self, act: Any) -> None:
        self._act, self._step, self.episode = act, -1, Episode(0, 0.0, 0)

    def set_environment(self, observation_space: Any, action_space: Any, frame_skip: int) -> None:
        self._actions = action_space.n

    def games(self) -> Iterator[Game]:
        yield Game(0, 11)

    def act(self, observation: Any, first: bool, place: int) -> int:
        self._step += 1
        return int(self._act(self._step)) % self._actions

    def record_game(self, game: Game, episode: Episode, steps: int, cut: bool) -> None:
        self.episode = episode


def play_recorded(monkeypatch: pytest.MonkeyPatch, rom: str, act: Any, *options: str) -> Episode:
    monkeypatch.setattr(games, "Games", RecordedGames)
    player = FixedPlayer(act)
    with playing(player):
        ale.main(ale.parser().parse_args([LOCAL, rom, "--threads", "1", *options]))
    return player.episode


def plain_emulator(rom: str) -> ale_py.ALEInterface:
    emulator = ale_py.ALEInterface()
    emulator.setFloat("repeat_action_probability", 0.0)
    path = roms.get_rom_path(rom)
    assert path is not None
    emulator.loadROM(path)
    emulator.reset_game()
    return emulator


@pytest.mark.parametrize("rom", [pytest.param("boxing", marks=pytest.mark.slow), "breakout"])
def test_null_op_game_has_the_score_of_a_plain_emulator(monkeypatch: pytest.MonkeyPatch, rom: str) -> None:
    """A plain emulator that replays the no-ops, and then each action for four frames, has the same score."""
    drawn = np.random.default_rng(5).integers(18, size=5000)
    episode = play_recorded(monkeypatch, rom, lambda step: drawn[step], "--protocol", "noop", "--life-loss")
    assert 0 <= RecordedGames.noops <= 30
    emulator = plain_emulator(rom)
    for _ in range(RecordedGames.noops):
        emulator.act(ale_py.Action.NOOP)
    actions = emulator.getMinimalActionSet()
    score = 0.0
    for action, reward in zip(RecordedGames.actions, RecordedGames.rewards, strict=True):
        assert not emulator.game_over()
        here = sum(emulator.act(actions[action]) for _ in range(4) if not emulator.game_over())
        assert here == reward
        score += here
    assert emulator.game_over()
    assert (episode.episode_return, episode.length) == (score, len(RecordedGames.actions))


@pytest.mark.slow
@pytest.mark.checks("environments/ALE", "relaax/client", "relaax/evaluation")
def test_game_ends_after_the_frame_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ball is never served, so the game would not end without a limit."""
    episode = play_recorded(monkeypatch, "breakout", lambda step: 0, "--protocol", "noop")
    assert (episode.length, episode.episode_return) == (4500, 0.0), "18,000 frames from the first action on"


def test_number_of_no_ops_is_drawn_from_0_to_30() -> None:
    arguments = ale.parser().parse_args([LOCAL, "pong", "--protocol", "noop", "--threads", "1"])
    pong = ale.make(arguments)
    counts = {int(pong.reset(seed=seed_of(0, game))[1]["episode_frame_number"][0]) for game in range(11, 18)}
    pong.close()
    assert (min(counts), max(counts)) == (0, 30)
    assert len(counts) == 7


@pytest.mark.slow
@pytest.mark.checks("environments/OpenAI_Gym", "environments/ALE", "relaax/client", "relaax/evaluation")
def test_gymnasium_games_follow_the_protocol_frame_by_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """A game has no-ops, and then each action for four frames. Without a serve, only the frame limit ends it."""
    frames: list[int] = []
    step = ale_py.AtariEnv.step

    def record_action(env: ale_py.AtariEnv, action: int) -> Any:
        frames.append(int(action))
        return step(env, action)

    monkeypatch.setattr(ale_py.AtariEnv, "step", record_action)
    player = FixedPlayer(lambda number: 2 + number % 2)  # RIGHT and LEFT
    with playing(player):
        gym.main(gym.parser().parse_args([LOCAL, "ALE/Breakout-v5", "--protocol", "noop", "--life-loss"]))
    assert (player.episode.length, player.episode.episode_return) == (4500, 0.0)
    noops = next(index for index, action in enumerate(frames) if action)
    assert 1 <= noops <= 30
    played, next_game = frames[noops : noops + 18_000], frames[noops + 18_000 :]
    assert played == [2 + number % 2 for number in range(4500) for _ in range(4)]
    assert not any(next_game), "the next game has only no-ops so far"


@pytest.mark.slow
@pytest.mark.checks("relaax/evaluation", "relaax/cli/evaluate.py", "environments/ALE")
def test_random_agent_is_scored_against_published_scores(tmp_path: Path) -> None:
    result = evaluate("da3c_ale_breakout", "--random", "--episodes", "2", "--jobs", "1", cwd=tmp_path)
    assert result["protocol"] == {
        "name": "noop",
        "noop_max": 30,
        "max_frames": 18_000,
        "sticky": 0.0,
        "whole_games": True,
        "frame_skip": 6,
    }
    assert (result["checkpoint"], result["greedy"]) == (None, None)
    assert result["frames"] == 6 * result["steps"], "10 actions a second, as the published random agent"
    assert result["human_normalized"] == pytest.approx(100 * (result["mean"] - 1.7) / (30.5 - 1.7))
    assert result["published"]["noop"]["dqn"] == 401.2
    assert result["published"]["human_starts"]["a3c_ff_1_day"] == 551.6


@pytest.mark.slow
def test_protocol_overrides_the_settings_of_training(tmp_path: Path) -> None:
    result = evaluate("da3c_ale_breakout", "--random", "--episodes", "4", "--jobs", "2", cwd=tmp_path)
    trained = ("--set", 'run.arguments=[--sticky, "0.5", --noop-max, "0", --max-frames, "100"]')
    again = evaluate("da3c_ale_breakout", "--random", "--episodes", "4", "--jobs", "1", *trained, cwd=tmp_path)
    assert again["returns"] == result["returns"]
    sticky = evaluate("da3c_ale_breakout", "--random", "--episodes", "4", "--sticky", "0.25", cwd=tmp_path)
    assert sticky["protocol"]["sticky"] == 0.25
    output = relaax("eval", "da3c_ale_breakout", "--random", "--episodes", "1", cwd=tmp_path).stdout
    assert "an action every 6 frames, null-op starts up to 30, at most 18,000 frames" in output
    assert "published, human starts: not comparable with null-op scores: dqn 303.9" in output
