"""Redaction of secrets."""

from __future__ import annotations

from typing import Any

import pytest

from relaax.configuration import redacted
from relaax.configuration.secrets import HIDDEN


@pytest.mark.parametrize(
    "key",
    [
        "token",
        "wandb_token",
        "auth",
        "basic-auth",
        "oauth",
        "authorization",
        "pwd",
        "password",
        "apiKey",
        "ssh_key",
        "key",
    ],
)
def test_values_of_secret_keys_are_hidden_at_every_depth(key: str) -> None:
    assert redacted({"a": [{key: "x"}], key: {"b": 1}}) == {"a": [{key: HIDDEN}], key: HIDDEN}


@pytest.mark.parametrize("key", ["author", "authors", "keys", "monkey", "bind", "allow_anonymous", "checkpoint_dir"])
def test_values_of_other_keys_are_shown(key: str) -> None:
    assert redacted({key: "x"}) == {key: "x"}


def test_none_and_bools_are_shown() -> None:
    assert redacted({"token": None, "auth": True}) == {"token": None, "auth": True}


@pytest.mark.parametrize(
    ("value", "left"),
    [
        (["--token", "abc", "--lr", "3"], ["--token", HIDDEN, "--lr", "3"]),
        (["--auth=abc", "x"], [f"--auth={HIDDEN}", "x"]),
        (["relaax", "--set", "algorithm.pwd=a b"], ["relaax", "--set", f"algorithm.pwd={HIDDEN}"]),
        (["--set", "run.arguments=[--token, abc, --n, 3]"], ["--set", f"run.arguments=[--token, {HIDDEN}, --n, 3]"]),
        ("https://me:abc@host/x?token=abc&n=3", f"https://host/x?token={HIDDEN}&n=3"),
        ("--header=Authorization: Bearer abc", f"--header=Authorization: {HIDDEN}"),
        ("secrets:7000", "secrets:7000"),
        ("--sticky 0.25, x=y: z", "--sticky 0.25, x=y: z"),
    ],
)
def test_secrets_in_arguments_and_texts_are_hidden(value: Any, left: Any) -> None:
    assert redacted(value) == left
