from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from relaax.server.command.termination import EndRequests, Reason

_SIGNALLED = """
import os, signal, threading
from relaax.server.command.termination import EndRequests, Reason

ends = EndRequests()
idle = threading.Event()
for _ in range(4):
    threading.Thread(target=idle.wait, daemon=True).start()
before = signal.getsignal(signal.SIGTERM)
for attempt in range(300):
    with ends.signals({signal.SIGINT: Reason.INTERRUPTED, signal.SIGTERM: Reason.TERMINATED}):
        sender = threading.Thread(target=lambda: [os.kill(os.getpid(), signal.SIGINT) for _ in range(3)])
        sender.start()
        assert ends.get(timeout=10) is Reason.INTERRUPTED, attempt
        sender.join()
        while ends.get(timeout=0) is not None:
            pass
assert signal.getsignal(signal.SIGTERM) is before
ends.close()
"""


def test_signal_to_any_thread_wakes_the_main_thread() -> None:
    answer = subprocess.run([sys.executable, "-c", _SIGNALLED], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr


def test_late_signal_may_be_ignored() -> None:
    ends = EndRequests()
    before = signal.getsignal(signal.SIGUSR1)
    try:
        with ends.signals({signal.SIGUSR1: Reason.TERMINATED}, afterwards=signal.SIG_IGN):
            signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
        assert [ends.get(timeout=0), ends.get(timeout=0)] == [Reason.TERMINATED, None]
    finally:
        signal.signal(signal.SIGUSR1, before)
        ends.close()


def test_reasons_are_returned_in_order() -> None:
    ends = EndRequests()
    assert ends.get(timeout=0) is None
    ends.put(Reason.FINISHED)
    ends.put(Reason.TERMINATED)
    assert [ends.get(), ends.get(), ends.get(timeout=0)] == [Reason.FINISHED, Reason.TERMINATED, None]
    ends.close()


@pytest.mark.parametrize("count", [100_000])
def test_100000_reasons_do_not_block(count: int) -> None:
    ends = EndRequests()
    for _ in range(count):
        ends.put(Reason.TERMINATED)
    assert ends.get() is Reason.TERMINATED
    ends.close()
