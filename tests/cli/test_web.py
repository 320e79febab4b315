"""`relaax web` without a browser: its data, its answers by HTTP, and what it refuses."""

from __future__ import annotations

import http.client
import io
import json
import re
import socket
import ssl
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from relaax.algorithm_base import Box, Discrete
from relaax.cli.app import app
from relaax.cli.live.top import ServiceWatcher
from relaax.cli.web.command import find_run, page_of
from relaax.cli.web.curves import MAX_CURVES, MAX_POINTS, Curves, EventFolder
from relaax.cli.web.log_warnings import MAX_WARNINGS, LogWarnings
from relaax.cli.web.page import RunPage, png
from relaax.cli.web.server import FILES, MAX_WRONG_TOKENS, STATIC, PageServer
from relaax.client import Client
from relaax.configuration import ConfigurationError
from relaax.metrics.writer import EventFile, do_without_tensorflow
from relaax.server.address import listen
from relaax.server.security.certificates import LOCAL, Authority
from relaax.server.security.tls import server_context
from relaax.server.security.tokens import Token
from relaax.tls import client_context
from relaax.transport.channel import Target
from support.parameter_servers import gradient, parameter_client, registration, running
from support.processes import Processes, wait_until
from support.replay_servers import client_of, numbered, numbers, serving
from support.service import Service

TOKEN = "0123456789abcdef"
MEAN = "episode/mean_return_100"


def write_events(folder: Path, points: Mapping[int, float], name: str = MEAN) -> None:
    """Write an event file."""
    with closing(EventFile(folder)) as file:
        add_events(file, points, name)


def add_events(file: EventFile, points: Mapping[int, float], name: str = MEAN, start: int | None = None) -> None:
    """Append events. `start`: first the start of a training that continues before this step."""
    do_without_tensorflow()
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary

    if start is not None:
        file.add(Event(step=start, session_log=SessionLog(status=SessionLog.START)))
    for step, value in points.items():
        file.add(Event(step=step, summary=Summary(value=[Summary.Value(tag=name, simple_value=value)])))
    file.flush()


@pytest.fixture
def ended(tmp_path: Path) -> Path:
    """The directory of a run that has ended."""
    run = tmp_path / "runs" / "cartpole"
    for folder in ("logs", "metrics/evaluation"):
        (run / folder).mkdir(parents=True)
    write_events(run / "metrics", {100: 20.0, 200: 30.5})
    write_events(run / "metrics/evaluation", {150: 25.0}, "evaluation/mean_return")
    summary = {"status": "max_steps", "env_steps": 200, "mean_return_100": 30.5, "error": None}
    (run / "summary.json").write_text(json.dumps(summary))
    line = "2026-11-30 02:46:40,123 WARNING [77] relaax.server: <script>worker 12 was killed</script>\n"
    (run / "logs/rlx-server.log").write_text(line + line.replace("WARNING", "INFO   ").replace("killed", "seen"))
    return run


def refusal(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["web", *map(str, arguments)])
    assert result.exit_code == 2, result.output
    return " ".join(result.output.split())


@contextmanager
def served(page: RunPage, token: str | None = None, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Serve a page by a thread; the port."""
    with listen("127.0.0.1:0") as sock:
        server = PageServer(sock, page, None if token is None else Token(token), tls)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield sock.getsockname()[1]
        server.shutdown()
        thread.join()
        page.close()


def get(port: int, path: str = "/", tls: ssl.SSLContext | None = None, **headers: str) -> tuple[int, Any, bytes]:
    """Return status, headers and body of an answer."""
    connection: http.client.HTTPConnection = http.client.HTTPConnection("localhost", port, timeout=60)
    if tls is not None:
        connection = http.client.HTTPSConnection("localhost", port, timeout=60, context=tls)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers, body


def watched(address: str, *replay: str) -> RunPage:
    """The page of a server by hand, without metrics."""
    watcher = ServiceWatcher([Target(address)], [Target(one) for one in replay])
    return RunPage("by hand", lambda: watcher, None, None)


def test_unknown_run_names_the_nearest(ended: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ended.parents[1])
    assert find_run("cartpole") == find_run("runs/cartpole") == ended
    Path("cartpole").mkdir()  # the program of an environment
    assert find_run("cartpole") == ended
    Path("cartpole").rmdir()
    assert refusal("cartpol") == "relaax web: unknown run 'cartpol'; did you mean 'cartpole'?"
    assert "did you mean 'cartpole'?" in refusal("runs/cartpoe")
    assert refusal("elsewhere/x") == "relaax web: unknown run 'elsewhere/x': elsewhere has no runs"


def test_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    assert "is not the directory of a run: it has neither logs nor metrics" in refusal(tmp_path)


def test_port_in_use_is_refused(ended: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = refusal(ended, "--bind", f"127.0.0.1:{port}")
    assert f"cannot listen on 127.0.0.1:{port}" in text
    assert "use another port, or 0 for a free one" in text


def test_other_address_needs_a_token(ended: Path, tmp_path: Path) -> None:
    assert "require a token with --page-token-file" in refusal(ended, "--bind", "0.0.0.0:0")
    (tmp_path / "short").write_text("short")
    assert "must have 16 to" in refusal(ended, "--page-token-file", tmp_path / "short")


@pytest.mark.parametrize(
    ("page", "key"),
    [
        (("--web-bind", "0.0.0.0:0"), "web_token_file"),
        (("--web", "--set", "run.web_certificate=missing.pem"), "web_key"),
    ],
)
def test_run_refuses_a_page_before_it_starts(page: tuple[str, ...], key: str, tmp_path: Path) -> None:
    command = ["run", "da3c_gym_cartpole", *page, "--run-dir", str(tmp_path / "run")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2, result.output
    assert f"relaax-run.{key}" in " ".join(result.output.split())
    assert not (tmp_path / "run").exists()


def test_metrics_folder_is_for_an_address(ended: Path, tmp_path: Path) -> None:
    assert "--metrics is for HOST:PORT" in refusal(ended, "--metrics", tmp_path)
    assert "there is no such folder" in refusal("localhost:1", "--metrics", tmp_path / "missing")


def test_ended_run_shows_curves_and_warnings(ended: Path) -> None:
    page = page_of(str(ended), None, None, None, None)
    state = page.data("", 0)
    assert state["state"] == "The run has ended: max_steps."
    assert ["mean return", "30.5"] in json.loads(json.dumps(state["figures"]))
    assert state["curves"][MEAN]["points"] == [(100, 20.0), (200, 30.5)]
    assert (state["curves"][MEAN]["latest"], state["curves"][MEAN]["unit"]) == ("30.5", "reward")
    assert state["tables"]["evaluations"]["rows"][0][:2] == ["150", "25.0"]
    (warning,) = state["warnings"]
    assert (warning["log"], warning["level"]) == ("rlx-server", "warning")
    assert warning["text"] == "<script>worker 12 was killed</script>"
    again = page.data(state["session"], state["changes"])
    assert again["curves"] == {}
    assert page.data("of an earlier start", state["changes"])["curves"] == state["curves"]


def test_folder_of_metrics_alone_is_shown(ended: Path) -> None:
    state = page_of(str(ended / "metrics"), None, None, None, None).data("", 0)
    assert (state["name"], state["state"]) == ("metrics", "Curves only: no server is named.")
    assert state["curves"][MEAN]["latest"] == "30.5"


def test_unreachable_server_is_named(tmp_path: Path) -> None:
    state = watched("127.0.0.1:1").data("", 0)
    assert state["state"].startswith("Not training: the parameter server at 127.0.0.1:1 does not answer: UNAVAILABLE")


def test_event_files_are_read_as_they_grow(tmp_path: Path) -> None:
    curves = Curves()
    folder = EventFolder(tmp_path, curves)
    with closing(EventFile(tmp_path)) as file, closing(EventFile(tmp_path)) as later:
        add_events(file, {1: 1.0, 2: 2.0})
        folder.read()
        before = curves.changes
        add_events(file, {3: 3.0})
        folder.read()
        assert curves.since(before)[MEAN] == {"whole": False, "points": [(3, 3.0)], "latest": (3, 3.0)}
        before = curves.changes
        add_events(later, {3: 7.0}, start=2)  # after a crash, training continues from step 1
        folder.read()
        assert curves.since(before)[MEAN] == {"whole": True, "points": [(1, 1.0), (3, 7.0)], "latest": (3, 7.0)}


def test_torn_and_damaged_event_files_are_tolerated(tmp_path: Path) -> None:
    curves = Curves()
    folder = EventFolder(tmp_path, curves)
    whole = tmp_path / "whole"
    whole.mkdir()
    write_events(whole, {1: 1.0, 2: 2.0})
    data = next(whole.iterdir()).read_bytes()
    path = tmp_path / "events.out.tfevents.1.host"
    for start in range(0, len(data), 7):
        with path.open("ab") as file:
            file.write(data[start : start + 7])
        folder.read()
    (tmp_path / "events.out.tfevents.2.host").write_bytes(struct.pack("<QI", 2**62, 0) + b"x" * 100)
    (tmp_path / "events.out.tfevents.3.host").write_bytes(struct.pack("<QI", 4, 0) + b"\xff" * 8)
    folder.read()
    assert curves.of(MEAN) == [(1, 1.0), (2, 2.0)]


def test_replaced_event_files_begin_new_curves(tmp_path: Path) -> None:
    curves = Curves()
    folder = EventFolder(tmp_path / "metrics", curves)
    folder.read()
    for value in (1.0, 5.0):
        (tmp_path / "metrics").mkdir()
        write_events(tmp_path / "metrics", {10: value})
        folder.read()
        assert curves.of(MEAN) == [(10, value)]
        (tmp_path / "metrics").rename(tmp_path / f"moved-{value}")


def test_long_curves_are_merged_to_means() -> None:
    curves = Curves()
    for step in range(10 * MAX_POINTS):
        curves.add(step, {"a": float(step)})
    points = curves.of("a")
    assert MAX_POINTS / 2 <= len(points) <= MAX_POINTS
    assert [step for step, _ in points] == sorted(step for step, _ in points)
    assert all(step - 16 < value <= step for step, value in points)
    assert curves.since(0)["a"]["latest"] == (10 * MAX_POINTS - 1, 10 * MAX_POINTS - 1.0)


def test_number_of_curves_is_bounded() -> None:
    curves = Curves()
    curves.add(1, {f"a/{number}": 1.0 for number in range(MAX_CURVES + 5)} | {"a/0": float("nan")})
    assert (len(curves.since(0)), curves.left_out) == (MAX_CURVES, 4)


def test_warnings_are_read_as_logs_grow(tmp_path: Path) -> None:
    found = LogWarnings(tmp_path)
    log = tmp_path / "learner.log"
    line = "2026-11-30 02:46:4{},000 ERROR   [7] relaax.x: text {}\n"
    log.write_text(line.format(1, 1) + line.format(2, 2)[:30])
    found.read()
    assert [one["text"] for one in found.newest()] == ["text 1"]
    with log.open("a") as file:
        file.write(line.format(2, 2)[30:])
    entry = {"time": "2026-11-30T02:46:43+00:00", "level": "CRITICAL", "message": "json"}
    (tmp_path / "json.log").write_text(f"{json.dumps(entry)}\n{{broken\n" + '{"level": "ERROR"}\n')
    found.read()
    assert [(one["log"], one["text"]) for one in found.newest()[1:]] == [("learner", "text 2"), ("json", "json")]
    log.write_text("".join(line.format(3, number) for number in range(2 * MAX_WARNINGS)))
    found.read()
    assert len(found.newest()) == MAX_WARNINGS


def test_answers_allow_only_own_resources(ended: Path) -> None:
    with served(page_of(str(ended), None, None, None, None)) as port:
        for path in FILES:
            status, headers, _ = get(port, path)
            policy = headers["Content-Security-Policy"]
            assert (status, headers["X-Content-Type-Options"], headers["Cache-Control"]) == (200, "nosniff", "no-store")
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
            assert "unsafe" not in policy
        status, headers, body = get(port, "/data?session=x&since=abc")
        assert (status, headers["Content-Type"]) == (200, "application/json")
        assert json.loads(body)["curves"][MEAN]["whole"]
        assert [get(port, path)[0] for path in ("/picture", "/x", "/../page.py", "/static/page.js")] == [404] * 4


def test_page_names_no_external_resource() -> None:
    texts = {name: (STATIC / name).read_text("utf-8") for name, _ in FILES.values()}
    for name, text in texts.items():
        assert re.findall(r"(?:https?:)?//[a-z][^\s\"')]*", text.replace("http://www.w3.org/2000/svg", "")) in (
            [],
            ["https://github.com/leeoniya/uPlot"],  # in the comment of the library
        ), name
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", texts["page.js"])


def test_token_is_required_from_every_request(ended: Path) -> None:
    with served(page_of(str(ended), None, None, None, None), TOKEN) as port:
        for path in (*FILES, "/data", "/picture"):
            status, headers, body = get(port, path)
            assert (status, headers["WWW-Authenticate"][:5]) == (401, "Basic"), path
            assert b"token of the live page is required" in body
        assert get(port, Authorization=f"Bearer {TOKEN}")[0] == 200
        assert get(port, Authorization="Basic YW55Ym9keTowMTIzNDU2Nzg5YWJjZGVm")[0] == 200
        assert get(port, Authorization="Basic AAAA====")[0] == 401
        for _ in range(MAX_WRONG_TOKENS - 1):
            last = get(port, Authorization="Bearer wrong")[0]
        assert (last, get(port, Authorization=f"Bearer {TOKEN}")[0]) == (401, 429)


def test_foreign_names_of_loopback_are_refused(ended: Path) -> None:
    """A page in the internet could let its own name resolve to this machine."""
    with served(page_of(str(ended), None, None, None, None)) as port:
        assert get(port, Host="evil.example.org")[0] == 403
        assert [get(port, Host=host)[0] for host in (f"127.0.0.1:{port}", "[::1]", "localhost:7")] == [200] * 3


def test_page_is_served_by_https(ended: Path, tmp_path: Path) -> None:
    authority = Authority(1)
    certificate, key = authority.issue("page", LOCAL)
    for name, content in (("page.pem", certificate), ("page-key.pem", key)):
        (tmp_path / name).write_bytes(content)
    context = server_context(str(tmp_path / "page.pem"), str(tmp_path / "page-key.pem"), "a", "b")
    with served(page_of(str(ended), None, None, None, None), TOKEN, context) as port:
        trusted = client_context(authority.certificate.decode())
        with socket.create_connection(("127.0.0.1", port)):  # a silent client blocks no other
            assert get(port, "/data", trusted, Authorization=f"Bearer {TOKEN}")[0] == 200
        with suppress(http.client.HTTPException, OSError):
            raise AssertionError(get(port))


def test_disconnected_worker_stays_listed() -> None:
    with running() as server:
        page = watched(server.address)
        with parameter_client(server.address) as worker:
            worker.register(registration(environment="<b>maze</b>"))
            worker.pull()
            worker.push(gradient(1), env_steps=5)
            state = page.data("", 0)
            (row,) = state["tables"]["workers"]["rows"]
            assert (row[1], row[2], row[7]) == ("trains", "<b>maze</b>", "0")
            assert state["curves"]["staleness/mean"]["points"] == [(5, 0.0)]
            assert state["warnings"] == []
        page._polled_at = None
        state = page.data("", 0)
        (row,) = state["tables"]["workers"]["rows"]
        assert re.fullmatch(r"disconnected \d s ago", row[1])
        assert [one["text"].partition(" of ")[2] for one in state["warnings"]] == ["<b>maze</b> disconnected"]
        page.close()


def test_replay_shards_are_listed() -> None:
    with running() as server, serving(2) as shards, client_of(shards, numbered(100), actors=(0, 1)) as client:
        for writer in client.writers:
            writer.insert(numbers(1, 2, 3))
        page = watched(server.address, *(shard.address for shard in shards))
        rows = page.data("", 0)["tables"]["replay"]["rows"]
        assert [row[:4] for row in rows] == [
            [f"{index}", shard.address, "numbers", "3 of 50"] for index, shard in enumerate(shards)
        ]
        page.close()


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3)])
def test_png_has_the_pixels(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png(5, 7, pixels.tobytes())))), pixels)
    assert png(5, 8, pixels.tobytes()) == png(0, 0, b"") == b""


def test_picture_shows_the_first_environment(processes: Processes, tmp_path: Path) -> None:
    """The picture is the observation of environment 0."""
    service = Service(processes, tmp_path)
    images = np.random.default_rng(2).integers(0, 256, (6, 20, 30, 3)).astype(np.uint8)
    page = watched(service.parameter_server_address)
    spaces: dict[str, Any] = {"observation_space": Box(0, 255, (20, 30, 3), np.uint8), "action_space": Discrete(2)}
    with Client(service.address, **spaces) as client, served(page) as port:
        client.init(images[0])

        def seen() -> bytes:
            for image in images:
                client.send(1.0, image)
            text = json.loads(get(port, "/data")[2])["picture"]["text"]
            status, _, body = get(port, "/picture")
            return body if status == 200 and "30 x 20 pixels" in text else b""

        body = wait_until(seen, "a picture", 60.0, interval=0.05)
        shown = np.asarray(Image.open(io.BytesIO(body)))
        assert any(np.array_equal(shown, image) for image in images)


def test_vector_has_no_picture(processes: Processes, tmp_path: Path) -> None:
    service = Service(processes, tmp_path)
    page = watched(service.parameter_server_address)
    spaces: dict[str, Any] = {"observation_space": Box(-1, 1, (3,)), "action_space": Discrete(2)}
    with Client(service.address, **spaces) as client, served(page) as port:
        client.init(np.zeros(3, np.float32))

        def text() -> str:
            for _ in range(6):
                client.send(1.0, np.zeros(3, np.float32))
            return str(json.loads(get(port, "/data")[2])["picture"]["text"])

        wait_until(lambda: text() == "The observation is not an image, so there is no picture.", "the text", 60.0)
        assert get(port, "/picture")[0] == 404


def test_configuration_names_servers_and_metrics(tmp_path: Path) -> None:
    config = tmp_path / "service.yaml"
    document = {"relaax-parameter-server": {"metrics-dir": str(tmp_path)}, "algorithm": {"path": "da3c"}}
    config.write_text(json.dumps(document))
    write_events(tmp_path, {1: 4.0})
    page = page_of(str(config), None, None, None, None)
    state = page.data("", 0)
    page.close()
    assert (state["name"], state["curves"][MEAN]["latest"]) == ("service", "4")
    with pytest.raises(ConfigurationError):
        page_of(str(tmp_path / "missing.yaml"), None, None, None, None)
