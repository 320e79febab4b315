"""A terminal for tables and sentences that contain text from a peer or a file."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from relaax.console import one_line


class PlainConsole(Console):
    """A rich console that prints every string verbatim: no markup, no emoji codes, control characters escaped.

    Use it for all output: a name such as `[/x]` is invalid markup, and an escape sequence moves the cursor. Use `Text`
    for styles. `Panel`, `Status` and `TextColumn` parse markup themselves: give them `Text`, or `markup=False`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a string, with control characters escaped."""
        return super().render_str(visible(text), **options)


def visible(text: str) -> str:
    """Return `text` with control characters escaped, except tabs and line ends."""
    return "\n".join(map(one_line, text.split("\n")))
