"""The virtual screen for machines without one: over VNC and in a browser, protected by a password."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from relaax.client.program.screen import ScreenError, run_on_screen
from support.machine import need
from support.ports import free_ports
from support.processes import Processes, Running, wait_until
from support.programs import ROOT, program
from support.rlx_peer import RlxPeer
from support.screens import CARD, PASSWORD, Browser, card, middle, variables, vnc_screenshot

SERVER = ("Xtigervnc", "tigervncpasswd", "websockify")

checks = pytest.mark.checks(
    "relaax/client/program/screen.py", "relaax/client/program/watching.py", "relaax/client/command.py"
)


@pytest.fixture
def start_shown(processes: Processes, tmp_path: Path) -> Callable[..., tuple[Running, int, int]]:
    """Return a function that shows Card-v0 and returns the process, the port of VNC and the port of the page."""
    need(*SERVER)
    (tmp_path / "card.py").write_text(CARD)

    def start(address: str = "random") -> tuple[Running, int, int]:
        vnc, page = free_ports(2)
        main = ROOT / "environments" / "OpenAI_Gym" / "main"
        started = processes.start(
            *(sys.executable, main, address, "card:Card-v0", "display", "--path", tmp_path),
            env=variables(vnc, page) | {"PYTHONPATH": str(ROOT)},
        )
        return started, vnc, page

    return start


def wait_for_picture(started: Running, port: int, folder: Path) -> Any:
    """Wait until a window is on the screen; return a screenshot."""

    def nonempty_picture() -> Any:
        assert started.returncode is None, started.report()
        picture = vnc_screenshot(port, PASSWORD, folder)
        return [picture] if picture is not None and picture.any() else None

    return wait_until(nonempty_picture, "a window on the screen", 120, 0.2)[0]


def descendants(started: Running) -> list[psutil.Process]:
    return psutil.Process(started.pid).children(recursive=True)


@pytest.mark.slow
@checks
def test_vnc_client_with_the_password_sees_the_environment(start_shown: Callable[..., Any], tmp_path: Path) -> None:
    started, vnc, _ = start_shown()
    assert np.array_equal(middle(wait_for_picture(started, vnc, tmp_path), 400, 600), card())
    assert vnc_screenshot(vnc, "another", tmp_path) is None
    assert vnc_screenshot(vnc, None, tmp_path) is None
    assert vnc_screenshot(vnc, PASSWORD, tmp_path) is not None
    all_processes = descendants(started)
    assert len(all_processes) >= 3
    assert started.stop(timeout=60) == 0
    assert psutil.wait_procs(all_processes, 30)[1] == []
    assert "Traceback" not in started.stderr


@pytest.mark.slow
@checks
def test_browser_with_the_password_sees_the_environment(start_shown: Callable[..., Any], tmp_path: Path) -> None:
    need("chromium", "chromedriver")
    started, vnc, page = start_shown()
    wait_for_picture(started, vnc, tmp_path)
    with ExitStack() as stack:
        browser = Browser(stack, tmp_path / "profile")
        browser.open(page, PASSWORD)

        def same() -> bool:
            canvas = browser.canvas()
            return canvas is not None and np.array_equal(middle(canvas, 400, 600), card())

        wait_until(same, "the card in the browser", 120, 0.2)
        browser.open(page, "another")
        wait_until(lambda: "fail" in browser.status().lower(), "the browser is refused", 120, 0.2)


@pytest.mark.slow
@checks
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_signal_ends_all_processes(start_shown: Callable[..., Any], number: int, code: int, tmp_path: Path) -> None:
    with RlxPeer() as peer:
        started, vnc, _ = start_shown(peer.address)
        wait_for_picture(started, vnc, tmp_path)
        all_processes = descendants(started)
        assert started.stop(number, 60) == code
        assert psutil.wait_procs(all_processes, 30)[1] == []
    assert "Traceback" not in started.stderr


@pytest.mark.slow
@checks
@pytest.mark.parametrize("name", ["Xtigervnc", "websockify", "main"])
def test_end_of_one_process_ends_all(start_shown: Callable[..., Any], name: str, tmp_path: Path) -> None:
    started, vnc, _ = start_shown()
    wait_for_picture(started, vnc, tmp_path)
    all_processes = descendants(started)
    lost = next(
        one for one in psutil.Process(started.pid).children() if any(word.endswith(name) for word in one.cmdline()[:2])
    )
    lost.kill()
    assert started.wait(60) == (137 if name == "main" else 1)
    assert psutil.wait_procs(all_processes, 30)[1] == []
    if name != "main":
        assert "of the screen ended" in started.stderr or "the screen ended" in started.stderr
    assert "Traceback" not in started.stderr


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"RELAAX_VNC_PASSWORD": ""}, "no password for the screen over VNC: set RELAAX_VNC_PASSWORD, or"),
        ({"RELAAX_VNC_PASSWORD": "longer than eight"}, "RELAAX_VNC_PASSWORD has 17 characters: VNC needs 1 to 8"),
        ({"RELAAX_VNC_BIND": "localhost:x"}, "RELAAX_VNC_BIND: address 'localhost:x': the port must be a number"),
    ],
)
def test_invalid_screen_settings_are_refused_by_name(
    changed: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(*SERVER)
    for name, value in (variables(1, 1) | changed).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ScreenError) as refused:
        run_on_screen()
    assert sentence in str(refused.value) and "\n" not in str(refused.value)


def test_port_in_use_is_named() -> None:
    need(*SERVER)
    with RlxPeer() as peer:
        port = int(peer.address.rpartition(":")[2])
        done = program("OpenAI_Gym", "random", "CartPole-v1", "display", "--steps", "3", **variables(port, 1))
    assert done.returncode == 2
    assert f"no screen at RELAAX_VNC_BIND=127.0.0.1:{port}: " in done.stderr


def test_password_file_is_read(tmp_path: Path) -> None:
    need(*SERVER)
    (tmp_path / "password").write_text(PASSWORD + "\n")
    vnc, page = free_ports(2)
    environment = variables(vnc, page) | {"RELAAX_VNC_PASSWORD_FILE": str(tmp_path / "password")}
    del environment["RELAAX_VNC_PASSWORD"]
    done = program("OpenAI_Gym", "random", "CartPole-v1", "display", "--steps", "3", **environment)
    assert done.returncode == 0, done.stderr
    assert (
        f"the screen is available over VNC at 127.0.0.1:{vnc}; in the browser at http://127.0.0.1:{page}/vnc.html"
        in done.stderr
    )
