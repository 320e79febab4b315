"""Texts of log lines and errors in source code: where each is, and which literal part finds it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}
LOGGERS = {"_log", "log", "logger", "_logger"}
SHORTEST = 6
"""Characters of the shortest literal part that a person would search for."""

HOLE = "\0"
"""Mark in a text in place of a placeholder."""
_WRAPPER = re.compile(rf"(?:: | \(|^){HOLE}\)?$")
"""Pattern of texts that end with the text of another error. A person searches for the text of that error."""
_PLACEHOLDER = re.compile(r"%(?:\([^)]*\))?[#0\- +]*[\d*]*(?:\.[\d*]+)?[sdrfgxi%]|\{[^{}]*\}")


@dataclass(frozen=True, slots=True)
class Message:
    """One call that logs or raises a text, and the literal parts of the text."""

    path: Path
    line: int
    parts: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {' ... '.join(self.parts)}"


def messages(path: Path) -> Iterator[Message]:
    """Yield the log lines and errors of a module whose text is written in the call itself."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        call = node.exc if isinstance(node, ast.Raise) else node
        if not isinstance(call, ast.Call) or not call.args:
            continue
        if _raises(node, call) or _logs(call):
            texts = [text for argument in call.args for text in _texts(argument)]
            parts = tuple(part.strip() for text in texts for part in text.split(HOLE) if part.strip())
            is_text = " " in "".join(texts).strip() and len(re.findall(r"[a-z]", "".join(parts))) >= SHORTEST
            if is_text and not all(_WRAPPER.search(text) for text in texts):
                yield Message(path, call.lineno, parts)


def ambiguous(paths: Iterable[Path]) -> list[str]:
    """Return the messages that share every literal part of at least SHORTEST characters with another message."""
    found = [message for path in paths for message in messages(path)]
    texts = ["\n".join(message.parts) for message in found]
    return [
        str(message)
        for message in found
        if not any(len(part) >= SHORTEST and sum(part in text for text in texts) == 1 for part in message.parts)
    ]


def _logs(call: ast.Call) -> bool:
    function = call.func
    return (
        isinstance(function, ast.Attribute)
        and function.attr in LOG_METHODS
        and isinstance(function.value, ast.Name)
        and function.value.id in LOGGERS
    )


def _raises(node: ast.AST, call: ast.Call) -> bool:
    """Return whether `node` raises an exception that `call` creates by its class, and not by a function."""
    name: str = getattr(call.func, "id", None) or getattr(call.func, "attr", "")
    return isinstance(node, ast.Raise) and name.lstrip("_")[:1].isupper() and name != "AssertionError"


def _texts(node: ast.AST) -> list[str]:
    """Return the texts that an argument can have, with HOLE for each placeholder; none if it is not a text."""
    if isinstance(node, ast.Constant):
        return [_PLACEHOLDER.sub(HOLE, node.value)] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(each.value) if isinstance(each, ast.Constant) else HOLE for each in node.values)]
    if isinstance(node, ast.BinOp):
        sides = _texts(node.left) or [HOLE], _texts(node.right) or [HOLE]
        return [left + right for left in sides[0] for right in sides[1]]
    if isinstance(node, ast.IfExp):
        return _texts(node.body) + _texts(node.orelse)
    return []
