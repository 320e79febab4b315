"""A machine without a screen shows an environment over VNC and in a browser, to those who know the password."""

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
from support.processes import Processes, Running, wait_until
from support.programs import ROOT, program
from support.rlx_peer import RlxPeer
from support.screens import CARD, PASSWORD, Browser, card, free_ports, middle, variables, vnc_screenshot

SERVER = ("Xtigervnc", "tigervncpasswd", "websockify")

checks = pytest.mark.checks(
    "relaax/client/program/screen.py", "relaax/client/program/watching.py", "relaax/client/command.py"
)


@pytest.fixture
def shown(processes: Processes, tmp_path: Path) -> Callable[..., tuple[Running, int, int]]:
    """Starts environments/OpenAI_Gym/main with Card-v0, shown; it, and the ports of VNC and the page."""
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


def seen(started: Running, port: int, folder: Path) -> Any:
    """The screen once the window is there."""

    def look() -> Any:
        assert started.returncode is None, started.report()
        picture = vnc_screenshot(port, PASSWORD, folder)
        return [picture] if picture is not None and picture.any() else None

    return wait_until(look, "a window on the screen", 120, 0.2)[0]


def family(started: Running) -> list[psutil.Process]:
    return psutil.Process(started.pid).children(recursive=True)


@pytest.mark.slow
@checks
def test_a_vnc_client_with_the_password_sees_the_environment(shown: Callable[..., Any], tmp_path: Path) -> None:
    started, vnc, _ = shown()
    assert np.array_equal(middle(seen(started, vnc, tmp_path), 400, 600), card())
    assert vnc_screenshot(vnc, "another", tmp_path) is None
    assert vnc_screenshot(vnc, None, tmp_path) is None
    assert vnc_screenshot(vnc, PASSWORD, tmp_path) is not None
    everything = family(started)
    assert len(everything) >= 3
    assert started.stop(timeout=60) == 0
    assert psutil.wait_procs(everything, 30)[1] == []
    assert "Traceback" not in started.stderr


@pytest.mark.slow
@checks
def test_the_page_shows_the_same_in_a_browser(shown: Callable[..., Any], tmp_path: Path) -> None:
    need("chromium", "chromedriver")
    started, vnc, page = shown()
    seen(started, vnc, tmp_path)
    with ExitStack() as stack:
        browser = Browser(stack, tmp_path / "profile")
        browser.open(page, PASSWORD)

        def same() -> bool:
            canvas = browser.canvas()
            return canvas is not None and np.array_equal(middle(canvas, 400, 600), card())

        wait_until(same, "the card in the browser", 120, 0.2)
        browser.open(page, "another")
        wait_until(lambda: "fail" in browser.status().lower(), "that the browser is not let in", 120, 0.2)


@pytest.mark.slow
@checks
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_signal_ends_all_of_it(shown: Callable[..., Any], number: int, code: int, tmp_path: Path) -> None:
    with RlxPeer() as peer:
        started, vnc, _ = shown(peer.address)
        seen(started, vnc, tmp_path)
        everything = family(started)
        assert started.stop(number, 60) == code
        assert psutil.wait_procs(everything, 30)[1] == []
    assert "Traceback" not in started.stderr


@pytest.mark.slow
@checks
@pytest.mark.parametrize("name", ["Xtigervnc", "websockify", "main"])
def test_the_end_of_one_ends_all(shown: Callable[..., Any], name: str, tmp_path: Path) -> None:
    started, vnc, _ = shown()
    seen(started, vnc, tmp_path)
    everything = family(started)
    lost = next(
        one for one in psutil.Process(started.pid).children() if any(word.endswith(name) for word in one.cmdline()[:2])
    )
    lost.kill()
    assert started.wait(60) == (137 if name == "main" else 1)
    assert psutil.wait_procs(everything, 30)[1] == []
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
def test_what_cannot_be_shown_is_told_in_a_sentence(
    changed: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(*SERVER)
    for name, value in (variables(1, 1) | changed).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ScreenError) as refused:
        run_on_screen()
    assert sentence in str(refused.value) and "\n" not in str(refused.value)


def test_a_port_that_is_taken_is_named() -> None:
    need(*SERVER)
    with RlxPeer() as peer:
        port = int(peer.address.rpartition(":")[2])
        done = program("OpenAI_Gym", "random", "CartPole-v1", "display", "--steps", "3", **variables(port, 1))
    assert done.returncode == 2
    assert f"no screen at RELAAX_VNC_BIND=127.0.0.1:{port}: " in done.stderr


def test_a_password_file_is_read(tmp_path: Path) -> None:
    need(*SERVER)
    (tmp_path / "password").write_text(PASSWORD + "\n")
    vnc, page = free_ports(2)
    given = variables(vnc, page) | {"RELAAX_VNC_PASSWORD_FILE": str(tmp_path / "password")}
    del given["RELAAX_VNC_PASSWORD"]
    done = program("OpenAI_Gym", "random", "CartPole-v1", "display", "--steps", "3", **given)
    assert done.returncode == 0, done.stderr
    assert f"a screen over VNC at 127.0.0.1:{vnc}; in the browser at http://127.0.0.1:{page}/vnc.html" in done.stderr
