"""Read a sequence of buffers as one file."""

from __future__ import annotations

import bisect
import io
import itertools
import os
from collections.abc import Sequence


class BufferFile(io.RawIOBase):
    """A file that reads `buffers` as if they were one; only what is read is copied."""

    def __init__(self, buffers: Sequence[memoryview]) -> None:
        self._buffers = [buffer for buffer in buffers if buffer.nbytes]
        self._ends = list(itertools.accumulate(buffer.nbytes for buffer in self._buffers))
        self._at = 0

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = max(0, offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self)}[whence])
        return self._at

    def readinto(self, target: object) -> int:
        view = memoryview(target).cast("B")  # type: ignore[arg-type]
        index = bisect.bisect_right(self._ends, self._at)
        if index == len(self._buffers):
            return 0
        buffer = self._buffers[index]
        piece = buffer[buffer.nbytes - (self._ends[index] - self._at) :][: view.nbytes]
        view[: piece.nbytes] = piece
        self._at += piece.nbytes
        return piece.nbytes
