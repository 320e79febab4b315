"""Named clients, for tests of an RLX server."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def token_of(name: str) -> str:
    """Return the token of the client with this name."""
    return f"the-token-of-{name}-0123456789"


class ClientsFile:
    """A file for the key clients-file. It is written as JSON, which is valid YAML."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "clients.yaml"
        self._written = 0

    def write(self, **clients: dict[str, Any]) -> None:
        """Replace the file atomically. A client without a token in its entry gets the token of its name."""
        self.write_text(json.dumps({name: {**_default_token(name), **entry} for name, entry in clients.items()}))

    def write_text(self, text: str) -> None:
        self._written += 1
        new = self.path.with_suffix(f".{self._written}")
        new.write_text(text)
        new.chmod(0o600)
        new.replace(self.path)


def _default_token(name: str) -> dict[str, str]:
    return {"token-sha256": hashlib.sha256(token_of(name).encode()).hexdigest()}
