"""The scripts of the images, without an image: the entry point of the servers, and the health check."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from relaax.server.learner import main as learner
from relaax.server.parameter_server import main as parameter_server
from relaax.server.replay_server import main as replay_server
from relaax.server.rlx_server import main as rlx_server
from support.image_builds import ROOT
from support.processes import Processes, wait_until
from support.scrape import health, status_url

WITHOUT_IPV6 = """
import errno, socket
connect, known = socket.socket.connect, socket.getaddrinfo
def refuse(self, address):
    if self.family == socket.AF_INET6:
        raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
    return connect(self, address)
def and_ipv6(host, port, *more):
    return [*known(host, port, *more), (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0))]
socket.socket.connect, socket.getaddrinfo = refuse, and_ipv6
"""
"""A container whose localhost has an IPv6 address that it cannot use."""
APPS = {
    "relaax-parameter-server": parameter_server.app,
    "relaax-rlx-server": rlx_server.app,
    "relaax-replay-server": replay_server.app,
    "relaax-learner": learner.app,
}


@pytest.mark.parametrize("name", APPS)
def test_status_port_of_an_image_differs_from_its_other_ports(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (tmp_path / name).chmod(0o755)
    command = ["sh", str(ROOT / "docker" / "server"), name, "--config", "apex_gym_cartpole", "--print-config"]
    variables = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout.splitlines()
    shown = CliRunner().invoke(APPS[name], words)
    assert shown.exit_code == 0, shown.stderr
    sections = yaml.safe_load(shown.stdout)
    others = {port(section["bind"]) for section in sections.values() if "bind" in section}
    assert len(others) >= 3
    assert port(sections[name].get("status-bind") or sections[name]["status_bind"]) not in others


def port(address: str) -> int:
    return int(address.rpartition(":")[2])


def test_health_check_does_not_use_a_proxy(processes: Processes, tmp_path: Path) -> None:
    folders = ("--checkpoint-dir", tmp_path / "checkpoints", "--metrics-dir", tmp_path / "metrics")
    server, _ = processes.start_server(
        "relaax-parameter-server",
        *("--config", "da3c_gym_cartpole", "--bind", "127.0.0.1:0", "--status-bind", "127.0.0.1:0"),
        *folders,
    )
    url = status_url(server)
    wait_until(lambda: health(url)[0] == 200, "the server serves")
    assert health_check(port(url)) == 0
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # it does not listen: connections are refused
        assert health_check(unused.getsockname()[1], port(url)) == 0
        (tmp_path / "sitecustomize.py").write_text(WITHOUT_IPV6)
        assert health_check(unused.getsockname()[1], port(url), PYTHONPATH=str(tmp_path)) == 0
    assert server.stop() == 0
    assert health_check(port(url)) != 0


def health_check(*ports: int, **variables: str) -> int:
    """Return the exit code of the health check. The environment names a proxy that does not exist."""
    command = [sys.executable, str(ROOT / "docker" / "healthy"), *map(str, ports)]
    environment = {**os.environ, "http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", **variables}
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode
