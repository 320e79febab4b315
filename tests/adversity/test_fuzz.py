"""Thousands of mutated frames at a real server, beside honest clients. `fuzz.py` sends any number of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from relaax.rlx import Sender
from support.fuzz_cases import case
from support.fuzz_memory import expected_answers, frames_read_by_client
from support.fuzz_run import fuzz, start_fuzzed_server
from support.fuzz_websocket import run_mutated
from support.fuzz_wire import honest_clients
from support.processes import Processes
from support.resource_leaks import expect_clean_log

pytestmark = pytest.mark.checks("relaax/server", "relaax/rlx")

SEED = 20


def test_cases_are_determined_by_seed_and_number() -> None:
    for number in range(20):
        assert case(SEED, number) == case(SEED, number)
        assert case(SEED, number) != case(SEED + 1, number)


def test_thousand_mutated_frames_in_memory() -> None:
    """RemoteProtocolError is the only exception on either side: the two functions do not catch others."""
    number = frames = errors = 0
    while frames < 1000 or number < 60:
        sent = case(SEED, number)
        frames += len(sent.frames)
        errors += expected_answers(sent).error is not None
        frames_read_by_client(case(SEED, number, Sender.SERVER), number)
        number += 1
    assert 0 < errors < number, "some cases are valid, and some are not"


@pytest.mark.slow
def test_mutated_websocket_data_is_rejected(processes: Processes, tmp_path: Path, short: bool) -> None:
    """Invalid requests and frames are rejected, and honest clients are served."""
    server, address = start_fuzzed_server(processes, tmp_path)
    ends: Counter[str] = Counter()
    with honest_clients(address):
        for number in range(120 if short else 400):
            run_mutated(address, SEED, number, ends)
    assert {"HTTP 400", "MALFORMED, 1002", "MALFORMED, 1003", "FRAME_TOO_LARGE, 1009"} < set(ends), ends
    expect_clean_log(server)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("websocket", [False, True], ids=["tcp", "websocket"])
def test_twenty_thousand_mutated_frames_at_a_server(
    processes: Processes, tmp_path: Path, short: bool, websocket: bool
) -> None:
    if short and websocket:
        pytest.skip("--short has only the test of mutated WebSocket data")
    frames = 2_000 if short else 20_000
    report, _ = fuzz(processes, tmp_path, frames=frames, seed=SEED + 1, websocket=websocket)
    assert report.read > 0.3 * frames, "most of what is sent is read"
    assert len(report.ends) >= 4, "several kinds of errors occurred"
