"""Which kernels of OpenBLAS: when the server must start anew, and when it cannot."""

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
def test_a_server_goes_on_where_it_has_the_kernels_that_it_is_to_use(which, environment) -> None:  # type: ignore[no-untyped-def]
    use_kernels(which, environment)


def test_a_server_that_is_told_of_another_processor_starts_anew_without_that_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO), pytest.raises(RestartRequired) as asked:
        use_kernels("native", DESCRIBED)
    assert asked.value.environment == {"PATH": "/bin"}
    assert "OPENBLAS_CORETYPE is Haswell: the process restarts" in caplog.text


def test_a_program_that_cannot_be_started_anew_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def asks(prog_name: str) -> None:
        raise RestartRequired({})

    monkeypatch.setattr(main, "app", asks)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 2
    assert "/nowhere/python cannot be restarted: No such file" in capsys.readouterr().err
