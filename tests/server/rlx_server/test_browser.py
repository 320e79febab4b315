"""Tests of web pages in a real browser: the script of RLX.md, from local and from other origins."""

from __future__ import annotations

import functools
import http.server
import re
import shutil
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from support.client_languages import CLIENTS
from support.keys import Keys
from support.machine import need
from support.processes import Running, wait_until
from support.rlx_vector_files import SPECIFICATION
from support.screens import Browser

_CHECKED = (
    "protocol/RLX.md",
    "protocol/clients/javascript",
    "relaax/rlx",
    "relaax/server/rlx_server/connection",
    "relaax/server/rlx_server/listening",
)

HELLO = """{ hello: { protocolVersion: 1, environment: "Tab", environments: 1, autoreset: ["AUTORESET_DISABLED"],
  mode: "MODE_TRAIN", actionSpace: { discrete: { n: 3 } },
  observationSpace: { box: { dtype: "DTYPE_FLOAT32", shape: [2] } } } }"""
EPISODE = """
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
    """Return a page with the script of RLX.md, completed with a hello and an episode."""
    (script,) = re.findall(r"```js\n(.*?)```", SPECIFICATION.read_text("utf-8"), re.DOTALL)
    script, found = re.subn(r"\{ hello: .*? \} \}", lambda _: HELLO, script)
    assert found == 1
    script, found = re.subn(r"  // else .*\n", lambda _: EPISODE, script)
    assert found == 1
    script = script.replace("127.0.0.1:7001", address)
    script += "socket.onerror = () => (document.title = 'refused');"
    return f"<!doctype html><title>?</title><script>let steps = 0;{script}</script>"


@contextmanager
def served_pages(folder: Path, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Serve the files of a folder over HTTP; yield the port."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if tls is not None:  # the handshake is made in the thread of the connection, as a client may stay silent
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    need("chromium", "chromedriver")
    with ExitStack() as stack:
        yield Browser(stack, tmp_path / "profile")


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """Serve a new folder over HTTP; yield the folder and the port."""
    folder = tmp_path / "pages"
    folder.mkdir()
    with served_pages(folder) as port:
        yield folder, port


CLIENT_PAGE = """<!doctype html><title>?</title><script type="module">
import { Client, box, discrete } from "./rlx.js";
try {
  const spaces = { observation: box("float32", [2]), action: discrete(3) };
  const client = new Client("wss://ADDRESS/", { ...spaces, environment: "Tab", token: "TOKEN", retrySeconds: 0 });
  const seen = [new Float32Array(2)];
  await client.init(seen);
  for (let step = 1; step < 100; step++) await client.step([1], seen);
  const [reached] = await client.reset([1]);
  await client.close();
  document.title = `return ${reached}`;
} catch (error) {
  document.title = `${error.name}: ${error.message}`;
}
</script>"""


@pytest.mark.slow
@pytest.mark.checks(*_CHECKED)
def test_page_with_the_client_plays_over_tls_if_it_trusts_the_ca(
    serve: Callable[..., tuple[Running, str]], pages: tuple[Path, int], tmp_path: Path
) -> None:
    """The keys come from `relaax keys`. A browser that does not trust their authority does not connect."""
    need("chromium", "chromedriver", "certutil")
    keys = Keys(tmp_path / "keys")
    server, address = serve(**keys.rlx_port())
    folder, _ = pages
    for file in (CLIENTS / "javascript/src").glob("*.js"):
        shutil.copy(file, folder)
    port = address.rpartition(":")[2]
    page = CLIENT_PAGE.replace("ADDRESS", f"localhost:{port}").replace("TOKEN", keys.token)
    (folder / "index.html").write_text(page, encoding="utf-8")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.path("server.pem"), keys.path("server-key.pem"))
    with served_pages(folder, context) as secure, ExitStack() as stack:
        browser = Browser(stack, tmp_path / "trusting", keys.folder / "ca.pem")
        browser.go(f"https://localhost:{secure}/")
        wait_until(lambda: browser.title != "?", "the episode in the page has ended", 120)
        assert browser.title == "return 100", server.report()
    (folder / "plain.html").write_text(page, encoding="utf-8")
    with ExitStack() as stack:
        stranger = Browser(stack, tmp_path / "stranger")
        stranger.go(f"http://localhost:{pages[1]}/plain.html")
        wait_until(lambda: stranger.title != "?", "the page has given up", 120)
        assert stranger.title.startswith(
            f"Failed: cannot connect to wss://localhost:{port}/: no server, or the server refuses"
        ), server.report()


@pytest.mark.slow
@pytest.mark.checks(*_CHECKED)
def test_local_pages_play_and_pages_of_other_origins_are_refused(
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
