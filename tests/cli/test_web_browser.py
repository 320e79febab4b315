"""The live page of real trainings in a real browser, also on a narrow screen and for a screen reader."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from relaax.cli.run.plan import GYMNASIUM
from support.machine import need, need_axe
from support.processes import Processes, Running, wait_until
from support.run import PATIENCE, SMALL, Run, Runs
from support.screens import Browser
from support.service import RELAAX, Service

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.checks(
        "relaax/cli/web", "relaax/cli/live", "relaax/cli/run/live_page.py", "relaax/server/http_server.py"
    ),
]
PHONE, DESKTOP, TALL = (360, 740), (1280, 900), (1280, 6000)
SEEN_SECONDS = 5.0
PANELS = ("figures", "curves", "workers", "servers", "replay", "evaluations", "picture-text", "warnings-note")
OVERFLOW = "const page = document.documentElement; return page.scrollWidth - page.clientWidth"
CHARTS = "return [...document.querySelectorAll('.chart')].filter((one) => one.querySelector('canvas')).length"
IS_DRAWN = "return document.querySelector(`[data-name='${arguments[0]}'] canvas`) !== null"
SCROLL_TO = "document.querySelector(`[data-name='${arguments[0]}']`).scrollIntoView()"
AXE = """
const done = arguments[arguments.length - 1];
axe.run(document, { resultTypes: ["violations"] }).then(
  (found) => done(found.violations.map((one) => [one.impact, one.id, one.nodes.map((node) => node.html)])),
  (error) => done([["critical", String(error), []]]));
"""


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    need("chromium", "chromedriver")
    with ExitStack() as stack:
        yield Browser(stack, tmp_path / "profile")


def url_of(running: Running) -> str:
    return running.wait_for_line("live page at ", PATIENCE).rpartition(" ")[2]


def open_page(processes: Processes, where: str | Path, *options: str | Path) -> str:
    """Start `relaax web` on a free port, and return its URL."""
    page = processes.start(*RELAAX, "web", where, "--bind", "127.0.0.1:0", *options)
    return page.wait_for_line("open http", PATIENCE).split(" ")[1]


def wait_for_text(browser: Browser, element: str, text: str, timeout: float = PATIENCE) -> None:
    try:
        wait_until(lambda: text in browser.text(element), f"{element} shows {text!r}", timeout, interval=0.1)
    except AssertionError as error:
        raise AssertionError(f"{error}; it shows {browser.text(element)!r}") from None


def serious(browser: Browser, axe: str) -> list[Any]:
    """Return the findings of axe-core with serious or critical impact."""
    browser.execute(axe)
    found: Any = browser.execute_async(AXE)
    return [one for one in found if one[0] in ("serious", "critical")]


def expect_readable(browser: Browser, axe: str) -> None:
    """Check the page on a phone and on a desktop, in light and dark."""
    for width, height in (PHONE, DESKTOP):
        browser.resize(width, height)
        for scheme in ("light", "dark"):
            browser.prefer(scheme)
            assert serious(browser, axe) == []
        assert browser.execute(OVERFLOW) == 0, f"the page is wider than {width} pixels"


def start_training(runs: Runs, *options: str) -> Run:
    return runs.start(*SMALL[:4], "--set", "run.target_return=null", *options)


def test_training_fills_all_panels(runs: Runs, browser: Browser) -> None:
    axe = need_axe()
    training = start_training(runs, "--web", "--eval-every", "3000", "--eval-episodes", "2")
    browser.resize(*PHONE)
    browser.go(url_of(training.running))
    wait_for_text(browser, "workers", "trains")
    wait_for_text(browser, "curves", "episode/mean_return_100: ")
    wait_for_text(browser, "evaluations", "95 % interval")
    wait_for_text(browser, "picture-text", "not an image, so there is no picture")
    wait_for_text(browser, "curves", "loss/policy: ")
    assert browser.text("state") == "Training."
    assert browser.title == "run – RELAAX"
    assert [panel for panel in PANELS if not browser.text(panel)] == []
    assert not browser.execute(IS_DRAWN, "loss/policy"), "a chart below the screen costs time"
    for name in ("episode/mean_return_100", "loss/policy"):
        browser.execute(SCROLL_TO, name)
        wait_until(lambda name=name: browser.execute(IS_DRAWN, name), f"{name} is drawn", PATIENCE)
    browser.resize(*TALL)
    wait_until(lambda: int(str(browser.execute(CHARTS))) > 5, "all charts on the screen are drawn", PATIENCE)
    expect_readable(browser, axe)

    label: Any = browser.execute("return document.querySelector('[aria-label*=mean_return_100]').ariaLabel")
    assert "last value " in label
    killed = training.of("worker")[0]
    killed.kill()
    wait_for_text(browser, "workers", "disconnected", SEEN_SECONDS)
    wait_for_text(browser, "warnings", "disconnected", SEEN_SECONDS)
    assert serious(browser, axe) == []
    assert browser.console_errors() == []


def test_ended_run_still_shows_its_curves(runs: Runs, processes: Processes, browser: Browser) -> None:
    axe = need_axe()
    training = start_training(runs, "--max-steps", "3000")
    assert training.running.wait(PATIENCE) == 0
    browser.go(open_page(processes, training.directory))
    wait_for_text(browser, "state", "The run has ended: max_steps.")
    wait_for_text(browser, "curves", "episode/mean_return_100: ")
    wait_for_text(browser, "figures", "mean return")
    assert "No worker is connected." in browser.text("workers")
    expect_readable(browser, axe)
    assert browser.console_errors() == []


def test_servers_by_hand_behind_a_token(processes: Processes, tmp_path: Path, browser: Browser) -> None:
    """The page listens on all addresses, so it needs a token; curves come from the state of the server."""
    service = Service(processes, tmp_path)
    client = processes.start(sys.executable, GYMNASIUM, service.address, "CartPole-v1", "2")
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef")
    token.chmod(0o600)
    page = processes.start(
        *(*RELAAX, "web", service.parameter_server_address, "--bind", "0.0.0.0:0"),
        *("--page-token-file", token),
    )
    port = page.wait_for_address(PATIENCE).rpartition(":")[2]
    browser.go(f"http://anybody:{token.read_text()}@127.0.0.1:{port}/")
    wait_for_text(browser, "workers", "CartPole-v1")
    wait_for_text(browser, "curves", "speed/steps_per_second: ")
    assert browser.text("warnings-note") == "Only a run's directory has logs."
    assert browser.console_errors() == []
    assert client.returncode is None, client.report()


def test_restarted_page_is_followed(runs: Runs, processes: Processes, browser: Browser) -> None:
    training = start_training(runs, "--max-steps", "3000")
    assert training.running.wait(PATIENCE) == 0
    url = open_page(processes, training.directory)
    browser.go(url)
    wait_for_text(browser, "curves", "episode/mean_return_100: ")
    processes.running[-1].stop()
    wait_for_text(browser, "state", "relaax web does not answer")
    processes.start(*RELAAX, "web", training.directory, "--bind", url.removeprefix("http://").rstrip("/"))
    wait_for_text(browser, "state", "The run has ended")
    wait_for_text(browser, "curves", "episode/mean_return_100: ")
