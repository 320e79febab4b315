"""Parameters of environments and lessons, with real servers: crashes, reconnections and the record of episodes."""

from __future__ import annotations

import csv
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax import rlx
from relaax.checkpoint import CheckpointManager, LocalStore
from relaax.client import VectorClient
from relaax.lessons.curriculum import RESTORED
from relaax.lessons.episode_log import COLUMNS
from relaax.lessons.values import Draw, ValueRange, draw
from support.metrics_page import scalars
from support.processes import Processes, wait_until
from support.service import RELAAX, RLX_SERVER, started_service, write_service_config
from support.shard_processes import ShardProcesses

pytestmark = pytest.mark.checks("relaax/client", "relaax/server", "relaax/parameters", "relaax/lessons")

PATIENCE = 120.0
SEED = 21
VALUES = {"size": 9, "speed": {"low": 1, "high": 2}, "doors": {"choices": [2, 4, 8]}}
ENDS = {"mean_return": 0, "episodes": 8}
LESSONS = [
    {"name": "one", "parameters": {"size": 1}, "until": ENDS},
    {"name": "two", "parameters": {"size": 2}, "until": ENDS},
    {"name": "three", "parameters": {"size": 3}, "until": {"mean_return": 1e6}},
    {"name": "full"},
]
SECTIONS: dict[str, Any] = {
    "environment-parameters": VALUES,
    "curriculum": {"lessons": LESSONS},
    "relaax-parameter-server": {"checkpoint-interval": 0.3},
}
RANGES = {"size": ValueRange.constant(9), "speed": ValueRange(1, 2), "doors": ValueRange(choices=(2, 4, 8))}


@dataclass(frozen=True)
class Line:
    """A line of episodes.csv."""

    of: Draw
    edition: int
    episode_return: float
    length: int
    numbers: tuple[float, ...]


def lines(service_folder: Path) -> list[Line]:
    """Return the lines of episodes.csv, without one that is being written."""
    path = service_folder / "metrics" / "episodes.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        header, *rows = csv.reader(text for text in file if text.endswith("\n"))
    assert header == [*COLUMNS, *VALUES]
    found = []
    for row in rows:
        cells = dict(zip(header, row, strict=True))
        of = Draw(SEED, int(cells["joined"]), int(cells["actor"]), int(cells["number"]))
        numbers = tuple(float(cells[name]) for name in VALUES)
        found.append(Line(of, int(cells["edition"]), float(cells["episode_return"]), int(cells["length"]), numbers))
    return found


@dataclass
class Episode:
    """An episode that a client has ended. `numbers`: parameters that it had before the episode began."""

    numbers: tuple[float, ...]
    length: int
    episode_return: float


@dataclass
class Played:
    """Environments that play in a thread of their own, until the end of the block. All returns are different."""

    client: VectorClient
    environments: int
    seed: int
    episodes: list[Episode] = field(default_factory=list)
    """Read it after the end: the thread adds to it."""
    error: BaseException | None = None

    def play(self, end: threading.Event) -> None:
        try:
            while not end.is_set():
                self._connection(end)
                self.client.disconnect()  # the next init connects again
        except BaseException as error:
            self.error = error

    def _connection(self, end: threading.Event) -> None:
        """Play 40 steps and a reset."""
        n, rng = self.environments, np.random.default_rng([self.seed, len(self.episodes)])
        began = self._numbers()
        self.client.init(np.zeros((n, 1), np.float32))
        returns, lengths = np.zeros(n), np.zeros(n, int)
        for step in range(40):
            rewards, ended = rng.random(n), rng.random(n) < 0.3
            returns, lengths = returns + rewards, lengths + 1
            last = step == 39
            if not last:
                numbers = self._numbers()
                self.client.step(rewards, np.zeros((n, 1), np.float32), ended)
            else:
                self.client.reset(rewards)
            for index in range(n):
                if last or ended[index]:
                    self.episodes.append(Episode(began[index], int(lengths[index]), float(returns[index])))
                    if not last:
                        began[index], returns[index], lengths[index] = numbers[index], 0.0, 0

    def _numbers(self) -> list[tuple[float, ...]]:
        found = self.client.parameters
        return list(zip(*(found[name].tolist() for name in VALUES), strict=True))


@contextmanager
def playing(address: str, environments: Sequence[int]) -> Iterator[list[Played]]:
    """Let a client play for each of these numbers of environments. They reconnect after 40 steps."""
    spaces = {"observation_space": rlx.Box(shape=(1,)), "action_space": rlx.Discrete(2)}
    end = threading.Event()
    clients = [
        Played(VectorClient(address, environments=n, environment_parameters=True, **spaces), n, seed)
        for seed, n in enumerate(environments)
    ]
    threads = [threading.Thread(target=one.play, args=(end,), daemon=True) for one in clients]
    for thread in threads:
        thread.start()
    try:
        yield clients
    finally:
        end.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads), "a client still plays"
    assert [one.error for one in clients] == [None] * len(clients)


def wait_for_lines(folder: Path, edition: int, count: int) -> list[Line]:
    """Wait for episodes of this edition or a later one, and return them."""

    def found() -> list[Line]:
        new = [line for line in lines(folder) if line.edition >= edition]
        return new if len(new) >= count else []

    return wait_until(found, f"{count} episodes of edition {edition}", PATIENCE)


def saved(folder: Path) -> Mapping[str, Any]:
    """Return the lesson in the newest checkpoint; empty without a checkpoint."""
    manager = CheckpointManager(LocalStore(folder / "checkpoints"))
    published = manager.published()
    return manager.manifest(published[0])["curriculum"] if published else {}


def set_number(address: str, assignment: str) -> str:
    done = subprocess.run([*RELAAX, "set", address, assignment], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 2])
def test_killed_first_shard_resumes_the_lesson_and_its_numbers(
    shards: int, processes: Processes, tmp_path: Path
) -> None:
    config = write_service_config(tmp_path, SECTIONS, seed=SEED)
    servers = ShardProcesses(processes, config, shards)
    shard_addresses = ",".join(servers.addresses)
    _, address = processes.start_server(*RLX_SERVER, "--config", config, "--parameter-server", shard_addresses)
    with playing(address, [2]) as (client,):
        wait_for_lines(tmp_path, 3, 4)
        assert set_number(servers.addresses[0], "speed=7.5") == "size 3, speed 7.5, doors 2 | 4 | 8"
        wait_for_lines(tmp_path, 4, 4)
        wait_until(lambda: saved(tmp_path).get("edition") == 4, "the number is in a checkpoint", PATIENCE)
        servers.running[0].kill()
        servers.restart(0)
        resumed = wait_for_lines(tmp_path, RESTORED, 20)
    assert {line.edition % RESTORED for line in resumed} == {4}
    assert {line.numbers[:2] for line in resumed} == {(3.0, 7.5)}
    assert {line.numbers[2] for line in resumed} == {2.0, 4.0, 8.0}
    assert {episode.numbers[:2] for episode in client.episodes[-4:]} == {(3.0, 7.5)}
    numbers = wait_until(lambda: scalars(tmp_path / "metrics").get("lesson/number"), "the lesson is written")
    assert numbers == sorted(numbers), "no lesson is repeated"
    assert numbers[-1] == 3


def test_every_line_is_drawn_from_the_seed(tmp_path: Path) -> None:
    """Two connections of three and one environments end and begin again, and all workers are killed once."""
    values = {"environment-parameters": VALUES}
    with started_service(tmp_path, sections=values, seed=SEED) as service:
        with playing(service.address, [3, 1]) as (first, second):
            wait_for_lines(tmp_path, 1, 200)
            for worker in service.rlx_server.children():
                worker.kill()
            wait_for_lines(tmp_path, 1, len(lines(tmp_path)) + 200)
        service.wait_for_no_workers()
        found = lines(tmp_path)
    assert len({line.of for line in found}) == len(found), "no episode is recorded twice"
    assert len({line.of.joined for line in found}) > 4
    assert {line.of.actor for line in found} >= {0, 1, 2, 3}
    assert len({line.numbers[2] for line in found}) == 3
    for line in found:
        assert line.numbers == tuple(draw(RANGES, line.of).tolist())
    # All lines are episodes that a client has played with these numbers, and only killed workers lose lines.
    played = {(episode.numbers, episode.length): episode for one in (first, second) for episode in one.episodes}
    for line in found:
        assert line.episode_return == pytest.approx(played[line.numbers, line.length].episode_return, rel=1e-6)
    assert len(found) >= len(first.episodes) + len(second.episodes) - 40
