"""Tokens: secrets that authenticate a peer, read from a file or the environment and never shown."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from relaax.configuration import ConfigurationError
from relaax.configuration.key_types import expand_home
from relaax.configuration.layers import SECRETS
from relaax.files import read_bounded

_log = logging.getLogger(__name__)

CLIENT_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
CLIENT_NAME_RULE = "a letter or digit, then up to 63 letters, digits and . _ -"

MIN_TOKEN_BYTES, MAX_TOKEN_BYTES = 16, 4096


class Token:
    """A secret that can be compared but is never shown."""

    __slots__ = ("_digest",)

    def __init__(self, secret: str) -> None:
        self._digest = digest(secret)

    def matches(self, shown: str) -> bool:
        """Return whether `shown` is this token, in constant time."""
        return hmac.compare_digest(self._digest, digest(shown))

    @property
    def hex(self) -> str:
        """The digest in hex, as files contain it."""
        return self._digest.hex()

    def __repr__(self) -> str:
        return "Token(hidden)"


def digest(secret: str) -> bytes:
    """Return the SHA-256 of a token, which can replace the token itself in comparisons."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def without_tokens(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` without tokens, for a process that does not need them."""
    return {name: value for name, value in environment.items() if name not in SECRETS}


def has_token(file: str | None, variable: str) -> bool:
    """Return whether a token is configured: `read_token` then returns it or raises."""
    return file is not None or variable in os.environ


def read_token(file: str | None, key: str, variable: str) -> str | None:
    """Return the token from `file`, else from an environment variable, else None. `key`: the key that names the file.

    Raises ConfigurationError if the token is unusable. The message does not quote it.
    """
    if file is not None:
        return _checked(_content(expand_home(file, key), key), f"{key}: the token in {file}")
    secret = os.environ.get(variable)
    return None if secret is None else _checked(secret.strip(), f"the environment variable {variable}: its token")


def _content(path: Path, key: str) -> str:
    try:
        content = read_bounded(path)
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigurationError(f"{key}: the token file {path} cannot be read: {error.strerror}") from None
    if mode & stat.S_IROTH:
        _log.warning("%s: all users of this machine can read the token file %s; run chmod 600 on it", key, path)
    return content.decode("latin-1").strip()


def _checked(secret: str, what: str) -> str:
    if not secret:
        raise ConfigurationError(f"{what} is empty; `relaax keys DIR` makes a token")
    if not (secret.isascii() and secret.isprintable()) or " " in secret:
        raise ConfigurationError(f"{what} must consist of printable ASCII characters without spaces")
    if not MIN_TOKEN_BYTES <= len(secret) <= MAX_TOKEN_BYTES:
        raise ConfigurationError(
            f"{what} must have {MIN_TOKEN_BYTES} to {MAX_TOKEN_BYTES} characters; `relaax keys DIR` makes one"
        )
    return secret
