"""Installation of each client as its README describes, and its use by a program in another folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.client_languages import LANGUAGES, environment, require
from support.machine import need
from support.pages import block


@dataclass(frozen=True)
class Project:
    """A program in an empty folder that uses a client as its README describes."""

    file: str
    text: str
    run: str
    prepare: str = ""


PROJECTS = {
    "c": Project(
        "game.c",
        '#define _POSIX_C_SOURCE 200809L\n#define RLX_IMPLEMENTATION\n#include "rlx.h"\n'
        "int main(void) { return puts(RLX_VERSION) < 0; }",
        "./game",
    ),
    "go": Project(
        "main.go",
        'package main\nimport rlx "github.com/deeplearninc/relaax/protocol/clients/go"\n\n'
        "func main() { rlx.Discrete(2, 0) }",
        "go run .",
        "go mod init example.com/game",
    ),
    "rust": Project(
        "src/main.rs", "fn main() { rlx::Space::discrete(2); }", "cargo run", "cargo init --vcs none --name game"
    ),
    "javascript": Project("game.mjs", 'import { discrete } from "relaax-rlx"; discrete(2);', "node game.mjs"),
    "ruby": Project("game.rb", 'require "rlx"; RLX.discrete(2)', "ruby game.rb"),
    "java": Project(
        "Game.java",
        "class Game { public static void main(String[] words) { new relaax.rlx.Space.Discrete(2); } }",
        "java -cp classes Game",
    ),
    "csharp": Project("game.cs", "class Game { static void Main() { Rlx.Space.Discrete(2); } }", "mono game.exe"),
}


@pytest.mark.slow
@pytest.mark.checks("protocol", "tests/support/client_languages.py")
@pytest.mark.parametrize("name", PROJECTS)
def test_client_is_installed_as_its_readme_says(tmp_path: Path, name: str) -> None:
    language, project = LANGUAGES[name], PROJECTS[name]
    require(language)
    if name == "javascript":
        need("npm")
    folder, packaged = tmp_path / "game", tmp_path / "packaged"
    folder.mkdir()
    shutil.copytree(language.folder, packaged, ignore=shutil.ignore_patterns("build", "target"))
    environ = environment(tmp_path / "out") | {"HOME": str(tmp_path), "GEM_HOME": str(tmp_path / "gems")}
    environ |= {"CARGO_HOME": os.environ.get("CARGO_HOME", str(Path.home() / ".cargo"))}
    environ |= {"RUSTUP_HOME": os.environ.get("RUSTUP_HOME", str(Path.home() / ".rustup"))}
    commands = block(language.folder / "README.md", "install").replace("FOLDER", str(packaged))

    def shell(text: str) -> None:
        done = subprocess.run(["bash", "-euc", text], cwd=folder, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"

    shell(project.prepare)
    (folder / project.file).write_text(project.text, "utf-8")
    shell(commands)
    shell(project.run)
