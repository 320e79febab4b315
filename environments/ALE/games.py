"""A vector of N games of the Arcade Learning Environment, preprocessed by ale-py's own code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ale_py
import numpy as np
import numpy.typing as npt
from ale_py.vector_env import AtariVectorEnv
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv

from relaax.client import Episode

GAMES = "games"
FRAMES_PER_SECOND = 60


class Games(VectorEnv):
    """Vector of games. Observations are the newest frame of each game, uint8 [N, 84, 84]; rewards are the raw score.

    A game begins with 0 to `noop_max` no-ops. If a step ends a game, the same step resets it. With `life_loss`, an
    episode ends with each life and the game continues. With and without `life_loss`, `whole_games` returns the games
    that a step ended, from the infos of the step.
    """

    def __init__(
        self,
        rom: str,
        environments: int,
        *,
        life_loss: bool = False,
        sticky: float = 0.0,
        noop_max: int = 30,
        frame_skip: int = 4,
        full_action_space: bool = False,
        max_frames: int = 108_000,
        threads: int = 0,
        fire_reset: bool = True,
        render: bool = False,
    ) -> None:
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        # `episodic_life` would begin a new game after each life; `life_loss_info` only reports terminated.
        self.emulator = AtariVectorEnv(
            rom,
            environments,
            stack_num=1,
            reward_clipping=False,
            frameskip=frame_skip,
            noop_max=noop_max + 1 if noop_max else 0,  # ale-py draws a number below this one
            life_loss_info=life_loss,
            repeat_action_probability=sticky,
            full_action_space=full_action_space,
            max_num_frames_per_episode=max_frames,
            num_threads=threads,
            use_fire_reset=fire_reset,
            autoreset_mode=AutoresetMode.SAME_STEP,
        )
        self.num_envs = environments
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_fps": FRAMES_PER_SECOND / frame_skip}
        self.single_observation_space = Box(0, 255, (84, 84), np.uint8)
        self.single_action_space = self.emulator.single_action_space
        self.action_space = self.emulator.action_space
        self._gray = np.zeros((84, 84), np.uint8)
        # With sticky actions the vector draws the repeats itself, so a shadow could not follow its game.
        self._shadow = Shadow(rom, frame_skip, full_action_space, fire_reset) if render and sticky == 0 else None
        self._first_frames: npt.NDArray[np.int64] = np.zeros(environments, np.int64)
        self._scores = np.zeros(environments)
        self._lengths = np.zeros(environments, np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
        observations, infos = self.emulator.reset(seed=seed)
        self._first_frames = _first_frames(infos)
        self._scores[:] = 0.0
        self._lengths[:] = 0
        self._gray = observations[0, 0]
        if self._shadow is not None:
            self._shadow.begin(int(infos["episode_frame_number"][0]))
        return observations[:, 0], infos

    def step(self, actions: Any) -> tuple[npt.NDArray[np.uint8], Any, Any, Any, dict[str, Any]]:
        observations, rewards, terminated, truncated, infos = self.emulator.step(actions)
        observations = observations[:, 0]
        self._gray = observations[0]
        if self._shadow is not None:
            self._shadow.act(int(actions[0]))
        self._scores += rewards
        self._lengths += 1
        kept: dict[str, Any] = {GAMES: (), "lives": infos["lives"]}
        cut = np.count_nonzero(truncated)
        if cut or np.count_nonzero(terminated):
            first_frames = _first_frames(infos)
            over = first_frames != self._first_frames
            kept[GAMES] = self._finished_games(over)
            self._first_frames = first_frames
            if over[0] and self._shadow is not None:
                self._shadow.begin(int(infos["episode_frame_number"][0]))
            if cut:
                # If a game continues, ale-py leaves an old frame in `final_obs`: use the current observation.
                kept["final_obs"] = np.where(over[:, None, None], infos["final_obs"][:, 0], observations)
        return observations, rewards, terminated, truncated, kept

    def render(self) -> tuple[npt.NDArray[np.uint8]]:
        """Return the screen of the first game, uint8 [H, W, 3]; with sticky actions, the observed gray frame."""
        if self._shadow is not None:
            return (self._shadow.screen(),)
        return (np.repeat(self._gray[:, :, None], 3, axis=2),)

    def _finished_games(self, over: npt.NDArray[np.bool_]) -> list[Episode]:
        """Return the games that are over, and reset their score and length for the next game."""
        games = [Episode(int(i), float(self._scores[i]), int(self._lengths[i])) for i in np.flatnonzero(over)]
        self._scores[over] = 0.0
        self._lengths[over] = 0
        return games

    def close(self, **kwargs: Any) -> None:
        if "emulator" in self.__dict__:  # absent if the constructor failed
            self.emulator.close(**kwargs)


class Shadow:
    """A copy of one game of a vector, with full-size colour screens for people who watch.

    Without sticky actions a game is determined by its actions: a reset, FIRE if the vector presses it, the no-ops, and
    the agent's actions.
    """

    def __init__(self, rom: str, frame_skip: int, full_action_space: bool, fire_reset: bool) -> None:
        self._ale = ale_py.ALEInterface()
        self._ale.setFloat("repeat_action_probability", 0.0)
        path = ale_py.roms.get_rom_path(rom)
        assert path is not None, "the vector has this game"
        self._ale.loadROM(path)
        self._actions = self._ale.getLegalActionSet() if full_action_space else self._ale.getMinimalActionSet()
        self._fires = fire_reset and ale_py.Action.FIRE in self._actions
        self._frame_skip = frame_skip

    def begin(self, frames: int) -> None:
        """Start a game and play no-ops until it is `frames` frames old."""
        self._ale.reset_game()
        if self._fires:
            self._ale.act(ale_py.Action.FIRE)
        while self._ale.getEpisodeFrameNumber() < frames:
            self._ale.act(ale_py.Action.NOOP)

    def act(self, action: int) -> None:
        """Take a step of the agent."""
        for _ in range(self._frame_skip):
            self._ale.act(self._actions[action])

    def screen(self) -> npt.NDArray[np.uint8]:
        """Return the newest frame, uint8 [210, 160, 3]."""
        screen: npt.NDArray[np.uint8] = self._ale.getScreenRGB()
        return screen


def whole_games(infos: dict[str, Any]) -> Sequence[Episode]:
    """Return the games that ended with a step: raw score and length in steps."""
    games: Sequence[Episode] = infos[GAMES]
    return games


def _first_frames(infos: dict[str, Any]) -> npt.NDArray[np.int64]:
    """Return the emulator frame at which each game began; it changes only with a new game."""
    first: npt.NDArray[np.int64] = infos["frame_number"].astype(np.int64) - infos["episode_frame_number"]
    return first
