from __future__ import annotations

import pytest

from relaax.rlx import ErrorCode, Sender
from support.rlx_vector_files import vector_files
from support.rlx_vectors import FOLDER, Conversation, load, play, refused_openings

CONVERSATIONS = load()
PRODUCED = {
    "MALFORMED",
    "FRAME_TOO_LARGE",
    "UNEXPECTED_MESSAGE",
    "UNSUPPORTED_VERSION",
    "INVALID_VALUE",
    "LIMIT_EXCEEDED",
}


@pytest.mark.parametrize("role", Sender, ids=lambda r: f"as_{r.value}")
@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda c: c.name)
def test_golden_conversation(conversation: Conversation, role: Sender) -> None:
    play(conversation, role)


def test_vectors_are_current() -> None:
    """support/rlx_vector_files.py writes the golden files."""
    files = vector_files()
    assert {path.name for path in FOLDER.glob("*.json")} == set(files)
    for name, text in files.items():
        assert (FOLDER / name).read_text("utf-8") == text, f"{name} is not current"


def test_vector_names_are_unique_and_cover_every_error_code() -> None:
    assert len({c.name for c in CONVERSATIONS}) == len(CONVERSATIONS)
    for sender in Sender:
        found = {e["error"] for c in CONVERSATIONS for e in c.entries if "error" in e and e["from"] == sender.value}
        assert found == {f"ERROR_CODE_{name}" for name in PRODUCED}
    assert {c.codec for c in CONVERSATIONS} == {"protobuf", "json"}


def test_refused_openings_cover_every_error_code() -> None:
    openings = refused_openings()
    assert {code for _, _, code in openings} == {ErrorCode[name] for name in PRODUCED}
    assert all(data for _, data, _ in openings)
