"""Clients with names of their own, for tests of an RLX server."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def token_of(name: str) -> str:
    """The token that a client of that name shows."""
    return f"the-token-of-{name}-0123456789"


class ClientsFile:
    """A clients-file that tests write. JSON is YAML."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "clients.yaml"
        self._written = 0

    def write(self, **clients: dict[str, Any]) -> None:
        """Whole and at once; each has the token of its name unless it says otherwise."""
        self.write_text(json.dumps({name: {**_shows(name), **entry} for name, entry in clients.items()}))

    def write_text(self, text: str) -> None:
        self._written += 1
        new = self.path.with_suffix(f".{self._written}")
        new.write_text(text)
        new.chmod(0o600)
        new.replace(self.path)


def _shows(name: str) -> dict[str, str]:
    return {"token-sha256": hashlib.sha256(token_of(name).encode()).hexdigest()}
