"""Looks ahead, after a cycle: what the next one has to do besides its operations, and when. Pure.

A partition is *quiet* while nobody waits for its messages and nothing falls due: no lock, time to live,
schedule or window ends. Then a cycle that only stores messages has nothing to look for before them and behind
them. That is worth knowing, because looking takes as long as storing some ten messages. Quiet lasts until a
known time, which new messages may bring closer, and ends with every operation other than a `Send`.
"""

from __future__ import annotations

from broker.partition.abandoned import Abandoned
from broker.partition.browsing import Browsing
from broker.partition.delivering import Delivering
from broker.partition.messages import NO_NUMBER
from broker.partition.schedule import Schedule
from broker.partition.session_locks import SessionLocks
from broker.partition.time_to_live import TimeToLive
from broker.partition.transactions import Transactions
from broker.partition.workspace import Workspace

NEVER_MS = NO_NUMBER


class LookingAhead:
    """Knows what is left to do. Owned by the state machine."""

    __slots__ = (
        "_abandoned",
        "_browsing",
        "_can_be_quiet",
        "_delivering",
        "_duplicates",
        "_messages",
        "_quiet_until_ms",
        "_schedule",
        "_sessions",
        "_space",
        "_time_to_live",
        "_transactions",
        "wall_ahead_ms",
    )

    def __init__(
        self,
        space: Workspace,
        time_to_live: TimeToLive,
        abandoned: Abandoned,
        schedule: Schedule,
        sessions: SessionLocks,
        delivering: Delivering,
        browsing: Browsing,
        transactions: Transactions,
        *,
        can_be_quiet: bool,
    ) -> None:
        """`can_be_quiet`: messages do not go on to subscriptions."""
        self._space, self._messages = space, space.messages
        self._time_to_live, self._abandoned, self._schedule = time_to_live, abandoned, schedule
        self._sessions, self._delivering, self._browsing = sessions, delivering, browsing
        self._transactions, self._duplicates = transactions, space.messages.states.duplicates
        self._can_be_quiet = can_be_quiet
        self.wall_ahead_ms = 0
        """How far wall time was ahead of monotonic time when the latest cycle began."""
        self._quiet_until_ms = 0
        """In monotonic time; 0 while the partition is not known to be quiet."""

    # --- quiet ----------------------------------------------------------------------------------------------

    def is_quiet(self, now_ms: int) -> bool:
        """Whether there is nothing to look for at this time."""
        return now_ms < self._quiet_until_ms

    def disturb(self) -> None:
        """Something else than a `Send` happens, or a time has come."""
        self._quiet_until_ms = 0
        self._space.cycle.is_quiet = False

    def look_at_new_messages(self) -> None:
        """Messages were stored while the partition was quiet: does it stay so, and for how long?"""
        if self._duplicates.slots or self._messages.main.schedule:
            self._quiet_until_ms = 0
        elif self._messages.soonest_end_ms < self._quiet_until_ms:
            self._quiet_until_ms = self._messages.soonest_end_ms

    def _look_for_quiet(self, due_ms: int | None) -> None:
        """Find out whether the partition is quiet until something falls due."""
        if self._is_undisturbed() and not self._finds_more():
            self._quiet_until_ms = NEVER_MS if due_ms is None else due_ms
            self._messages.soonest_end_ms = NEVER_MS

    def _is_undisturbed(self) -> bool:
        """Whether nobody waits for messages, and nothing falls due that is not a lock or a time to live."""
        is_idle = self._delivering.is_idle and self._browsing.is_idle and self._sessions.is_idle
        messages = self._messages
        return (
            is_idle
            and self._can_be_quiet
            and not self._duplicates.slots
            and not messages.main.schedule
            and messages.states.next_expiry_ms() is None
        )

    @property
    def has_locks(self) -> bool:
        """Whether messages or sessions are locked."""
        return bool(self._space.locks) or self._sessions.next_due_ms() is not None

    # --- what is left ---------------------------------------------------------------------------------------

    @property
    def has_more(self) -> bool:
        """Whether work is left for the next cycle, which should follow at once."""
        return not self._quiet_until_ms and self._finds_more()

    def _finds_more(self) -> bool:
        waits = self._time_to_live.has_more or self._browsing.has_more or self._space.locks.has_ended
        waits = waits or self._schedule.has_more or self._sessions.has_more or self._abandoned.has_more
        return waits or self._delivering.has_more or self._transactions.has_more

    def next_due_ms(self) -> int | None:
        """When a cycle is due even if no operation arrives."""
        if not self._quiet_until_ms:
            due_ms = self._find_next_due()
            self._look_for_quiet(due_ms)
            return due_ms
        return self._quiet_until_ms if self._quiet_until_ms < NEVER_MS else None

    def _find_next_due(self) -> int | None:
        due_ms = self._time_to_live.next_due_ms()
        for lock_ends_ms in (self._space.locks.next_due_ms(), self._sessions.next_due_ms()):
            if due_ms is None or (lock_ends_ms is not None and lock_ends_ms < due_ms):
                due_ms = lock_ends_ms
        if self._duplicates.slots:
            window_ms = self._space.description.settings.duplicate_detection_window_ms
            forget_ms = self._duplicates.next_due_ms(window_ms)
            if forget_ms is not None and (due_ms is None or forget_ms < due_ms):
                due_ms = forget_ms
        for wall_ms in (self._messages.states.next_expiry_ms(), self._schedule.next_due_ms()):
            if wall_ms is not None:
                wall_ms -= self.wall_ahead_ms
                due_ms = wall_ms if due_ms is None else min(due_ms, wall_ms)
        return due_ms

    def check(self) -> None:
        """Assert that a partition that counts as quiet is quiet."""
        if self._quiet_until_ms:
            due_ms = self._find_next_due()
            assert self._is_undisturbed() and not self._finds_more()
            assert due_ms is None or due_ms >= self._quiet_until_ms
