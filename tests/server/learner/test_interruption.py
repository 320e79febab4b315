"""Signals to a learner: none is lost, and none comes in the middle of a step or of cleaning up."""

from __future__ import annotations

import ctypes
import os
import signal
import time

import pytest

from relaax.server.learner import learning as interruption
from relaax.server.learner.learning import Interruption, SignalReceived


def spin(seconds: float) -> None:
    """Be busy in Python: a signal is handled in the midst of it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruption, "WAIT_SECONDS", 0.2)


def test_a_step_is_finished() -> None:
    interrupted, done = Interruption(), False
    with interrupted.signals(), pytest.raises(SignalReceived, match="SIGTERM"), interrupted.armed():
        os.kill(os.getpid(), signal.SIGTERM)
        done = True
        interrupted.check()
    assert done


def test_what_takes_long_is_interrupted() -> None:
    interrupted = Interruption()
    with interrupted.signals(), pytest.raises(SignalReceived, match="SIGINT"), interrupted.armed():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)  # the first counts
        time.sleep(20)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_c_code_has_dropped_is_raised_again() -> None:
    """As in a compiler's callback, where Python prints an exception and goes on."""
    interrupted, called = Interruption(), 0

    @ctypes.CFUNCTYPE(None)
    def callback() -> None:
        nonlocal called
        called += 1
        os.kill(os.getpid(), signal.SIGTERM)
        spin(0.5)
        called += 1

    with interrupted.signals(), pytest.raises(SignalReceived), interrupted.armed():
        callback()
        assert called == 1, "it was interrupted, and nobody heard of it"
        time.sleep(20)


def test_a_compiler_is_left_alone() -> None:
    """An exception in what it has C code call may crash the process."""
    interrupted, name = Interruption(), {"__name__": "llvmlite.binding.executionengine", "wait": spin}
    exec("def compiled():\n    wait(0.5)\n    return True", name)
    with interrupted.signals(), pytest.raises(SignalReceived), interrupted.armed():
        os.kill(os.getpid(), signal.SIGTERM)
        assert name["compiled"]()  # type: ignore[operator]
        name.clear()
        time.sleep(20)
    assert not name


def test_cleaning_up_is_not_disturbed() -> None:
    interrupted, cleaned = Interruption(), False
    with interrupted.signals(), pytest.raises(SignalReceived):
        try:
            with interrupted.armed():
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(20)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            spin(0.5)
            cleaned = True
    assert cleaned


def test_a_signal_before_it_begins_is_not_forgotten() -> None:
    interrupted = Interruption()
    with interrupted.signals():
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SignalReceived), interrupted.armed():
            raise AssertionError("it begins nevertheless")
