"""Valid metric names."""

from __future__ import annotations

import re

MAX_NAME_LENGTH = 160
"""The maximum length of a client's metric name, 128, plus some for its prefix."""

CLIENTS = "client/"
"""The prefix of names that clients choose."""

_NAME = re.compile(r"[A-Za-z0-9_.-][A-Za-z0-9_./-]*")


def check_name(name: str) -> str:
    """Return `name` if RLX allows it: letters, digits and `_ . - /`, no slash first. Raises ValueError."""
    if len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name):
        raise ValueError(
            f"{name[:MAX_NAME_LENGTH]!r} is not a metric name: use letters, digits, '_', '.', '-' and '/', no "
            f"slash first, at most {MAX_NAME_LENGTH} characters"
        )
    return name


class FairNames:
    """At most `places` names, shared fairly among their users. Not thread-safe.

    While places are free, every new name is admitted. When none is free, an unused name is dropped first. Otherwise a
    user with fewer names than its share (`places` divided by the number of users) gets a place of the user with the
    most names. The dropped name is the one with the fewest users, and among equals the newest.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._users: dict[str, set[str]] = {}
        self._names: dict[str, dict[str, None]] = {}  # by user, oldest first
        self._unused: dict[str, None] = {}

    def admits(self, name: str, user: str) -> bool:
        """Return whether `name` has a place for `user`, assigning one if possible."""
        users = self._users.get(name)
        if users is None:
            if len(self._users) >= self._places and not self._free_place(user):
                return False
            users = self._users[name] = set()
        if user not in users:
            users.add(user)
            self._names.setdefault(user, {})[name] = None
            self._unused.pop(name, None)
        return True

    def forget(self, user: str) -> None:
        """Remove a user. Its names stay until their places are needed."""
        for name in self._names.pop(user, {}):
            self._users[name].discard(user)
            if not self._users[name]:
                self._unused[name] = None

    def _free_place(self, user: str) -> bool:
        for name in self._unused:
            del self._unused[name], self._users[name]
            return True
        own = len(self._names.get(user, ()))
        if own >= self._places // len(self._names.keys() | {user}):
            return False
        names = max(self._names.values(), key=len)
        dropped = min(reversed(names), key=lambda name: len(self._users[name]))
        for each in self._users.pop(dropped):
            del self._names[each][dropped]
            if not self._names[each]:
                del self._names[each]
        return True
