"""The thread that checks a port."""

from __future__ import annotations

import pytest

from relaax.server.ports import port as port_protection
from relaax.server.ports.port import PortProtection
from support.processes import wait_until


def test_late_calls_end_although_connections_cannot_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_protection, "PORT_CHECK_SECONDS", 0.05)
    checks = 0

    def count_check() -> None:
        nonlocal checks
        checks += 1

    def fail(port: int, waited: float) -> bool:
        raise OSError(24, "Too many open files")

    protection = PortProtection(lambda method, code: None, lambda method, context: None, lambda worker_id: None, ())
    monkeypatch.setattr(protection.reader, "end_late_calls", count_check)
    monkeypatch.setattr(protection.connections, "check", fail)
    protection.start(1)
    try:
        wait_until(lambda: checks >= 3, "calls are checked")
    finally:
        protection.stop()


def test_failed_check_is_logged_at_most_once_a_second(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waits = []

    def fail(port: int, waited: float) -> bool:
        protection.note_refused("ipv4:127.0.0.1:5000")  # calls are refused all the time
        raise OSError(24, "Too many open files")

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        if len(waits) == 3:
            protection._stop.set()
        return protection._stop.is_set()

    protection = PortProtection(lambda method, code: None, lambda method, context: None, lambda worker_id: None, ())
    monkeypatch.setattr(protection.connections, "check", fail)
    monkeypatch.setattr(protection._stop, "wait", wait)
    protection._run(1)
    assert waits == [port_protection.PORT_CHECK_SECONDS] * 3
    assert caplog.text.count("a check of the gRPC port failed") == 3
