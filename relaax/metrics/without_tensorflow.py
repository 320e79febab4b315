"""TensorBoard's library without TensorFlow, which it would load for files that it can read and write by itself."""

from __future__ import annotations

import sys
import types


def do_without_tensorflow() -> None:
    """To be called before TensorBoard's library first opens a file. The presence of this module is its own switch."""
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("notf"))
