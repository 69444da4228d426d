"""Throttling by credits: the one point of admission for every operation of a throttled namespace (HTTP
contract 6.3, AMQP contract 9.3).

- What a client asks for is admitted or refused as a whole, before anything is done (`admit`). Messages that
  have an outcome each are admitted one by one, as far as the credits go (`admit_some`).
- A client that is given messages is not refused: its *gate* lets through no more of them than there are
  credits, charges them as they are handed over, and calls the receiver when there are credits again. A
  receiver that gets none for HELD_MS_MAX is told that the broker is busy.

While other operations are refused, receivers leave them half of each period's credits; they come first when
a period begins, and could take all of them otherwise. Among themselves, receivers that wait share the
credits: in each *round*, every one may get the same number of messages, and those that have got none for
longest come first. What is left over is for the next round. Time in which the broker stood still, as on a
machine that was suspended, is nobody's wait: after it, receivers are not refused for credits that they could
not have got.

A namespace without throttling has no Throttle, so it pays for one comparison per batch at most. Owned by the
event loop.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from typing import Protocol

import structlog

from broker.base.clock import Clock
from broker.base.errors import Reason, Refused
from broker.throttle.credits import PERIOD_MS, Credits

log = structlog.get_logger("throttle")

MANAGEMENT_CREDITS = 10
"""What a management operation costs, whatever the number of partitions that it concerns."""
HELD_MS_MAX = 10_000
LOG_EVERY_MS = 10_000
ROUND_MS = 50
"""How long after the beginning of a round the next one begins, if there are credits left."""
RESUMED_AT_ONCE = 64
"""Receivers to call before others get their turn on the event loop."""


class Throttling(Protocol):
    """What every throttled namespace has: `Throttle` below, and `ResourceThrottle` in `resources.py`."""

    def admit(self, cost: int, *, frees_memory: bool = False) -> None:
        """Admit an operation; `frees_memory` says that it removes messages or an entity. Raises
        Refused(THROTTLED)."""

    def admit_all(self, messages: int, filters: int) -> None:
        """Admit messages that a client sends together, each of which is compared with so many filters. Raises
        Refused(THROTTLED)."""

    def admit_some(self, messages: int, filters: int) -> int:
        """Admit messages that have an outcome each; returns how many of them. The caller refuses the others
        as `throttled`."""

    def gate(self, resume: Callable[[], None], refuse: Callable[[Refused], None]) -> Gate | None:
        """A gate for one receiver; None if receivers are not throttled."""

    def left_for_receivers(self) -> int:
        """How many messages receivers may be given now; 0 or less if none."""

    def charge(self, messages: int) -> None:
        """Count messages that are handed over or shown to a client."""


class Throttle:
    """The throttling of one namespace by credits."""

    def __init__(
        self,
        namespace: str,
        credits: int,
        clock: Clock,
        counted: Callable[[int], None],
        filter_credits: int = 0,
    ) -> None:
        """`credits` are given per period. `counted` gets the credits that refused operations would have cost.
        `filter_credits` is what it costs to compare one message with one filter."""
        self._namespace, self._clock, self._counted = namespace, clock, counted
        self._credits = Credits(credits, clock.monotonic_ms())
        self._filter_credits = filter_credits
        self._received = 0
        """Credits that receivers have used in the period that began at `_received_in_ms`."""
        self._received_in_ms = self._refused_at_ms = self._logged_at_ms = clock.monotonic_ms() - LOG_EVERY_MS
        self._refused_since_log = 0
        self._held: dict[Gate, None] = {}
        """Gates whose receivers are to be called in the next round."""
        self._due: deque[Gate] = deque()
        """Gates whose receivers are being called."""
        self._timer: asyncio.Handle | None = None
        """Set while a round is under way, and while gates are held."""
        self._due_ms = 0
        """When the next round is to begin."""
        self._stood_still_ms = 0
        """How late rounds have begun, all together."""
        self.round = 0
        """The number of the present round."""
        self.share = sys.maxsize
        """How many messages each receiver may get in it."""

    # --- operations that are refused ------------------------------------------------------------------------

    def admit(self, cost: int, *, frees_memory: bool = False) -> None:
        """Pay for an operation, whether it frees memory or not. Raises Refused(THROTTLED)."""
        if not self._credits.admit(cost, self._clock.monotonic_ms()):
            self._note_refused(max(cost, 1))
            raise throttled()

    def admit_all(self, messages: int, filters: int) -> None:
        """Pay for messages that are sent together, or for none of them. Raises Refused(THROTTLED)."""
        self.admit(messages * self._cost_of_one(filters))

    def admit_some(self, messages: int, filters: int) -> int:
        """Pay for as many of the messages as there are credits for; returns how many these are. The caller
        refuses the others as `throttled`."""
        cost = self._cost_of_one(filters)
        admitted = self._credits.admit_some(messages, cost, self._clock.monotonic_ms())
        if admitted < messages:
            self._note_refused((messages - admitted) * cost)
        return admitted

    def _cost_of_one(self, filters: int) -> int:
        """What it costs to send a message that is compared with so many filters."""
        return 1 + filters * self._filter_credits

    def _note_refused(self, credits: int) -> None:
        now_ms = self._clock.monotonic_ms()
        self._refused_at_ms = now_ms
        self._refused_since_log += credits
        self._counted(credits)
        if now_ms - self._logged_at_ms >= LOG_EVERY_MS:
            log.warning(
                "throttle.refused",
                namespace=self._namespace,
                credits_refused=self._refused_since_log,
                credits_per_second=self._credits.per_period * 1_000 // PERIOD_MS,
            )
            self._logged_at_ms, self._refused_since_log = now_ms, 0

    # --- receivers, who wait --------------------------------------------------------------------------------

    def gate(self, resume: Callable[[], None], refuse: Callable[[Refused], None]) -> Gate:
        """A gate for one receiver. `resume` is called when it may get messages again, `refuse` when it has
        got none for too long."""
        return Gate(self, self._clock, resume, refuse)

    def left_for_receivers(self) -> int:
        """How many messages receivers may be given now; 0 or less if none."""
        now_ms = self._clock.monotonic_ms()
        left, begun_ms = self._credits.balance(now_ms), self._period_begun_ms(now_ms)
        if self._refused_at_ms >= begun_ms - PERIOD_MS:
            return min(left, max(self._credits.per_period // 2, 1) - self._received)
        return left

    def charge(self, messages: int) -> None:
        """Pay for messages that are handed over or shown to a client."""
        now_ms = self._clock.monotonic_ms()
        self._credits.charge(messages, now_ms)
        self._period_begun_ms(now_ms)
        self._received += messages

    def _period_begun_ms(self, now_ms: int) -> int:
        begun_ms = self._credits.period_begun_ms(now_ms)
        if begun_ms != self._received_in_ms:
            self._received_in_ms, self._received = begun_ms, 0
        return begun_ms

    def hold(self, gate: Gate) -> None:
        """Call the gate's receiver in the next round."""
        self._held.setdefault(gate)
        if self._timer is None:
            self._look_later()

    def forget(self, gate: Gate) -> None:
        """The gate's receiver has ended."""
        self._held.pop(gate, None)

    def _look_later(self) -> None:
        now_ms = self._clock.monotonic_ms()
        delay_ms = self._credits.period_begun_ms(now_ms) + PERIOD_MS - now_ms
        if self.left_for_receivers() > 0:
            delay_ms = min(delay_ms, ROUND_MS)
        self._due_ms = now_ms + delay_ms
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1_000, self.look)

    def waiting_ms(self) -> int:
        """Monotonic time without that in which the broker stood still."""
        return self._clock.monotonic_ms() - self._stood_still_ms

    def look(self) -> None:
        """Begin a round: call the receivers that are held, a few at a time. The timer does so."""
        if self._timer is not None:
            self._timer.cancel()  # but keep it, so that those that are held meanwhile start no other one
            late_ms = self._clock.monotonic_ms() - self._due_ms
            self._stood_still_ms += late_ms if late_ms > PERIOD_MS else 0
        self._due.extend(sorted(self._held, key=lambda gate: gate.served_ms))
        self._held.clear()
        self.round += 1
        waiting = len(self._due)
        self.share = max(self.left_for_receivers() // waiting, 1) if waiting > 1 else sys.maxsize
        self._resume_some()

    def _resume_some(self) -> None:
        for _ in range(min(len(self._due), RESUMED_AT_ONCE)):
            self._due.popleft().resume()
        if self._due:
            self._timer = asyncio.get_running_loop().call_soon(self._resume_some)
            return
        self._timer = None
        if self._held:
            self._look_later()


class Gate:
    """Lets messages through to one receiver, as far as the credits go."""

    __slots__ = (
        "_clock",
        "_given",
        "_has_asked",
        "_has_ended",
        "_held_since_ms",
        "_refuse",
        "_resume",
        "_round",
        "_throttle",
        "served_ms",
    )

    def __init__(
        self,
        throttle: Throttle,
        clock: Clock,
        resume: Callable[[], None],
        refuse: Callable[[Refused], None],
    ) -> None:
        self._throttle, self._clock, self._resume, self._refuse = throttle, clock, resume, refuse
        self._held_since_ms: int | None = None
        """In the time of `Throttle.waiting_ms`."""
        self._has_asked = self._has_ended = False
        self._round = self._given = 0
        """How many messages the receiver was given in a round, and which round this was."""
        self.served_ms = 0
        """When the receiver was last given messages."""

    def room(self) -> int:
        """How many messages the receiver may be given now. If none, it is called when there may be some."""
        self._has_asked = True
        throttle = self._throttle
        left = min(throttle.left_for_receivers(), throttle.share - self._given_in(throttle.round))
        if left > 0:
            self._held_since_ms = None
            return left
        if self._held_since_ms is None:
            self._held_since_ms = throttle.waiting_ms()
        throttle.hold(self)
        return 0

    def _given_in(self, round: int) -> int:
        if round != self._round:
            self._round, self._given = round, 0
        return self._given

    def charge(self, messages: int) -> None:
        """Pay for messages that the receiver is given."""
        self._given = self._given_in(self._throttle.round) + messages
        self.served_ms = self._clock.monotonic_ms()
        self._throttle.charge(messages)

    def resume(self) -> None:
        """Call the receiver: a round has begun. One that wants nothing any more waits no longer, and one that
        gets nothing has perhaps waited long enough."""
        if self._has_ended:
            return
        self._has_asked = False
        self._resume()
        if not self._has_asked:
            self._held_since_ms = None
        elif (
            self._held_since_ms is not None
            and self._throttle.waiting_ms() - self._held_since_ms >= HELD_MS_MAX
        ):
            self._throttle.forget(self)
            asyncio.get_running_loop().call_soon(self._give_up)

    def _give_up(self) -> None:
        if not self._has_ended:
            self._refuse(throttled())

    def end(self) -> None:
        """The receiver has ended."""
        self._has_ended = True
        self._throttle.forget(self)
        del self._resume, self._refuse  # they lead to the receiver, which has this gate


def throttle_of(
    namespace: str, credits: int, clock: Clock, counted: Callable[[int], None], filter_credits: int = 0
) -> Throttle | None:
    """The throttling of a namespace that is given so many credits; None if these are 0, which means without
    limit."""
    return Throttle(namespace, credits, clock, counted, filter_credits) if credits else None


def throttled() -> Refused:
    """The refusal of an operation in a throttled namespace, in the service's words: clients may look for
    them."""
    return Refused(
        Reason.THROTTLED,
        "The request was terminated because the entity is being throttled. Error code: 50009. Please wait "
        "2 seconds and try again.",
    )
