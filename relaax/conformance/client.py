"""The rules for clients, and their check against a client under test."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from relaax.conformance import judges, scripts
from relaax.conformance.host import ClientRun, Script, run_client
from relaax.conformance.judges import (
    Judge,
    closed,
    closed_without_message,
    continued,
    did_not_reconnect,
    no_mistake_of,
    reconnected,
)
from relaax.conformance.report import Report, RuleResult, Verdict
from relaax.conformance.scripts import EARLY, error, golden_error
from relaax.conformance.vectors import load
from relaax.rlx.errors import ErrorCode
from relaax.rlx.wire.encoding import CAPABILITIES

QUIET_SECONDS = 5.0
NO_CLIENT = "it never connected"


@dataclass(frozen=True)
class ClientRule:
    """One rule: the behaviour of the server (`script`) and the judgement of the client (`judge`)."""

    name: str
    section: str
    description: str
    script: Script
    judge: Judge

    @property
    def waits_for_deadline(self) -> bool:
        """Whether the check waits until the deadline for the client to exit or to reconnect."""
        return self.judge not in _QUIET_JUDGES and self.script is not scripts.server_bye


_QUIET_JUDGES = (did_not_reconnect, judges.exited_with_failure, closed, judges.closed_and_gave_up)
_NEWER = 99  # a code of a newer server
# The mistake is in an error message. A client that does not notice it closes too, but then reconnects.
_FINAL = {"server_error_wait"}
OF_NEWER_CLIENTS = {f"server_welcome_{capability}" for capability in CAPABILITIES} | {"server_parameters_unasked"}
"""Golden sequences that no rule plays: a client of an earlier version ignores the field, and makes no mistake."""
_plain = scripts.serve(scripts.MANY_ANSWERS)
_overloaded, _refused = golden_error("overloaded"), golden_error("refused_token")
_rebalancing = error(ErrorCode.REBALANCING, True, answers=EARLY)
_unavailable = error(ErrorCode.UNAVAILABLE, True, wait=1.0, answers=EARLY)
_newer, _newer_final = error(_NEWER, True, answers=EARLY), error(_NEWER, False, answers=EARLY)
_no_version = golden_error("unsupported_version_protobuf")
_OTHERWISE = "The same messages with other bytes: order of fields, unpacked lists, .proto names, numbers, nulls."
_AT_ONCE = "An error in Protobuf before the server reads the hello. To a JSON client it is a lost connection."
_IDLE = "The client marks environments in idle, and first where they come."
_CHOSEN = "The client marks environments in chosen, and sends their actions."
_BETWEEN = "The connection is lost when a NEXT_STEP episode ends. The next one begins with init; no step marks first."
_BEHIND = "An answer and an error in one packet: the client reads the error before it sends, and sends no message."
_PINGS = "While the client waits, it answers each ping with the same nonce, within the heartbeat of 5 s."
_ENDS = "the client ends with exit code 0 and does not reconnect."

_ROWS: list[tuple[str, str, str, Script, Judge]] = [
    ("hello", "6", "The first message is a hello of version 1.", _plain, judges.handshake),
    ("frames", "2", "Every frame has a length within the limit.", _plain, no_mistake_of(ErrorCode.FRAME_TOO_LARGE)),
    ("codec", "3", "Every frame has the codec of the first.", _plain, no_mistake_of(ErrorCode.MALFORMED)),
    (
        "turns",
        "10",
        "The client sends only messages that the state allows.",
        _plain,
        no_mistake_of(ErrorCode.UNEXPECTED_MESSAGE),
    ),
    ("values", "4, 5, 7, 8", "Arrays, rewards, masks and episodes fit the hello.", _plain, judges.values),
    (
        "limits",
        "11",
        "The client keeps to the limits of the welcome: 2 metric names of 32 bytes.",
        _plain,
        judges.limits,
    ),
    ("episodes", "8", "An episode ends, and the next one begins.", _plain, judges.episodes),
    ("out_of_step", "8", _IDLE, _plain, judges.marks("out_of_step", "idle")),
    ("chosen_actions", "8", _CHOSEN, _plain, judges.marks("chosen_actions", "chosen")),
    (
        "leaving",
        "7",
        "The client sends bye, or closes after training_finished; exit code 0.",
        _plain,
        judges.closed_in_order,
    ),
    ("byte_by_byte", "2", "The server sends frames byte by byte.", scripts.byte_by_byte, continued),
    ("joined_frames", "2", "Several frames in one packet.", scripts.joined, continued),
    ("pings", "7, 11", _PINGS, scripts.pings, continued),
    ("unasked_pongs", "11", "A pong without a ping is ignored.", scripts.unasked_pongs, continued),
    ("slow_answers", "1, 10", "The client waits for a slow answer.", scripts.slow, continued),
    ("written_otherwise", "3", _OTHERWISE, scripts.with_other_bytes, continued),
    (
        "unknown_fields",
        "12",
        "Every message has unknown fields, as from a newer server.",
        scripts.with_unknown_fields_added,
        continued,
    ),
    ("overloaded", "9", "Retryable: the client reconnects after at least 2.5 s.", _overloaded, reconnected(2.5)),
    ("refused_at_once", "3, 9", _AT_ONCE, scripts.refused_at_once, reconnected(0.0)),
    (
        "unavailable",
        "9",
        "Retryable, in an episode: the client reconnects after at least 1 s.",
        _unavailable,
        reconnected(1.0),
    ),
    ("rebalancing", "9", "Retryable, without retry_after_seconds.", _rebalancing, reconnected(0.0)),
    (
        "session_id",
        "6",
        "After the reconnect the client sends its session id, then init.",
        _rebalancing,
        judges.sent_session_id,
    ),
    ("network_failure", "9", "A stream that ends without a last message is retryable.", scripts.cut, reconnected(0.0)),
    ("unknown_code_retryable", "9, 12", "An error code of a newer server, retryable.", _newer, reconnected(0.0)),
    ("unknown_code_final", "9, 12", "An error code of a newer server, not retryable.", _newer_final, did_not_reconnect),
    (
        "the_field_decides",
        "9",
        "UNAVAILABLE with retryable false: the field decides.",
        error(ErrorCode.UNAVAILABLE, False),
        did_not_reconnect,
    ),
    ("refused_token", "9", "UNAUTHENTICATED is not retryable.", _refused, did_not_reconnect),
    (
        "exit_code_of_failure",
        "9",
        "After UNAUTHENTICATED the client ends with an exit code other than 0.",
        _refused,
        judges.exited_with_failure,
    ),
    ("refused_version", "9, 12", "UNSUPPORTED_VERSION is not retryable.", _no_version, did_not_reconnect),
    (
        "training_finished_at_once",
        "7",
        f"Instead of a welcome: {_ENDS}",
        scripts.finished_at_once,
        judges.exited_cleanly,
    ),
    (
        "training_finished_in_between",
        "7",
        f"Instead of an answer: {_ENDS}",
        scripts.finished_in_between,
        judges.exited_cleanly,
    ),
    ("reconnect_between_episodes", "8", _BETWEEN, scripts.cut_between_episodes, judges.resumed_between_episodes),
    (
        "silent_after_error",
        "9",
        "After an error the client closes without a message, also without bye.",
        _rebalancing,
        closed_without_message,
    ),
    (
        "silent_after_bye",
        "9",
        "After a bye the client closes without a message.",
        scripts.server_bye,
        closed_without_message,
    ),
    (
        "silent_after_training",
        "7, 9",
        "After training_finished the client closes without a message.",
        scripts.finished_in_between,
        closed_without_message,
    ),
    ("error_behind_an_answer", "9, 10", _BEHIND, scripts.error_behind, closed_without_message),
    *(
        (
            f"{capability}_refused",
            "6",
            f"The welcome lacks the {capability} that the hello asks for: the client closes and does not reconnect.",
            scripts.welcome_without(capability),
            judges.closed_and_gave_up,
        )
        for capability in CAPABILITIES
    ),
    ("server_bye", "7", "After the server's bye the client closes the connection.", scripts.server_bye, closed),
    (
        "server_wrong_answer",
        "10",
        "The server sends episode_returns instead of actions: the client closes.",
        scripts.wrong_kind,
        closed,
    ),
    *(
        (
            conversation.name,
            conversation.section,
            f"{conversation.description} The client closes.",
            scripts.mistake(conversation),
            judges.closed_and_gave_up if conversation.name in _FINAL else closed,
        )
        for conversation in load()
        if conversation.file == "server_mistakes" and conversation.name not in OF_NEWER_CLIENTS
    ),
]
CLIENT_RULES = [ClientRule(*row) for row in _ROWS]


def client_rules(only: str = "*") -> list[ClientRule]:
    """Return the rules whose names match the pattern."""
    return [rule for rule in CLIENT_RULES if fnmatch.fnmatchcase(rule.name, only)]


def check_client(
    command: list[str],
    deadline: float,
    rules: list[ClientRule],
    progress: Callable[[str], None] = lambda name: None,
    jobs: int = 1,
) -> Report:
    """Check a client, and return the report.

    Rules with the same script share one run of the command. `jobs`: number of runs at a time. `deadline`: seconds to
    wait for the client. `progress` is called with the name of each rule before its run.
    Raises OSError if the command cannot be started.
    """
    runs: dict[Script, ClientRun] = {}

    def perform(rule: ClientRule) -> None:
        progress(rule.name)
        quiet = deadline if rule.waits_for_deadline else min(deadline, QUIET_SECONDS)
        runs[rule.script] = run_client(command, rule.script, deadline, quiet)

    first, *rest = {rule.script: rule for rule in rules}.values()
    perform(first)
    if runs[first.script].sessions:
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(perform, rest))
        findings = [_judge_rule(rule, runs[rule.script]) for rule in rules]
    else:  # a client that never connects is run once
        unseen = [RuleResult(rule.name, rule.section, Verdict.NOT_SEEN, NO_CLIENT) for rule in rules[1:]]
        findings = [_judge_rule(rules[0], runs[rules[0].script]), *unseen]
    return Report(f"the client `{' '.join(command)}`", findings)


def _judge_rule(rule: ClientRule, run: ClientRun) -> RuleResult:
    if not run.sessions:
        return RuleResult(rule.name, rule.section, Verdict.FAILED, f"{NO_CLIENT}; {run.end}")
    verdict, sentence = rule.judge(run)
    if run.sessions[0].not_applicable:
        verdict, sentence = Verdict.NOT_APPLICABLE, run.sessions[0].not_applicable
    return RuleResult(rule.name, rule.section, verdict, sentence or rule.description)
