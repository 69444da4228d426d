"""Messages that wait, locked, until one partition of a target can be reached again. Pure.

They wait in the order of their sequence numbers, in *loads* as they were locked. When it is time to try
again, only the first load is released. The others follow once that one has arrived, and messages that come
meanwhile wait behind them. So however many wait, an attempt costs little, and none overtakes another one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from broker.identifiers import LockToken, sequence_of_token

_TOKEN_BYTES = 16


class Load:
    """Messages that were locked together."""

    __slots__ = ("_tokens", "first", "until_s")

    def __init__(self, tokens: Sequence[LockToken], until_s: float) -> None:
        self._tokens = b"".join(tokens)  # a third of the memory of a list
        self.first = sequence_of_token(tokens[0])
        self.until_s = until_s
        """When their locks end."""

    @property
    def tokens(self) -> list[LockToken]:
        """The locks, in the order of the messages."""
        every = self._tokens
        return [every[start : start + _TOKEN_BYTES] for start in range(0, len(every), _TOKEN_BYTES)]


class Aside:
    """The messages that wait for one partition of a target. Owned by an `Outlet`."""

    __slots__ = ("_loads", "_open_to")

    def __init__(self) -> None:
        self._loads: deque[Load] = deque()
        self._open_to = -1
        """The last sequence number of those that are tried again."""

    def __bool__(self) -> bool:
        return bool(self._loads)

    def is_open(self, sequence_number: int) -> bool:
        """Whether this message is tried again. The others wait."""
        return sequence_number <= self._open_to

    def add(self, tokens: Sequence[LockToken], until_s: float) -> None:
        """Add messages that were locked together, in order. Those that were tried in vain go to the front."""
        load = Load(tokens, until_s)
        if self._loads and load.first < self._loads[0].first:
            self._loads.appendleft(load)
        else:
            self._loads.append(load)

    def release_next(self) -> list[LockToken]:
        """Take out the first load: from now on its messages are tried again. Empty if there is none."""
        if not self._loads:
            return []
        tokens = self._loads.popleft().tokens
        self._open_to = max(self._open_to, sequence_of_token(tokens[-1]))
        return tokens

    def ending(self, before_s: float) -> Iterator[Load]:
        """The loads whose locks end before this time."""
        return (load for load in list(self._loads) if load.until_s < before_s)
