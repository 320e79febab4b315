"""All rules for servers, checked one after the other against a real one."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from relaax.client.connection.address import Endpoint
from relaax.conformance.adaptation import AdaptedConversation, Settings, Untranslatable
from relaax.conformance.report import Report, RuleResult, Verdict
from relaax.conformance.server_talk import ConversationRefused, ServerTalk, check_actions, play
from relaax.conformance.vectors import golden, load
from relaax.conformance.wire import Wrong, decoded, encoded, framed, kind_of, with_unknown_fields, written_otherwise
from relaax.rlx import rlx_pb2

RETRY_SECONDS = 0.2
_OTHER = {"protobuf": "json", "json": "protobuf"}


@dataclass(frozen=True)
class RuleCheck:
    """One rule, ready to be checked. `fixes`: it may settle a server's spaces, so it comes late."""

    name: str
    section: str
    description: str
    adapted: AdaptedConversation
    run: Callable[[AdaptedConversation, ServerTalk], None]
    byte_by_byte: bool = True
    fixes: int = 0


def server_checks(settings: Settings, only: str = "*") -> list[RuleCheck]:
    """Those whose name fits the pattern, in the order in which they are checked.

    First what needs no spaces, because a server may settle its own with the first client that it lets in; then the
    conversations in the vectors' spaces, or in those of `settings`; last the ones about other spaces.
    """
    checks = [check for check in _all(settings) if fnmatch.fnmatchcase(check.name, only)]
    return sorted(checks, key=lambda check: check.fixes)


def _all(settings: Settings) -> Iterator[RuleCheck]:
    names = {conversation.name for conversation in load()}
    for conversation in load():
        if conversation.file == "server_mistakes":
            continue
        other = conversation.name.replace(conversation.codec, settings.codec or "")
        if settings.codec not in (None, conversation.codec) and other != conversation.name and other in names:
            continue  # the files have it in this codec too
        adapted = AdaptedConversation(conversation, settings)
        fixes = 0 if adapted.is_opening else 2 if conversation.file == "spaces" else 1
        yield RuleCheck(conversation.name, conversation.section, conversation.description, adapted, play, fixes=fixes)
    for rule in SERVER_RULES:
        adapted = AdaptedConversation(golden(rule.conversation), settings)
        if settings.codec is None or not rule.name.endswith(_OTHER[settings.codec]):
            fixes = 0 if adapted.is_opening else 1
            yield RuleCheck(rule.name, rule.section, rule.description, adapted, rule.check, False, fixes)


def check_server(
    address: Endpoint,
    settings: Settings,
    checks: list[RuleCheck],
    progress: Callable[[str], None] = lambda name: None,
) -> Report:
    """Check a server. `progress` is told the name of each rule before it is checked."""
    findings = []
    for check in checks:
        progress(check.name)
        findings.append(_finding(address, settings, check))
    over = " over WebSocket" if address.path is not None else ""
    return Report(f"the server at {address.host}:{address.port}{over}", findings)


def _finding(address: Endpoint, settings: Settings, check: RuleCheck) -> RuleResult:
    verdict, sentence = Verdict.PASSED, check.description
    for one_by_one in (False, True) if check.byte_by_byte else (False,):
        how = " (bytes one by one)" if one_by_one else ""
        try:
            _patiently(address, settings, check, one_by_one)
        except Wrong as wrong:
            verdict, sentence = Verdict.FAILED, f"{wrong}{how}. {check.description}"
        except OSError as error:
            verdict, sentence = Verdict.FAILED, f"the server cannot be reached any more: {error.strerror or error}"
        except (ConversationRefused, Untranslatable) as refused:
            verdict, sentence = Verdict.NOT_APPLICABLE, f"{refused}{how}"
        if verdict is not Verdict.PASSED:
            break
    return RuleResult(check.name, check.section, verdict, sentence)


def _patiently(address: Endpoint, settings: Settings, check: RuleCheck, one_by_one: bool) -> None:
    """A server that has no room is asked again until the deadline."""
    until = time.monotonic() + settings.deadline
    while True:
        with ServerTalk(address, settings, check.adapted.codec, one_by_one) as talk:
            try:
                check.run(check.adapted, talk)
                return
            except ConversationRefused as refused:
                if refused.wait is None or time.monotonic() + refused.wait >= until:
                    raise
                wait = max(refused.wait, RETRY_SECONDS)
        time.sleep(wait)


REST_BYTES = 256 * 1024
LIST_BYTES = 2**20
LONGER, SPARE_SECONDS = 4, 0.2


@dataclass(frozen=True)
class ServerRule:
    """`conversation`: the golden one that it plays in another manner."""

    name: str
    section: str
    description: str
    conversation: str
    check: Callable[[AdaptedConversation, ServerTalk], None]


class _Rewritten(AdaptedConversation):
    """The same messages in other bytes."""

    writer: Callable[[Any, str], bytes]

    def frame(self, entry: dict[str, Any], limits: rlx_pb2.Limits | None) -> bytes:
        data = super().frame(entry, limits)
        return self.writer(decoded(data[4:], self.codec, rlx_pb2.ClientMessage), self.codec)


def _rewritten(writer: Callable[[Any, str], bytes]) -> Callable[[AdaptedConversation, ServerTalk], None]:
    def check(adapted: AdaptedConversation, talk: ServerTalk) -> None:
        other = _Rewritten(adapted.conversation, adapted.settings)
        other.writer = writer
        play(other, talk)

    return check


def _joined(adapted: AdaptedConversation, talk: ServerTalk) -> None:
    entries = adapted.conversation
    talk.line.send(adapted.frame(entries.entry("client", "hello"), None))
    talk.learn(talk.expect("welcome").welcome)
    messages: list[dict[str, Any]] = [{"metrics": {}}, {"ping": {"nonce": 1}}, {"ping": {"nonce": 2}}]
    pings = b"".join(encoded(rlx_pb2.ClientMessage(**message), talk.codec) for message in messages)
    talk.line.send(pings + adapted.frame(entries.entry("client", "init"), talk.limits))
    for nonce in (1, 2):
        found = talk.expect("pong").pong.nonce
        if found != nonce:
            raise Wrong(f"two pings came in one packet; pong {nonce} was due, pong {found} came")
    check_actions(talk.expect("actions"), adapted.spaces[1], adapted.environments)
    talk.leave()


def _rest_is_dropped(adapted: AdaptedConversation, talk: ServerTalk) -> None:
    mistake = adapted.frame(adapted.conversation.entries[0], None)
    ping = encoded(rlx_pb2.ClientMessage(ping={"nonce": 7}), talk.codec)
    talk.line.send(mistake + ping * (REST_BYTES // len(ping)))
    talk.expect_error("MALFORMED")


def _before_the_welcome(adapted: AdaptedConversation, talk: ServerTalk) -> None:
    entries = adapted.conversation
    talk.line.send(b"".join(adapted.frame(entries.entry("client", kind), None) for kind in ("hello", "init")))
    _too_early(talk, "welcome")


def _before_the_actions(adapted: AdaptedConversation, talk: ServerTalk) -> None:
    entries = adapted.conversation
    talk.line.send(adapted.frame(entries.entry("client", "hello"), None))
    talk.learn(talk.expect("welcome").welcome)
    talk.line.send(adapted.frame(entries.entry("client", "init"), talk.limits))
    check_actions(talk.expect("actions"), adapted.spaces[1], adapted.environments)
    talk.line.send(2 * adapted.frame(entries.entry("client", "step"), talk.limits))
    _too_early(talk, "actions")


def _too_early(talk: ServerTalk, answer: str) -> None:
    """The server refuses what came together with what it answers. Raises Wrong and ConversationRefused."""
    message = talk.hear()
    if kind_of(message) == answer:
        raise Wrong(f"the server answered with {answer}, though another message had come that had to wait for that")
    talk.expect_error("UNEXPECTED_MESSAGE", message)


def _long_list(adapted: AdaptedConversation, talk: ServerTalk) -> None:
    """A list of nothing where scalars are due takes no longer to refuse than to read over it in an unknown field."""
    talk.line.send(adapted.frame(adapted.conversation.entry("client", "hello"), None))
    talk.learn(talk.expect("welcome").welcome)
    assert talk.limits is not None
    size = min(talk.limits.max_frame_bytes, LIST_BYTES)
    ignored, refused = _padded('{"ping":{},"colour":[', "]}", size), _padded('{"metrics":{"scalars":[', "]}}", size)
    times = []
    for _ in range(3):
        began = time.monotonic()
        talk.line.send(ignored)
        talk.expect("pong")
        times.append(time.monotonic() - began)
    began = time.monotonic()
    talk.line.send(refused)
    message = talk.hear()
    took, least = time.monotonic() - began, min(times)
    talk.expect_error("INVALID_VALUE", message)
    if took > LONGER * least + SPARE_SECONDS:
        raise Wrong(
            f"{size} bytes of an empty list were refused after {took:.2f} s; to ignore as many took {least:.2f} s"
        )


def _padded(begin: str, end: str, size: int) -> bytes:
    return framed((begin + ",".join(["{}"] * ((size - len(begin) - len(end)) // 3)) + end).encode())


def _silence(adapted: AdaptedConversation, talk: ServerTalk) -> None:
    talk.line.send(adapted.frame(adapted.conversation.entry("client", "hello"), None))
    talk.learn(talk.expect("welcome").welcome)
    assert talk.limits is not None
    seconds = talk.limits.idle_timeout_seconds
    if seconds > talk.line.deadline / 2:
        raise ConversationRefused(f"the server bears {seconds:g} s of silence, more than half of the deadline")
    talk.expect_error("TIMEOUT")


_OTHERWISE = "Fields in reverse order, lists unpacked; in JSON names of the .proto, numbers and nulls."
_UNKNOWN = "Every message, and every part of one, has a field that this version does not know."

SERVER_RULES = (
    ServerRule(
        "rest_is_dropped",
        "9",
        "The error arrives though the client went on for 256 KiB, and nothing of those is answered.",
        "malformed_protobuf",
        _rest_is_dropped,
    ),
    ServerRule(
        "joined_frames", "2, 11", "Metrics, two pings and an init in one packet.", "metrics_ping_bye_protobuf", _joined
    ),
    *(
        ServerRule(f"{name}_{codec}", section, description, f"plain_{codec}", _rewritten(writer))
        for name, section, description, writer in (
            ("written_otherwise", "3", _OTHERWISE, written_otherwise),
            ("unknown_everywhere", "12", _UNKNOWN, with_unknown_fields),
        )
        for codec in ("protobuf", "json")
    ),
    *(
        ServerRule(f"{name}_{codec}", "10", description, f"plain_{codec}", check)
        for name, description, check in (
            ("early_init", "Hello and init in one packet: the init has to wait for the welcome.", _before_the_welcome),
            ("early_step", "Two steps in one packet: the second has to wait for the actions.", _before_the_actions),
        )
        for codec in ("protobuf", "json")
    ),
    ServerRule("long_list_json", "11", "A long list of empty scalars is refused at once.", "plain_json", _long_list),
    ServerRule("idle_timeout", "9, 11", "A client that says nothing.", "plain_protobuf", _silence),
)
