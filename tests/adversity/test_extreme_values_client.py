"""One client that sends extreme numbers beside three honest clients. Each client has its own token."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.checkpoint import CheckpointManager, LocalStore
from support.hostile_run import HERE, steps_per_second
from support.named_clients import ClientsFile, token_of
from support.processes import Processes, Running, wait_until
from support.service import LEARNER, PARAMETER_SERVER, REPLAY_SERVER, RLX_SERVER, status_of, write_service_config

pytestmark = pytest.mark.checks("relaax/server", "relaax/rlx", "relaax/algorithm_base", "algorithms")

HONEST = ("one", "two", "three")
EXTREME = "extreme"
RATE = 20.0  # steps per second of each client; low enough for a busy machine
SHARE = 0.85  # minimum share of their rate without the extreme client
LARGEST_RETURN = 500.0  # maximum return of CartPole
PATIENCE = 60.0
DA3C: dict[str, Any] = {"normalize_observations": True}
GORILA: dict[str, Any] = {
    "path": "gorila",
    "learner": "separate",
    "replay_capacity": 2_000,
    "learning_starts": 100,
    "batch_size": 32,
    "samples_per_insert": 8,
}


@dataclass
class Scene:
    """The servers of one training, and three honest clients."""

    processes: Processes
    folder: Path
    algorithm: dict[str, Any]
    servers: list[Running] = field(default_factory=list)

    def start(self) -> None:
        clients = ClientsFile(self.folder)
        clients.write(**{name: {} for name in (*HONEST, EXTREME)})
        config = write_service_config(self.folder, **self.algorithm)
        document = json.loads(config.read_text())
        document["relaax-rlx-server"]["clients-file"] = str(clients.path)
        config.write_text(json.dumps(document))
        self._config = ("--config", config)
        self.parameter_server, shard = self._started(PARAMETER_SERVER)
        services: tuple[str, ...] = ("--parameter-server", shard)
        if self.algorithm.get("learner") == "separate":
            _, memory = self._started(REPLAY_SERVER, "--bind", "127.0.0.1:0")
            services += ("--replay-server", memory)
            self.servers.append(self.processes.start(*LEARNER, *self._config, *services))
        _, self.address = self._started(RLX_SERVER, *services)
        self._shard = shard
        self._files = [self.folder / f"{name}.jsonl" for name in HONEST]
        for name, file in zip(HONEST, self._files, strict=True):
            self.client("honest_client.py", name, file)

    def _started(self, command: tuple[str, ...], *more: str) -> tuple[Running, str]:
        server, address = self.processes.start_server(*command, *self._config, *more)
        self.servers.append(server)
        return server, address

    def client(self, program: str, name: str, *more: Path) -> Running:
        words = (self.address, str(RATE), *more)
        return self.processes.start(sys.executable, HERE / program, *words, env={"RELAAX_TOKEN": token_of(name)})

    @property
    def status(self) -> Any:
        return status_of(self._shard)

    @property
    def log(self) -> str:
        return "".join(server.stderr for server in self.servers)

    def wait_for_updates(self, updates: int) -> None:
        """Wait for `updates` more updates."""
        enough = self.status.updates + updates
        wait_until(lambda: self.status.updates >= enough, f"{updates} updates\n{self.log[-3000:]}", PATIENCE, 0.2)

    def wait_for(self, sentence: str, client: Running) -> None:
        """Wait until a log contains `sentence`. Raises AssertionError if `client` ends before."""
        wait_until(lambda: sentence in self.log or client.returncode is not None, f"{sentence!r}", PATIENCE, 0.2)
        assert sentence in self.log, f"{client.report()}\n{self.log[-3000:]}"

    def rate(self, seconds: float) -> float:
        """Measure the steps per second of the honest clients for this many seconds."""
        start = time.monotonic()
        time.sleep(seconds)
        return steps_per_second(self._files, start, start + seconds)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("algorithm", "sentences"),
    [
        (DA3C, (f"samples of client {EXTREME} are excluded", f"of client {EXTREME} is not counted in the means")),
        (GORILA, (f"transitions of client {EXTREME} at ", f"of client {EXTREME} is not counted in the means")),
        (
            GORILA | {"normalize_observations": True},
            (f"samples of client {EXTREME} are excluded", f"of client {EXTREME} is not counted in the means"),
        ),
    ],
    ids=["da3c", "gorila", "gorila-normalized"],
)
def test_honest_clients_train_beside_extreme_values(
    processes: Processes, tmp_path: Path, short: bool, algorithm: dict[str, Any], sentences: tuple[str, ...]
) -> None:
    if short and algorithm not in (DA3C, GORILA):
        pytest.skip("--short has the other two cases, which log the same sentences")
    seconds = 8.0 if short else 40.0
    scene = Scene(processes, tmp_path, algorithm)
    scene.start()
    wait_until(lambda: scene.status.episodes >= 10, f"honest episodes\n{scene.log}", PATIENCE, 0.2)
    scene.wait_for_updates(5)
    before = scene.rate(seconds)

    extreme = scene.client("extreme_values_client.py", EXTREME)
    for sentence in sentences:
        scene.wait_for(sentence, extreme)
    kept = scene.rate(seconds) / before
    assert kept >= SHARE, f"the honest clients kept {kept:.2f} of {before:.1f} steps per second"
    scene.wait_for_updates(10)
    assert extreme.returncode is None, extreme.report()

    status = scene.status
    assert 1.0 <= status.mean_return_100 <= LARGEST_RETURN
    assert 1.0 <= status.agreed_return <= LARGEST_RETURN
    assert status.discarded < status.updates / 2, status
    assert "Traceback" not in scene.log
    assert scene.parameter_server.stop(timeout=60) == 0, scene.parameter_server.report()
    check_checkpoint(tmp_path / "checkpoints")


def check_checkpoint(folder: Path) -> None:
    """Check that parameters are finite and statistics are of the scale of CartPole."""
    checkpoint = CheckpointManager(LocalStore(folder)).restore()
    assert checkpoint is not None
    arrays = {name: array for part in checkpoint.parts.values() for name, array in part.items()}
    for name, array in arrays.items():
        assert np.isfinite(np.asarray(array, np.float64)).all(), name
        if name.startswith("statistics/observation/") and name.endswith("/mean"):
            assert (np.abs(array) < 10).all(), (name, array)
        if name == "parameters":
            assert np.abs(array).max() < 100, np.abs(array).max()
