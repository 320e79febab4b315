"""Log lines and errors: each is found in the source code by a literal part of its text."""

from __future__ import annotations

from pathlib import Path

from support.messages import ambiguous

ROOT = Path(__file__).resolve().parent.parent


def test_messages_have_a_literal_part_of_their_own() -> None:
    folders = (ROOT / "relaax", ROOT / "algorithms")
    modules = sorted(path for folder in folders for path in folder.rglob("*.py") if "_pb2" not in path.name)
    # The texts of the protocol's errors are part of the golden vectors, which name the field.
    assert [message for message in ambiguous(modules) if f"{ROOT}/relaax/rlx/" not in message] == []


def test_equal_messages_are_reported(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        "def serve(worker, where, error):\n"
        '    _log.info("worker %d registered", worker)\n'
        '    _log.info("worker %d was stopped by a signal", worker)\n'
        '    _log.warning("worker %d was stopped by a signal", worker)\n'
        '    raise ValueError(f"batch size must be at least 1, not {worker}")\n'
        '    raise ValueError(f"{where}: {error}")\n'
    )
    lines = [message.split(":")[1] for message in ambiguous([module])]
    assert lines == ["3", "4"]
