"""The test helpers that start, find and end processes."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import psutil
import pytest

from relaax.libraries import LIBRARY_VARIABLES
from support.processes import Processes, wait_until
from support.programs import ROOT
from support.run import is_alive

SERVER_WITH_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print("child", child.pid)
print("relaax-test-server listening on 127.0.0.1:4321")
child.wait()
"""
INHERITED = f"""
import os, signal
numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1)
ignored = [number.name for number in numbers if signal.getsignal(number) is signal.SIG_IGN]
blocked = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(ignored, blocked, [name for name in {tuple(LIBRARY_VARIABLES)} if name in os.environ])
"""


def test_ready_line_gives_the_address(processes: Processes) -> None:
    server = processes.start_python(SERVER_WITH_CHILD)
    assert server.wait_for_address() == "127.0.0.1:4321"
    assert server.lines[0].startswith("child ")


def test_process_that_ends_before_ready_is_reported(processes: Processes) -> None:
    server = processes.start_python("import sys; sys.exit('no such file: x.yaml')")
    with pytest.raises(AssertionError, match=r"(?s)its output ended.*exit code 1.*no such file: x.yaml"):
        server.wait_for_address()


def test_wait_for_line_of_silent_process_times_out(processes: Processes) -> None:
    silent = processes.start_python("import signal; signal.pause()")
    with pytest.raises(AssertionError, match=r"waited 0.05 s"):
        silent.wait_for_line("ready", timeout=0.05)


def test_children_end_with_test_after_parent_is_killed(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        server = processes.start_python(SERVER_WITH_CHILD)
        child = psutil.Process(int(server.wait_for_line("child ").split()[1]))
        assert [process.pid for process in server.children()] == [child.pid]
        server.kill()
        assert is_alive(child)
    wait_until(lambda: not is_alive(child), "the child has ended")


def test_stop_returns_the_exit_code(processes: Processes) -> None:
    code = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print('up'); signal.pause()"
    running = processes.start_python(code)
    running.wait_for_line("up")
    assert running.stop() == 7
    ignoring = processes.start_python("print('up'); import signal; signal.pause()")
    ignoring.wait_for_line("up")
    assert ignoring.stop(signal.SIGKILL) == -signal.SIGKILL


def test_wait_returns_after_last_output_is_read(processes: Processes) -> None:
    running = processes.start_python("print('line\\n' * 10_000 + 'last')")
    assert running.wait() == 0
    assert len(running.lines) == 10_001
    assert running.lines[-1] == "last"


def test_wait_until_returns_value_or_names_condition() -> None:
    answers = iter([0, None, "there"])
    assert wait_until(lambda: next(answers), "it is there") == "there"
    with pytest.raises(AssertionError, match=r"not within 0\.02 s: pigs fly"):
        wait_until(lambda: False, "pigs fly", timeout=0.02)


def test_children_inherit_no_signals_or_library_variables(processes: Processes) -> None:
    child = processes.start_python(INHERITED)
    assert child.wait() == 0, child.report()
    assert child.lines == ["[] [] []"]


def test_children_inherit_nothing_from_starter_of_tests(processes: Processes) -> None:
    """Start a nested pytest with signals ignored (nohup, `&`) and blocked (a service), and without standard input."""
    test = f"{__file__}::{test_children_inherit_no_signals_or_library_variables.__name__}"
    script = 'trap "" HUP INT QUIT TERM USR1; exec "$@" <&-'
    code = f"""
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD])
command = ["bash", "-c", {script!r}, "bash", sys.executable, "-m", "pytest", "-p", "no:cacheprovider", sys.argv[1]]
os.execvp("bash", command)
"""
    variables = dict.fromkeys(LIBRARY_VARIABLES, "7")
    nested = processes.start(sys.executable, "-c", code, test, cwd=ROOT, env=variables)
    assert nested.wait(120) == 0, nested.report()
    assert "1 passed" in nested.lines[-1]
