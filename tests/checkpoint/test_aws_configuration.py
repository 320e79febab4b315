"""The configuration of boto3: errors are reported in a sentence, and renewed keys are read."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from relaax.checkpoint import StoreError, open_store
from relaax.configuration import ConfigurationError
from relaax.server.parameter_server import main as parameter_server
from relaax.server.replay_server import main as replay_server
from support.refusals import refusal
from support.s3_server import KEYS, S3Proxy, S3Server

IN_S3 = ("bucket", "key")
PAIR = f"[default]\naws_access_key_id = {KEYS.access}\naws_secret_access_key = {KEYS.secret}\n"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder ~/.aws of a process without any other configuration of AWS."""
    for name in ("CONFIG_FILE", "SHARED_CREDENTIALS_FILE", "DEFAULT_REGION", "REGION"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".aws"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("variables", "config", "credentials", "sentence"),
    [
        ({"PROFILE": "trainng"}, PAIR, "", "the profile 'trainng' is neither in ~/.aws/config nor in"),
        ({}, "[default\n", "", ".aws/config is not a valid configuration file of AWS: correct or remove it"),
        ({}, "", "aws_access_key_id = x\n", ".aws/credentials is not a valid configuration file of AWS"),
        ({"ACCESS_KEY_ID": "x"}, "", "", "incomplete S3 keys (env): also set AWS_SECRET_ACCESS_KEY, or set neither"),
        ({}, "", "[default]\naws_access_key_id = x\n", "(shared-credentials-file): also set aws_secret_access_key"),
        ({"DEFAULT_REGION": "eu west 1"}, "", PAIR, "'eu west 1' is not a region of boto3, such as eu-"),
        ({"DEFAULT_REGION": "eu-wset-1"}, "", PAIR, "'eu-wset-1' is not a region of boto3, such as eu-west-1"),
        ({}, "[default]\nregion = eu-cental-1\n", PAIR, "'eu-cental-1' is not a region of boto3, such as eu-"),
        ({}, "[default]\ncredential_process = /no/such\n", "", "boto3 cannot get keys: /no/such: No such file"),
        ({}, "[default]\nrole_arn=r\nsource_profile=x\n", "", 'cannot use its configuration: The source_profile "x"'),
        ({"ENDPOINT_URL": "not a url"}, "", PAIR, "cannot use a value of its configuration: check AWS_ENDPOINT_URL"),
    ],
)  # fmt: skip
def test_unusable_boto3_configuration_is_reported(
    aws: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], config: str, credentials: str, sentence: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    (aws / "config").write_text(config)
    (aws / "credentials").write_text(credentials)
    with pytest.raises(ConfigurationError) as refused:
        open_store(IN_S3)
    assert sentence in str(refused.value)
    assert KEYS.secret not in str(refused.value)


@pytest.mark.parametrize("region", ["eu-central-1", "us-gov-west-1", "cn-north-1"])
def test_known_region_is_used(aws: Path, monkeypatch: pytest.MonkeyPatch, region: str) -> None:
    (aws / "credentials").write_text(PAIR)
    monkeypatch.setenv("AWS_DEFAULT_REGION", region)
    open_store(IN_S3)


def test_region_of_another_store_is_not_checked(aws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (aws / "credentials").write_text(PAIR)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "garage")
    open_store(IN_S3, aws_endpoint="http://127.0.0.1:1")


@pytest.mark.parametrize("command", [parameter_server, replay_server])
def test_server_with_unusable_boto3_configuration_exits_with_2(
    aws: Path, monkeypatch: pytest.MonkeyPatch, command: ModuleType
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "trainng")
    arguments = ("--config", "apex_gym_cartpole", "--bind", "127.0.0.1:0", "--checkpoint-aws-s3", *IN_S3)
    assert "the profile 'trainng' is neither in" in refusal(command.app, *arguments)


@pytest.mark.parametrize(
    "in_file", [True, pytest.param(False, marks=[pytest.mark.slow, pytest.mark.checks("relaax/checkpoint")])]
)
def test_refused_keys_are_read_again(s3: S3Server, aws: Path, tmp_path: Path, in_file: bool) -> None:
    def write(access: str, secret: str) -> None:
        (tmp_path / "keys.yaml").write_text(f"access: {access}\nsecret: {secret}\n")
        (tmp_path / "keys.yaml").chmod(0o600)
        (aws / "credentials").write_text(f"[default]\naws_access_key_id = {access}\naws_secret_access_key = {secret}\n")

    with S3Proxy(s3.address) as proxy:
        write("old", "secret")
        store = open_store((s3.bucket(), "key"), str(tmp_path / "keys.yaml") if in_file else None, proxy.url)
        store.put("a", b"1")
        proxy.fail("ExpiredToken")
        with pytest.raises(StoreError, match="they have expired"):
            store.put("a", b"2")
        write("new", "secret")
        proxy.heal()
        proxy.keys.clear()
        store.put("a", b"3")
        assert store.get("a") == b"3"
    assert proxy.keys == {"new"}


def test_keys_that_become_unreadable_are_a_store_error(s3: S3Server, aws: Path, tmp_path: Path) -> None:
    """Training continues, and the next attempt reads the keys again."""
    file = tmp_path / "keys.yaml"
    file.write_text("access: x\nsecret: y\n")
    with S3Proxy(s3.address) as proxy:
        store = open_store((s3.bucket(), "key"), str(file), proxy.url)
        proxy.fail("ExpiredToken", times=1)
        with pytest.raises(StoreError, match="they have expired"):
            store.put("a", b"1")
        file.write_text("access: x\n")
        with pytest.raises(StoreError, match="cannot write s3://.*/key/a: aws_keys: .* 'secret' is missing"):
            store.put("a", b"1")
        file.write_text("access: x\nsecret: y\n")
        store.put("a", b"1")
