"""Signals to a learner: no signal is lost or interrupts a step or the cleanup."""

from __future__ import annotations

import ctypes
import os
import signal
import time

import pytest

from relaax.server.learner import learning as interruption
from relaax.server.learner.learning import Interruption, SignalReceived


def spin(seconds: float) -> None:
    """Run Python code for `seconds`, during which signals are handled."""
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


def test_long_wait_is_interrupted() -> None:
    interrupted = Interruption()
    with interrupted.signals(), pytest.raises(SignalReceived, match="SIGINT"), interrupted.armed():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)  # only the first signal is used
        time.sleep(20)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_exception_discarded_by_c_code_is_raised_again() -> None:
    """C code, such as a compiler, may call Python code. Python prints an exception of such a call and continues."""
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
        assert called == 1, "the callback was interrupted, and its exception discarded"
        time.sleep(20)


def test_compiler_is_not_interrupted() -> None:
    """An exception in a callback of the compiler may crash the process."""
    interrupted, name = Interruption(), {"__name__": "llvmlite.binding.executionengine", "wait": spin}
    exec("def compiled():\n    wait(0.5)\n    return True", name)
    with interrupted.signals(), pytest.raises(SignalReceived), interrupted.armed():
        os.kill(os.getpid(), signal.SIGTERM)
        assert name["compiled"]()  # type: ignore[operator]
        name.clear()
        time.sleep(20)
    assert not name


def test_cleanup_is_not_interrupted() -> None:
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


def test_signal_before_the_start_is_raised() -> None:
    interrupted = Interruption()
    with interrupted.signals():
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SignalReceived), interrupted.armed():
            raise AssertionError("it begins nevertheless")
