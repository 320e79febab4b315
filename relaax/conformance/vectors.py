"""The golden conversations of protocol/vectors, whose README.md describes their format."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from google.protobuf import json_format

from relaax.bundled import bundled_folder
from relaax.rlx import Limits, rlx_pb2

FOLDER = bundled_folder("protocol") / "vectors"


@dataclass(frozen=True)
class Conversation:
    """One golden conversation. `file`: the name of its file without `.json`."""

    file: str
    name: str
    description: str
    section: str
    codec: str
    server_limits: dict[str, Any]
    entries: list[dict[str, Any]]

    @property
    def limits(self) -> Limits:
        """The limits that the server of this conversation has."""
        wire = json_format.ParseDict(self.server_limits, rlx_pb2.Limits())
        names = [field.name for field in wire.DESCRIPTOR.fields]
        return Limits(**{name: getattr(wire, name) for name in names})

    def entry(self, sender: str, kind: str) -> dict[str, Any]:
        """Return the entry of the first message of a kind, named as in JSON. Raises KeyError if it is missing."""
        for entry in self.entries:
            if entry["from"] == sender and kind in entry.get("message", {}):
                return entry
        raise KeyError(kind)


@cache
def load() -> tuple[Conversation, ...]:
    """Return all golden conversations, in the order of the files."""
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        for c in json.loads(path.read_text("utf-8"))["conversations"]:
            fields = (c[name] for name in ("name", "description", "section", "codec", "server_limits", "entries"))
            found.append(Conversation(path.stem, *fields))
    return tuple(found)


def golden(name: str) -> Conversation:
    """Return the golden conversation of this name. Raises KeyError if it is missing."""
    return {conversation.name: conversation for conversation in load()}[name]
