"""What a worker tells its server about its client: that it was let in, or, by ending the line, that it was not."""

from __future__ import annotations

import os

ADMITTED = b"1"


class News:
    """The worker's end of the line. `descriptor` is the writing end of a pipe, and is this object's from here on."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def admitted(self) -> None:
        """The client has been let in. Raises BrokenPipeError where the server has died."""
        os.write(self._descriptor, ADMITTED)
        self.close()

    def close(self) -> None:
        """There will be no more. It may be called again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
