"""`relaax docs`: every page is listed and can be read."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess

import pytest
from typer.testing import CliRunner, Result

from relaax.bundled import bundled_names
from relaax.cli.app import app
from support.pages import DOCS, ROOT, parts, study
from support.processes import project_command


def docs(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["docs", *arguments], prog_name="relaax")


def test_every_page_is_listed_with_its_subject() -> None:
    *lines, empty, files, clients = docs().stdout.splitlines()
    names = [line.split()[0] for line in lines]
    expected = {page.stem for page in DOCS.glob("*.md") if page.stem != "README"}
    assert set(names) == expected | {"results", "RLX", "CHANGELOG", "clients", *bundled_names("algorithms")}
    assert names[0] == "getting-started"
    assert all(len(line.split(maxsplit=1)[1]) > 15 for line in lines)
    assert (empty, files) == ("", f"`relaax docs PAGE` shows one. The files are in {DOCS}")
    assert clients.startswith("Clients in other languages: clients/c, clients/csharp, clients/go,")
    assert clients.endswith(f". Their files are in {ROOT / 'protocol/clients'}")


def test_page_in_a_pipe_is_printed_unchanged() -> None:
    for name in docs().stdout.split("\n\n")[0].splitlines():
        assert docs(name.split()[0]).stdout.startswith("# ")
    for name in ("seeds", "docs/seeds.md"):
        assert docs(name).stdout == (DOCS / "seeds.md").read_text(encoding="utf-8")
    assert docs("RLX").stdout == (ROOT / "protocol" / "RLX.md").read_text(encoding="utf-8")
    assert docs("clients/go").stdout == (ROOT / "protocol/clients/go/README.md").read_text(encoding="utf-8")
    assert docs("results/cartpole").stdout == study("cartpole").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("link", "file"),
    [
        ("RLX.md", "protocol/RLX.md"),
        ("protocol/RLX.md#rlx-in-json-for-one-environment", "protocol/RLX.md"),
        ("../protocol/RLX.md", "protocol/RLX.md"),
        ("protocol/clients/README.md", "protocol/clients/README.md"),
        ("algorithms/da3c/README.md", "algorithms/da3c/README.md"),
        ("environments/ALE/README.md", "environments/ALE/README.md"),
        ("results/archive/2026-11-23-soak.md", "docs/results/archive/2026-11-23-soak.md"),
    ],
)
def test_target_of_a_link_in_the_pages_is_shown(link: str, file: str) -> None:
    assert docs(link).stdout == (ROOT / file).read_text(encoding="utf-8")


def shown_on_a_terminal(page: str) -> str:
    """Return what `relaax docs PAGE` prints on a terminal of 80 columns, with `cat` as the pager."""
    own_end, child_end = pty.openpty()
    with os.fdopen(own_end, "rb", buffering=0) as terminal:
        shown = subprocess.Popen(
            [project_command("relaax"), "docs", page],
            stdin=subprocess.DEVNULL,
            stdout=child_end,
            env={**os.environ, "PAGER": "cat", "TERM": "xterm", "COLUMNS": "80"},
        )
        os.close(child_end)
        text = bytearray()
        with contextlib.suppress(OSError):  # reading a closed terminal raises EIO
            while data := terminal.read(4096):
                text += data
        assert shown.wait(60) == 0
    return text.decode().replace("\r", "")


def test_page_on_a_terminal_is_laid_out() -> None:
    text = shown_on_a_terminal("seeds")
    assert "What a seed fixes" in text
    assert "# What a seed fixes" not in text


def test_code_on_a_terminal_is_unchanged() -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown_on_a_terminal("write-an-algorithm"))
    blocks = parts(DOCS / "write-an-algorithm.md", "reinforce.py")
    assert any(len(line) > 80 for block in blocks for line in block.splitlines())
    for block in blocks:
        assert f"\n{block.rstrip()}\n" in text


def test_misspelt_page_suggests_the_nearest() -> None:
    result = docs("secrity")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "relaax docs: unknown page 'secrity'; did you mean 'security'?\n"
