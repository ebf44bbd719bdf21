"""Room for so much in all and so much of each name, the last quarter of which is for names that hold little.

So a few names with as much as each may have leave room for others: in the last quarter a name may hold an eighth of
the room that is free, or a single thing. With more names the free room shrinks by that eighth each time (dynamic
thresholds: Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hummingbird.errors import OverloadError

_RETRY = 1.0  # seconds after which a caller may try again
_LAST = 4  # the last quarter
_PART = 8  # an eighth


class Quota:
    """Room of a service, for one thread at a time. things, state: for refusals, as in "calls" that are "at work".

    most: in all. each: of one name; named: of those that have limits of their own. Those without a name (None) share
    `most` alone.
    """

    def __init__(self, things: str, state: str, most: int, each: int, named: Mapping[str, int] | None = None) -> None:
        self._things, self._state, self._most, self._each, self._named = things, state, most, each, named or {}
        self._held: Counter[str] = Counter()
        self.total = 0

    def check(self, name: str | None, size: int = 1) -> None:
        """OverloadError where there is no room for so much more of this name's."""
        free = self._most - self.total
        if size > free:
            raise OverloadError(f"{self._most} {self._things} are {self._state}, the most", retry_after=_RETRY)
        if name is None:
            return
        held, each = self._held[name] + size, self._named.get(name, self._each)
        if held > each:
            raise OverloadError(f"{each} {self._things} of yours are {self._state}, the most", retry_after=_RETRY)
        if free - size < self._most // _LAST and held > max(1, free // _PART):
            what = f"{self.total} {self._things} are {self._state}; the room that is left is for callers with few"
            raise OverloadError(what, retry_after=_RETRY)

    def take(self, name: str | None, size: int = 1) -> None:
        """Hold so much more; a negative size gives it back."""
        self.total += size
        if name is not None:
            self._held[name] += size
            if not self._held[name]:
                del self._held[name]
