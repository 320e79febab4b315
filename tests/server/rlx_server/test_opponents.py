"""Opponents: which checkpoint plays which episode, and that its agent acts as it would alone."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import AgentBase, AgentContext, Box, StepResult
from relaax.checkpoint import CheckpointManager, LocalStore, Milestones, StoreError
from relaax.configuration import ConfigurationError, load_configuration
from relaax.lessons.values import Draw
from relaax.parameters.interfaces import Pulled
from relaax.policy.policy import FixedParameters
from relaax.rlx import Autoreset, Init, Mode, Reset, Step
from relaax.server.rlx_server.workers.opponents import (
    CHECK_SECONDS,
    NEWEST,
    OlderCheckpoints,
    OpponentAgent,
    share_of,
)
from relaax.server.rlx_server.workers.plan import OpponentKeys, opponent_keys, opponent_source
from support.acting_checkpoints import Checkpoints
from support.offline_client import OfflineClient, OfflineMetrics
from support.policy_files import bundled
from support.recorded_session import RecordedSession, mask, obs, rewards


class Scene:
    """A folder of checkpoints that always take one action. Checkpoint k takes action k, and is saved at step 10 k."""

    def __init__(self, folder: Path, actions: int = 12) -> None:
        self.folder, self.now, self.global_step = folder, 0.0, 0
        self.saved = Checkpoints(folder, actions=actions)

    def save(self, *numbers: int) -> None:
        for number in numbers:
            self.saved.save(10 * number, number)

    def checkpoints(self, keep: int = 3) -> OlderCheckpoints:
        store = LocalStore(self.folder)
        return OlderCheckpoints(
            store, Milestones(keep, 10), self.saved.config, self.saved.fingerprint, clock=lambda: self.now
        )

    def agent(self, checkpoints: OlderCheckpoints, environments: int = 4, places: int = 2, **changes: Any) -> Any:
        context = AgentContext(
            observation_space=self.saved.observation_space,
            action_space=self.saved.action_space,
            environments=environments,
            actors=tuple(range(environments)),
            seed=7,
            exploit=True,
            parameters=FixedParameters(Pulled(self.saved.vector(0), 0, 0)),
            metrics=OfflineMetrics(),
        )
        agent = bundled("da3c").Agent
        return OpponentAgent(
            agent, self.saved.config, replace(context, **changes), checkpoints, places, 0, lambda: self.global_step
        )


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def number_of(found: tuple[str, Pulled] | None) -> int:
    """Return the number of a checkpoint; 0 for none."""
    return 0 if found is None else found[1].global_step // 10


def test_newest_milestones_are_drawn_with_equal_shares(scene: Scene) -> None:
    checkpoints = scene.checkpoints()
    assert checkpoints.at(0.5) is None
    scene.save(1, 2, 3, 4, 5)
    scene.now += CHECK_SECONDS
    assert [number_of(checkpoints.at(share)) for share in (0.0, 0.33, 0.34, 0.66, 0.67, 0.999)] == [3, 3, 4, 4, 5, 5]


def test_store_is_listed_once_in_a_while(scene: Scene) -> None:
    scene.save(1)
    checkpoints = scene.checkpoints()
    assert number_of(checkpoints.at(0.9)) == 1
    scene.save(2)
    assert number_of(checkpoints.at(0.9)) == 1
    scene.now += CHECK_SECONDS
    assert number_of(checkpoints.at(0.9)) == 2


def test_parameters_are_read_once_and_dropped_later(scene: Scene) -> None:
    scene.save(1, 2)
    checkpoints = scene.checkpoints(keep=2)
    first = checkpoints.at(0.0)
    assert first is not None
    again = checkpoints.at(0.0)
    assert again is not None
    assert again[1] is first[1]
    scene.save(3, 4)
    scene.now += CHECK_SECONDS
    assert [number_of(checkpoints.at(share)) for share in (0.0, 0.9)] == [3, 4]
    assert len(checkpoints._loaded) == 2


def test_unusable_checkpoint_is_skipped(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.save(1, 2, 3)
    (damaged,) = scene.folder.glob("00000002-*")
    (damaged / "shard-1.safetensors").write_bytes(b"nothing")
    (removed,) = scene.folder.glob("00000003-*")
    checkpoints = scene.checkpoints()
    assert number_of(checkpoints.at(0.0)) == 1
    shutil.rmtree(removed)
    assert {number_of(checkpoints.at(share)) for share in (0.4, 0.9)} == {1}
    assert caplog.text.count("no opponent acts with checkpoint") == 2
    scene.now += CHECK_SECONDS
    assert {number_of(checkpoints.at(share)) for share in (0.4, 0.9)} == {1}
    assert caplog.text.count("no opponent acts with checkpoint") == 2, "it is not read again"


def test_opponents_return_when_the_store_responds_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise StoreError("no answer")

    scene.save(1, 2, 3)
    checkpoints = scene.checkpoints()
    assert number_of(checkpoints.at(0.9)) == 3
    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "get", fail)
        assert number_of(checkpoints.at(0.0)) == 3, "the one that is in memory"
    scene.now += CHECK_SECONDS
    assert [number_of(checkpoints.at(share)) for share in (0.0, 0.5, 0.9)] == [1, 2, 3]


def test_checkpoint_of_another_model_does_not_play(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    Checkpoints(scene.folder, actions=3).save(10, 1)
    assert scene.checkpoints().at(0.5) is None
    assert "is of another model" in caplog.text


def step(environments: int, ended: Sequence[int] = (), **changes: Any) -> StepResult:
    """Return a step of environments of one number, some of whose episodes ended."""
    over = np.zeros(environments, np.bool_)
    over[list(ended)] = True
    none = np.zeros(environments, np.bool_)
    seen = [np.zeros((environments, 3), np.float32)]
    return StepResult(np.zeros(environments), seen, over, none, none.copy(), **changes)


def test_newest_parameters_play_before_the_first_checkpoint(scene: Scene) -> None:
    checkpoints = scene.checkpoints()
    agent = scene.agent(checkpoints)
    assert agent.reset([np.zeros((4, 3), np.float32)])[0].tolist() == [0] * 4
    assert [agent.checkpoint_of(index) for index in range(4)] == [NEWEST] * 4
    scene.save(6)
    scene.now += CHECK_SECONDS
    assert agent.step(step(4, ended=[1]))[0].tolist() == [0, 6, 0, 0]
    assert agent.step(step(4))[0].tolist() == [0, 6, 0, 0], "an episode keeps its opponent"


def test_missing_checkpoints_are_reported_once(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    agent = scene.agent(scene.checkpoints())
    scene.global_step = 29
    agent.reset([np.zeros((4, 3), np.float32)])
    assert caplog.text == ""
    scene.global_step = 30
    for _ in range(2):
        agent.step(step(4, ended=[0, 1]))
    assert caplog.text.count("has no checkpoint for opponents, and the training is at global step 30") == 1


def test_each_episode_has_the_opponent_that_its_draw_names(scene: Scene) -> None:
    scene.save(1, 2, 3, 4, 5)
    agent, rng = scene.agent(scene.checkpoints(keep=5), environments=6, places=2), np.random.default_rng(0)
    numbers = [0] * 6
    actions = agent.reset([np.zeros((6, 3), np.float32)])[0]
    seen: Counter[int] = Counter()
    for _ in range(80):
        expected = [1 + int(5 * share_of(Draw(7, 0, actor, numbers[actor]))) for actor in range(6)]
        assert actions.tolist() == expected
        assert [int(agent.checkpoint_of(index).rpartition("-")[2]) // 10 for index in range(6)] == expected
        ended = np.flatnonzero(rng.random(6) < 0.4).tolist()
        for index in ended:
            numbers[index] += 1
            seen[expected[index]] += 1
        actions = agent.step(step(6, ended=ended))[0]
    assert set(seen) == {1, 2, 3, 4, 5}
    assert len(agent._groups) <= 6


def test_waiting_environment_draws_when_its_episode_begins(scene: Scene) -> None:
    scene.save(1, 2, 3)
    agent = scene.agent(scene.checkpoints(), environments=1, places=1, out_of_step=True)
    agent.reset([np.zeros((1, 3), np.float32)])
    before = agent.checkpoint_of(0)
    for _ in range(3):
        agent.step(step(1, ended=[0], unwanted=np.ones(1, np.bool_)))
        assert agent.checkpoint_of(0) == before
    assert agent._draws[0].number == 1
    first = step(1)
    agent.step(StepResult(first.rewards, first.observations, first.terminated, first.truncated, np.ones(1, np.bool_)))
    assert agent._draws[0].number == 2


IMAGE = Box(0, 255, shape=(6, 6), dtype="uint8")
CONVOLUTIONS = {"convolutions": [{"filters": 4, "kernel": 3, "stride": 1}], "dense": [8]}


@pytest.mark.parametrize(
    "keys",
    [{}, {"lstm": True, "network": {"dense": [8], "lstm_size": 6}}, {"network": CONVOLUTIONS}],
    ids=["dense", "lstm", "frames"],
)
def test_opponents_act_as_they_would_alone(tmp_path: Path, keys: dict[str, Any]) -> None:
    """Frames and the state of an LSTM stay with their episode, in whatever group it is."""
    space = IMAGE if keys.get("network") is CONVOLUTIONS else Box(shape=(5,))
    saved = Checkpoints(tmp_path, actions=40, observation_space=space, **keys)
    for number in (1, 2, 3):
        saved.save_random(10 * number, number)
    checkpoints = OlderCheckpoints(LocalStore(tmp_path), Milestones(3, 10), saved.config, saved.fingerprint)
    rng, count = np.random.default_rng(1), 5
    context = AgentContext(
        observation_space=space,
        action_space=saved.action_space,
        environments=count,
        actors=tuple(range(count)),
        seed=3,
        exploit=True,
        parameters=OfflineClient(),
        metrics=OfflineMetrics(),
    )
    agent = OpponentAgent(bundled("da3c").Agent, saved.config, context, checkpoints, 2, 0, lambda: 0)
    alone: list[AgentBase] = []

    def observe() -> Any:
        shape = (count, *space.shape)
        return [rng.integers(0, 256, shape, np.uint8) if space is IMAGE else rng.normal(size=shape).astype(np.float32)]

    def fresh(index: int) -> AgentBase:
        """Return the agent of the checkpoint that plays an environment's episode, for this environment only."""
        pulled = next(p for i, p in checkpoints._loaded.items() if i == agent.checkpoint_of(index))
        own = replace(context, environments=1, actors=(index,), parameters=FixedParameters(pulled))
        return bundled("da3c").Agent(saved.config, own)

    seen = observe()
    actions = agent.reset(seen)[0]
    alone = [fresh(index) for index in range(count)]
    assert actions.tolist() == [int(one.reset([seen[0][[i]]])[0][0]) for i, one in enumerate(alone)]
    different = 0
    for _ in range(40):
        begun, none, seen = rng.random(count) < 0.2, np.zeros(count, np.bool_), observe()
        ended, first = (begun, none) if rng.random() < 0.5 else (none, begun)  # SAME_STEP, NEXT_STEP
        actions = agent.step(StepResult(np.zeros(count), seen, ended, none, first))[0]
        for index in range(count):
            own = [seen[0][[index]]]
            if begun[index]:
                alone[index] = fresh(index)
                expected = alone[index].reset(own)
            else:
                no = np.zeros(1, np.bool_)
                expected = alone[index].step(StepResult(np.zeros(1), own, no, no, no))
            assert actions[index] == expected[0][0]
        different += len(set(actions.tolist())) > 1
    assert different > 20


def test_game_is_recorded_with_the_checkpoint_that_played_it() -> None:
    made = RecordedSession(Autoreset.SAME_STEP, mode=Mode.EXPLOIT)
    playing = ["00000001-10", NEWEST]
    made.session.session._opponent_of = lambda environment: playing[environment]
    made.session.init(Init(obs(0, 0)))
    made.session.step(Step(rewards(-0.5, -1), obs(0, 0)))
    made.session.step(Step(rewards(-0.5, 1), obs(0, 0), terminated=mask(1, 1)))
    assert made.metrics.games == [("00000001-10", -1.0)], "games with the newest parameters do not count"
    playing[1] = "00000002-20"
    made.session.reset(Reset(rewards(0, 2)))
    assert made.metrics.games[1:] == [("00000001-10", 0.0), ("00000002-20", 2.0)]
    assert made.metrics.episodes == [], "they are no episodes of the training"


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "self_play.yaml"
    path.write_text(
        f"relaax-parameter-server: {{checkpoint-dir: {tmp_path / 'store'}}}\n"
        "opponents: {keep: 4, every: 100}\nalgorithm: {path: da3c}\n"
    )
    yield path


def test_server_finds_the_checkpoints_of_the_parameter_server(tmp_path: Path, file: Path) -> None:
    keys = opponent_keys(load_configuration(file))
    assert keys == OpponentKeys(4, 100, str(tmp_path / "store"), None, None, None)
    source = opponent_source(keys)
    assert source is not None
    assert source.milestones == (4, 100)
    assert CheckpointManager(source.open_store()).published() == []


@pytest.mark.parametrize("override", ["opponents.every=null", "rlx-server.checkpoint=elsewhere"])
def test_server_without_opponents(file: Path, override: str) -> None:
    assert opponent_source(opponent_keys(load_configuration(file, [override]))) is None


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["parameter-server.checkpoint_dir=null"], "has no location for them: set checkpoint-dir or checkpoint-aws-s3"),
        (["parameter-server.checkpoint_dir=/dev/null/a"], "cannot open the checkpoints of the parameter server: "),
    ],
)
def test_checkpoints_that_cannot_be_opened_are_refused(file: Path, overrides: list[str], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        opponent_source(opponent_keys(load_configuration(file, overrides)))
