"""`relaax schema`: JSON schemas, and the tables of the page on configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relaax.cli.app import app
from relaax.cli.schema import BEGIN, END
from support.processes import Processes
from support.service import RELAAX

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "configuration.md"


def relaax(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["schema", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_page_of_all_keys_is_up_to_date(tmp_path: Path) -> None:
    copy = tmp_path / "page.md"
    copy.write_text(PAGE.read_text())
    assert relaax("--markdown", "--output", str(copy))[0] == 0
    assert copy.read_text() == PAGE.read_text(), "`make docs` writes it"


def test_only_the_tables_of_a_page_are_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert relaax("da3c", "--markdown", "-o", str(page)) == (0, "", "")
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n\n### `relaax-parameter-server`\n")
    assert text.endswith(f"\n{END}\nafter\n")
    assert "\nold\n" not in text
    assert "da3c_cont" not in text
    page.write_text("no marks\n")
    code, _, error = relaax("--markdown", "-o", str(page))
    assert (code, page.read_text()) == (2, "no marks\n")
    assert "the tables are written between them" in error


def test_shared_keys_of_algorithms_are_in_one_table() -> None:
    page = PAGE.read_text()
    assert page.count("| `value_loss_weight` |") == 1
    assert page.count("| `gae_lambda` |") == 2, "ppo has another default"
    assert page.count("| `rewards_gamma` |") == 1
    assert page.count("| `reward_clipping` |") == 3, "da3c_cont, and sac and apex_dpg, have other defaults"
    assert "### `algorithm`: apex, gorila\n\nThe keys of the table apex, apex_dpg, gorila, sac, with" in page
    assert "### `algorithm`: async_sarsa\n\nThe keys of the table async_q, async_sarsa, n_step_q.\n" in page
    code, alone, _ = relaax("da3c", "--markdown")
    assert (code, alone.count("| `gae_lambda` |")) == (0, 1)


@pytest.mark.parametrize("what", ["da3c_cont", "da3cc_gym_pendulum", "algorithms/da3c_cont"])
def test_schema_of_one_algorithm(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    code, printed, _ = relaax(what)
    assert code == 0
    schema = json.loads(printed)
    assert schema["properties"]["algorithm"]["allOf"] == [{"$ref": "#/definitions/algorithm.da3c_cont"}]


def test_unknown_algorithm_is_refused_with_a_suggestion() -> None:
    sentence = "relaax schema: unknown algorithm or configuration 'da3cc'; did you mean 'da3c'?\n"
    assert relaax("da3cc") == (2, "", sentence)


@pytest.mark.slow
def test_schema_of_a_new_algorithm(processes: Processes, tmp_path: Path) -> None:
    new = processes.start(*RELAAX, "new", "algorithm", "mine", cwd=tmp_path)
    assert new.wait(60) == 0, new.report()
    for what in ("mine.py", "mine.yaml"):
        command = processes.start(*RELAAX, "schema", what, cwd=tmp_path)
        assert command.wait(120) == 0, command.report()
        schema = json.loads("\n".join(command.lines))
        assert "episodes_per_update" in schema["definitions"]["algorithm.mine"]["properties"]
