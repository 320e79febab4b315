"""Places for names, of which nobody can take another's."""

from __future__ import annotations


class FairNames:
    """At most `places` names, shared fairly by those who use them. Not thread-safe.

    While there are places everybody gets what he asks for. When there are none, a name that nobody uses any more goes
    first. Else whoever has less than his share, which is `places` divided by those who use any, gets the place of one
    who has most: of his names the one that fewest others use, the newest of them.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._users: dict[str, set[str]] = {}
        self._names: dict[str, dict[str, None]] = {}  # of each user, the oldest first
        self._unused: dict[str, None] = {}

    def admits(self, name: str, user: str) -> bool:
        """Whether `user` has a place for `name`, from now on if not before."""
        users = self._users.get(name)
        if users is None:
            if len(self._users) >= self._places and not self._make_room(user):
                return False
            users = self._users[name] = set()
        if user not in users:
            users.add(user)
            self._names.setdefault(user, {})[name] = None
            self._unused.pop(name, None)
        return True

    def forget(self, user: str) -> None:
        """He has gone. His names stay while nobody needs their places."""
        for name in self._names.pop(user, {}):
            self._users[name].discard(user)
            if not self._users[name]:
                self._unused[name] = None

    def _make_room(self, user: str) -> bool:
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
