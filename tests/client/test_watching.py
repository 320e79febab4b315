"""Tests of showing an environment in a window and of writing videos."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from relaax.client import Failure, command, run
from relaax.client.connection.failure import CannotWrite
from relaax.client.program.watching import Watch, Watching
from support.disks import Disk, small_disk
from support.programs import program
from support.video_frames import read_video

pytestmark = pytest.mark.checks("relaax/client")


class Counter(gymnasium.Env[Any, Any]):
    """Episodes of `length` steps, whose image has the brightness 20 times the step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - as in gymnasium
    observation_space = gymnasium.spaces.Discrete(100)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int = 3, side: int = 33, images: bool = True) -> None:
        self.render_mode = "rgb_array"
        self._length, self._side, self._images, self._step = length, side, images, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self._step, 1.0, self._step == self._length, False, {}

    def render(self) -> Any:
        return np.full((self._side, self._side + 1, 3), 20 * self._step, np.uint8) if self._images else None


class Noise(Counter):
    """Images that do not compress."""

    def render(self) -> Any:
        return np.random.default_rng(self._step).integers(0, 256, (66, 66, 3), np.uint8)


def brightness(file: Path) -> list[int]:
    """Return the step that each image of a video shows."""
    images, _ = read_video(file)
    return [round(float(image.mean()) / 20) for image in images]


@pytest.mark.parametrize("mode", [None, "same_step", "next_step", "disabled"])
def test_every_second_episode_of_environment_0_is_a_video(tmp_path: Path, mode: str | None) -> None:
    def make() -> Any:
        if mode is None:
            return Counter()
        kind = {name.value.lower().replace("step", "_step"): name for name in gymnasium.vector.AutoresetMode}[mode]
        return gymnasium.vector.SyncVectorEnv([Counter, lambda: Counter(5)], autoreset_mode=kind)

    steps = 40 if mode else 14
    run(make(), "random", steps=steps, watching=Watching(video=tmp_path, every=2), environment="ALE/Counter-v0")
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files[:2] == ["counter-v0-000000.mp4", "counter-v0-000002.mp4"]
    whole = [0, 1, 2] if mode == "same_step" else [0, 1, 2, 3]  # SAME_STEP does not render the final state
    assert brightness(tmp_path / files[0]) == whole
    assert brightness(tmp_path / files[1]) == whole


def test_interrupted_episode_is_a_video_and_none_is_overwritten(tmp_path: Path) -> None:
    for _ in range(2):
        run(Counter(10), "random", steps=4, watching=Watching(video=tmp_path), environment="counter")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["counter-000000-2.mp4", "counter-000000.mp4"]
    assert brightness(tmp_path / "counter-000000-2.mp4") == [0, 1, 2, 3, 4]


def test_environment_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"render\(\) of counter returned NoneType"):
        run(Counter(images=False), "random", steps=4, watching=Watching(video=tmp_path), environment="counter")


def test_unwritable_video_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Failure, match=r"cannot write --video .*/file/videos: Not a directory"):
        run(Counter(), "random", steps=4, watching=Watching(video=tmp_path / "file" / "videos"))


def test_window_shows_every_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """SDL's dummy driver draws into memory, so no screen is needed."""
    import pygame

    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env = Counter(3, side=20)
    with Watch(Watching(display=True), env, "counter") as watch:
        env.reset()
        watch.frame()
        assert pygame.display.get_caption()[0] == "counter"
        assert pygame.display.get_surface().get_size() == (399, 380)
        env.step(0)
        watch.frame()
        assert pygame.display.get_surface().get_at((200, 200))[:3] == (20, 20, 20)
        pygame.event.post(pygame.event.Event(pygame.QUIT))
        with pytest.raises(KeyboardInterrupt):
            watch.frame()
    assert not pygame.display.get_init()


@pytest.mark.parametrize("arguments", [["display"], ["2", "--display"]])
def test_display_without_a_screen_is_refused_with_the_way_out(tmp_path: Path, arguments: list[str]) -> None:
    done = program(
        *("OpenAI_Gym", "random", "CartPole-v1", *arguments, "--steps", "3"),
        **{"DISPLAY": "", "WAYLAND_DISPLAY": "", "SDL_VIDEODRIVER": "", "PATH": str(tmp_path)},
    )
    assert done.returncode == 2
    assert "display: there is no screen (DISPLAY is not set), and TigerVNC is not installed" in done.stderr
    assert "--video DIR writes MP4 files" in done.stderr


def test_word_and_option_display_show_one_environment() -> None:
    described = command.parser("program", "Runs.", "a name")
    shown = [described.parse_args(["random", "x", *words]) for words in ([], ["3"], ["display"], ["3", "--display"])]
    assert [(one.environments, one.display) for one in shown] == [(1, False), (3, False), (1, True), (3, True)]


@pytest.mark.parametrize("kilobytes", [8, 64])
def test_full_disk_is_reported_and_no_partial_video_is_left(tmp_path: Path, kilobytes: int) -> None:
    with small_disk(tmp_path / "disk", f"{kilobytes}k"):
        folder = tmp_path / "disk" / "videos"
        with pytest.raises(CannotWrite, match=f"cannot write --video {folder}: No space left on device"):
            run(Noise(60), "random", steps=600, watching=Watching(video=folder), environment="noise")
        assert not list(folder.glob("*.part.mp4"))


def test_full_disk_for_measurements_is_reported(disk: Disk) -> None:
    disk.fill()
    file = disk.path / "measured"
    done = program("OpenAI_Gym", "random", "CartPole-v1", "--steps", "100", "--measure", str(file))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(f"main: cannot write --measure {file}: No space left on device")


@pytest.mark.parametrize(
    ("arguments", "file", "shape", "fps"),
    [
        (["ALE", "random", "breakout", "2", "--threads", "1"], "breakout-000000.mp4", (210, 160, 3), 15),
        pytest.param(
            ["ALE", "random", "pong", "1", "--sticky", "0.25"],
            "pong-000000.mp4",
            (84, 84, 3),
            15,
            marks=pytest.mark.slow,
        ),
        (["OpenAI_Gym", "random", "CartPole-v1", "4"], "cartpole-v1-000000.mp4", (400, 600, 3), 50),
        (["OpenAI_Gym", "random", "ALE/Breakout-v5", "1"], "breakout-v5-000000.mp4", (210, 160, 3), 30),
    ],
)
def test_every_program_writes_videos(
    tmp_path: Path, arguments: list[str], file: str, shape: tuple[int, ...], fps: float
) -> None:
    done = program(*arguments, "--seed", "1", "--steps", "60", "--video", str(tmp_path), "--video-every", "3")
    assert done.returncode == 0, done.stderr
    images, pace = read_video(tmp_path / file)
    assert pace == fps
    assert len(images) > 5
    assert images[0].shape == shape
    assert any((image != images[0]).any() for image in images)


def test_video_every_without_video_is_refused() -> None:
    described = command.parser("program", "Runs.", "a name")
    arguments: argparse.Namespace = described.parse_args(["random", "x", "--video-every", "2"])
    with pytest.raises(command.UsageError, match="--video-every needs --video"):
        command.settings(arguments)
