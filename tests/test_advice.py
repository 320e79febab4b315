"""Options and keys that error messages name exist."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from relaax.algorithm_base import ConfigBase
from relaax.cli.app import app
from relaax.client.command import add_atari_protocol, parser
from relaax.configuration import SECTIONS
from relaax.server.learner import main as learner
from relaax.server.parameter_server import main as parameter_server
from relaax.server.replay_server import main as replay_server
from relaax.server.rlx_server import main as rlx_server
from relaax.server.tensorboard import main as tensorboard

ROOT = Path(__file__).resolve().parents[1]
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
KEY = re.compile(r"\b(relaax-[a-z]+(?:-[a-z]+)*)\.([a-z][a-z0-9_-]*)")
OTHERS = {
    *("--logdir", "--head", "--resources", "--path", "--frame-skip", "--side", "--vectorization", "--port"),
    *("--action-mask", "--index-url"),
}
"""Options of TensorBoard, Ray, pip, bundled environment programs and templates."""


@functools.cache
def strings() -> list[tuple[str, str]]:
    """Return the place and text of every string of the package that contains a space, which includes all messages."""
    return [
        (f"{file.relative_to(ROOT)}:{node.lineno}", node.value)
        for file in sorted((ROOT / "relaax").rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
    ]


def options_of(command: Any) -> set[str]:
    found = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    if hasattr(command, "list_commands"):
        context = typer.Context(command)
        for name in command.list_commands(context):
            found |= options_of(command.get_command(context, name))
    return found


def known_options() -> set[str]:
    programs = (app, parameter_server.app, rlx_server.app, replay_server.app, learner.app, tensorboard.app)
    found = set().union(*(options_of(typer.main.get_command(program)) for program in programs))
    described = parser("program", "", "name")
    add_atari_protocol(described)
    return found | {name for action in described._actions for name in action.option_strings} | OTHERS


def test_options_that_messages_name_exist() -> None:
    known = known_options()
    named = [(place, option) for place, text in strings() for option in OPTION.findall(text)]
    assert len(named) > 20
    assert [pair for pair in named if pair[1] not in known] == []


def test_keys_that_messages_name_exist() -> None:
    keys = {name: set(section.model_fields) for name, section in SECTIONS.items()}
    named = [(place, *key) for place, text in strings() for key in KEY.findall(text)]
    assert len(named) > 20
    wrong = [found for found in named if found[1] in keys and found[2].replace("-", "_") not in keys[found[1]]]
    assert wrong == []
    assert [found for found in named if found[1] not in keys and not found[1].startswith("relaax-x")] == []


@pytest.mark.parametrize("key", ["state_size", "action_size"])
def test_algorithm_keys_that_messages_name_exist(key: str) -> None:
    assert key in ConfigBase.model_fields
