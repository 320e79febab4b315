"""A page in a real browser: the lines of RLX.md, from this computer and from others."""

from __future__ import annotations

import functools
import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.processes import Running, wait_until
from support.rlx_vector_files import SPECIFICATION
from support.screens import Browser, need

HELLO = """{ hello: { protocolVersion: 1, environment: "Tab", environments: 1, autoreset: ["AUTORESET_DISABLED"],
  mode: "MODE_TRAIN", actionSpace: { discrete: { n: 3 } },
  observationSpace: { box: { dtype: "DTYPE_FLOAT32", shape: [2] } } } }"""
TURNS = """
  const observation = [{ dtype: "DTYPE_FLOAT32", shape: [1, 2], data: "AAAAAAAAAAA=" }];
  if ("welcome" in answer) say({ init: { observation } });
  if ("actions" in answer && ++steps < 100) say({ step: { reward: [1], observation } });
  else if ("actions" in answer) say({ reset: { reward: [1] } });
  if ("episodeReturns" in answer) {
    document.title = `return ${answer.episodeReturns.episodeReturn[0]}`;
    say({ bye: {} });
  }
  if ("error" in answer) document.title = answer.error.message;
"""


def page(address: str) -> str:
    """The script of RLX.md, with what it leaves out."""
    (script,) = re.findall(r"```js\n(.*?)```", SPECIFICATION.read_text("utf-8"), re.DOTALL)
    script, found = re.subn(r"\{ hello: .*? \} \}", lambda _: HELLO, script)
    assert found == 1
    script, found = re.subn(r"  // else .*\n", lambda _: TURNS, script)
    assert found == 1
    script = script.replace("127.0.0.1:7001", address)
    script += "socket.onerror = () => (document.title = 'refused');"
    return f"<!doctype html><title>?</title><script>let steps = 0;{script}</script>"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    need("chromium", "chromedriver")
    with ExitStack() as stack:
        yield Browser(stack, tmp_path / "profile")


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A folder, and the port at which it is served."""
    folder = tmp_path / "pages"
    folder.mkdir()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, server.server_port
        server.shutdown()


def test_pages_of_this_computer_play_and_others_are_refused(
    shared: tuple[Running, str], pages: tuple[Path, int], browser: Browser
) -> None:
    server, address = shared
    folder, port = pages
    (folder / "index.html").write_text(page(address), encoding="utf-8")
    for url, title in (
        (f"http://localhost:{port}/", "return 100"),
        (f"http://127.0.0.1:{port}/", "return 100"),
        (f"http://evil.localhost:{port}/", "refused"),
        (f"file://{folder}/index.html", "refused"),
    ):
        browser.go(url)
        wait_until(lambda title=title: browser.title == title, f"{url}: {title}", 60)  # type: ignore[misc]
    assert f"Pages of the origin http://evil.localhost:{port} may not" in server.stderr
    assert "Pages of the origin null may not" in server.stderr
