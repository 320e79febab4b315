"""N tasks of MiniWoB++, each in its own browser, in parallel."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from relaax.client.program import families

WIDTH, HEIGHT, QUERY = 160, 210, 50  # of a page, in pixels; its upper QUERY pixels state the task
SCALE = 0.5  # letters are still readable
_SHAPE = (int(HEIGHT * SCALE), int(WIDTH * SCALE), 3)
_NO_TIME_LIMIT = "core.EPISODE_MAX_TIME = 2 ** 31 - 1;"  # ms: the speed of an agent is not part of the task
# Returns whether the episode ended, its reward, and whether the task is ready. If the episode ended, or arguments[1] is
# true, the next episode starts from the seed arguments[0].
_ADVANCE = """
const state = [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL];
if (WOB_DONE_GLOBAL || arguments[1]) {
  core.endEpisode(0);
  Math.seedrandom(String(arguments[0]));
  core.startEpisodeReal();
}
return [...state, WOB_TASK_READY];
"""
_READY = "return WOB_TASK_READY;"


def pages() -> dict[str, Path]:
    """Return the page of each task by its id, such as miniwob/click-test-v1."""
    found = importlib.util.find_spec("miniwob")
    assert found is not None and found.origin is not None, "the program requires it"
    folder = Path(found.origin).parent / "html" / "miniwob"
    return {f"miniwob/{path.stem}-v1": path for path in folder.glob("*.html")}


class Task:
    """One task in a browser.

    `grid`: number of columns and of rows of places to click at, below the query. `clicks`: maximum clicks per episode.
    """

    def __init__(self, browser: Any, grid: int, clicks: int) -> None:
        self._browser = browser
        self._grid = grid
        self._clicks = clicks
        self._left = clicks
        browser.run(_NO_TIME_LIMIT)

    def begin(self, seed: int) -> npt.NDArray[np.uint8]:
        """Start an episode and return its first screen."""
        self._advance(seed, True)
        return self.screen()

    def click(self, place: int, seed: int) -> tuple[npt.NDArray[np.uint8], float, bool]:
        """Click at a place. Return the next screen, the reward, and whether the episode ended.

        If it ended, the next episode starts from `seed`. The last allowed click ends an episode as a timeout of the
        page would.
        """
        row, column = divmod(place, self._grid)
        cell = WIDTH / self._grid
        self._browser.click(int((column + 0.5) * cell), QUERY + int((row + 0.5) * cell))
        self._left -= 1
        reward, ended = self._advance(seed, not self._left)
        return self.screen(), reward, ended

    def _advance(self, seed: int, end: bool) -> tuple[float, bool]:
        """Return the reward and whether the episode ended. If it ended, or `end` is true, start the next episode."""
        done, reward, ready = self._browser.run(_ADVANCE, seed, end)
        while not ready:
            ready = self._browser.run(_READY)
        if not done and not end:
            return 0.0, False
        self._left = self._clicks
        return float(reward) if done else -1.0, True

    def screen(self) -> npt.NDArray[np.uint8]:
        """Return the screen, uint8 [105, 80, 3]."""
        screen: npt.NDArray[np.uint8] = self._browser.screenshot()
        return screen

    def close(self) -> None:
        """Close the browser."""
        self._browser.close()

    def picture(self) -> npt.NDArray[np.uint8]:
        """Return the screen for people, uint8 [420, 320, 3]."""
        picture: npt.NDArray[np.uint8] = self._browser.screenshot(zoom=4)
        return picture


class Tasks(VectorEnv):
    """A vector of `count` copies of a task. If a step ends an episode, it also resets the task. None is truncated.

    `open_browser` returns a browser that shows the task's page. An episode ends with the page's own reward, which does
    not depend on time here. After `clicks` clicks, it ends with -1, the reward that a page gives for a timeout.
    """

    def __init__(self, open_browser: Callable[[], Any], count: int, grid: int, clicks: int) -> None:
        self.num_envs = count
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_fps": 2}
        self.render_mode = "rgb_array"
        self.single_observation_space = Box(0, 255, _SHAPE, np.uint8)
        self.single_action_space = Discrete(grid * grid)
        self.observation_space = batch_space(self.single_observation_space, count)
        self.action_space = batch_space(self.single_action_space, count)
        self._make: Callable[[], Task] = lambda: Task(open_browser(), grid, clicks)
        self._tasks: list[Task] = []
        self._random: list[np.random.Generator] = []
        self._threads = ThreadPoolExecutor(count, "browser")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
        if seed is not None or not self._tasks:
            self._random = [np.random.default_rng(None if seed is None else seed + i) for i in range(self.num_envs)]
        if not self._tasks:
            self._tasks = list(self._threads.map(lambda _: self._make(), range(self.num_envs)))
        screens = self._threads.map(lambda task, own: task.begin(own), self._tasks, self._seeds())
        return np.stack(list(screens)), {}

    def step(self, actions: Any) -> tuple[npt.NDArray[np.uint8], Any, Any, Any, dict[str, Any]]:
        outcomes = list(self._threads.map(Task.click, self._tasks, [int(place) for place in actions], self._seeds()))
        screens, rewards, ended = (np.array([outcome[i] for outcome in outcomes]) for i in range(3))
        return screens, rewards, ended, np.zeros(self.num_envs, np.bool_), {}

    def render(self) -> tuple[npt.NDArray[np.uint8]]:
        """Return the first task's screen."""
        return (self._tasks[0].picture(),)

    def close_extras(self, **kwargs: Any) -> None:
        """Close all browsers, also in the middle of a step."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _seeds(self) -> list[int]:
        return [int(own.integers(2**31)) for own in self._random]


def find(name: str) -> tuple[str, Path]:
    """Return the id and the page of a task. Raises command.UsageError if there is no such task."""
    known = pages()
    identifier = families.find_id(name, known, "miniwob/", "MiniWoB")
    return identifier, known[identifier]
