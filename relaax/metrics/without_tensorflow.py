"""TensorBoard's library without TensorFlow, which it does not need to read and write files but would load."""

from __future__ import annotations

import sys
import types


def do_without_tensorflow() -> None:
    """Disable TensorFlow in TensorBoard by a module whose presence is the switch. Call before it opens a file."""
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("notf"))
