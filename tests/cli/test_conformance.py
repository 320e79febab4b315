"""The command `relaax conformance`: its options, output and exit codes."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from relaax.cli.app import app
from relaax.conformance.client import CLIENT_RULES, OF_NEWER_CLIENTS
from relaax.conformance.vectors import load
from support.faulty_server import FaultyServer

CLIENT = Path(__file__).resolve().parents[1] / "support" / "faulty_client.py"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["conformance", *map(str, arguments)], env={"COLUMNS": "100"})


def test_server_report_lists_failed_rules(tmp_path: Path) -> None:
    with FaultyServer("wrong_returns") as server:
        result = run("--server", server.address, "--only", "plain_*", "--json", tmp_path / "report.json")
    assert result.exit_code == 1
    assert "plain_protobuf   1, 7     failed" in result.stdout
    assert "0 passed, 2 failed, 0 not applicable, 0 not seen" in result.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["totals"] == {"passed": 0, "failed": 2, "not applicable": 0, "not seen": 0}
    assert report["rules"][0]["rule"] == "plain_protobuf" and report["rules"][0]["section"] == "1, 7"


def test_client_report_counts_passed_rules() -> None:
    command = shlex.join([sys.executable, str(CLIENT)])  # the address is appended
    result = run("--client", command, "--only", "refused_*")
    assert (result.exit_code, result.exception is None or isinstance(result.exception, SystemExit)) == (0, True)
    assert "3 passed, 0 failed" in result.stdout


def test_list_names_every_rule() -> None:
    result = run("--list")
    assert result.exit_code == 0
    for rule in CLIENT_RULES:
        assert f"clients: {rule.name} (section {rule.section}): {rule.description}" in result.stdout
    for conversation in load():
        if conversation.name in OF_NEWER_CLIENTS:
            continue
        subject = "clients" if conversation.file == "server_mistakes" else "servers"
        assert f"{subject}: {conversation.name} (section {conversation.section})" in result.stdout
    assert "clients:" not in run("--list", "--server", "h:1").stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "give either --client COMMAND or --server HOST:PORT"),
        (("--client", "true", "--server", "h:1"), "give either"),
        (("--server", "localhost:"), "the port must be a number"),
        (("--server", "127.0.0.1:1"), "no TCP connection to 127.0.0.1:1"),
        (("--server", "h:1", "--only", "nothing"), "--list shows them"),
        (("--server", "h:1", "--codec", "xml"), "--codec must be protobuf or json, not xml"),
        (("--server", "h:1", "--action-space", "{}"), "must be given together"),
        (("--server", "h:1", "--action-space", "{}", "--observation-space", "{"), "--observation-space {: "),
        (("--server", "h:1", "--token-file", "nowhere"), "--token-file nowhere: "),
        (("--server", "h:1", "--tls-ca", "nowhere"), "--tls-ca nowhere: "),
        (("--client", "true", "--codec", "json"), "add a client's own options to COMMAND"),
        (("--client", "'"), "No closing quotation"),
        (("--client", "/no/such/program"), "/no/such/program cannot be started"),
    ],
)
def test_invalid_arguments_are_refused_in_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr and "Traceback" not in result.output
