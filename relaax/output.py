"""Standard output in any locale."""

from __future__ import annotations

import io
import sys


def replace_unknown_characters() -> None:
    """Print `?` for characters that the encoding of standard output lacks. Called first by every command.

    Otherwise print raises UnicodeEncodeError. Python treats standard error likewise by itself.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
