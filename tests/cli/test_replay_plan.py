"""The replay servers and learners that `relaax run` starts, and the configurations that it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from relaax.cli.run.plan import make_plan, run_tokens
from relaax.cli.run.run_directory import RunDirectory
from relaax.configuration import ConfigurationError, load_configuration
from relaax.configuration.roles import LEARNER, REPLAY_SERVER, REPLAY_TOKEN, RLX_SERVER, WORKERS_TOKEN
from support import replay_algorithm

SOURCE = Path(replay_algorithm.__file__)
RUN = {"environment": "OpenAI_Gym", "name": "CartPole-v1", "clients": 1}
SECRET = "a-token-of-a-test-0123456789"


def write_configuration(folder: Path, shards: int, learners: int, path: str = str(SOURCE), **sections: Any) -> str:
    document = {
        "relaax-replay-server": {"shards": shards, **sections.get("replay", {})},
        "relaax-learner": {"learners": learners, **sections.get("learner", {})},
        "relaax-rlx-server": sections.get("rlx", {}),
        "relaax-run": RUN,
        "algorithm": {"path": path, **sections.get("algorithm", {})},
    }
    file = folder / "replay.yaml"
    file.write_text(json.dumps(document))  # JSON is YAML
    return str(file)


@pytest.mark.parametrize(
    ("shards", "learners", "algorithm", "sentence"),
    [
        (0, 1, {}, "relaax-replay-server.shards: 0, but replay_algorithm keeps experience in a replay memory: set it"),
        (2, 0, {}, "relaax-learner.learners: 0, but replay_algorithm learns in separate processes: set it to 1"),
        (0, 0, {"bundle": True}, "relaax-replay-server.shards: 0, but replay_algorithm keeps experience"),
        (1, 2, {"bundle": True}, "relaax-learner.learners: 2, but with this configuration of replay_algorithm, each"),
    ],
)
def test_wrong_number_of_servers_or_learners_is_refused(
    tmp_path: Path, shards: int, learners: int, algorithm: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make_plan(write_configuration(tmp_path, shards, learners, algorithm=algorithm), [])
    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize(
    ("shards", "learners", "sentence"),
    [
        (1, 0, "relaax-replay-server.shards: 1, but da3c has no replay memory: set it to 0"),
        (0, 1, "relaax-learner.learners: 1, but the workers of da3c learn themselves: set it to 0"),
    ],
)
def test_algorithm_without_replay_memory_has_no_replay_roles(
    tmp_path: Path, shards: int, learners: int, sentence: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make_plan(write_configuration(tmp_path, shards, learners, path="da3c"), [])
    assert str(refused.value) == sentence


@pytest.mark.parametrize(("learners", "bundle"), [(3, False), (0, True)])
def test_matching_number_of_servers_and_learners_is_accepted(tmp_path: Path, learners: int, bundle: bool) -> None:
    plan = make_plan(write_configuration(tmp_path, 2, learners, algorithm={"bundle": bundle}), [])
    sections = plan.configuration.sections
    assert (REPLAY_SERVER.count(sections), LEARNER.count(sections)) == (2, learners)


@pytest.mark.parametrize(
    "key",
    ["replay-server.bind", "replay-server.shard", "rlx-server.replay_server", "learner.parameter_server",
     "learner.replay_server"],
)  # fmt: skip
def test_addresses_are_refused_because_the_run_sets_them(tmp_path: Path, key: str) -> None:
    value = "1" if key.endswith("shard") else "localhost:1"
    with pytest.raises(ConfigurationError, match=rf"{key}: has no effect: `relaax run` chooses the ports itself"):
        make_plan(write_configuration(tmp_path, 1, 1), [f"{key}={value}"])


def test_run_directory_has_the_settings_of_each_process(tmp_path: Path) -> None:
    keys = {"replay_server_ca": "${here}/ca.pem", "parameter_server_ca": "ca.pem"}
    replay = {"tls_certificate": "c.pem", "tls_key": "k.pem", "tls_client_ca": "ca.pem", "shard": 3}
    plan = make_plan(write_configuration(tmp_path, 1, 1, learner=keys, rlx=keys, replay=replay), [])
    assert plan.configuration.learner.replay_server_ca == str(tmp_path / "ca.pem")
    directory = RunDirectory(tmp_path / "run")
    directory.open(fresh=False, max_steps=1)
    try:
        directory.write_configuration(plan)
    finally:
        directory.close()
    there = load_configuration(directory.configuration)
    assert there.replay_server.bind == "127.0.0.1:0"
    assert there.replay_server.shard == 0
    secured = [
        *(there.replay_server.tls_certificate, there.replay_server.tls_key, there.replay_server.tls_client_ca),
        *(section.replay_server_ca for section in (there.learner, there.rlx_server)),
        *(section.parameter_server_ca for section in (there.learner, there.rlx_server)),
    ]
    assert secured == [None] * 7, "traffic stays on this machine"


def test_each_role_gets_the_tokens_that_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "replay-token"
    file.write_text(SECRET)
    file.chmod(0o600)
    monkeypatch.setenv(WORKERS_TOKEN, SECRET[::-1])
    tokens = run_tokens(make_plan(write_configuration(tmp_path, 1, 1, replay={"token_file": str(file)}), []))
    assert tokens.of(REPLAY_SERVER) == {REPLAY_TOKEN: SECRET}
    for role in (LEARNER, RLX_SERVER):
        assert tokens.of(role) == {REPLAY_TOKEN: SECRET, WORKERS_TOKEN: SECRET[::-1]}


def test_processes_get_the_addresses_of_each_other() -> None:
    addresses = {"parameter-server": ["h:1", "h:2"], "replay-server": ["h:3", "h:4"]}
    services = ["--parameter-server", "h:1,h:2", "--replay-server", "h:3,h:4"]
    assert RLX_SERVER.arguments(addresses, 0, 2) == services
    assert LEARNER.arguments(addresses, 0, 2) == [*services, "--learner", "0"]
    second = LEARNER.arguments(addresses, 1, 2)
    assert second[:-2] == [*services, "--learner", "1"]
    assert second[-1] == "relaax-learner.status_bind=null", "two learners cannot share a port"
    assert REPLAY_SERVER.arguments(addresses, 1, 2)[:2] == ["--shard", "1/2"]
    assert RLX_SERVER.arguments({**addresses, "replay-server": []}, 0, 1) == services[:2]
