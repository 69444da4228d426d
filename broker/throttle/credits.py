"""The credits of a throttled namespace (HTTP contract 6.3). Pure: the time comes in with each call.

Time is divided into periods of PERIOD_MS. At the start of each, the balance is what a period gives; what was
left of the period before is lost, and a debt is paid first. So over any number of periods, operations cost no
more than these periods give, except for what one operation may owe at their end.
"""

from __future__ import annotations

PERIOD_MS = 1_000


class Credits:
    """The balance of one namespace."""

    __slots__ = ("_balance", "_begun_ms", "per_period")

    def __init__(self, per_period: int, now_ms: int) -> None:
        """The first period begins now. Times are monotonic."""
        self.per_period = per_period
        self._balance = per_period
        self._begun_ms = now_ms
        """When the present period began."""

    def balance(self, now_ms: int) -> int:
        """The credits that are left; below 0, a debt."""
        periods = (now_ms - self._begun_ms) // PERIOD_MS
        if periods > 0:
            self._begun_ms += periods * PERIOD_MS
            self._balance = min(self.per_period, self._balance + periods * self.per_period)
        return self._balance

    def admit(self, cost: int, now_ms: int) -> bool:
        """Pay for an operation; returns False, and changes nothing, if the balance does not cover it.

        An operation that costs more than a period gives needs a full balance, and leaves a debt. One that
        costs nothing needs a balance above 0.
        """
        balance = self.balance(now_ms)
        if balance <= 0 or (cost > balance and balance < self.per_period):
            return False
        self._balance = balance - cost
        return True

    def admit_some(self, count: int, cost: int, now_ms: int) -> int:
        """Pay for as many of `count` operations as the balance covers, each at this cost; returns how many
        these are. A full balance pays for one at least, as in `admit`."""
        balance = self.balance(now_ms)
        covered = max(balance // cost, 0) or int(balance == self.per_period)
        admitted = min(count, covered)
        self._balance -= admitted * cost
        return admitted

    def charge(self, cost: int, now_ms: int) -> None:
        """Pay for what has been done already, with a debt if it must be."""
        self._balance = self.balance(now_ms) - cost

    def period_begun_ms(self, now_ms: int) -> int:
        """When the present period began."""
        self.balance(now_ms)
        return self._begun_ms
