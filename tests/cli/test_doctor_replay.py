"""`relaax doctor` on replay servers and learners: reachable or not, in order or not, with room or without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from relaax.cli.doctor.command import checks, line
from relaax.cli.doctor.finding import Finding, Severity, Subject
from relaax.configuration.roles import REPLAY_TOKEN, WORKERS_TOKEN
from support.keys import Keys
from support.processes import Processes
from support.replay_servers import client_of, numbered, numbers, serving, start_replay_server
from support.unused_address import unused_address

SECRET, OTHER = "a-token-that-nobody-may-read", "another-token-that-is-not-it"
LEVELS = Severity.OK, Severity.WARNING, Severity.WRONG
CARTPOLE = {"environment": "OpenAI_Gym", "name": "CartPole-v1", "clients": 3}


@pytest.fixture(autouse=True)
def _no_tokens_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RELAAX_TOKEN", WORKERS_TOKEN, REPLAY_TOKEN):
        monkeypatch.delenv(variable, raising=False)


def written(folder: Path, **sections: dict[str, Any]) -> Path:
    """A configuration of apex; `replay`, `rlx`, `learner`, `run` and `algorithm` have keys of their sections."""
    document = {
        "relaax-parameter-server": {"bind": "127.0.0.1:0", **sections.get("server", {})},
        "relaax-replay-server": {"bind": "127.0.0.1:0", "shards": 2, **sections.get("replay", {})},
        "relaax-rlx-server": {"bind": "127.0.0.1:0", "parameter_server": "127.0.0.1:0", **sections.get("rlx", {})},
        "relaax-learner": {"learners": 1, "parameter_server": "127.0.0.1:0", **sections.get("learner", {})},
        "relaax-run": sections.get("run", {}),
        "algorithm": {
            "path": "apex",
            "network": {"dense": [8]},
            "replay_capacity": 1000,
            "learning_starts": 100,
            **sections.get("algorithm", {}),
        },
    }
    path = folder / "experiment.yaml"
    path.write_text(json.dumps(document))
    return path


def found(config: Path, name: str) -> list[Finding]:
    """What one check finds, after those of configuration, algorithm and environment."""
    subject = Subject(str(config))
    for check in checks():
        if check.name == name:
            findings = list(check.run(subject))
            assert all(SECRET not in line(name, one) and OTHER not in line(name, one) for one in findings)
            return findings
        if check.name in ("configuration", "algorithm", "environment"):
            assert all(one.level is Severity.OK for one in check.run(subject))
    raise AssertionError(f"there is no check {name!r}")


def said(findings: list[Finding], level: Severity) -> list[str]:
    """The sentences of this level, each with its way out."""
    return [line("", finding) for finding in findings if finding.level is level]


def addressed(*addresses: str) -> dict[str, dict[str, Any]]:
    """Workers and learners name the same replay servers."""
    return {"rlx": {"replay_server": [*addresses]}, "learner": {"replay_server": [*addresses]}}


def test_replay_servers_that_answer(tmp_path: Path) -> None:
    with serving(2) as shards, client_of(shards, numbered(100), actors=(0, 1)) as client:
        client.writers[1].insert(numbers(1, 2, 3))
        config = written(tmp_path, **addressed(*(shard.address for shard in shards)))
        findings = found(config, "replay server")
        fine, late, bad = (said(findings, level) for level in LEVELS)
        assert (len(fine), late, bad) == (2, [], [])
        assert f"{shards[0].address} answers, shard 0 of 2: 0 items in 1 table, which reserve" in fine[0]
        assert f"{shards[1].address} answers, shard 1 of 2: 3 items" in fine[1]


def test_replay_servers_in_another_order_and_too_few(tmp_path: Path) -> None:
    with serving(2) as shards:
        one, other = (shard.address for shard in shards)
        bad = said(found(written(tmp_path, **addressed(other, one)), "replay server"), Severity.WRONG)
        assert [sentence.partition(" is shard ")[2].partition(".")[0] for sentence in bad] == [
            "1 of 2, and named as shard 0 of 2",
            "0 of 2, and named as shard 1 of 2",
        ]
        findings = found(written(tmp_path, **addressed(one)), "replay server")
        (late,) = said(findings, Severity.WARNING)
        assert "relaax-replay-server.shards is 2, relaax-rlx-server.replay_server names 1" in late
        (bad_one,) = said(findings, Severity.WRONG)
        assert "is shard 0 of 2, and named as shard 0 of 1" in bad_one


def test_replay_servers_that_are_not_there_or_not_named(tmp_path: Path) -> None:
    with unused_address() as one, unused_address() as other:
        late = said(found(written(tmp_path, **addressed(one, other)), "replay server"), Severity.WARNING)
        assert len(late) == 2
        assert f"replay server {one} is unreachable: UNAVAILABLE" in late[0]
        config = written(tmp_path, rlx={"replay_server": [one, other]}, learner={"replay_server": [other, one]})
        assert (
            "workers and learners name different replay servers" in said(found(config, "replay server"), LEVELS[1])[0]
        )
    (none,) = said(found(written(tmp_path), "replay server"), Severity.WARNING)
    assert "relaax-rlx-server.replay_server names no replay server. Set it to their addresses" in none
    config = written(tmp_path, **addressed("127.0.0.1:0", "127.0.0.1:0"))
    assert "the ports of replay servers are not known yet" in said(found(config, "replay server"), Severity.OK)[0]


def test_numbers_that_a_run_refuses(tmp_path: Path) -> None:
    config = written(tmp_path, learner={"learners": 0, "replay_server": "h:0"}, rlx={"replay_server": "h:0,h:0"})
    (late,) = said(found(config, "replay server"), Severity.WARNING)
    assert "relaax-learner.learners: 0, but apex learns in separate processes" in late


def test_an_algorithm_without_a_memory_is_asked_nothing(tmp_path: Path) -> None:
    config = tmp_path / "plain.yaml"
    config.write_text(json.dumps({"algorithm": {"path": "da3c"}, "relaax-run": CARTPOLE}))
    assert found(config, "replay server") == found(config, "replay memory") == []


@pytest.mark.parametrize(
    ("algorithm", "memory", "level", "sentence"),
    [
        ({}, 1.0, Severity.OK, "500 items take"),
        ({"replay_capacity": 10**7}, 0.1, Severity.WRONG, "5,000,000 items take"),
        ({"path": "gorila", "learner": "bundled"}, 1.0, Severity.OK, "500 items for each of 3 workers take"),
    ],
)
def test_room_for_the_tables(
    tmp_path: Path, algorithm: dict[str, Any], memory: float, level: Severity, sentence: str
) -> None:
    learners = 0 if "learner" in algorithm else 1
    config = written(
        tmp_path, replay={"memory": memory}, run=CARTPOLE, algorithm=algorithm, learner={"learners": learners}
    )
    (finding,) = found(config, "replay memory")
    assert finding.level is level
    assert sentence in finding.sentence
    assert f"which may take {memory:.3g} GB" in finding.sentence


def test_room_is_not_told_of_spaces_that_are_not_known(tmp_path: Path) -> None:
    assert found(written(tmp_path), "replay memory") == []


def test_a_port_of_a_running_replay_server(tmp_path: Path) -> None:
    with serving() as (shard,):
        config = written(tmp_path, replay={"bind": shard.address, "shards": 1}, **addressed(shard.address))
        fine = said(found(config, "ports"), Severity.OK)
        assert any(f"a RELAAX replay server, shard 0 of 1, answers at {shard.address} already" in one for one in fine)


def test_tokens_and_certificates_are_those_of_everybody(tmp_path: Path, processes: Processes) -> None:
    keys = Keys(tmp_path / "keys")
    server = keys.parameter_server()
    mine = {key: server[key] for key in ("token_file", "tls_certificate", "tls_key", "tls_client_ca")}
    names = ("token_file", "ca", "certificate", "key")
    worker = {f"replay_server_{name}": keys.rlx_server()[f"parameter_server_{name}"] for name in names}
    (tmp_path / "guarded").mkdir()
    guarded = written(tmp_path / "guarded", replay={**mine, "shards": 1})
    _, address = start_replay_server(processes, guarded)
    named = {"replay_server": [address], **worker}
    config = written(tmp_path, replay={**mine, "shards": 1}, rlx=named, learner=named)
    for name in ("tokens", "certificates", "replay server"):
        findings = found(config, name)
        assert findings
        assert {finding.level for finding in findings} == {Severity.OK}, findings
    config = written(tmp_path, replay={**mine, "shards": 1}, rlx=named, learner={"replay_server": [address]})
    (bad,) = said(found(config, "tokens"), Severity.WRONG)
    assert "the replay server requires a token, and learners would send another or none" in bad
    (late,) = said(found(config, "certificates"), Severity.WARNING)
    assert "the replay server uses TLS, and learners would not" in late
    (tmp_path / "other").write_text(OTHER)
    (tmp_path / "other").chmod(0o600)
    stranger = {**named, "replay_server_token_file": str(tmp_path / "other")}
    config = written(tmp_path, replay={**mine, "shards": 1}, rlx=stranger, learner=stranger)
    (bad,) = said(found(config, "replay server"), Severity.WRONG)
    assert address in bad and "token" in bad


def test_a_replay_port_for_everybody_is_asked_for(tmp_path: Path) -> None:
    for sections in ({"replay": {"bind": "0.0.0.0:0"}}, {"learner": {"status_bind": "0.0.0.0:0"}}):
        (finding,) = checks()[0].run(Subject(str(written(tmp_path, **sections))))
        assert finding.level is Severity.WRONG
        assert "0.0.0.0:0 can be reached from other machines" in finding.sentence
