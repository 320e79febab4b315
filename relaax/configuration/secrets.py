"""Leaving secrets out of what is published or kept: pages of TensorBoard, figures, checkpoints, the terminal."""

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
    """A configuration, or a part of it, or a command line, without what may be secret.

    That is the value of a key that has such a name (token, password, auth, api_key, ...), at every depth; the argument
    behind such an option; what is assigned to such a name within a text; and passwords within addresses. It goes by
    names: a secret under another name stays.
    """
    if isinstance(value, Mapping):
        return {key: _hidden(inner) if _SECRET.search(str(key)) else redacted(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        pairs = zip([None, *value], value, strict=False)
        return [_hidden(item) if _is_option(before) else redacted(item) for before, item in pairs]
    return _without_secrets(value) if isinstance(value, str) else value


def _hidden(value: Any) -> Any:
    """That there is none is no secret, nor is a switch."""
    return value if value is None or isinstance(value, bool) else HIDDEN


def _is_option(value: Any) -> bool:
    """Whether the next argument of a command line is the value of an option that has the name of a secret."""
    return isinstance(value, str) and bool(re.fullmatch(r"--?[\w.-]+", value)) and bool(_SECRET.search(value))


def _without_secrets(text: str) -> str:
    text = _PASSWORD.sub("", text)
    for pattern in (_ASSIGNED, _OPTION):
        text = pattern.sub(_replaced, text)
    return text


def _replaced(match: re.Match[str]) -> str:
    name, between, rest = match.groups()
    return f"{name}{between}{HIDDEN if _SECRET.search(name) else match.re.sub(_replaced, rest)}"
