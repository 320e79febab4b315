"""`relaax conformance --server`: correct servers pass, and a server with one fault fails the rule of that fault."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from relaax.client.connection.address import parse_endpoint
from relaax.conformance import server
from relaax.conformance.adaptation import Settings
from relaax.conformance.report import Report, Verdict
from relaax.conformance.server import check_server, server_checks
from relaax.rlx import Box, Dict, Discrete, MultiDiscrete
from relaax.rlx.wire.encoding import CAPABILITIES
from support.faulty_server import FaultyServer
from support.findings import not_passed
from support.keys import Keys
from support.offline import HERE, SERVER, write_config
from support.processes import Processes
from support.service import started_service

pytestmark = pytest.mark.checks("relaax/conformance", "relaax/server/rlx_server", "relaax/rlx")

OWN = Settings(
    observation_space=Dict({"b": Discrete(5), "a": Box(0, 255, (3, 4), "uint8"), "c": Box(shape=(2,))}),
    action_space=MultiDiscrete([3, 4]),
)


@pytest.fixture(autouse=True)
def shorten_long_list(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr(server, "LIST_BYTES", 2**16)


def check(address: str, settings: Settings, only: str = "*") -> Report:
    checks = server_checks(settings, only)
    assert checks
    return check_server(parse_endpoint(address), settings, checks)


SERVER_DEPENDENT = {"training_finished_protobuf", "training_finished_json", "refused_token", "overloaded"}
CAPABLE = {c.name: c.adapted for c in server_checks(Settings()) if c.adapted.asks or c.adapted.used_unasked}
"""The checks of capabilities."""
UNSUPPORTED = {f"{capability}_unsupported" for capability in CAPABILITIES}
TIMING_DEPENDENT = {"unexpected_metrics", "unexpected_second_step"}


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        pytest.param(Settings(codec="json"), marks=pytest.mark.slow),
        pytest.param(OWN, marks=pytest.mark.slow),
    ],
    ids=["vectors", "json", "own_spaces"],
)
def test_correct_server_passes(settings: Settings) -> None:
    with FaultyServer() as right:
        report = check(right.address, settings)
    assert not report.failed, not_passed(report)
    allowed = SERVER_DEPENDENT | TIMING_DEPENDENT | {"idle_timeout"} | UNSUPPORTED
    if settings.codec == "json":
        allowed |= {"malformed_utf8", "malformed_protobuf", "rest_is_dropped"}
        allowed |= {"malformed_message_twice", "malformed_two_messages"}
        allowed |= {"unsupported_version_text_protobuf", "unsupported_version_space_protobuf"}
    assert set(not_passed(report)) <= allowed
    assert report.totals["passed"] > 75


FAULTS = {
    "wrong_code": ("malformed_json", "the error MALFORMED was expected, not the error AGENT_FAILED"),
    "no_sentence": ("space_nothing", "has no message"),
    "abrupt": ("rest_is_dropped", ""),
    "never_ends": ("malformed_empty", "did not end its stream"),
    "speaks_on": ("unexpected_init", "after its last message the peer sent"),
    "waits_for_body": ("frame_too_large_hello", "no frame was received"),
    "wrong_returns": ("plain_protobuf", "[3.5]; the sums of the rewards are [2.5]"),
    "wrong_nonce": ("metrics_ping_bye_json", "the pong's nonce is 5"),
    "illegal_action": ("plain_protobuf", "not a value of Discrete(3)"),
    "wrong_dtype": ("every_dtype", "float16"),
    "protobuf_only": ("plain_json", "is not json"),
    "known_fields_only": ("unknown_everywhere_protobuf", "MALFORMED"),
    "blind_to_nan": ("step_nan_reward", "the error INVALID_VALUE was expected, not actions"),
    "welcome_version": ("reconnect", "protocol_version 2"),
    "bad_session_id": ("reconnect", "a/b"),
    "no_heartbeat": ("reconnect", "heartbeat_seconds 0"),
    "drops_the_rest": ("joined_frames", ""),
    "packets_are_frames": ("plain_protobuf", "(bytes one by one)"),
    "stays_after_bye": ("plain_protobuf", ""),
    "patient": ("idle_timeout", "no frame was received"),
    "unasked_out_of_step": ("plain_protobuf", "the welcome has out_of_step, and the hello did not ask for it"),
    "unasked_chosen_actions": ("plain_json", "the welcome has chosen_actions, and the hello did not ask for it"),
    "short_parameters": ("environment_parameters_one_json", "parameters has 1 numbers; 2 are needed"),
    "counts_void_rewards": ("out_of_step_same_step_protobuf", "the sums of the rewards are [7.0, 0.0]"),
    "checks_void_rows": ("out_of_step_next_step_json", "actions was expected, not the error INVALID_VALUE"),
    "accepts_idle": ("step_idle_unasked", "the error INVALID_VALUE was expected, not actions"),
}


# Checks of these faults wait for the full deadline.
WAITED_FOR = {"drops_the_rest", "never_ends", "patient", "stays_after_bye", "waits_for_body"}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_found(fault: str) -> None:
    rule, sentence = FAULTS[fault]
    with FaultyServer(fault) as faulty:
        report = check(faulty.address, Settings(deadline=1.0 if fault in WAITED_FOR else 20.0), rule)
    for finding in report.findings:
        assert finding.verdict is Verdict.FAILED, finding
        assert sentence in finding.sentence


def test_server_that_supports_one_space_only_passes(processes: Processes, tmp_path: Path) -> None:
    """Rules that need another space are not applicable. If the check uses the server's spaces, they pass."""
    config = write_config(tmp_path, {"path": str(HERE / "fuzz_algorithm.py"), "only": "Box(float32, [3])"})
    _, address = processes.start_server(sys.executable, SERVER, "--config", config)
    report = check(address, Settings(), "[mp]*_protobuf")
    refused = {f.rule: f.sentence for f in report.findings if f.verdict is Verdict.NOT_APPLICABLE}
    assert "UNSUPPORTED_SPACE: only Box(float32, [3]) is supported" in refused["plain_protobuf"]
    assert not report.failed, not_passed(report)
    assert {"malformed_protobuf"} == {f.rule for f in report.findings if f.verdict is Verdict.PASSED}
    assert "--observation-space" in report.hints()[0]
    own = Settings(observation_space=Box(shape=(3,)), action_space=Discrete(2))
    assert set(not_passed(check(address, own, "step_n*"))) == set()


def test_server_with_capabilities_passes(processes: Processes, tmp_path: Path) -> None:
    config = write_config(tmp_path, {"path": str(HERE / "fuzz_algorithm.py")}, max_failed_handshakes=1000)
    _, address = processes.start_server(sys.executable, SERVER, "--config", config)
    for settings in (Settings(), OWN):
        checks = [check for check in server_checks(settings) if check.name in CAPABLE]
        report = check_server(parse_endpoint(address), settings, checks)
        assert len(report.findings) == len(CAPABLE)
        assert set(not_passed(report)) == UNSUPPORTED, not_passed(report)
        assert not report.failed


def test_server_with_a_short_idle_timeout_passes() -> None:
    with FaultyServer("impatient") as impatient:
        assert not_passed(check(impatient.address, Settings(), "idle_timeout")) == {}


def test_server_without_capabilities_does_not_fail() -> None:
    """A server of an earlier version ignores the fields."""
    with FaultyServer("earlier") as earlier:
        checks = [check for check in server_checks(Settings()) if check.name in CAPABLE]
        protobuf = [check for check in checks if check.adapted.codec == "protobuf"]
        report = check_server(parse_endpoint(earlier.address), Settings(), protobuf)
    assert len(report.findings) > 30
    assert set(not_passed(report)) == {check.name for check in protobuf} - UNSUPPORTED
    for finding in report.findings:
        if finding.rule not in UNSUPPORTED:
            adapted = CAPABLE[finding.rule]
            capability = adapted.used_unasked or adapted.asks[0]
            assert finding.verdict is Verdict.NOT_APPLICABLE, finding
            assert f"the server does not support {CAPABILITIES[capability]}" in finding.sentence


def test_guarded_server_passes_with_its_token() -> None:
    rules = "[hru]e*"
    with FaultyServer("token") as guarded:
        without = check(guarded.address, Settings(), rules)
        found = check(guarded.address, Settings(token="secret"), rules)
    assert not without.failed
    assert "UNAUTHENTICATED" in not_passed(without)["reconnect"] and "--token-file" in without.hints()[0]
    assert not_passed(found) == {}
    assert "refused_token" in {finding.rule for finding in found.findings}


def test_server_with_tls_passes_over_tls_only(processes: Processes, tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys")
    algorithm = {"path": str(HERE / "fuzz_algorithm.py")}
    config = write_config(tmp_path, algorithm, max_failed_handshakes=1000, **keys.rlx_port())
    _, address = processes.start_server(sys.executable, SERVER, "--config", config)
    for where in (address, f"wss://{address}/rlx"):
        report = check(where, Settings(tls=keys.context(), token=keys.token), "m*bye_json")
        assert not_passed(report) == {}
    plain = check(address, Settings(token=keys.token, deadline=2), "metrics_ping_bye_json")
    assert plain.failed, "the server accepts TLS only"


@pytest.mark.slow
@pytest.mark.checks("relaax/conformance", "relaax/server/rlx_server")
def test_server_over_websocket_passes(processes: Processes, tmp_path: Path) -> None:
    """This checks the rules f* and u*, including wrong lengths. `test_real_server_passes` checks all rules."""
    config = write_config(tmp_path, {"path": str(HERE / "fuzz_algorithm.py")})
    _, address = processes.start_server(sys.executable, SERVER, "--config", config)
    report = check(f"ws://{address}", Settings(deadline=60), "[fu]*")
    assert not report.failed, not_passed(report)
    assert report.totals["passed"] > 3
    assert "over WebSocket" in report.peer


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["", "ws://"], ids=["tcp", "websocket"])
def test_real_server_passes(tmp_path: Path, scheme: str) -> None:
    with started_service(tmp_path) as service:
        report = check(f"{scheme}{service.address}", Settings(deadline=60))
    assert not report.failed, not_passed(report)
    other_spaces = {"nested_spaces_protobuf", "nested_spaces_json", "every_dtype", "idle_timeout"}
    other_spaces |= {"key_order_protobuf", "key_order_json"} | UNSUPPORTED
    assert set(not_passed(report)) <= SERVER_DEPENDENT | TIMING_DEPENDENT | other_spaces
