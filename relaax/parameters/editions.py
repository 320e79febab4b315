"""Conversion of the values of the environments' parameters to messages and back."""

from __future__ import annotations

from relaax.lessons.values import Edition, ValueRange
from relaax.parameters import parameter_server_pb2 as pb


def edition_message(edition: Edition) -> pb.Edition:
    """Return an edition as a message."""
    return pb.Edition(
        number=edition.number,
        lesson=edition.lesson,
        parameters=[
            pb.ParameterValues(name=name, low=values.low, high=values.high, choices=values.choices)
            for name, values in edition.values.items()
        ],
    )


def edition_of(message: pb.Edition) -> Edition:
    """Return the edition in a message."""
    values = {one.name: ValueRange(one.low, one.high, tuple(one.choices)) for one in message.parameters}
    return Edition(message.number, message.lesson, values)
