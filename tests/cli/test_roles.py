"""A role that is added to the table of roles is configured, checked, started, watched and ended."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from relaax.bundled import bundled_folder
from relaax.cli.doctor.command import run_checks
from relaax.cli.doctor.finding import Severity, Subject
from relaax.cli.run.plan import make_plan
from relaax.cli.run.supervisor import Supervisor
from relaax.configuration import SECTIONS, ConfigurationError, roles
from relaax.supervision.process import Process
from support.echo_role import ECHO, with_echo
from support.processes import wait_until
from support.supervised import supervised, watch_until_ready

TESTS = Path(__file__).resolve().parent.parent


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A configuration with the section of the added role, which is in the table during the test."""
    monkeypatch.setattr(roles, "ROLES", with_echo())
    monkeypatch.setitem(SECTIONS, ECHO.section, ECHO.model)
    # The servers read the same configuration, so their tables need the role too.
    (tmp_path / "sitecustomize.py").write_text("from support.echo_role import add\n\nadd()\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(TESTS), str(TESTS.parent)]))
    file = tmp_path / "with_echoes.yaml"
    document = {
        "relaax-run": {"environment": "OpenAI_Gym", "name": "CartPole-v1", "clients": 1},
        "relaax-echo": {"word": "good morning", "echoes": 2},
        "algorithm": {"path": "da3c"},
    }
    file.write_text(json.dumps(document))  # JSON is YAML
    return file


@pytest.fixture
def running(config: Path, tmp_path: Path) -> Iterator[Supervisor]:
    with supervised(make_plan(str(config), []), tmp_path / "run") as supervisor:
        yield supervisor


def read_greeting(process: Process) -> str:
    assert process.address is not None
    host, _, port = process.address.rpartition(":")
    with closing(socket.create_connection((host, int(port)), 30)) as connection:
        return connection.makefile().readline().strip()


def test_added_role_is_started_watched_and_ended(running: Supervisor) -> None:
    echoes = running._processes["echo"]
    for number, echo in enumerate(echoes):
        assert read_greeting(echo) == f"good morning {number} of 2, {running.parameter_server_address}"
    assert echoes[1].log.name == "echo-1.log"
    assert echoes[0].pid is not None
    os.kill(echoes[0].pid, signal.SIGKILL)
    wait_until(lambda: echoes[0].exit_code() is not None, "it has ended")
    watch_until_ready(running, echoes)
    assert echoes[0].restarts == 1
    assert read_greeting(echoes[0]).startswith("good morning 0 of 2")
    running.stop_training()
    assert all(echo.exit_code() is not None for echo in echoes)
    assert running.parameter_server.exit_code() is None
    running.stop_parameter_server()


def test_section_of_an_added_role_is_checked(config: Path) -> None:
    assert make_plan(str(config), ["echo.echoes=3"]).configuration.as_dict()["relaax-echo"]["echoes"] == 3
    with pytest.raises(ConfigurationError, match=r"relaax-echo: unknown key 'wort'; did you mean 'word'"):
        make_plan(str(config), ["echo.wort=x"])


def test_doctor_checks_the_address_of_an_added_role(config: Path) -> None:
    findings = [finding for name, finding in run_checks(Subject(str(config), ())) if name == "ports"]
    (finding,) = (each for each in findings if each.sentence.startswith("relaax-echo.bind"))
    assert finding.level is Severity.OK


@pytest.mark.parametrize("procfile", sorted(bundled_folder("config").glob("*.Procfile")), ids=lambda path: path.stem)
def test_procfile_starts_the_configured_processes(procfile: Path) -> None:
    lines = (line.partition(":") for line in procfile.read_text().splitlines() if line and not line.startswith("#"))
    started = Counter((name, shlex.split(command)[0]) for name, _, command in lines)
    sections = make_plan(procfile.stem, []).configuration.sections
    for role in roles.relaax_roles():
        # The first process has the name of the role. Each other one has that name and a number.
        mine = sum(command == role.command and name.startswith(role.name) for name, command in started)
        assert mine == role.count(sections), role.name
