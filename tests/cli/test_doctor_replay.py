"""`relaax doctor` on replay servers and learners: addresses, order, memory, tokens and certificates."""

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


def write_configuration(folder: Path, **sections: dict[str, Any]) -> Path:
    """Write a configuration of apex; `replay`, `rlx`, `learner`, `run` and `algorithm` are keys of its sections."""
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


def findings_of(config: Path, name: str) -> list[Finding]:
    """Run one check after the checks that it depends on, and return its findings."""
    subject = Subject(str(config))
    for check in checks():
        if check.name == name:
            findings = list(check.run(subject))
            assert all(SECRET not in line(name, one) and OTHER not in line(name, one) for one in findings)
            return findings
        if check.name in ("configuration", "algorithm", "environment"):
            assert all(one.level is Severity.OK for one in check.run(subject))
    raise AssertionError(f"there is no check {name!r}")


def lines_of_level(findings: list[Finding], level: Severity) -> list[str]:
    """Return the findings of this level as lines, each with its way out."""
    return [line("", finding) for finding in findings if finding.level is level]


def with_addresses(*addresses: str) -> dict[str, dict[str, Any]]:
    """Return sections in which workers and learners name the same replay servers."""
    return {"rlx": {"replay_server": [*addresses]}, "learner": {"replay_server": [*addresses]}}


def test_reachable_replay_servers_are_ok(tmp_path: Path) -> None:
    with serving(2) as shards, client_of(shards, numbered(100), actors=(0, 1)) as client:
        client.writers[1].insert(numbers(1, 2, 3))
        config = write_configuration(tmp_path, **with_addresses(*(shard.address for shard in shards)))
        findings = findings_of(config, "replay server")
        passed, warned, failed = (lines_of_level(findings, level) for level in LEVELS)
        assert (len(passed), warned, failed) == (2, [], [])
        assert f"{shards[0].address} answers, shard 0 of 2: 0 items in 1 table, which reserve" in passed[0]
        assert f"{shards[1].address} answers, shard 1 of 2: 3 items" in passed[1]


def test_replay_servers_in_wrong_order_or_number_are_wrong(tmp_path: Path) -> None:
    with serving(2) as shards:
        one, other = (shard.address for shard in shards)
        failed = lines_of_level(
            findings_of(write_configuration(tmp_path, **with_addresses(other, one)), "replay server"), Severity.WRONG
        )
        assert [sentence.partition(" is shard ")[2].partition(".")[0] for sentence in failed] == [
            "1 of 2, and named as shard 0 of 2",
            "0 of 2, and named as shard 1 of 2",
        ]
        findings = findings_of(write_configuration(tmp_path, **with_addresses(one)), "replay server")
        (warned,) = lines_of_level(findings, Severity.WARNING)
        assert "relaax-replay-server.shards is 2, relaax-rlx-server.replay_server names 1" in warned
        (failed_one,) = lines_of_level(findings, Severity.WRONG)
        assert "is shard 0 of 2, and named as shard 0 of 1" in failed_one


def test_unreachable_or_unnamed_replay_servers_are_warned_of(tmp_path: Path) -> None:
    with unused_address() as one, unused_address() as other:
        warned = lines_of_level(
            findings_of(write_configuration(tmp_path, **with_addresses(one, other)), "replay server"), Severity.WARNING
        )
        assert len(warned) == 2
        assert f"replay server {one} is unreachable: UNAVAILABLE" in warned[0]
        config = write_configuration(
            tmp_path, rlx={"replay_server": [one, other]}, learner={"replay_server": [other, one]}
        )
        assert (
            "workers and learners name different replay servers"
            in lines_of_level(findings_of(config, "replay server"), LEVELS[1])[0]
        )
    (unnamed,) = lines_of_level(findings_of(write_configuration(tmp_path), "replay server"), Severity.WARNING)
    assert "relaax-rlx-server.replay_server names no replay server. Set it to their addresses" in unnamed
    config = write_configuration(tmp_path, **with_addresses("127.0.0.1:0", "127.0.0.1:0"))
    assert (
        "the ports of replay servers are not known yet"
        in lines_of_level(findings_of(config, "replay server"), Severity.OK)[0]
    )


def test_missing_learners_are_a_warning(tmp_path: Path) -> None:
    config = write_configuration(
        tmp_path, learner={"learners": 0, "replay_server": "h:0"}, rlx={"replay_server": "h:0,h:0"}
    )
    (warned,) = lines_of_level(findings_of(config, "replay server"), Severity.WARNING)
    assert "relaax-learner.learners: 0, but apex learns in separate processes" in warned


def test_algorithm_without_replay_memory_is_not_checked(tmp_path: Path) -> None:
    config = tmp_path / "plain.yaml"
    config.write_text(json.dumps({"algorithm": {"path": "da3c"}, "relaax-run": CARTPOLE}))
    assert findings_of(config, "replay server") == findings_of(config, "replay memory") == []


@pytest.mark.parametrize(
    ("algorithm", "memory", "level", "sentence"),
    [
        ({}, 1.0, Severity.OK, "500 items take"),
        ({"replay_capacity": 10**7}, 0.1, Severity.WRONG, "5,000,000 items take"),
        ({"path": "gorila", "learner": "bundled"}, 1.0, Severity.OK, "500 items for each of 3 workers take"),
    ],
)
def test_memory_of_the_tables_is_checked(
    tmp_path: Path, algorithm: dict[str, Any], memory: float, level: Severity, sentence: str
) -> None:
    learners = 0 if "learner" in algorithm else 1
    config = write_configuration(
        tmp_path, replay={"memory": memory}, run=CARTPOLE, algorithm=algorithm, learner={"learners": learners}
    )
    (finding,) = findings_of(config, "replay memory")
    assert finding.level is level
    assert sentence in finding.sentence
    assert f"which may take {memory:.3g} GB" in finding.sentence


def test_memory_is_not_checked_if_spaces_are_unknown(tmp_path: Path) -> None:
    assert findings_of(write_configuration(tmp_path), "replay memory") == []


def test_port_of_a_running_replay_server_is_ok(tmp_path: Path) -> None:
    with serving() as (shard,):
        config = write_configuration(
            tmp_path, replay={"bind": shard.address, "shards": 1}, **with_addresses(shard.address)
        )
        passed = lines_of_level(findings_of(config, "ports"), Severity.OK)
        assert any(f"a RELAAX replay server, shard 0 of 1, answers at {shard.address} already" in one for one in passed)


def test_tokens_and_certificates_of_all_roles_are_compared(tmp_path: Path, processes: Processes) -> None:
    keys = Keys(tmp_path / "keys")
    server = keys.parameter_server()
    mine = {key: server[key] for key in ("token_file", "tls_certificate", "tls_key", "tls_client_ca")}
    names = ("token_file", "ca", "certificate", "key")
    worker = {f"replay_server_{name}": keys.rlx_server()[f"parameter_server_{name}"] for name in names}
    (tmp_path / "guarded").mkdir()
    guarded = write_configuration(tmp_path / "guarded", replay={**mine, "shards": 1})
    _, address = start_replay_server(processes, guarded)
    named = {"replay_server": [address], **worker}
    config = write_configuration(tmp_path, replay={**mine, "shards": 1}, rlx=named, learner=named)
    for name in ("tokens", "certificates", "replay server"):
        findings = findings_of(config, name)
        assert findings
        assert {finding.level for finding in findings} == {Severity.OK}, findings
    config = write_configuration(
        tmp_path, replay={**mine, "shards": 1}, rlx=named, learner={"replay_server": [address]}
    )
    (failed,) = lines_of_level(findings_of(config, "tokens"), Severity.WRONG)
    assert "the replay server requires a token, and learners would send another or none" in failed
    (warned,) = lines_of_level(findings_of(config, "certificates"), Severity.WARNING)
    assert "the replay server uses TLS, and learners would not" in warned
    (tmp_path / "other").write_text(OTHER)
    (tmp_path / "other").chmod(0o600)
    stranger = {**named, "replay_server_token_file": str(tmp_path / "other")}
    config = write_configuration(tmp_path, replay={**mine, "shards": 1}, rlx=stranger, learner=stranger)
    (failed,) = lines_of_level(findings_of(config, "replay server"), Severity.WRONG)
    assert address in failed and "token" in failed


def test_replay_port_open_to_other_machines_is_wrong(tmp_path: Path) -> None:
    for sections in ({"replay": {"bind": "0.0.0.0:0"}}, {"learner": {"status_bind": "0.0.0.0:0"}}):
        (finding,) = checks()[0].run(Subject(str(write_configuration(tmp_path, **sections))))
        assert finding.level is Severity.WRONG
        assert "0.0.0.0:0 can be reached from other machines" in finding.sentence
