"""All rules for servers, checked one after the other against a real one."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from relaax.client.address import Endpoint
from relaax.conformance.adaptation import AdaptedConversation, Settings, Untranslatable
from relaax.conformance.report import Report, RuleResult, Verdict
from relaax.conformance.server_rules import SERVER_RULES
from relaax.conformance.server_talk import ConversationRefused, ServerTalk, play
from relaax.conformance.vectors import golden, load
from relaax.conformance.wire import Wrong

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
