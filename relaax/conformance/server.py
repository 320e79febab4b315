"""The rules for servers, and their check against a server under test.

A rule is a golden conversation, or a check of times and packets, which golden conversations cannot express.
"""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from relaax.client.connection.address import Endpoint
from relaax.conformance.adaptation import AdaptedConversation, ImpossibleMistake, Settings
from relaax.conformance.report import Report, RuleResult, Verdict
from relaax.conformance.server_session import (
    ConversationRefused,
    ServerSession,
    check_actions,
    no_support,
    play,
)
from relaax.conformance.vectors import golden, load
from relaax.conformance.wire import (
    RuleViolation,
    decoded,
    encoded,
    encoded_differently,
    framed,
    kind_of,
    with_unknown_fields,
)
from relaax.rlx import rlx_pb2

RETRY_SECONDS = 0.2
REST_BYTES = 256 * 1024
LIST_BYTES = 2**20
LONGER, SPARE_SECONDS = 4, 0.2
_CODECS = ("protobuf", "json")

Play = Callable[[AdaptedConversation, ServerSession], None]


class _Rewritten(AdaptedConversation):
    """A conversation whose messages are encoded by `writer`."""

    writer: Callable[[Any, str], bytes]

    def frame(self, entry: dict[str, Any], limits: rlx_pb2.Limits | None) -> bytes:
        data = super().frame(entry, limits)
        return self.writer(decoded(data[4:], self.codec, rlx_pb2.ClientMessage), self.codec)


def _play_rewritten(writer: Callable[[Any, str], bytes], adapted: AdaptedConversation, session: ServerSession) -> None:
    other = _Rewritten(adapted.conversation, adapted.settings)
    other.writer = writer
    play(other, session)


def _frame(adapted: AdaptedConversation, session: ServerSession, kind: str) -> bytes:
    return adapted.frame(adapted.conversation.entry("client", kind), session.limits)


def _send_hello(adapted: AdaptedConversation, session: ServerSession) -> rlx_pb2.Limits:
    """Send the hello, and return the limits of the welcome."""
    session.stream.send(_frame(adapted, session, "hello"))
    session.apply_welcome(session.expect("welcome").welcome)
    assert session.limits is not None
    return session.limits


def _send_joined_frames(adapted: AdaptedConversation, session: ServerSession) -> None:
    _send_hello(adapted, session)
    messages: list[dict[str, Any]] = [{"metrics": {}}, {"ping": {"nonce": 1}}, {"ping": {"nonce": 2}}]
    pings = b"".join(encoded(rlx_pb2.ClientMessage(**message), session.codec) for message in messages)
    session.stream.send(pings + _frame(adapted, session, "init"))
    for nonce in (1, 2):
        found = session.expect("pong").pong.nonce
        if found != nonce:
            raise RuleViolation(f"after two pings in one packet, pong {nonce} was expected, not pong {found}")
    check_actions(adapted, session)
    session.send_bye()


def _send_after_mistake(adapted: AdaptedConversation, session: ServerSession) -> None:
    mistake = adapted.frame(adapted.conversation.entries[0], None)
    ping = encoded(rlx_pb2.ClientMessage(ping={"nonce": 7}), session.codec)
    session.stream.send(mistake + ping * (REST_BYTES // len(ping)))
    session.expect_error("MALFORMED")


def _send_early_init(adapted: AdaptedConversation, session: ServerSession) -> None:
    session.stream.send(_frame(adapted, session, "hello") + _frame(adapted, session, "init"))
    _check_refused_as_early(session, "welcome")


def _send_early_step(adapted: AdaptedConversation, session: ServerSession) -> None:
    _send_hello(adapted, session)
    session.stream.send(_frame(adapted, session, "init"))
    check_actions(adapted, session)
    session.stream.send(2 * _frame(adapted, session, "step"))
    _check_refused_as_early(session, "actions")


def _check_refused_as_early(session: ServerSession, answer: str) -> None:
    """Check that the server refuses a message sent before the answer. Raises RuleViolation and ConversationRefused."""
    message = session.receive()
    if kind_of(message) == answer:
        raise RuleViolation(f"the server sent {answer}, although the client had sent a message that must come after it")
    session.expect_error("UNEXPECTED_MESSAGE", message)


def _send_long_list(adapted: AdaptedConversation, session: ServerSession) -> None:
    """Check that a long list of invalid scalars is refused about as fast as one in an unknown field is ignored."""
    size = min(_send_hello(adapted, session).max_frame_bytes, LIST_BYTES)
    ignored, refused = _padded('{"ping":{},"colour":[', "]}", size), _padded('{"metrics":{"scalars":[', "]}}", size)
    least = float("inf")
    for _ in range(3):
        began = time.monotonic()
        session.stream.send(ignored)
        session.expect("pong")
        least = min(least, time.monotonic() - began)
    began = time.monotonic()
    session.stream.send(refused)
    message = session.receive()
    took = time.monotonic() - began
    session.expect_error("INVALID_VALUE", message)
    if took > LONGER * least + SPARE_SECONDS:
        raise RuleViolation(f"a list of {size} bytes was refused after {took:.2f} s; ignoring one took {least:.2f} s")


def _padded(begin: str, end: str, size: int) -> bytes:
    return framed((begin + ",".join(["{}"] * ((size - len(begin) - len(end)) // 3)) + end).encode())


def _check_support(adapted: AdaptedConversation, session: ServerSession) -> None:
    """Raise ConversationRefused if the server does not support a capability that the hello asks for."""
    session.stream.send(_frame(adapted, session, "hello"))
    welcome = session.expect("welcome").welcome
    session.send_bye()
    for capability in adapted.asks:
        if not getattr(welcome, capability):
            raise no_support(capability)


def _stay_silent(adapted: AdaptedConversation, session: ServerSession) -> None:
    seconds = _send_hello(adapted, session).idle_timeout_seconds
    if seconds > session.stream.deadline / 2:
        raise ConversationRefused(f"idle_timeout_seconds is {seconds:g}, more than half of the deadline")
    session.expect_error("TIMEOUT")


_REST = "The error arrives although the client sends 256 KiB more, and no message after the mistake is answered."
_OTHERWISE = "Fields in reverse order, unpacked lists; in JSON .proto names, numbers and nulls."
_UNKNOWN = "Every message, and every part of a message, has an unknown field."
_INIT = "Hello and init in one packet: the client must wait for the welcome."
_STEP = "Two steps in one packet: the client must wait for the actions."

_RULES: tuple[tuple[str, str, str, str, Play], ...] = (
    ("rest_is_dropped", "9", _REST, "malformed_protobuf", _send_after_mistake),
    (
        "joined_frames",
        "2, 11",
        "Metrics, two pings and an init in one packet.",
        "metrics_ping_bye_protobuf",
        _send_joined_frames,
    ),
    *(
        (f"{name}_{codec}", section, description, f"plain_{codec}", run)
        for name, section, description, run in (
            ("written_otherwise", "3", _OTHERWISE, partial(_play_rewritten, encoded_differently)),
            ("unknown_everywhere", "12", _UNKNOWN, partial(_play_rewritten, with_unknown_fields)),
            ("early_init", "10", _INIT, _send_early_init),
            ("early_step", "10", _STEP, _send_early_step),
        )
        for codec in _CODECS
    ),
    ("long_list_json", "11", "A long list of empty scalars is refused at once.", "plain_json", _send_long_list),
    ("idle_timeout", "9, 11", "The client sends no message.", "plain_protobuf", _stay_silent),
)
"""Name, sections, description, name of a golden conversation, and the function that plays it."""


@dataclass(frozen=True)
class RuleCheck:
    """One rule with its conversation. `phase`: the order of the checks, see `server_checks`."""

    name: str
    section: str
    description: str
    adapted: AdaptedConversation
    run: Play
    byte_by_byte: bool = True
    phase: int = 0


def server_checks(settings: Settings, only: str = "*") -> list[RuleCheck]:
    """Return the checks whose names match the pattern, in the order in which they are checked.

    A server may take its spaces from the first client that it admits. Therefore checks without spaces come first, then
    conversations in the spaces of the vectors or of `settings`, then those in other spaces.
    """
    checks = [check for check in _all_checks(settings) if fnmatch.fnmatchcase(check.name, only)]
    return sorted(checks, key=lambda check: check.phase)


def _all_checks(settings: Settings) -> Iterator[RuleCheck]:
    names = {conversation.name for conversation in load()}
    for conversation in load():
        if conversation.file == "server_mistakes":
            continue
        other = conversation.name.replace(conversation.codec, settings.codec or "")
        if settings.codec not in (None, conversation.codec) and other != conversation.name and other in names:
            continue  # the files have this conversation in the requested codec too
        adapted = AdaptedConversation(conversation, settings)
        phase = 0 if adapted.is_opening else 2 if conversation.file == "spaces" else 1
        yield RuleCheck(conversation.name, conversation.section, conversation.description, adapted, play, phase=phase)
    for name, section, description, conversation_name, run in _RULES:
        adapted = AdaptedConversation(golden(conversation_name), settings)
        if settings.codec is None or not name.endswith(tuple(codec for codec in _CODECS if codec != settings.codec)):
            yield RuleCheck(name, section, description, adapted, run, False, 0 if adapted.is_opening else 1)


def check_server(
    address: Endpoint,
    settings: Settings,
    checks: list[RuleCheck],
    progress: Callable[[str], None] = lambda name: None,
) -> Report:
    """Check a server, and return the report. `progress` is called with the name of each rule before its check."""
    findings = []
    for check in checks:
        progress(check.name)
        findings.append(_check_rule(address, settings, check))
    over = " over WebSocket" if address.path is not None else ""
    return Report(f"the server at {address.host}:{address.port}{over}", findings)


def _check_rule(address: Endpoint, settings: Settings, check: RuleCheck) -> RuleResult:
    verdict, sentence = Verdict.PASSED, check.description
    for one_by_one in (False, True) if check.byte_by_byte else (False,):
        how = " (bytes one by one)" if one_by_one else ""
        try:
            capability = check.adapted.used_unasked
            if capability is not None and not one_by_one:  # a server of an earlier version ignores its fields
                asking = AdaptedConversation(golden(f"{capability}_unsupported"), settings)
                _run_with_retries(address, settings, replace(check, adapted=asking, run=_check_support), one_by_one)
            _run_with_retries(address, settings, check, one_by_one)
        except RuleViolation as violation:
            verdict, sentence = Verdict.FAILED, f"{violation}{how}. {check.description}"
        except OSError as error:
            verdict, sentence = Verdict.FAILED, f"the server has become unreachable: {error.strerror or error}"
        except (ConversationRefused, ImpossibleMistake) as refused:
            verdict, sentence = Verdict.NOT_APPLICABLE, f"{refused}{how}"
        if verdict is not Verdict.PASSED:
            break
    return RuleResult(check.name, check.section, verdict, sentence)


def _run_with_retries(address: Endpoint, settings: Settings, check: RuleCheck, one_by_one: bool) -> None:
    """Run a check. If the server has no free worker, retry until the deadline."""
    until = time.monotonic() + settings.deadline
    while True:
        with ServerSession(address, settings, check.adapted.codec, one_by_one) as session:
            try:
                check.run(check.adapted, session)
                return
            except ConversationRefused as refused:
                if refused.wait is None or time.monotonic() + refused.wait >= until:
                    raise
                wait = max(refused.wait, RETRY_SECONDS)
        time.sleep(wait)
