"""The Unity package of the C# client, outside of Unity: its components with stand-ins of Unity's types, run by Mono."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import numpy as np
import pytest

from relaax import rlx
from support.processes import Processes, wait_until
from support.rlx_peer import PeerConnection, RlxPeer, serve
from support.unity import FOLDER, compiled

needs_mono = pytest.mark.checks("protocol/clients/csharp", "relaax/rlx", "tests/support/rlx_peer.py")


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of tests/UnityTest.cs: two agents that count their actions."""
    return compiled(tmp_path_factory.mktemp("unity") / "counter.exe", "tests/UnityTest.cs")


def rows(observation: rlx.Leaves) -> list[list[float]]:
    return np.asarray(observation[-1]).tolist()


def marked(mask: rlx.Mask | None) -> list[int]:
    """Return the environments that a mask marks."""
    return [] if mask is None else np.flatnonzero(mask).tolist()


def second_actions(message: rlx.Message, conn: PeerConnection) -> rlx.Leaves:
    """Return the choices 2 and 1, and half the greatest number, for both agents."""
    return [np.array([[2, 1], [2, 1]]), np.full((2, 1), 0.5, np.float32)]


@pytest.mark.slow
@needs_mono
def test_outcomes_of_episodes_are_reported(counter: Path, processes: Processes) -> None:
    """Agent a ends its episodes after 3 actions. Those of b are truncated after 5. A decision is 2 fixed updates."""

    def script(conn: PeerConnection) -> None:
        conn.policy = second_actions
        conn.welcome(parameters={"gravity": [1.0, 2.0]})
        conn.answer({0: [3.0]})
        while True:
            conn.answer()

    with RlxPeer(script) as peer:
        running = processes.start("mono", counter, "--rlx-server", peer.address, "12")
        assert running.wait(120) == 0, running.report()
        (conn,) = peer.connections
    hello, init, steps = conn.hello, conn.of(rlx.Init)[0], conn.of(rlx.Step)
    assert (hello.environments, hello.mode) == (2, rlx.Mode.TRAIN)
    assert list(hello.observation_space.spaces) == ["action_mask", "observation"]
    assert running.lines[0] == "a 1 2 1 0.5"
    assert rows(init.observation) == [[1, 0, 1], [1, 0, 2]], "parameters of the first episodes"
    assert [step.reward.tolist() for step in steps[:3]] == [[2, 2], [1, 2], [2, 1]]
    assert [marked(step.terminated) for step in steps[:3]] == [[], [0], []]
    assert [marked(step.truncated) for step in steps[:3]] == [[], [], [1]]
    assert rows(steps[0].observation) == [[1, 2, 3], [1, 2, 2]]
    assert rows(steps[1].observation) == [[2, 0, 3], [1, 4, 2]]
    assert rows(steps[1].final_observation)[0] == [1, 3, 3]
    assert rows(steps[2].final_observation)[1] == [1, 5, 2]
    assert np.asarray(init.observation[0]).tolist() == [[1, 1, 1, 1, 1]] * 2
    assert np.asarray(steps[1].final_observation[0]).tolist()[0] == [1, 1, 1, 1, 1], "no action follows"


@pytest.mark.slow
@needs_mono
def test_game_continues_while_an_answer_is_pending(counter: Path, processes: Processes) -> None:
    awaited = threading.Event()

    def script(conn: PeerConnection) -> None:
        conn.welcome()
        conn.answer()
        conn.answer()
        message = conn.expect(rlx.Step)
        assert awaited.wait(120)
        conn.send(rlx.Actions(second_actions(message, conn)))
        while True:
            conn.answer()

    with RlxPeer(script) as peer:
        running = processes.start("mono", counter, "--rlx-server", peer.address, "200", "keep", "plain", "endless")
        wait_until(lambda: len(running.lines) > 100, "the agents act")
        awaited.set()
        assert running.wait(120) == 0, running.report()
        (conn,) = peer.connections
    scalars = [scalar for metrics in conn.of(rlx.Metrics) for scalar in metrics.scalars]
    assert max(value for name, value in scalars if name == "fixed_updates_waited") > 40, running.report()


@pytest.mark.slow
@needs_mono
@pytest.mark.parametrize("keep", [(), ("keep",)], ids=["waits", "keeps_frame_rate"])
def test_lost_connection_begins_new_episodes(counter: Path, processes: Processes, keep: tuple[str, ...]) -> None:
    def dies(conn: PeerConnection) -> None:
        conn.welcome()
        conn.answer()
        conn.answer()
        conn.kill()

    with RlxPeer(dies, serve) as peer:
        running = processes.start("mono", counter, "--rlx-server", peer.address, "30", "plain", *keep)
        assert running.wait(120) == 0, running.report()
        first, second = peer.connections
    assert "connecting again" in running.stderr
    last = max(episode for message in first.of(rlx.Init, rlx.Step) for episode, *_ in rows(message.observation))
    assert all(episode > last for episode, *_ in rows(second.of(rlx.Init)[0].observation))


def finishes(conn: PeerConnection) -> None:
    conn.welcome()
    conn.answer()
    conn.expect(rlx.Step)
    conn.send(rlx.TrainingFinished("enough", 7))
    conn.close()


def refuses(conn: PeerConnection) -> None:
    conn.expect(rlx.Hello)
    conn.fail(rlx.ErrorCode.UNSUPPORTED_SPACE, "no such space")


@pytest.mark.slow
@needs_mono
@pytest.mark.parametrize(
    ("script", "code", "line"), [(finishes, 0, "log: training has finished"), (refuses, 2, "error: ")]
)
def test_player_quits_with_the_training(
    counter: Path, processes: Processes, script: object, code: int, line: str
) -> None:
    with RlxPeer(script) as peer:  # type: ignore[arg-type]
        running = processes.start("mono", counter, "--rlx-server", peer.address, "1000000", "plain")
        assert running.wait(120) == code, running.report()
    assert line in running.stderr


@pytest.mark.slow
@needs_mono
@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("reward", "b: the reward is NaN; it must be from -1e15 to 1e15"),
        ("observation", "b: number 1 of the observation is NaN; it must be finite"),
    ],
)
@pytest.mark.parametrize("keep", [(), ("keep",)], ids=["waits", "keeps_frame_rate"])
def test_invalid_number_ends_the_training(
    counter: Path, processes: Processes, fault: str, sentence: str, keep: tuple[str, ...]
) -> None:
    with RlxPeer(serve) as peer:
        words = (counter, "--rlx-server", peer.address, "1000000", "plain", "endless", *keep, fault)
        running = processes.start("mono", *words)
        assert running.wait(120) == 1, running.report()
        (conn,) = peer.connections
    assert f"error: RLX: {sentence}\n" in running.stderr
    assert [type(message) for message in conn.of(rlx.Init, rlx.Step, rlx.Bye)][-1] is rlx.Bye
    assert len(conn.of(rlx.Step)) <= 1
    assert len(running.lines) < 20, "the agents act without a new answer"


@pytest.mark.slow
@needs_mono
def test_outcomes_survive_an_exception_of_an_agent(counter: Path, processes: Processes) -> None:
    """The second message is sent later, with all rewards and ends of episodes since the first."""
    with RlxPeer(serve) as peer:
        running = processes.start("mono", counter, "--rlx-server", peer.address, "12", "plain", "exception")
        assert running.wait(120) == 0, running.report()
        (conn,) = peer.connections
    steps = conn.of(rlx.Step)
    assert "error: there is no sensor" in running.stderr
    assert [step.reward.tolist() for step in steps[:2]] == [[2, 2], [1, 3]]
    assert (marked(steps[1].terminated), marked(steps[1].truncated)) == ([0], [1])


@pytest.mark.slow
@needs_mono
def test_heuristic_acts_without_a_server(counter: Path, processes: Processes) -> None:
    running = processes.start("mono", counter, "8")
    assert running.wait(120) == 0, running.report()
    assert set(running.lines) == {"a 1 2 0 0", "b 1 2 0 0", "a 2 2 0 0"}


def test_each_asset_of_the_package_has_an_identity() -> None:
    """Unity ignores files without .meta in packages that it cannot write to."""
    package = json.loads((FOLDER / "package.json").read_text("utf-8"))
    version = re.search(r'Version = "(.*)"', (FOLDER / "src" / "Client.cs").read_text("utf-8"))
    assert version is not None
    assert package["version"] == version[1]
    assets = [path for path in FOLDER.rglob("*") if path.suffix != ".meta"]
    texts = [Path(f"{path}.meta").read_text("utf-8") for path in assets]
    identities = [re.findall("^guid: ([0-9a-f]{32})$", text, re.MULTILINE) for text in texts]
    assert len({identity for (identity,) in identities}) == len(assets)
    assert all(Path(str(meta).removesuffix(".meta")).exists() for meta in FOLDER.rglob("*.meta"))
