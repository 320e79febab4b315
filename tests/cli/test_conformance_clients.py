"""`relaax conformance --client`: correct clients pass, and a client with one fault fails the rule of that fault."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from relaax.conformance.client import check_client, client_rules
from relaax.conformance.report import Report, Verdict
from relaax.rlx.wire.encoding import CAPABILITIES
from support.findings import not_passed
from support.rlx_vector_files import JSON_CLIENT

pytestmark = pytest.mark.checks("relaax/conformance", "relaax/client", "protocol/clients/json_client.py")

SUPPORT = Path(__file__).resolve().parents[1] / "support"
FAULTY = [sys.executable, str(SUPPORT / "faulty_client.py"), "{address}"]
PYTHON_CLIENT = """
import sys
import numpy as np
from relaax.client import Box, Client, Discrete, Failure, TrainingFinished, VectorClient

address, codec = sys.argv[1:]
spaces = {"observation_space": Box(-1, 1, (2,)), "action_space": Discrete(3), "codec": codec, "retry_seconds": 60}
state = np.zeros(2, np.float32)
try:
    with Client(address, **spaces) as client:
        for episode in range(60):
            client.metrics().scalar("episode", episode)
            client.init(state)
            for _ in range(5):
                client.send(1.0, state)
            client.reset(1.0, truncated=True, state=state)
except TrainingFinished:
    pass
except Failure as failure:
    sys.exit(str(failure))
"""
NEXT_STEP_CLIENT = """
import sys
import numpy as np
from relaax.client import Box, Discrete, TrainingFinished, VectorClient

spaces = {"observation_space": Box(-1, 1, (1,)), "action_space": Discrete(3)}
count, over = np.zeros(2, np.int64), np.zeros(2, np.bool_)
try:
    with VectorClient(sys.argv[1], environments=2, autoreset="next_step", **spaces) as client:
        client.init(count[:, None] / 9)
        while True:
            first = over
            count = np.where(first, 0, count + 1)
            over = count >= [3, 5]
            client.step(~first * 1.0, count[:, None] / 9, over & [True, False], over & [False, True], first=first)
except TrainingFinished:
    pass
"""
OUT_OF_STEP_CLIENT = """
import sys
import numpy as np
from relaax.client import Box, Discrete, Failure, TrainingFinished, VectorClient

# Two players take turns for five actions each, and then wait for their next game.
address, autoreset = sys.argv[1:]
spaces = {"observation_space": Box(-1, 1, (1,)), "action_space": Discrete(3)}
state, turn = np.zeros((2, 1)), 0
try:
    with VectorClient(address, environments=2, autoreset=autoreset, out_of_step=True, **spaces) as client:
        client.init(state, [False, True])
        while True:
            turn = (turn + 1) % 12
            over, idle = [turn == 11] * 2, [turn == 11 or turn % 2 == 1, turn == 11 or turn % 2 == 0]
            void = np.where(np.reshape(idle, (2, 1)) & (autoreset == "same_step"), np.nan, state)
            client.step([1.0, -1.0], void, None, over, final_states=state, idle=idle)
except TrainingFinished:
    pass
except Failure as failure:
    sys.exit(str(failure))
"""
TURNS_CLIENT = """
import sys
import numpy as np
from relaax.client import Box, Discrete, TrainingFinished, VectorClient

spaces = {"observation_space": Box(-1, 1, (1,)), "action_space": Discrete(3)}
try:
    with VectorClient(sys.argv[1], environments=2, autoreset="same_step", out_of_step=True, **spaces) as client:
        client.init(np.array([[0.0], [np.nan]], np.float32), idle=np.array([False, True]))
        turn = 0
        while True:
            turn += 1
            idle = np.arange(2) != turn % 2
            over = np.full(2, turn % 7 == 0)
            states = np.where(idle | over, np.nan, 0.5).astype(np.float32)[:, None]
            client.step(np.ones(2), states, over, idle=idle | over)
except TrainingFinished:
    pass
"""
TAKEOVER_CLIENT = """
import sys
import numpy as np
from relaax.client import Box, Client, Discrete, Failure, TrainingFinished

# A person takes every third action. The server sets the environment's parameters.
spaces = {"observation_space": Box(-1, 1, (2,)), "action_space": Discrete(3), "retry_seconds": 60}
state = np.zeros(2, np.float32)
try:
    with Client(sys.argv[1], chosen_actions=True, environment_parameters=True, **spaces) as client:
        for episode in range(60):
            assert set(client.parameters) == {"gravity", "size"}
            client.init(state)
            for step in range(5):
                client.send(1.0, state, action=None if step % 3 else step // 3)
            client.reset(1.0, action=2)
except TrainingFinished:
    pass
except Failure as failure:
    sys.exit(str(failure))
"""
ASKING = {"out_of_step", "chosen_actions", *(f"{capability}_refused" for capability in CAPABILITIES)}
ASKING |= {
    rule.name for pattern in ("server_welcome_parameters_*", "server_parameters_*") for rule in client_rules(pattern)
}
"""Rules for clients that ask for a capability."""
JSON_ONLY = {rule.name for rule in client_rules("server_malformed_json_*")}


def check(command: list[str], only: str = "*", deadline: float = 30.0) -> Report:
    rules = client_rules(only)
    assert rules
    return check_client(command, deadline, rules, jobs=4)


def test_correct_client_passes() -> None:
    report = check(FAULTY)
    assert not report.failed, not_passed(report)
    assert set(not_passed(report)) == {"reconnect_between_episodes"} | ASKING
    verdicts = {finding.verdict for finding in report.findings if finding.rule in ASKING}
    assert verdicts == {Verdict.NOT_APPLICABLE}


def test_correct_client_out_of_step_passes() -> None:
    report = check([*FAULTY, "out_of_step"], "[ouv]*")
    assert not_passed(report) == {}
    (sentence,) = [finding.sentence for finding in report.findings if finding.rule == "out_of_step"]
    assert "messages with idle" in sentence


def test_correct_next_step_client_passes() -> None:
    for rules in ("[ev][apr]*", "re*"):
        assert not_passed(check([*FAULTY, "next_step"], rules)) == {}


def test_python_client_accepts_unusual_messages() -> None:
    assert not_passed(check([sys.executable, "-c", PYTHON_CLIENT, "{address}", "protobuf"], "[uw]*", deadline=60)) == {}


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_python_client_out_of_step_passes(autoreset: str) -> None:
    report = check([sys.executable, "-c", OUT_OF_STEP_CLIENT, "{address}", autoreset], "ou*", deadline=60)
    assert not_passed(report) == {}


def test_python_client_reconnects_between_episodes() -> None:
    assert not_passed(check([sys.executable, "-c", NEXT_STEP_CLIENT, "{address}"], "re*_between_*")) == {}


def test_python_client_passes_out_of_step() -> None:
    assert not_passed(check([sys.executable, "-c", TURNS_CLIENT, "{address}"], "[ov]*")) == {}


@pytest.mark.parametrize("rules", ["[cev]*", "server_*parameters_*"])
def test_python_client_with_takeover_and_parameters_passes(rules: str) -> None:
    report = check([sys.executable, "-c", TAKEOVER_CLIENT, "{address}"], rules, deadline=60)
    assert not_passed(report) == {}


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["protobuf", "json"])
def test_python_client_passes(codec: str) -> None:
    report = check([sys.executable, "-c", PYTHON_CLIENT, "{address}", codec], deadline=60)
    assert not report.failed, not_passed(report)
    assert set(not_passed(report)) == {"reconnect_between_episodes"} | ASKING | (
        JSON_ONLY if codec == "protobuf" else set()
    )


@pytest.mark.slow
def test_json_client_passes() -> None:
    report = check([sys.executable, str(JSON_CLIENT), "{address}", "100"])
    assert not report.failed, not_passed(report)
    assert set(not_passed(report)) == {"limits", "reconnect_between_episodes"} | ASKING


FAULTS = {
    "version": ("hello", "version 2"),
    "init_first": ("hello", "Init from the client"),
    "mute": ("hello", "no frame was received"),
    "huge": ("frames", "2147483648"),
    "mixed_codec": ("codec", "no JSON"),
    "impatient": ("slow_answers", "UNEXPECTED_MESSAGE"),
    "nan": ("values", "reward is nan"),
    "shape": ("values", "has shape (3,), the space is (2,)"),
    "many_metrics": ("limits", "more than 2 different metric names"),
    "exit_code": ("leaving", "exit code 3"),
    "packets_are_frames": ("byte_by_byte", " answers: "),
    "drops_the_rest": ("joined_frames", "no frame was received"),
    "no_pong": ("pings", "no frame was received"),
    "wrong_nonce": ("pings", "has the nonce 4"),
    "known_fields_only": ("unknown_fields", "exit code 1"),
    "one_spelling": ("written_otherwise", "KeyError"),
    "hurries": ("overloaded", "retry_after_seconds was 2.5"),
    "forgets": ("session_id", "the next hello had ''"),
    "by_code": ("the_field_decides", "it reconnected"),
    "stubborn": ("refused_token", "it reconnected"),
    "never_ends": ("training_finished_in_between", "it kept running"),
    "talks_on": ("server_bye", "it continued with step"),
    "endless_frames": ("server_frame_too_large", "did not close the connection"),
    "empty_frames": ("server_malformed_empty", "did not close the connection"),
    "two_messages": ("server_malformed_two_json", "did not close the connection"),
    "last_message": ("server_malformed_two_json", "it continued with step"),
    "credulous": ("server_action_range", "continued with step"),
    "holds_on": ("server_welcome_version", "did not close the connection"),
    "no_exit_code": ("exit_code_of_failure", "exit code 0"),
    "no_unasked_pong": ("unasked_pongs", "made a mistake"),
    "speaks_first": ("error_behind_an_answer", "it sent step"),
    "any_wait": ("server_error_wait", "it reconnected"),
    "any_session_id": ("server_welcome_session_id", "session_id is at most 128"),
    "any_bytes": ("server_malformed_text_json", "continued with init"),
    "any_kind": ("server_malformed_json_number", "hello.sessionId: a number is no string"),
    "any_base64": ("server_malformed_json_base64_padding", "continued with step"),
    "any_shape": ("server_action_shape", "continued with step"),
    "any_leaves": ("server_action_leaves", "continued with step"),
    "any_length": ("server_action_data", "continued with step"),
    "any_returns": ("server_returns_count", "continued with init"),
    "large_returns": ("server_returns_range", "continued with init"),
    "says_first": ("reconnect_between_episodes", "first marks the environment"),
    "no_first": ("out_of_step", "first marks no environment; it must mark the environment"),
    "idle_unasked": ("values", "idle marks the environment, and the welcome has no out_of_step"),
    "stays_unadmitted": ("out_of_step_refused", "it continued with init"),
    "begins_at_the_end": ("reconnect_between_episodes", "the final observation of the previous episode"),
}


# Checks of these faults wait for the full deadline three times.
LONG = ("drops_the_rest", "endless_frames", "mute", "no_pong", "two_messages")
WAITED_FOR = {*LONG, "empty_frames", "holds_on", "never_ends"}


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=pytest.mark.slow) if fault in LONG else fault for fault in FAULTS]
)
def test_fault_is_found(fault: str) -> None:
    rule, sentence = FAULTS[fault]
    report = check([*FAULTY, fault], rule, deadline=(3.0 if fault in LONG else 1.5) if fault in WAITED_FOR else 30.0)
    (finding,) = report.findings
    assert finding.verdict is Verdict.FAILED, finding
    assert sentence in finding.sentence, finding


def test_reconnect_after_the_end_of_training_is_found() -> None:
    report = check([*FAULTY, "stubborn"], "training_finished_*")
    assert all("it reconnected" in f.sentence and f.verdict is Verdict.FAILED for f in report.findings)


def test_bye_after_the_last_message_is_found() -> None:
    report = check([*FAULTY, "bye_after_the_end"], "silent_*")
    assert len(report.findings) == 3
    assert all("it sent bye" in f.sentence and f.verdict is Verdict.FAILED for f in report.findings)


@pytest.mark.parametrize(
    ("fault", "mistake"),
    [
        ("any_kind", "list"),
        ("any_base64", "base64_line"),
        pytest.param("any_kind", "bool", marks=pytest.mark.slow),
        pytest.param("any_kind", "axis", marks=pytest.mark.slow),
    ],
)
def test_invalid_json_that_a_client_accepts_is_found(fault: str, mistake: str) -> None:
    (finding,) = check([*FAULTY, fault], f"server_malformed_json_{mistake}", deadline=1.5).findings
    assert finding.verdict is Verdict.FAILED, finding


def test_client_that_never_connects_fails_the_first_rule() -> None:
    report = check([*FAULTY, "absent"])
    first, *rest = report.findings
    assert first.verdict is Verdict.FAILED
    assert first.sentence == "it never connected; it ended with exit code 1 (there is no such environment)"
    assert {finding.verdict for finding in rest} == {Verdict.NOT_SEEN}
    assert [finding.rule for finding in report.findings] == [rule.name for rule in client_rules()]
