"""Output that survives a pipe whose reader ends, a closed terminal, and a full disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, TextIO, cast


def resilient(stream: TextIO | None) -> TextIO | None:
    """Return the same stream, except that it drops what cannot be written. None, for no open stream, stays None."""
    return None if stream is None else cast(TextIO, _ResilientOutput(stream))


class _ResilientOutput:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._dropping():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._dropping():
            self._stream.flush()

    @contextlib.contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            with contextlib.suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)  # also drops what the stream has buffered
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)
