"""Rules for servers that no golden conversation can hold, because a file has no time and no packets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relaax.cli.conformance.adapted import Adapted
from relaax.cli.conformance.otherwise import with_unknown_fields, written_otherwise
from relaax.cli.conformance.server_talk import Refused, ServerTalk, check_actions, play
from relaax.cli.conformance.wire import Wrong, decoded, encoded
from relaax.rlx import rlx_pb2

REST_BYTES = 256 * 1024


@dataclass(frozen=True)
class ServerRule:
    """`conversation`: the golden one that it plays in another manner."""

    name: str
    section: str
    description: str
    conversation: str
    check: Callable[[Adapted, ServerTalk], None]


class _Rewritten(Adapted):
    """The same messages in other bytes."""

    writer: Callable[[Any, str], bytes]

    def frame(self, entry: dict[str, Any], limits: rlx_pb2.Limits | None) -> bytes:
        data = super().frame(entry, limits)
        return self.writer(decoded(data[4:], self.codec, rlx_pb2.ClientMessage), self.codec)


def _rewritten(writer: Callable[[Any, str], bytes]) -> Callable[[Adapted, ServerTalk], None]:
    def check(adapted: Adapted, talk: ServerTalk) -> None:
        other = _Rewritten(adapted.conversation, adapted.settings)
        other.writer = writer
        play(other, talk)

    return check


def _joined(adapted: Adapted, talk: ServerTalk) -> None:
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


def _rest_is_dropped(adapted: Adapted, talk: ServerTalk) -> None:
    mistake = adapted.frame(adapted.conversation.entries[0], None)
    ping = encoded(rlx_pb2.ClientMessage(ping={"nonce": 7}), talk.codec)
    talk.line.send(mistake + ping * (REST_BYTES // len(ping)))
    talk.expect_error("MALFORMED")


def _silence(adapted: Adapted, talk: ServerTalk) -> None:
    talk.line.send(adapted.frame(adapted.conversation.entry("client", "hello"), None))
    talk.learn(talk.expect("welcome").welcome)
    assert talk.limits is not None
    seconds = talk.limits.idle_timeout_seconds
    if seconds > talk.line.deadline / 2:
        raise Refused(f"the server bears {seconds:g} s of silence, more than half of the deadline")
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
    ServerRule("idle_timeout", "9, 11", "A client that says nothing.", "plain_protobuf", _silence),
)
