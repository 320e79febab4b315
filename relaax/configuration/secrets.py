"""Redaction of secrets for terminals, TensorBoard, figures and checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "(hidden)"

_SECRET = re.compile(
    r"token|secret|passw|passphrase|credential|pwd|bearer|(?<![a-z])o?auth(?!or(?!i))|"
    r"(access|api|private|secret|signing|encryption|ssh)[_-]?key|^-*key$",
    re.IGNORECASE,
)
_PASSWORD = re.compile(r"(?<=//)[^/@\s]*@")
# `--token=abc`, `algorithm.token=abc`, `?token=abc&`, `Authorization: Bearer abc`
_ASSIGNED = re.compile(r"([\w.-]+)(\s*=\s*|:\s+)([^&#,\]}]+)")
# `--token abc` and `[--token, abc]`
_OPTION = re.compile(r"(?<![\w-])(--?[\w.-]+)([\"']?(?:\s*,\s*|\s+))([^\s,\]}]+)")


def redacted(value: Any) -> Any:
    """Return a configuration, a part of one, or a command line, with possible secrets hidden.

    Hidden are values of keys whose names suggest a secret (token, password, auth, api_key, ...), at every depth;
    arguments of such options; values assigned to such names in a text; and passwords in addresses. Only names count: a
    secret under another name remains.
    """
    if isinstance(value, Mapping):
        return {key: _hidden(inner) if _SECRET.search(str(key)) else redacted(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        pairs = zip([None, *value], value, strict=False)
        return [_hidden(item) if _is_option(before) else redacted(item) for before, item in pairs]
    return _without_secrets(value) if isinstance(value, str) else value


def _hidden(value: Any) -> Any:
    """Hide a value, except None and bools, which are not secret."""
    return value if value is None or isinstance(value, bool) else HIDDEN


def _is_option(value: Any) -> bool:
    """Return whether `value` is a command-line option whose name suggests that the next argument is secret."""
    return isinstance(value, str) and bool(re.fullmatch(r"--?[\w.-]+", value)) and bool(_SECRET.search(value))


def _without_secrets(text: str) -> str:
    text = _PASSWORD.sub("", text)
    for pattern in (_ASSIGNED, _OPTION):
        text = pattern.sub(_replaced, text)
    return text


def _replaced(match: re.Match[str]) -> str:
    name, between, rest = match.groups()
    return f"{name}{between}{HIDDEN if _SECRET.search(name) else match.re.sub(_replaced, rest)}"
