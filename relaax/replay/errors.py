"""Tell a writer what it must hear about."""

from __future__ import annotations


class OutOfStep(ValueError):
    """Tell a writer that the table does not have what the writer takes for granted; nothing has changed.

    The writer begins anew: it goes on with the number `expected`, and sends every frame that it names.
    """

    def __init__(self, sentence: str, expected: int) -> None:
        super().__init__(sentence)
        self.expected = expected


class SequenceGap(OutOfStep):
    """Tell a writer that an insert is missing before this one."""


class NoRoom(ValueError):
    """Refuse frames for which writers have left no room."""


class UnknownFrames(OutOfStep):
    """Tell a writer that an item names frames that are not there."""
