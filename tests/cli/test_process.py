"""`Process`: one process of a run is started, watched and ended. The processes are real."""

from __future__ import annotations

import os
import signal
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from relaax.supervision.process import EXIT_REFUSED, MAX_FAILURES, QUICK_FAILURE_SECONDS, Process, StartError
from support.processes import Processes, wait_until

SERVER = "import signal; print('it is listening on 127.0.0.1:7', flush=True); signal.pause()"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def wait_ready(process: Process) -> None:
    wait_until(lambda: process.is_ready, "it is ready", timeout=60)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    made = Process("it", tmp_path / "it.log", server=True)
    yield made
    made.kill()
    made.wait(60)


def test_server_is_ready_when_it_prints_its_address(process: Process) -> None:
    process.start(python(SERVER))
    wait_ready(process)
    assert process.address == "127.0.0.1:7"
    assert process.exit_code() is None
    process.terminate()
    assert process.wait(60)
    assert process.exit_code() == -15


def test_all_output_is_in_the_log(process: Process) -> None:
    process.start(python("import sys; print('out'); print('error', file=sys.stderr); sys.exit(1)"))
    assert process.wait(60)
    with pytest.raises(StartError, match="it did not start") as failed:
        process.restart(python(SERVER), attempts=1)
    assert "error" in str(failed.value), "the error has the last lines of the output"
    assert failed.value.refused is None
    # print() writes a line in two parts, so lines of stdout and stderr may be interleaved.
    assert all(word in process.log.read_text() for word in ("out", "error"))


@pytest.mark.parametrize(("line", "page"), [("open http://a:1/ ", "http://a:1/"), ("to open http://a:1/", None)])
def test_page_is_read_from_the_output_of_an_environment(tmp_path: Path, line: str, page: str | None) -> None:
    process = Process("client-0", tmp_path / "client-0.log", server=False)
    process.start(python(f"print('hello'); print({line!r})"))
    assert process.wait(60)
    assert process.log_tail() == f"  hello\n  {line}"
    assert process.page == page


def test_refused_configuration_is_distinguished(process: Process) -> None:
    process.start(python("import sys; print('no such key', file=sys.stderr); sys.exit(2)"))
    assert process.wait(60)
    with pytest.raises(StartError) as failed:
        process.restart(python(SERVER))
    assert "no such key" in (failed.value.refused or "")


def test_log_tail_excludes_earlier_runs(tmp_path: Path) -> None:
    log = tmp_path / "it.log"
    log.write_text("an earlier mistake\n")
    process = Process("it", log)
    process.start(python("print('this one')"))
    assert process.wait(60)
    assert process.log_tail() == "  this one"
    assert "an earlier mistake" in log.read_text()


def test_wait_works_after_an_interrupted_start(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: threading.Thread) -> None:
        raise KeyboardInterrupt

    before = psutil.Process().num_fds()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(threading.Thread, "start", interrupted)
        process.start(python(""))
    assert process.wait(60)
    assert psutil.Process().num_fds() == before, "its output is closed, because no thread reads it"


def test_process_that_fails_repeatedly_is_given_up(process: Process) -> None:
    failing = python("raise SystemExit('no')")
    process.start(failing)
    for _ in range(MAX_FAILURES - 1):
        process.wait(60)
        process.restart(failing)
    process.wait(60)
    with pytest.raises(StartError, match=r"(?s)fails repeatedly.*no"):
        process.restart(failing)
    assert process.restarts == MAX_FAILURES - 1


def test_failures_before_a_long_uptime_do_not_count(process: Process) -> None:
    failing = python("raise SystemExit('no')")
    process.start(failing)
    for _ in range(2):
        for _ in range(MAX_FAILURES - 1):
            process.wait(60)
            process.restart(failing)
        process.wait(60)
        process._started_at -= 2 * QUICK_FAILURE_SECONDS
        process._announced = True
        process.restart(failing)
    assert process.restarts == 2 * MAX_FAILURES


def test_server_that_ends_before_it_is_ready_has_failed(process: Process) -> None:
    failing = python("raise SystemExit('no')")
    process.start(failing)
    process.wait(60)
    process._started_at -= 2 * QUICK_FAILURE_SECONDS
    with pytest.raises(StartError, match=r"(?s)did not start.*no"):
        process.restart(failing, attempts=1)


def test_ends_while_blocked_are_no_failures(process: Process) -> None:
    failing = python("raise SystemExit('no')")
    process.start(failing)
    for _ in range(2 * MAX_FAILURES):
        process.mark_blocked()
        process.wait(60)
        process.restart(failing)
    assert process.restarts == 2 * MAX_FAILURES


def test_server_is_late_only_after_its_dependencies_are_ready(process: Process) -> None:
    process.start(python("import signal; signal.pause()"))
    process._started_at -= 100.0
    assert (process.is_late(60.0), process.is_late(200.0)) == (True, False)
    process.mark_blocked()
    assert not process.is_late(60.0)
    assert "did not start within 60 s" in str(process.late_error(60.0))


def test_refusal_excludes_earlier_log_lines(process: Process) -> None:
    printed = "relaax-learner: the table does not fit:\n  give it more memory"
    process.start(python(f"print('a line of its log'); print({printed!r}); raise SystemExit({EXIT_REFUSED})"))
    process.wait(60)
    with pytest.raises(StartError) as refused:
        process.restart(python(""))
    assert refused.value.refused == printed.replace("\n", "\n  ")
    assert process.restarts == 0


def test_failure_is_reported_by_its_last_sentence(process: Process) -> None:
    printed = "2026-01-01 relaax.client: connected\nOpenAI_Gym/main: the agent failed"
    process.start(python(f"print({printed!r}); raise SystemExit(1)"))
    process.wait(60)
    assert process.printed_error() == "OpenAI_Gym/main: the agent failed"
    with pytest.raises(StartError, match="^it fails repeatedly: OpenAI_Gym/main: the agent failed$"):
        process.restart(python(""), 0)


def test_kill_also_kills_child_processes(process: Process) -> None:
    child = "import subprocess, sys; c = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()']);"
    process.start(python(f"{child} print('child listening on 1.1.1.1:%d' % c.pid, flush=True); c.wait()"))
    wait_ready(process)
    pid = int((process.address or "").rpartition(":")[2])
    process.kill()
    assert process.wait(60)
    wait_until(lambda: not _is_alive(pid), "its child has ended")


def _orphaning(pids: Path) -> list[str]:
    """Return a program that starts a child, which inherits its output, adds the child's id to a file and is killed."""
    child = "import signal; signal.pause()"
    return python(
        f"import os, signal, subprocess, sys; c = subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        f"print(c.pid, file=open({str(pids)!r}, 'a')); os.kill(os.getpid(), signal.SIGKILL)"
    )


@pytest.mark.parametrize("notice", [Process.terminate, Process.kill, Process.exit_code, lambda ended: ended.wait(60)])
def test_children_of_an_ended_environment_are_killed(tmp_path: Path, notice: Callable[[Process], object]) -> None:
    pids = tmp_path / "pids"
    process = Process("client-0", tmp_path / "client-0.log")
    process.start(_orphaning(pids))
    assert process.pid is not None
    killed = psutil.Process(process.pid)
    wait_until(lambda: killed.status() == psutil.STATUS_ZOMBIE, "it is killed, which is not noticed yet", 60)
    child = int(pids.read_text())
    try:
        assert _is_alive(child)
        notice(process)
        wait_until(lambda: not _is_alive(child), "its child has ended")
    finally:
        _end(child)
        assert process.wait(60)


def test_restarts_of_an_environment_leave_no_child_or_thread(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    process = Process("client-0", tmp_path / "client-0.log")
    pids.touch()
    descriptors = psutil.Process().num_fds()
    process.start(_orphaning(pids))
    try:
        for _ in range(3):
            wait_until(lambda: process.exit_code() is not None, "it has ended", 60)
            process.restart(_orphaning(pids), attempts=9)
        assert process.wait(60)
        children = [int(line) for line in pids.read_text().splitlines()]
        assert len(children) == 4
        wait_until(lambda: not any(map(_is_alive, children)), "the children have ended")
        wait_until(lambda: all(t.name != process.name for t in threading.enumerate()), "the readers have ended")
        wait_until(lambda: psutil.Process().num_fds() <= descriptors, "the outputs are closed")
    finally:
        process.kill()
        for line in pids.read_text().splitlines():
            _end(int(line))


def test_output_without_newline_is_logged_before_it_ends(process: Process) -> None:
    """Otherwise a progress bar fills the memory."""
    process.start(python("import signal; print('\\r 50 %' * 50_000, end='', flush=True); signal.pause()"))
    wait_until(lambda: process.log.stat().st_size >= 200_000, "its first parts are in the log", 60)
    assert process.exit_code() is None


@pytest.mark.parametrize("before", [65530, 65536, 300_000])
def test_address_after_a_long_line_is_read(process: Process, before: int) -> None:
    process.start(python(f"print('x' * {before}, end=''); {SERVER}"))
    wait_ready(process)
    assert process.address == "127.0.0.1:7"


def test_words_within_a_long_line_are_not_read(tmp_path: Path) -> None:
    """The line is read in parts, which begin or end with these words."""
    server = Process("it", tmp_path / "it.log", server=True)
    server.start(python("print('x' * 65531 + ' done' + 'x')"))
    client = Process("client-0", tmp_path / "client-0.log")
    client.start(python("print('x' * 65536 + 'open http://a:1/')"))
    assert server.wait(60) and client.wait(60)
    assert not server.is_done
    assert client.page is None
    assert client.log.read_text() == "x" * 65536 + "open http://a:1/\n"


def test_log_tail_reads_only_the_end_of_a_large_log(tmp_path: Path) -> None:
    process = Process("it", tmp_path / "it.log")
    size = 64 * 1024 * 1024
    with process.log.open("wb") as log:
        log.truncate(size)
        log.seek(size)
        log.write(b"\nthe end\n")
    tracemalloc.start()
    try:
        assert process.log_tail(1) == "  the end"
        assert tracemalloc.get_traced_memory()[1] < size / 8
    finally:
        tracemalloc.stop()


def test_late_end_of_old_output_does_not_affect_a_restart(process: Process, tmp_path: Path) -> None:
    """Children of a killed server keep its output open until they end, perhaps during the next start."""
    gate, opened = tmp_path / "gate", tmp_path / "opened"
    os.mkfifo(gate)
    child = f"open({str(gate)!r}).read(); open({str(opened)!r}, 'w').close()"
    process.start(python(f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]); {SERVER}"))
    wait_ready(process)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(60)
    go = tmp_path / "go"
    process.restart(python(f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n{SERVER}"))
    readers = [thread for thread in threading.enumerate() if thread.name == process.name]
    assert len(readers) == 2, "each start has a reader of its output"
    gate.write_text("")  # the child ends, which closes the output of the first start
    readers[0].join(60)
    assert not readers[0].is_alive()
    go.write_text("")
    wait_ready(process)
    assert process.address == "127.0.0.1:7"


def test_output_that_a_child_holds_open_is_awaited_once(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    child = "import signal; signal.pause()"
    process.start(python(f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}])"))
    group = process.pid
    assert group is not None and process._reader is not None
    waits: list[object] = []
    monkeypatch.setattr(process._reader, "join", waits.append)
    try:
        assert process.wait(60)
        for _ in range(5):  # the supervisor asks several times a second
            assert not (process.is_ready or process.announced)
        assert len(waits) == 1
    finally:
        os.killpg(group, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the death of a parent process")
def test_process_is_terminated_if_its_parent_is_killed(processes: Processes, tmp_path: Path) -> None:
    parent = processes.start_python(
        f"""
import signal, sys, time
from pathlib import Path
from relaax.supervision.process import Process
process = Process("it", Path({str(tmp_path)!r}) / "it.log", server=True)
process.start([sys.executable, "-c", {SERVER!r}])
while not process.is_ready:
    time.sleep(0.01)
print("child", process.pid, flush=True)
signal.pause()
"""
    )
    child = int(parent.wait_for_line("child ").split()[1])
    try:
        assert _is_alive(child)
        parent.kill()
        wait_until(lambda: not _is_alive(child), "the child has ended")
    finally:
        _end(child)


def _end(pid: int) -> None:
    if _is_alive(pid):
        psutil.Process(pid).kill()


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_variables_that_set_keys_are_not_passed_on(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration file of the process already has their values."""
    monkeypatch.setenv("RELAAX_RUN__CLIENTS", "9")
    monkeypatch.setenv("RELAAX_TOKEN", "secret")
    process.start(python("import os; print('it listening on', *(n for n in os.environ if n.startswith('RELAAX_')))"))
    assert process.wait(60)
    assert process.address == "RELAAX_TOKEN"
