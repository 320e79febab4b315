"""Learners in a run: they do not listen, are restarted, and end before the servers that they use."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cli.test_replay_plan import write_configuration

from relaax.cli.run.plan import make_plan
from relaax.cli.run.supervisor import Supervisor
from relaax.configuration import roles
from support.processes import wait_until
from support.supervised import supervised, watch_until_ready

pytestmark = pytest.mark.checks("relaax/cli/run", "relaax/supervision", "relaax/server/learner")

TESTS = Path(__file__).resolve().parent.parent


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Supervisor]:
    """A run whose replay servers only listen, because the learners do not use them in this test."""
    silent = replace(roles.REPLAY_SERVER, module="support.silent_server")
    monkeypatch.setattr(roles, "ROLES", tuple(silent if role is roles.REPLAY_SERVER else role for role in roles.ROLES))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
    with supervised(make_plan(write_configuration(tmp_path, 2, 2), []), tmp_path / "run") as supervisor:
        yield supervisor


@pytest.mark.slow
def test_learners_are_started_watched_and_ended(running: Supervisor, caplog: pytest.LogCaptureFixture) -> None:
    learners, shards = running._processes["learner"], running._processes["replay-server"]
    assert [learner.address for learner in learners] == ["", ""]
    assert [learner.log.name for learner in learners] == ["learner.log", "learner-1.log"]
    assert [shard.log.name for shard in shards] == ["replay-server.log", "replay-server-1.log"]
    addresses = running._host.server_addresses()
    assert [shard.address for shard in shards] == addresses["replay-server"], "the reserved addresses"
    assert "learner" not in addresses
    for process, how in ((learners[0], signal.SIGTERM), (learners[1], signal.SIGKILL), (shards[1], signal.SIGKILL)):
        assert process.pid is not None
        os.kill(process.pid, how)
        wait_until(lambda process=process: process.exit_code() is not None, "it has ended")  # type: ignore[misc]
    running.watch()
    assert [process.restarts for process in (*learners, *shards)] == [1, 1, 0, 1]
    assert running._host.server_addresses() == addresses
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "shard 1 of the replay server has died (-9); restarting the process",
        "learner has ended (0); restarting the process",
        "learner-1 has ended (-9); restarting the process",
    ]
    watch_until_ready(running, learners)
    running.stop_training()
    assert [learner.exit_code() for learner in learners] == [0, 0]
    assert running.parameter_server.exit_code() is None
