"""An RLX server's status port: a process of its own, which disturbs nobody and does not outlive the server."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import time
from contextlib import suppress

import psutil
import pytest

from relaax import rlx
from relaax.server.address import listen
from relaax.server.rlx_server.listening import status, status_process
from relaax.server.rlx_server.listening.status import StatusPipe
from relaax.server.rlx_server.listening.status_process import FAMILIES
from relaax.server.rlx_server.workers.spawners import thread_count
from support.metrics_page import documented_for_prometheus
from support.processes import Running, wait_until
from support.rlx_line import Line
from support.rlx_pair import make_hello
from support.scrape import health, scraped, status_url

pytestmark = pytest.mark.checks("relaax/server")

PREFIX = "relaax_rlx_server_"


def ready(url: str) -> None:
    wait_until(lambda: health(url)[0] == 200, "the server says that it serves", timeout=60)


def sibling_of(server: Running) -> psutil.Process:
    (found,) = [child for child in server.children() if any("status_process" in word for word in child.cmdline())]
    return found


def test_the_page_lists_them() -> None:
    assert documented_for_prometheus(PREFIX) == {family.name for family in FAMILIES}


def test_a_server_in_numbers(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve("--status-bind", "127.0.0.1:0", "--log-format", "json", max_workers=1)
    url = status_url(server)
    ready(url)
    with Line(address) as line:
        line.open()
        with Line(address) as second:
            second.say(line.hello)
            assert "no room" in str(second.hear())
        with Line(address) as stranger:
            stranger.socket.sendall(b"\xff\xff\xff\xff")
            assert stranger.socket.recv(1), "it is told"
        wait_until(lambda: scraped(url)[f'{PREFIX}refusals_total{{reason="malformed"}}'] == 1, "all is counted")
        values = scraped(url)
        assert health(url)[1]["workers"] == 1
    assert values[f"{PREFIX}serving"] == 1
    assert values[f"{PREFIX}workers"] == 1
    assert values[f"{PREFIX}admissions_total"] == 1
    assert values[f"{PREFIX}connections_total"] == 3
    assert values[f"{PREFIX}forks_total"] == 2, "to say that there is no room takes none"
    assert values[f'{PREFIX}refusals_total{{reason="max_workers"}}'] == 1
    assert values[f'{PREFIX}refusals_total{{reason="handshake"}}'] == 0
    assert values[f"{PREFIX}workers_memory_bytes"] > 1e6
    own = psutil.Process(server.pid)
    assert values["process_resident_memory_bytes"] == pytest.approx(own.memory_info().rss, rel=0.5), "the server's own"
    assert own.num_threads() == 1
    told = [json.loads(said) for said in server.stderr.splitlines() if said.startswith("{")]  # else TensorFlow's own
    assert not re.search(r"^\d{4}-\d\d-\d\d .*relaax", server.stderr, re.MULTILINE)
    assert {said["process"] for said in told} > {server.pid}, "workers write the same"


def test_it_has_nothing_of_the_server_but_its_port_and_the_line(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve("--status-bind", "127.0.0.1:0")
    ready(status_url(server))
    listening = {link.laddr.port for link in sibling_of(server).net_connections("tcp") if link.status == "LISTEN"}
    assert listening == {int(status_url(server).rpartition(":")[2])}
    assert int(address.rpartition(":")[2]) not in listening


def test_it_is_told_no_token(serve, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("RELAAX_TOKEN", "environments-" + "0" * 16)
    monkeypatch.setenv("RELAAX_PARAMETER_SERVER_TOKEN", "workers-" + "0" * 16)
    server, address = serve("--status-bind", "127.0.0.1:0")
    ready(status_url(server))
    with Line(address) as line:
        line.say(make_hello())
        assert isinstance(line.hear(), rlx.Error), "the server has it"
    assert not [name for name in sibling_of(server).environ() if name.endswith("TOKEN")]


def test_it_ends_with_a_server_that_was_killed_whatever_its_workers_do(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve("--status-bind", "127.0.0.1:0")
    ready(status_url(server))
    sibling = sibling_of(server)
    with Line(address) as line:
        line.open()
        (worker,) = [child for child in server.children() if child.pid != sibling.pid]
        worker.suspend()  # it has what it inherited, and closes nothing
        server.kill()
        wait_until(lambda: sibling not in server.children(), "the status port's process has ended")
        worker.resume()


def test_one_that_died_is_started_again(serve) -> None:  # type: ignore[no-untyped-def]
    soon = {"listening.status.RESTART_SECONDS": 0.1, "listening.status.SAMPLE_SECONDS": 0.1}
    server, address = serve("--status-bind", "127.0.0.1:0", constants=soon)
    url = status_url(server)
    ready(url)
    first = sibling_of(server)
    first.kill()
    wait_until(lambda: sibling_of_or_none(server) not in (None, first), "there is another one", timeout=60)
    ready(url)
    assert "the status process died: restarting it" in server.stderr
    with Line(address) as line:
        line.open()
    assert server.stop() == 0
    assert not server.children()


def sibling_of_or_none(server: Running) -> psutil.Process | None:
    try:
        return sibling_of(server)
    except (ValueError, psutil.Error):
        return None


def refuses(address: str) -> bool:
    try:
        Line(address).socket.close()
    except ConnectionRefusedError:
        return True
    except OSError:  # it was closed in that moment
        pass
    return False


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_it_says_so_when_the_server_stops_and_goes_last(serve, number: int, code: int) -> None:  # type: ignore[no-untyped-def]
    server, address = serve("--status-bind", "127.0.0.1:0")
    url = status_url(server)
    ready(url)
    with Line(address) as line:
        line.open()
        (worker,) = [child for child in server.children() if child.pid != sibling_of(server).pid]
        worker.suspend()  # so that there is time to look
        os.killpg(server.pid, number)
        wait_until(lambda: health(url)[0] == 503, "it says that it does not serve")
        wait_until(lambda: refuses(address), "nobody else can come")
        with suppress(psutil.NoSuchProcess):  # on a busy machine: the server ends it after 5 s
            worker.resume()
        assert server.wait(30) == code
    assert not server.children()
    with pytest.raises(OSError):
        health(url)
    assert "Traceback" not in server.stderr


class TestTheLine:
    """The server's end alone."""

    @pytest.fixture
    def line(self, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
        monkeypatch.setattr(status, "RESTART_SECONDS", 0.0)
        monkeypatch.setattr(status, "END_SECONDS", 0.2)
        line = StatusPipe(listen("127.0.0.1:0"), "INFO", "text")
        yield line
        line.stop()

    def test_a_stopped_sibling_holds_nobody_up(self, line: StatusPipe) -> None:
        os.kill(line._pid, signal.SIGSTOP)
        try:
            threads = thread_count()
            for number in range(2000):  # far more than a pipe holds
                line.send({"serving": True, "number": number})
            assert thread_count() <= threads  # one of an earlier test may end meanwhile
        finally:
            os.kill(line._pid, signal.SIGCONT)

    def test_a_dead_sibling_is_noticed_and_replaced(self, line: StatusPipe) -> None:
        first = line._pid
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: line.send({"serving": True}) or line._pid not in (0, first), "there is another one")

    def test_nobody_is_left(self, line: StatusPipe) -> None:
        pid = line._pid
        line.stop()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    def test_a_sample_that_is_longer_than_the_pipe_is_told_in_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As that of a thousand clients is. What comes while one is under way is left out."""
        read, write = os.pipe()
        os.set_blocking(write, False)
        monkeypatch.setattr(StatusPipe, "_start", lambda line: setattr(line, "_write", write))
        line = StatusPipe(listen("127.0.0.1:0"), "INFO", "text")
        said = b""
        samples = [{"number": number, "clients": "x" * 200_000} for number in range(5)]
        for sample in samples:
            line.send(sample)
            said += os.read(read, 65_536)
        line.stop()
        while piece := os.read(read, 65_536):
            said += piece
        os.close(read)
        assert json.loads(said.splitlines()[0]) == samples[0]
        assert said.splitlines()[1].startswith(b'{"number": ')


def test_a_silent_server_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = status_process.Samples(os.getpid())
    assert not samples.serving
    samples.read(io.StringIO('{"serving": true, "workers": 0, "training_finished": false}\n'))
    assert samples.health()[0]
    now = time.monotonic()
    monkeypatch.setattr(status_process.time, "monotonic", lambda: now + status_process.SILENT_SECONDS + 1)
    assert not samples.serving
