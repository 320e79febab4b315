"""`relaax new environment --browser`: a game in a real browser trains, also across reloads of its page."""

from __future__ import annotations

import json
import random
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from relaax.cli.app import app
from support.machine import need
from support.ports import free_ports
from support.processes import Processes, Running, wait_until
from support.run import Runs
from support.screens import Browser
from support.service import Service

FILES = {
    "index.html",
    "game.js",
    "page.js",
    "main.py",
    *(f"rlx/{name}.js" for name in ("line", "open", "options", "policy", "rlx", "space", "tcp", "wire")),
}
PATIENCE = 120.0
RELOADS = 10


@pytest.fixture
def game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the command wrote `mine/`."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    result = CliRunner().invoke(app, ["new", "environment", "--browser", "mine"])
    assert result.exit_code == 0, result.output
    return tmp_path / "here"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    need("chromium", "chromedriver")
    with ExitStack() as stack:
        yield Browser(stack, tmp_path / "profile")


VECTORS = """
import { box, multiDiscrete } from "./rlx/rlx.js";
export const OBSERVATION = box("float32", [2, 2]);
export const ACTION = multiDiscrete([3, 5]);
export class World {
  restart() {
    [this.steps, this.actions] = [0, []];
    return [[0, 0], new Float32Array(2)];
  }
  do(action) {
    this.actions = action;
    document.title = action.length === 2 && action[0] < 3 && action[1] < 5 ? "two numbers" : `${action}`;
    return { observation: [[0, 1], [2, 3]], reward: 0, terminated: false, truncated: (this.steps += 1) >= 10 };
  }
}
export function draw(context, world) {
  // The actions of an episode that has just begun are empty.
  if (world.actions.length) document.getElementById("status").dataset.drawn = world.actions.length;
}
"""


def serve(processes: Processes, game: Path, address: str, port: str = "0") -> tuple[Running, str]:
    """Serve the page; return its process and its URL."""
    page = processes.start(sys.executable, game / "mine/main.py", address, "mine", "4", "--port", port)
    return page, page.wait_for_line("open http://").split(" ", 1)[1]


def wait_until_shown(browser: Browser, element: str, condition: Callable[[str], bool], description: str) -> None:
    try:
        wait_until(lambda: condition(browser.text(element)), description, PATIENCE, interval=0.1)
    except AssertionError as error:
        raise AssertionError(f"{error}; the page shows {browser.text(element)!r}") from None


def wait_for_more_steps(browser: Browser) -> None:
    """Wait for 200 more steps."""
    before = int(browser.text("steps") or 0)
    wait_until_shown(browser, "steps", lambda text: int(text or 0) > before + 200, "200 more steps")


def test_browser_game_is_written(game: Path) -> None:
    written = {path.relative_to(game / "mine").as_posix() for path in (game / "mine").rglob("*") if path.is_file()}
    assert written == FILES | {"rlx/policy.d.ts", "rlx/rlx.d.ts"}
    texts = [path.read_text("utf-8") for path in game.rglob("*") if path.is_file()]
    assert not [text for text in texts if "orchard" in text]
    config = yaml.safe_load((game / "mine.yaml").read_text("utf-8"))
    assert config["relaax-run"]["environment"] == "mine/main.py"
    refused = CliRunner().invoke(app, ["new", "environment", "--browser", "mine"])
    assert refused.exit_code == 2
    assert "already exists" in refused.output


def test_port_in_use_is_refused(game: Path, processes: Processes) -> None:
    _, url = serve(processes, game, "localhost:1")
    port = url.rstrip("/").rpartition(":")[2]
    second = processes.start(sys.executable, game / "mine/main.py", "localhost:1", "mine", "--port", port)
    assert second.wait(PATIENCE) == 2
    assert f"cannot serve the page at port {port}: Address already in use; choose another" in second.stderr
    assert f'arguments: [--port, "{int(port) + 1}"]' in second.stderr
    assert "Traceback" not in second.stderr


@pytest.mark.parametrize("address", ["check", "local", "random"])
def test_page_without_a_server_is_refused(game: Path, processes: Processes, address: str) -> None:
    page = processes.start(sys.executable, game / "mine/main.py", address, "mine")
    assert page.wait(PATIENCE) == 2
    sentence = (
        "mine is played in a page of a browser, which needs a server: run `relaax run mine.yaml` and open the page"
    )
    assert page.stderr == f"{sentence} that it names\n"


@pytest.mark.parametrize(
    ("address", "tls", "urls"),
    [
        ("localhost", "", ["ws://localhost:7001/"]),
        ("a:1, [::1]", "", ["ws://a:1/", "ws://[::1]:7001/"]),
        ("a:1,wss://b/rlx", "1", ["wss://a:1/", "wss://b/rlx"]),
        ("@FILE", "0", ["ws://c:7001/", "ws://d:2/"]),
    ],
)
def test_page_settings_name_the_servers(
    game: Path, processes: Processes, address: str, tls: str, urls: list[str]
) -> None:
    (game / "servers").write_text("c\nd:2\n", "utf-8")
    arguments = [address.replace("FILE", str(game / "servers")), "mine", "4", "--port", "0"]
    page = processes.start(sys.executable, game / "mine/main.py", *arguments, env={"RELAAX_TLS": tls})
    settings = f"{page.wait_for_line('open http://').split(' ', 1)[1]}settings.json"
    with urllib.request.urlopen(settings, timeout=PATIENCE) as answer:
        assert json.load(answer)["servers"] == urls
    (game / "servers").unlink()
    if address == "@FILE":
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(settings, timeout=PATIENCE)


@pytest.mark.slow
@pytest.mark.checks("protocol/clients/javascript", "relaax/cli/new")
def test_other_game_uses_its_own_spaces_and_fields(
    game: Path, processes: Processes, tmp_path: Path, browser: Browser
) -> None:
    service = Service(processes, tmp_path)
    (game / "mine/game.js").write_text(VECTORS, "utf-8")
    page, url = serve(processes, game, service.address)
    browser.go(url)
    wait_until_shown(browser, "status", lambda text: "learns" in text, "it plays")
    wait_for_more_steps(browser)
    assert browser.execute("return document.title") == "two numbers"
    assert browser.execute("return document.getElementById('status').dataset.drawn") == "2"
    assert int(browser.text("episodes")) > 0

    service.rlx_server.kill()
    browser.go(url)
    wait_until_shown(browser, "steps", lambda text: int(text or 0) > 200, "the steps continue after a reload")
    page.stop()
    serve(processes, game, service.address, url.rstrip("/").rpartition(":")[2])
    browser.go(url)
    wait_until_shown(browser, "steps", lambda text: text == "0", "the steps of another run start at 0")


@pytest.mark.slow
@pytest.mark.checks("protocol/clients/javascript", "relaax/cli/new")
def test_page_with_a_missing_or_invalid_file_reports_it(game: Path, processes: Processes, browser: Browser) -> None:
    _, url = serve(processes, game, "localhost:1")
    (game / "mine/rlx/wire.js").rename(game / "wire.js")
    browser.go(url)
    wait_until_shown(
        browser,
        "status",
        lambda text: text == "a file of this page could not be loaded: fix it, then reload the page",
        "the page reports it",
    )
    (game / "wire.js").rename(game / "mine/rlx/wire.js")
    (game / "mine/game.js").write_text("export const OBSERVATION = nothing;", "utf-8")
    browser.go(url)
    wait_until_shown(
        browser,
        "status",
        lambda text: text.endswith(": fix it, then reload the page") and "file of" not in text,
        "the page reports it",
    )
    (game / "mine/game.js").write_text(VECTORS.replace('box("float32", [2, 2])', 'box("float32", [0])'), "utf-8")
    browser.go(url)
    wait_until_shown(
        browser,
        "status",
        lambda text: text.endswith(": fix it, then reload the page") and "file of" not in text,
        "the page reports it",
    )


BROKEN = {
    "restart() {": (
        "restart() { return [1];",
        "game.js: restart() gives 1 numbers as the observation; OBSERVATION has 4",
    ),
    "reward: 0,": ("reward: 'x',", 'game.js: do(): the reward is "x", not a number'),
    "reward: 0, ": ("", "do() returns { observation, reward, terminated, truncated }; reward is missing"),
    "truncated: (": ("done: (", '"done" is not one of them'),
    "[[0, 1], [2, 3]]": ("[[0, 1], [2]]", "do() gives 3 numbers as the observation; OBSERVATION has 4"),
    "[[0, 1], ": ("[[0, NaN], ", "game.js: do(): number 1 of the observation is NaN"),
    "this.actions = action;": ("this.gone.far();", "game.js:11: Cannot read properties of undefined"),
    "this.steps += 1": ("this.steps += )", "game.js:13: Uncaught SyntaxError: Unexpected token ')': fix it"),
}


@pytest.mark.slow
@pytest.mark.checks("protocol/clients/javascript", "protocol/rlx", "relaax/cli/new")
def test_page_names_the_mistake_in_a_game(game: Path, processes: Processes, tmp_path: Path, browser: Browser) -> None:
    service = Service(processes, tmp_path)
    _, url = serve(processes, game, service.address)
    for old, (new, sentence) in BROKEN.items():
        assert VECTORS.count(old) == 1
        (game / "mine/game.js").write_text(VECTORS.replace(old, new), "utf-8")
        browser.go(url)
        wait_until_shown(browser, "status", lambda text, words=sentence: words in text, sentence)  # type: ignore[misc]


@pytest.mark.slow
@pytest.mark.checks("protocol/clients/javascript", "protocol/rlx", "relaax/cli/new")
def test_page_asks_for_a_token_and_survives_a_server_restart(
    game: Path, processes: Processes, tmp_path: Path, browser: Browser
) -> None:
    service = Service(processes, tmp_path, env={"RELAAX_TOKEN": "the-right-one-of-all"})
    _, url = serve(processes, game, service.address)
    browser.go(url)
    for token, sentence in (
        ("", "requires a token"),
        ("a-wrong-one", "is not valid for this server"),
        ("the-right-one-of-all", "learns"),
    ):
        if token:
            browser.execute("document.getElementById('token').value = arguments[0]", token)
            browser.execute("document.querySelector('#ask button').click()")
        wait_until_shown(browser, "status", lambda text, words=sentence: words in text, sentence)  # type: ignore[misc]
    wait_for_more_steps(browser)

    service.rlx_server.kill()
    wait_until_shown(browser, "status", lambda text: "trying again in" in text, "it waits for the server")
    service.start_rlx_server()
    wait_until_shown(browser, "status", lambda text: "learns" in text, "it reconnected")
    wait_for_more_steps(browser)

    browser.go(url.replace("localhost", "evil.localhost"))
    wait_until_shown(
        browser, "status", lambda text: "the server refuses this page" in text, "pages of other origins are refused"
    )
    assert "Pages of the origin http://evil.localhost" in service.rlx_server.stderr


def start_run(runs: Runs, game: Path, target: float) -> tuple[Running, Path, str]:
    """Start `relaax run`; return its process, its directory and the URL of its page."""
    (port,) = free_ports(1)
    config = game / "mine.yaml"
    document = yaml.safe_load(config.read_text("utf-8"))
    document["relaax-run"]["arguments"] = ["--port", str(port)]
    config.write_text(yaml.safe_dump(document), "utf-8")
    run = runs.start("--target-return", str(target), "--seed", "1", config=config)
    url = f"http://localhost:{port}/"
    run.running.wait_for_line(f"open {url} in a browser")
    return run.running, run.directory, url


@pytest.mark.slow
@pytest.mark.checks("protocol/clients/javascript", "protocol/rlx", "relaax/cli/new")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("reloads", [0, RELOADS])
def test_browser_game_learns_across_reloads(reloads: int, runs: Runs, game: Path, browser: Browser) -> None:
    """Random play returns 1, the maximum is 10. Reloads lose at most a tenth of the steps of the page."""
    run, directory, url = start_run(runs, game, 9)
    wait_until(lambda: _is_served(browser, url), "the page is served", PATIENCE, interval=0.2)
    draw = random.Random(3)
    for _ in range(reloads):
        until = int(browser.text("steps") or 0) + draw.randrange(1000, 8000)
        wait_until(lambda least=until: int(browser.text("steps") or 0) >= least or has_ended(run), "steps", PATIENCE)  # type: ignore[misc]
        assert not has_ended(run), f"the target was reached before {reloads} reloads"
        browser.go(url)
        wait_until(lambda: browser.text("steps") or has_ended(run), "the page is loaded again", PATIENCE)
    assert run.wait(600) == 0, run.report()
    summary = yaml.safe_load((directory / "summary.json").read_text("utf-8"))
    made = int(browser.text("steps"))
    print(
        f"{reloads} reloads: {made} steps of the page, {summary['env_steps']} learned from, in {summary['seconds']} s"
    )
    assert summary["status"] == "target_reached"
    assert made <= 1.1 * summary["env_steps"] + 5000  # the page may take 5,000 steps after the target
    assert float(browser.text("return")) > 7


def has_ended(run: Running) -> bool:
    return run.returncode is not None


def _is_served(browser: Browser, url: str) -> bool:
    try:
        browser.go(url)
    except Exception:  # no server listens yet
        return False
    return bool(browser.text("status"))
