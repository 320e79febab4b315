"""Channels to a server that may move: a file says where it is now."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from relaax.files import read_bounded_text

FILE = "@"
"""Begins the name of a file with the addresses of all shards, one on each line in their order, instead of one."""


def read_addresses(text: str) -> list[str]:
    """Return the addresses, HOST:PORT, that are in the file of `@FILE`. Raises ValueError with a sentence."""
    file = Path(text.removeprefix(FILE))
    try:
        lines = read_bounded_text(file).split()
    except (OSError, UnicodeError) as error:
        raise ValueError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    for line in lines:
        host, _, port = line.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"{file}: {line!r} is not an address; each line is HOST:PORT")
    if not lines:
        raise ValueError(f"{file} has no address")
    return lines


class Moving:
    """The address of one server, which line `index` of a file holds; the last one known if that cannot be read.

    Whoever writes the file replaces it by another one (`relaax.files`), so that no half of it is read.
    """

    def __init__(self, text: str, index: int) -> None:
        self._text = text
        self._index = index
        self._seen: tuple[int, int] | None = None
        self._address = read_addresses(text)[index]

    def now(self) -> str:
        """Return HOST:PORT."""
        try:
            found = os.stat(self._text.removeprefix(FILE))
            seen = found.st_ino, found.st_mtime_ns
            if seen != self._seen:
                self._address = read_addresses(self._text)[self._index]
                self._seen = seen
        except (OSError, ValueError, IndexError):
            pass
        return self._address


class FollowingChannel(grpc.Channel):
    """A channel that is opened anew, by `opened`, once `address` returns another one.

    A call that has failed finds the new place if it is made again. Calls that are under way end as cancelled.
    """

    def __init__(self, address: Callable[[], str], opened: Callable[[str], grpc.Channel]) -> None:
        self._address, self._opened = address, opened
        self._place = address()
        self._channel = opened(self._place)
        self._lock = threading.Lock()

    def current(self) -> grpc.Channel:
        """Return the channel to where the server is now."""
        with self._lock:
            place = self._address()
            if place != self._place:
                before, self._channel, self._place = self._channel, self._opened(place), place
                before.close()
            return self._channel

    def subscribe(self, callback: Any, try_to_connect: bool | None = False) -> None:
        self._channel.subscribe(callback, bool(try_to_connect))

    def unsubscribe(self, callback: Any) -> None:
        self._channel.unsubscribe(callback)

    def unary_unary(self, *arguments: Any, **options: Any) -> Any:
        return _Method(self, "unary_unary", arguments, options)

    def unary_stream(self, *arguments: Any, **options: Any) -> Any:
        return _Method(self, "unary_stream", arguments, options)

    def stream_unary(self, *arguments: Any, **options: Any) -> Any:
        return _Method(self, "stream_unary", arguments, options)

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:
        return _Method(self, "stream_stream", arguments, options)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> FollowingChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Method:
    """A method of the service, called over the channel of the moment."""

    def __init__(
        self, channel: FollowingChannel, kind: str, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        self._following = channel
        self._kind, self._arguments, self._options = kind, arguments, options
        self._channel: grpc.Channel | None = None
        self._method: Any = None

    def _now(self) -> Any:
        channel = self._following.current()
        if channel is not self._channel:
            self._method = getattr(channel, self._kind)(*self._arguments, **self._options)
            self._channel = channel
        return self._method

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._now()(*arguments, **options)

    def future(self, *arguments: Any, **options: Any) -> Any:
        """Return the call as a future."""
        return self._now().future(*arguments, **options)
