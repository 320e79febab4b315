"""Tests of an RLX server's status port, which a separate process serves until the server ends."""

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


def wait_until_serving(url: str) -> None:
    wait_until(lambda: health(url)[0] == 200, "the status is 200", timeout=60)


def status_process_of(server: Running) -> psutil.Process:
    (found,) = [child for child in server.children() if any("status_process" in word for word in child.cmdline())]
    return found


def test_status_metrics_are_documented() -> None:
    assert documented_for_prometheus(PREFIX) == {family.name for family in FAMILIES}


def test_metrics_count_connections_workers_and_refusals(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve("--status-bind", "127.0.0.1:0", "--log-format", "json", max_workers=1)
    url = status_url(server)
    wait_until_serving(url)
    with Line(address) as line:
        line.open()
        with Line(address) as second:
            second.send(line.hello)
            assert "no room" in str(second.receive())
        with Line(address) as stranger:
            stranger.socket.sendall(b"\xff\xff\xff\xff")
            assert stranger.socket.recv(1), "the refusal arrives"
        wait_until(lambda: scraped(url)[f'{PREFIX}refusals_total{{reason="malformed"}}'] == 1, "the refusal is counted")
        values = scraped(url)
        assert health(url)[1]["workers"] == 1
    assert values[f"{PREFIX}serving"] == 1
    assert values[f"{PREFIX}workers"] == 1
    assert values[f"{PREFIX}admissions_total"] == 1
    assert values[f"{PREFIX}connections_total"] == 3
    assert values[f"{PREFIX}forks_total"] == 2, "a refusal for max_workers starts no worker"
    assert values[f'{PREFIX}refusals_total{{reason="max_workers"}}'] == 1
    assert values[f'{PREFIX}refusals_total{{reason="handshake"}}'] == 0
    assert values[f"{PREFIX}workers_memory_bytes"] > 1e6
    own = psutil.Process(server.pid)
    assert values["process_resident_memory_bytes"] == pytest.approx(own.memory_info().rss, rel=0.5), (
        "the memory of the server, not of the status process"
    )
    assert own.num_threads() == 1
    # TensorFlow writes lines that are not JSON.
    entries = [json.loads(entry) for entry in server.stderr.splitlines() if entry.startswith("{")]
    assert not re.search(r"^\d{4}-\d\d-\d\d .*relaax", server.stderr, re.MULTILINE)
    assert {entry["process"] for entry in entries} > {server.pid}, "workers log in the same format"


def test_status_process_listens_only_on_the_status_port(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve("--status-bind", "127.0.0.1:0")
    wait_until_serving(status_url(server))
    listening = {
        link.laddr.port for link in status_process_of(server).net_connections("tcp") if link.status == "LISTEN"
    }
    assert listening == {int(status_url(server).rpartition(":")[2])}
    assert int(address.rpartition(":")[2]) not in listening


def test_status_process_has_no_token_in_its_environment(serve, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("RELAAX_TOKEN", "environments-" + "0" * 16)
    monkeypatch.setenv("RELAAX_PARAMETER_SERVER_TOKEN", "workers-" + "0" * 16)
    server, address = serve("--status-bind", "127.0.0.1:0")
    wait_until_serving(status_url(server))
    with Line(address) as line:
        line.send(make_hello())
        assert isinstance(line.receive(), rlx.Error), "a token is required"
    assert not [name for name in status_process_of(server).environ() if name.endswith("TOKEN")]


def test_status_process_ends_with_a_killed_server(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve("--status-bind", "127.0.0.1:0")
    wait_until_serving(status_url(server))
    process = status_process_of(server)
    with Line(address) as line:
        line.open()
        (worker,) = [child for child in server.children() if child.pid != process.pid]
        worker.suspend()  # a suspended worker keeps its inherited descriptors open
        server.kill()
        wait_until(lambda: process not in server.children(), "the status port's process has ended")
        worker.resume()


def test_killed_status_process_is_restarted(serve) -> None:  # type: ignore[no-untyped-def]
    short_times = {"listening.status.RESTART_SECONDS": 0.1, "listening.status.SAMPLE_SECONDS": 0.1}
    server, address = serve("--status-bind", "127.0.0.1:0", constants=short_times)
    url = status_url(server)
    wait_until_serving(url)
    first = status_process_of(server)
    first.kill()
    wait_until(lambda: status_process_or_none(server) not in (None, first), "a new status process exists", timeout=60)
    wait_until_serving(url)
    assert "the status process died: restarting it" in server.stderr
    with Line(address) as line:
        line.open()
    assert server.stop() == 0
    assert not server.children()


def status_process_or_none(server: Running) -> psutil.Process | None:
    try:
        return status_process_of(server)
    except (ValueError, psutil.Error):
        return None


def refuses_connections(address: str) -> bool:
    try:
        Line(address).socket.close()
    except ConnectionRefusedError:
        return True
    except OSError:  # the server closed the socket just then
        pass
    return False


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_status_is_503_while_the_server_stops(serve, number: int, code: int) -> None:  # type: ignore[no-untyped-def]
    server, address = serve("--status-bind", "127.0.0.1:0")
    url = status_url(server)
    wait_until_serving(url)
    with Line(address) as line:
        line.open()
        (worker,) = [child for child in server.children() if child.pid != status_process_of(server).pid]
        worker.suspend()  # so that the stop takes time
        os.killpg(server.pid, number)
        wait_until(lambda: health(url)[0] == 503, "the status is 503")
        wait_until(lambda: refuses_connections(address), "new connections are refused")
        with suppress(psutil.NoSuchProcess):  # on a busy machine the server may have killed it after 5 s
            worker.resume()
        assert server.wait(30) == code
    assert not server.children()
    with pytest.raises(OSError):
        health(url)
    assert "Traceback" not in server.stderr


class TestStatusPipe:
    """Tests of the server's end of the pipe to the status process."""

    @pytest.fixture
    def line(self, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
        monkeypatch.setattr(status, "RESTART_SECONDS", 0.0)
        monkeypatch.setattr(status, "END_SECONDS", 0.2)
        line = StatusPipe(listen("127.0.0.1:0"), "INFO", "text")
        yield line
        line.stop()

    def test_suspended_status_process_does_not_block_the_server(self, line: StatusPipe) -> None:
        os.kill(line._pid, signal.SIGSTOP)
        try:
            threads = thread_count()
            for number in range(2000):  # more than a pipe can hold
                line.send({"serving": True, "number": number})
            assert thread_count() <= threads  # a thread of an earlier test may end meanwhile
        finally:
            os.kill(line._pid, signal.SIGCONT)

    def test_killed_status_process_is_replaced_at_the_next_sample(self, line: StatusPipe) -> None:
        first = line._pid
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: line.send({"serving": True}) or line._pid not in (0, first), "a new status process exists")

    def test_stop_ends_the_status_process(self, line: StatusPipe) -> None:
        pid = line._pid
        line.stop()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    def test_sample_longer_than_the_pipe_is_sent_in_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A sample of a thousand clients exceeds the pipe. Until it is sent completely, further samples are dropped."""
        read, write = os.pipe()
        os.set_blocking(write, False)
        monkeypatch.setattr(StatusPipe, "_start", lambda line: setattr(line, "_write", write))
        line = StatusPipe(listen("127.0.0.1:0"), "INFO", "text")
        text = b""
        samples = [{"number": number, "clients": "x" * 200_000} for number in range(5)]
        for sample in samples:
            line.send(sample)
            text += os.read(read, 65_536)
        line.stop()
        while piece := os.read(read, 65_536):
            text += piece
        os.close(read)
        assert json.loads(text.splitlines()[0]) == samples[0]
        assert text.splitlines()[1].startswith(b'{"number": ')


def test_server_without_recent_samples_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = status_process.Samples(os.getpid())
    assert not samples.serving
    samples.read(io.StringIO('{"serving": true, "workers": 0, "training_finished": false}\n'))
    assert samples.health()[0]
    now = time.monotonic()
    monkeypatch.setattr(status_process.time, "monotonic", lambda: now + status_process.SILENT_SECONDS + 1)
    assert not samples.serving
