"""Honest clients continue to train if another client sends finite numbers that are far too large."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from relaax import rlx
from relaax.checkpoint import CheckpointManager, LocalStore
from relaax.rlx import ErrorCode, Sender
from relaax.rlx.messages import MAX_REWARD
from relaax.rlx.wire.codecs import codec_named
from relaax.rlx.wire.framing import frame
from support.processes import wait_until
from support.rlx_line import Line
from support.rlx_pair import make_hello, make_step
from support.service import Service, started_service

pytestmark = pytest.mark.checks("relaax/server", "relaax/rlx", "relaax/algorithm_base")

EPISODE = 10  # steps
VALID_EPISODES = 60  # episodes of a hostile client that follows the protocol


class Honest:
    """An honest client that steps in a thread until the end of the block. `failure`: the error that ended it."""

    def __init__(self, address: str) -> None:
        self.steps = 0
        self.failure: BaseException | None = None
        self._address = address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Honest:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert self.failure is None, self.failure

    def expect_more_steps(self) -> None:
        """Wait until the client has had answers for several more rollouts."""
        enough = self.steps + 50
        wait_until(lambda: self.steps >= enough or self.failure, "an honest client is answered", 120)
        assert self.failure is None, self.failure

    def _run(self) -> None:
        try:
            with Line(self._address) as line:
                line.open()
                line.init()
                while not self._stop.is_set():
                    for _ in range(EPISODE):
                        line.step(reward=np.ones(1))
                        self.steps += 1
                    line.send(rlx.Reset(np.ones(1)))
                    line.expect(rlx.EpisodeReturns)
                    line.init()
        except BaseException as failure:
            self.failure = failure


def send_rewards(address: str, codec: str, rewards: list[float]) -> ErrorCode | None:
    """Play episodes with these rewards, also invalid ones. Return the code of the error that ends them, or None."""
    hello = make_hello(environments=1, autoreset=(rlx.Autoreset.SAME_STEP,))
    with Line(address, codec) as line:
        line.open(hello)
        line.init()
        for number, reward in enumerate(rewards, 1):
            ended = np.array([number % EPISODE == 0])
            observation = line.observation(0)
            step = replace(
                make_step(hello, reward=np.array([reward])),
                terminated=ended if ended.any() else None,
                observation=observation,
            )
            line.connection.send(make_step(hello, terminated=step.terminated, observation=observation))
            line.socket.sendall(frame(codec_named(codec).encode(step, Sender.CLIENT), 2**20))
            event = line.receive()
            if isinstance(event, rlx.Error):
                return event.code
            assert isinstance(event, rlx.Actions), event
        return None


def last_manifest(service: Service) -> dict[str, object]:
    """Stop the parameter server. Return the manifest of its last checkpoint."""
    assert service.parameter_server.stop() == 0, service.parameter_server.report()
    checkpoint = CheckpointManager(LocalStore(service.folder / "checkpoints")).restore()
    assert checkpoint is not None
    manifest: dict[str, object] = dict(checkpoint.manifest)
    return manifest


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["protobuf", "json"])
def test_rewards_beyond_the_limit_end_only_their_client(tmp_path: Path, codec: str, short: bool) -> None:
    if short and codec == "protobuf":
        pytest.skip("--short sends JSON only: both codecs share the checks of numbers")
    with started_service(tmp_path, normalize_rewards="scale") as service:
        with Honest(service.address) as honest:
            honest.expect_more_steps()
            for reward in (1.7e308, -1.7e308, 1e153, math.nextafter(MAX_REWARD, math.inf)):
                assert send_rewards(service.address, codec, [reward] * 2 * EPISODE) is ErrorCode.INVALID_VALUE
            before = service.status
            honest.expect_more_steps()
            wait_until(lambda: service.status.global_step > before.global_step, "training continues", 60)
        assert 0 < service.status.mean_return_100 < 2 * EPISODE
        assert last_manifest(service)["mean_return"] is not None


@pytest.mark.slow
def test_statistics_remain_mergeable_after_largest_rewards(tmp_path: Path) -> None:
    with started_service(tmp_path, normalize_rewards="scale") as service:
        with Honest(service.address) as honest:
            honest.expect_more_steps()
            rewards = np.random.default_rng(1).choice([-MAX_REWARD, MAX_REWARD], VALID_EPISODES * EPISODE).tolist()
            assert send_rewards(service.address, "protobuf", rewards) is None
            honest.expect_more_steps()
        status = service.wait_for_no_workers()
        assert status.episodes >= VALID_EPISODES
        assert abs(status.mean_return_100) <= EPISODE * MAX_REWARD
        last_manifest(service)
        service.start_parameter_server()
        with Honest(service.address) as honest:
            honest.expect_more_steps()
        assert "starts empty" not in service.parameter_server.stderr
        assert "dropped a sample" not in service.parameter_server.stderr
