"""Suppression of what TensorFlow's libraries write to stderr while they load, such as that there is no GPU."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from relaax.nn.tensorflow_loading import load_within
from relaax.server.anonymous_file import anonymous_file

STDERR = 2


@contextlib.contextmanager
def native_messages_held_back() -> Iterator[None]:
    """Hold back output to stderr, also of C libraries; write it out if an exception is raised."""
    sys.stderr.flush()
    own = os.dup(STDERR)
    with anonymous_file() as held:
        os.dup2(held.fileno(), STDERR)
        try:
            yield
        except Exception:
            os.dup2(own, STDERR)
            held.seek(0)
            os.write(STDERR, held.read())
            raise
        finally:
            os.dup2(own, STDERR)
            os.close(own)


def load_tensorflow_quietly() -> None:
    """Hold back these messages if this process imports TensorFlow."""
    load_within(native_messages_held_back)
