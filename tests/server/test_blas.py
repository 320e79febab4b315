"""Kernels of OpenBLAS: when a server must restart itself, and when it cannot."""

from __future__ import annotations

import logging
import sys

import pytest

from relaax.server.command.hardware import RestartRequired, use_kernels
from relaax.server.rlx_server import main

DESCRIBED = {"OPENBLAS_CORETYPE": "Haswell", "PATH": "/bin"}


@pytest.mark.parametrize(
    ("which", "environment"),
    [("environment", DESCRIBED), ("native", {"PATH": "/bin"}), ("native", {"OPENBLAS_CORETYPE": ""})],
)
def test_server_with_the_configured_kernels_does_not_restart(which, environment) -> None:  # type: ignore[no-untyped-def]
    use_kernels(which, environment)


def test_server_with_other_kernels_restarts_and_logs_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO), pytest.raises(RestartRequired) as asked:
        use_kernels("native", DESCRIBED)
    assert asked.value.environment == {"PATH": "/bin"}
    assert "OPENBLAS_CORETYPE is Haswell: the process restarts" in caplog.text


def test_failed_restart_exits_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def require_restart(prog_name: str) -> None:
        raise RestartRequired({})

    monkeypatch.setattr(main, "app", require_restart)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 2
    assert "/nowhere/python cannot be restarted: No such file" in capsys.readouterr().err
