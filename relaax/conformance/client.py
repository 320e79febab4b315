"""All rules for clients, checked one after the other against a real one."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from relaax.conformance import scripts
from relaax.conformance.host import ClientRun, Script, run_client
from relaax.conformance.judges import (
    ended_cleanly,
    episodes,
    gave_up,
    handshake,
    left,
    no_mistake_of,
    noticed,
    noticed_for_good,
    restored,
    resumed_between_episodes,
    returned,
    silent,
    stayed_away,
    went_on,
)
from relaax.conformance.report import Report, RuleResult, Verdict
from relaax.conformance.scripts import mistake
from relaax.conformance.vectors import load
from relaax.rlx.errors import ErrorCode

QUIET_SECONDS = 5.0
NO_CLIENT = "it never connected"


def client_rules(only: str = "*") -> list[ClientRule]:
    """Those whose name fits the pattern."""
    return [rule for rule in CLIENT_RULES if fnmatch.fnmatchcase(rule.name, only)]


def check_client(
    command: list[str],
    deadline: float,
    rules: list[ClientRule],
    progress: Callable[[str], None] = lambda name: None,
    jobs: int = 1,
) -> Report:
    """Check a client. Rules about the same behaviour of the server share a run of the command; `jobs` run at a time.

    Raises OSError if the command cannot be started.
    """
    runs: dict[Script, ClientRun] = {}

    def perform(rule: ClientRule) -> None:
        progress(rule.name)
        quiet = deadline if rule.patient else min(deadline, QUIET_SECONDS)
        runs[rule.script] = run_client(command, rule.script, deadline, quiet)

    first, *rest = {rule.script: rule for rule in rules}.values()
    perform(first)
    if runs[first.script].talks:
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(perform, rest))
        findings = [_finding(rule, runs[rule.script]) for rule in rules]
    else:  # nor will it for the others
        unseen = [RuleResult(rule.name, rule.section, Verdict.NOT_SEEN, NO_CLIENT) for rule in rules[1:]]
        findings = [_finding(rules[0], runs[rules[0].script]), *unseen]
    return Report(f"the client `{' '.join(command)}`", findings)


def _finding(rule: ClientRule, run: ClientRun) -> RuleResult:
    if not run.talks:
        return RuleResult(rule.name, rule.section, Verdict.FAILED, f"{NO_CLIENT}; {run.end}")
    verdict, sentence = rule.judge(run)
    if run.talks[0].cannot:
        verdict, sentence = Verdict.NOT_APPLICABLE, run.talks[0].cannot
    return RuleResult(rule.name, rule.section, verdict, sentence or rule.description)


@dataclass(frozen=True)
class ClientRule:
    """`patient`: the end of the client, or its return, is waited for until the deadline."""

    name: str
    section: str
    description: str
    script: Script
    judge: Callable[[ClientRun], tuple[Verdict, str]]
    patient: bool = True


_UNKNOWN_CODE = 99
_FOR_GOOD = {"server_error_wait"}  # a client that takes the error comes back, and closes the connection in either case
_plain = scripts.serve(scripts.MANY_ANSWERS)
_overloaded = scripts.golden_error("overloaded")
_refused = scripts.golden_error("refused_token")
_lost = scripts.error(ErrorCode.REBALANCING, True, answers=scripts.EARLY)
_away = scripts.error(ErrorCode.UNAVAILABLE, True, wait=1.0, answers=scripts.EARLY)

CLIENT_RULES: list[ClientRule] = [
    ClientRule("hello", "6", "The first message is a hello of version 1.", _plain, handshake),
    ClientRule(
        "frames", "2", "Every frame has a length within the limit.", _plain, no_mistake_of(ErrorCode.FRAME_TOO_LARGE)
    ),
    ClientRule("codec", "3", "Every frame is of the first one's codec.", _plain, no_mistake_of(ErrorCode.MALFORMED)),
    ClientRule(
        "turns", "10", "Only what the state allows is said.", _plain, no_mistake_of(ErrorCode.UNEXPECTED_MESSAGE)
    ),
    ClientRule(
        "values",
        "4, 5, 7, 8",
        "Arrays, rewards, masks and episodes are those of the hello.",
        _plain,
        no_mistake_of(ErrorCode.INVALID_VALUE),
    ),
    ClientRule(
        "limits",
        "11",
        "The limits of the welcome are held: 2 metric names of 32 bytes.",
        _plain,
        no_mistake_of(ErrorCode.LIMIT_EXCEEDED),
    ),
    ClientRule("episodes", "8", "An episode ends, and the next one begins.", _plain, episodes),
    ClientRule("leaving", "7", "The client says bye, or closes after training_finished; exit code 0.", _plain, left),
    ClientRule("byte_by_byte", "2", "Frames that come in single bytes.", scripts.byte_by_byte, went_on),
    ClientRule("joined_frames", "2", "Several frames in one packet.", scripts.joined, went_on),
    ClientRule(
        "pings",
        "7, 11",
        "While it waits, it answers each ping with its nonce, within a heartbeat of 5 s.",
        scripts.pings,
        went_on,
    ),
    ClientRule("unasked_pongs", "11", "A pong without a ping is ignored.", scripts.unasked_pongs, went_on),
    ClientRule("slow_answers", "1, 10", "It waits for its turn.", scripts.slow, went_on),
    ClientRule(
        "written_otherwise",
        "3",
        "The same messages in other bytes: order of fields, unpacked lists; names of the .proto, numbers, nulls.",
        scripts.written_differently,
        went_on,
    ),
    ClientRule("unknown_fields", "12", "Fields of a newer server, everywhere.", scripts.with_more_fields, went_on),
    ClientRule("overloaded", "9", "Retryable: it comes back, no sooner than in 2.5 s.", _overloaded, returned(2.5)),
    ClientRule(
        "refused_at_once",
        "3, 9",
        "The same before the server has read the hello, in Protobuf: a JSON client takes it as a lost connection.",
        scripts.refused_at_once,
        returned(0.0),
    ),
    ClientRule("unavailable", "9", "The same in an episode: no sooner than in 1 s.", _away, returned(1.0)),
    ClientRule("rebalancing", "9", "Retryable, without a wait.", _lost, returned(0.0)),
    ClientRule("session_id", "6", "After that it sends its session id, and begins with init.", _lost, restored),
    ClientRule("network_failure", "9", "A stream that ends without a word is retryable.", scripts.cut, returned(0.0)),
    ClientRule(
        "unknown_code_retryable",
        "9, 12",
        "An error code of a newer server, retryable.",
        scripts.error(_UNKNOWN_CODE, True, answers=scripts.EARLY),
        returned(0.0),
    ),
    ClientRule(
        "unknown_code_final",
        "9, 12",
        "An error code of a newer server, not retryable.",
        scripts.error(_UNKNOWN_CODE, False, answers=scripts.EARLY),
        stayed_away,
        patient=False,
    ),
    ClientRule(
        "the_field_decides",
        "9",
        "UNAVAILABLE, but not retryable: the field counts.",
        scripts.error(ErrorCode.UNAVAILABLE, False),
        stayed_away,
        patient=False,
    ),
    ClientRule(
        "refused_token",
        "9",
        "UNAUTHENTICATED is not retryable.",
        _refused,
        stayed_away,
        patient=False,
    ),
    ClientRule(
        "exit_code_of_failure",
        "9",
        "After that error it ends with an exit code other than 0.",
        _refused,
        gave_up,
        patient=False,
    ),
    ClientRule(
        "refused_version",
        "9, 12",
        "UNSUPPORTED_VERSION is not retryable.",
        scripts.golden_error("unsupported_version_protobuf"),
        stayed_away,
        patient=False,
    ),
    ClientRule(
        "training_finished_at_once",
        "7",
        "Instead of a welcome: it ends with exit code 0 and does not come back.",
        scripts.finished_at_once,
        ended_cleanly,
    ),
    ClientRule(
        "training_finished_in_between",
        "7",
        "Instead of an answer: it ends with exit code 0 and does not come back.",
        scripts.finished_in_between,
        ended_cleanly,
    ),
    ClientRule(
        "reconnect_between_episodes",
        "8",
        "The connection is lost after a NEXT_STEP episode: it begins with init, and no step is first.",
        scripts.cut_between_episodes,
        resumed_between_episodes,
    ),
    ClientRule(
        "silent_after_error", "9", "After an error it closes without a message, also without bye.", _lost, silent
    ),
    ClientRule("silent_after_bye", "9", "After a bye it closes without a message.", scripts.server_bye, silent, False),
    ClientRule(
        "silent_after_training",
        "7, 9",
        "After training_finished it closes without a message.",
        scripts.finished_in_between,
        silent,
    ),
    ClientRule(
        "error_behind_an_answer",
        "9, 10",
        "An error in one packet with an answer: it reads the error before it sends, and sends nothing.",
        scripts.error_behind,
        silent,
    ),
    ClientRule(
        "server_bye", "7", "After the server's bye it leaves the connection.", scripts.server_bye, noticed, False
    ),
    ClientRule(
        "server_wrong_answer",
        "10",
        "episode_returns where actions are due: it closes.",
        scripts.wrong_kind,
        noticed,
        patient=False,
    ),
    *(
        ClientRule(
            conversation.name,
            conversation.section,
            f"{conversation.description} It closes.",
            mistake(conversation),
            noticed_for_good if conversation.name in _FOR_GOOD else noticed,
            patient=False,
        )
        for conversation in load()
        if conversation.file == "server_mistakes"
    ),
]
