"""Receive from a subqueue: demand at every partition, messages that wait for credit, recall, settlements.

Credit becomes demand at every partition (`fan_out.py`), so a message in any of them is found at once. What
comes back beyond the credit waits on the shelf (`receive_cache.py`) until the client wants it, its lock is
about to run out, or its partition recalls it. Messages leave the shelf with their locks renewed. With
receive-and-delete, the removal comes first (`receive_and_delete.py`).

A drain asks every partition once, then withdraws the demand, and is answered when all partitions have
confirmed that nothing more is on its way. The end of a receiver does not settle anything: messages that the
client has seen stay locked until their locks run out; unseen messages go back at once.

The receiver of a message session asks the session's partition alone, holds nothing ready, and ends when the
session is lost. Its end frees the session, with all messages that are not settled.

Knows nothing of AMQP: messages go to a `Taker`. Runs in the event loop; nothing here waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from broker.base._sizes import total_bytes
from broker.base.clock import Clock
from broker.base.errors import Reason, Refused
from broker.base.few import Few
from broker.identifiers import LockToken
from broker.messaging.accepting_sessions import HeldSession
from broker.messaging.asking import by_partition
from broker.messaging.fan_out import DemandPlan, Plan, SessionPlan
from broker.messaging.guarded_sink import guarded
from broker.messaging.receive_and_delete import Removals, removed
from broker.messaging.receive_cache import ReceiveCache, Shelf, split
from broker.messaging.selecting import Scans, Selection
from broker.messaging.settlement import Settlement
from broker.namespace.entity import Entity, next_client
from broker.namespace.router import PartitionHandle
from broker.operations.general import Detach, Failed, Unavailable
from broker.operations.interface import Answer
from broker.operations.receiving import Demand, Locked, Recall, Recalled, Unmet, Withdraw, Withdrawn
from broker.operations.sessions import SessionLost
from broker.operations.settling import Release, RenewLocks, Settled

WITHDRAW_AFTER_S = 0.02
"""How long demand outlives the client's credit. A client that receives in a loop asks again at once."""
DUE_AT_ONCE = 32
"""How many receivers withdraw their demand, or ask again, in one turn of the event loop (`due`). Each tells
every partition, which takes some 30 µs if there are 16. If they were fewer, partitions would carry out more
cycles for them."""
RETRY_UNAVAILABLE_S = 0.25
"""How long to wait before asking again a partition that went down."""
RETRY_SPARED_S = 1.0
"""About how long for one that stays closed because memory is scarce."""

DRAIN_ON_S = 7.0
"""If a removal fails later than this in a drain, no other is begun for the drain, so that a client hears
within about 12 s even if every disk hangs."""

R = TypeVar("R")
"""A taker's receipt for a settlement, returned with its outcome."""
R_contra = TypeVar("R_contra", contravariant=True)


class Taker(Protocol[R_contra]):
    """The client's side of a receiver."""

    @property
    def allowance(self) -> int:
        """How many bytes may wait for the client."""

    def wanted(self) -> int:
        """How many messages the client can be given now; 0 or less if none."""

    def has_credit(self) -> bool:
        """Whether the client waits for messages, even if it cannot be given any now."""

    def is_draining(self) -> bool:
        """Whether the client wants what is there now, and then to be told that there is no more (§2.6.7)."""

    def is_blocked(self) -> bool:
        """Whether the client reads more slowly than it grants credit. Once it catches up, call
        `Receiver.credit_granted`."""

    def may_answer_drain(self) -> bool:
        """Whether the client can be told now that there is no more. If not, `Receiver.credit_granted` is
        called when it may be."""

    def drained(self) -> None:
        """No partition has more for now."""

    def take(self, locked: Locked) -> None:
        """Take messages for the client, either locked or already removed."""

    def shelf_bytes(self) -> int:
        """How many bytes may be held ready beyond the client's credit."""

    def shelved(self, size: int) -> None:
        """`size` more bytes are held ready."""

    def settled(self, receipt: R_contra, settlement: Settlement, failures: Mapping[int, Reason]) -> None:
        """A settlement is durable, except for the failures (by position among its tokens)."""

    def not_settled(self, receipt: R_contra, why: Refused) -> None:
        """A settlement failed as a whole."""

    def refuse(self, why: Refused) -> None:
        """The namespace has had no credits for this client for too long: end it with this error."""

    def session_lost(self) -> None:
        """The lock of the client's session has ended: end this client."""

    def fail(self) -> None:
        """An unexpected exception is being handled: end this client, and no other."""


class Receiver(Generic[R]):
    """One client of a subqueue. Owned by the event loop."""

    __slots__ = (
        "_cache",
        "_client",
        "_clock",
        "_cookies",
        "_drain_asked",
        "_drain_until",
        "_due",
        "_gate",
        "_handles",
        "_has_ended",
        "_is_drain_over",
        "_message_bytes",
        "_meter",
        "_plan",
        "_queue",
        "_removals",
        "_removes",
        "_retry_timer",
        "_scans",
        "_session",
        "_settling",
        "_shelf",
        "_shelf_timer",
        "_subqueue",
        "_taker",
        "_withdraw_timer",
        "_withdrawals",
    )

    def __init__(
        self,
        queue: Entity,
        subqueue: str,
        taker: Taker[R],
        *,
        cache: ReceiveCache,
        clock: Clock,
        due: Few,
        removes: bool,
        session: HeldSession | None = None,
        selection: Selection | None = None,
    ) -> None:
        """`due` makes the calls for which the time has come, of all receivers. `removes` selects
        receive-and-delete instead of peek-lock. `session` is the session to receive from. With a `selection`,
        only messages that its selector matches are received."""
        self._queue, self._subqueue, self._taker = queue, subqueue, taker
        self._cache, self._clock, self._due, self._removes = cache, clock, due, removes
        self._scans = Scans(queue, subqueue, selection, self._wanted) if selection is not None else None
        self._handles: Sequence[PartitionHandle] = self._scans.all if self._scans else queue.router.handles
        self._session = session
        if session is None:
            self._client = next_client()
            self._plan: Plan = DemandPlan(len(self._handles))
        else:
            self._client = session.client
            self._plan = SessionPlan(len(self._handles), session.partition)
        self._withdrawals = [0] * len(self._handles)
        """By partition: `Withdrawn` answers still to come."""
        self._drain_asked = False
        self._drain_until = 0.0
        """When no more removals are begun for the drain after one has failed, by the event loop's clock."""
        self._is_drain_over = False
        """Nothing more is handed over in this drain, because removals take too long and fail."""
        self._shelf = Shelf(cache, queue.kept_ready)
        self._settling: dict[int, tuple[Settlement, int, R]] = {}
        """Settlements being written to the log, by cookie: the settlement, its number of messages, and the
        taker's receipt."""
        self._removals = Removals()
        self._cookies = 0
        self._message_bytes = 1024
        """A running estimate of the size of one message, so as not to ask for more than the shelf can
        hold."""
        self._has_ended = False
        self._shelf_timer: asyncio.TimerHandle | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._withdraw_timer: asyncio.TimerHandle | None = None
        self._meter = queue.meter
        self._gate = None if queue.throttle is None else queue.throttle.gate(self._resumed, taker.refuse)
        """What the namespace's throttling lets through; None if it is not throttled."""

    @property
    def drains(self) -> bool:
        """Whether a drain is under way, also one that the client has cancelled."""
        return self._drain_asked

    @property
    def removes_now(self) -> bool:
        """Whether messages for the client are being removed, so that it must be given them."""
        return self._removals.count > 0

    # --- credit in, demand out ------------------------------------------------------------------------------

    def credit_granted(self) -> None:
        """The client's credit has changed, or it can be given messages again."""
        if self._has_ended:
            return
        taker = self._taker
        if self._shelf:
            self._serve_from_shelf()
        if not (taker.is_draining() and taker.has_credit()):
            self._ask()
        elif not self._drain_asked and not self._is_blocked():
            self._drain_asked = True
            self._drain_until = asyncio.get_running_loop().time() + DRAIN_ON_S
            self._drain_round(everywhere=True)
        if self._drain_asked:
            self._finish_drain()
        if self._scans is not None:
            self._scans.go_on()

    @property
    def is_removing(self) -> bool:
        """Whether messages are being removed that the client gets afterwards."""
        return self._removals.count > 0

    def _wanted(self) -> int:
        """How many messages may be handed over now."""
        wanted = self._taker.wanted()
        if wanted <= 0 or self._is_drain_over:
            return 0
        wanted = min(wanted - self._removals.count, max(self._taker.allowance // self._message_bytes, 1))
        return wanted if self._gate is None or wanted <= 0 else min(wanted, self._gate.room())

    def _is_blocked(self) -> bool:
        """Whether a drain has to wait, because messages cannot be handed over now. `credit_granted` is called
        when they can."""
        return self._taker.is_blocked() or (self._gate is not None and self._gate.room() <= 0)

    def _resumed(self) -> None:
        """The namespace has credits again, or a partition may be back. An error here ends this client, and no
        other."""
        try:
            self.credit_granted()
        except Exception:
            self._taker.fail()

    def _ask(self) -> None:
        """Ask for what is wanted; withdraw the demand if nothing has been wanted for a while."""
        wanted = self._wanted()
        if wanted <= 0:
            if self._withdraw_timer is None and any(self._plan.asked):
                self._withdraw_timer = asyncio.get_running_loop().call_later(
                    WITHDRAW_AFTER_S, self._withdraw_is_due
                )
            return
        handles, client, answered, demand = self._handles, self._client, self._answered, None
        for number, count, tell_unmet in self._plan.ask(wanted, self._run_max()):
            if self._stays_closed(number):
                self._plan.forget(number)
                self._retry_in(RETRY_SPARED_S * (0.75 + client % 32 / 64))  # not thousands at once
                continue
            if demand is None or demand.count != count or demand.tell_unmet is not tell_unmet:
                demand = Demand(self._subqueue, count, tell_unmet, self._bytes_max())
            handles[number].post(demand, client, answered)

    def _stays_closed(self, number: int) -> bool:
        """Whether there is no memory for a closed partition now. With a selector, the one that has its turn
        may hold nothing for this receiver, so that the others are opened as well."""
        queue = self._queue
        if queue.spares(number, self._subqueue):
            return True
        return self._scans is None and queue.awaits_room(number, self._subqueue)

    def _run_max(self) -> int:
        """How many messages may come from one partition at once."""
        return max(
            min(self._bytes_max() // self._message_bytes, self._cache.messages_max // 2),
            1,
        )

    def _bytes_max(self) -> int:
        """The same limit in bytes, which only the partition can apply exactly."""
        return self._taker.allowance // 2

    def _withdraw_is_due(self) -> None:
        self._withdraw_timer = None
        self._due.soon(self._withdraw_if_unwanted)

    def _withdraw_if_unwanted(self) -> None:
        try:
            if not self._has_ended and self._wanted() <= 0:
                self._withdraw()
        except Exception:
            self._taker.fail()

    def _withdraw(self) -> None:
        """The client wants nothing now: stop all partitions from locking more for it."""
        withdraw, answered = Withdraw(self._subqueue), self._answered
        for number in self._plan.withdraw():
            self._withdrawals[number] += 1
            self._handles[number].post(withdraw, self._client, answered)

    def _drain_round(self, *, everywhere: bool) -> None:
        """Ask for what is there now, in all partitions or in those that still flow."""
        for number, count in self._plan.ask_once(self._wanted(), self._run_max(), everywhere):
            if self._stays_closed(number):
                self._plan.forget(number)
                continue
            self._handles[number].post(
                Demand(self._subqueue, count, bytes_max=self._bytes_max()), self._client, self._answered
            )
        self._withdraw()

    def _finish_drain(self) -> None:
        """Answer the drain once nothing more is on its way and no partition has more."""
        if not self._drain_asked or any(self._withdrawals) or self._removals.count:
            return
        taker = self._taker
        is_draining = taker.is_draining()
        if is_draining and taker.has_credit():
            if self._is_blocked():
                return
            if self._wanted() > 0:
                self._drain_round(everywhere=False)
                if any(self._withdrawals):
                    return
            if not taker.may_answer_drain():
                return
        self._drain_asked = self._is_drain_over = False
        if is_draining:
            taker.drained()
        else:  # the client has cancelled the drain
            self._ask()

    # --- answers of the partitions --------------------------------------------------------------------------

    def _fail(self) -> None:
        """An unexpected exception is being handled: end this client, and no other."""
        self._taker.fail()

    @guarded
    def _answered(self, answer: Answer) -> None:
        match answer:
            case Locked():
                self._locked(answer)
            case Settled():
                self._settled(answer)
            case Unmet():
                self._plan.unmet(answer.partition)
                if not self._has_ended and not self._drain_asked:
                    self._ask()
            case Withdrawn():
                if self._withdrawals[answer.partition]:
                    self._withdrawals[answer.partition] -= 1
                if not self._has_ended:
                    self._finish_drain()
            case Recall():
                tokens = self._shelf.recall(answer.partition, answer.subqueue)
                self._meter.receive_cache_recalls += len(tokens)
                self._handles[answer.partition].post(
                    Recalled(answer.subqueue, tokens), self._client, self._answered
                )
            case Failed():
                self._failed(answer)
            case SessionLost():
                self._session_lost()
            case Unavailable():
                self._unavailable(answer.partition, answer.for_good)
            case _:  # Renewed: the lock was extended when it was handed over
                pass

    def _locked(self, locked: Locked) -> None:
        if self._has_ended:
            self._handles[locked.partition].post(Release(locked.tokens), self._client, self._answered)
            return
        count = len(locked.tokens)
        self._plan.answered(locked.partition, count, voids_demand=locked.voids_demand)
        self._message_bytes = max(64, (self._message_bytes + total_bytes(locked.messages) // count) // 2)
        rest: Locked | None = locked
        if not self._shelf:
            wanted = self._wanted()
            if wanted > 0:
                now, rest = split(locked, wanted)
                assert now is not None
                self._meter.receive_cache_misses += len(now.tokens)
                self._hand_over(now)
        if rest is not None and self._session is not None:
            self._handles[rest.partition].post(Release(rest.tokens), self._client, self._answered)
        elif rest is not None:
            self._keep(rest)
            self._serve_from_shelf()
        if not self._drain_asked:
            self._ask()

    # --- the shelf ------------------------------------------------------------------------------------------

    def _keep(self, locked: Locked) -> None:
        cache, taker = self._cache, self._taker
        cache.bytes_max = taker.shelf_bytes()
        before = cache.bytes
        over = self._shelf.put(locked)
        taker.shelved(cache.bytes - before)
        if over is not None:
            self._handles[over.partition].post(Release(over.tokens), self._client, self._answered)
        self._watch_shelf()

    def _serve_from_shelf(self) -> None:
        if self._shelf:
            self._expire_shelf()
        while self._shelf and (wanted := self._wanted()) > 0:
            locked = self._shelf.take(wanted)
            if locked is None:
                return
            self._meter.receive_cache_hits += len(locked.tokens)
            duration_ms = self._queue.lock_duration_ms(self._subqueue)
            now_ms = self._clock.monotonic_ms()
            # Do not renew a lock that is nearly new: many messages are on the shelf only for a moment.
            if locked.locked_until_ms < now_ms + duration_ms - duration_ms // 20 and not self._removes:
                self._handles[locked.partition].post(RenewLocks(locked.tokens), self._client, self._answered)
                locked.locked_until_ms = now_ms + duration_ms
            self._hand_over(locked)

    def _margin_ms(self) -> int:
        """Do not hand over a message whose lock runs out this soon, because the renewal might come too
        late."""
        return min(self._queue.lock_duration_ms(self._subqueue) // 4, 5_000)

    def _expire_shelf(self) -> None:
        now_ms = self._clock.monotonic_ms()
        tokens = self._shelf.expire(now_ms + self._margin_ms())
        for number, group in by_partition(tokens).items():
            self._handles[number].post(Release(group), self._client, self._answered)

    def _watch_shelf(self) -> None:
        """Give messages back before their locks run out if the client does not take them."""
        until_ms = self._shelf.locked_until_ms()
        if self._shelf_timer is None and until_ms is not None and not self._has_ended:
            delay_ms = max(until_ms - self._margin_ms() - self._clock.monotonic_ms(), 10)
            self._shelf_timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._shelf_is_due)

    def _shelf_is_due(self) -> None:
        self._shelf_timer = None
        self._expire_shelf()
        self._watch_shelf()

    # --- messages out ---------------------------------------------------------------------------------------

    def _hand_over(self, locked: Locked) -> None:
        if self._gate is not None:
            self._gate.charge(len(locked.tokens))
        if self._removes:
            self._cookies += 1
            self._handles[locked.partition].post(
                self._removals.begin(locked, self._cookies), self._client, self._answered
            )
        else:
            self._taker.take(locked)

    def _removed(self, locked: Locked, settled: Settled) -> None:
        """The removal is durable, so the messages may leave (durability rule 2)."""
        if self._has_ended:
            return
        locked = removed(locked, settled.failures)
        if locked.tokens:
            self._taker.take(locked)
        self.credit_granted()

    # --- settlement back ------------------------------------------------------------------------------------

    def settle(self, number: int, tokens: Sequence[LockToken], settlement: Settlement, receipt: R) -> None:
        """Ask a partition to settle messages that it has locked. Its answer reaches the taker with `receipt`,
        even after the end; a release gets no answer."""
        self._cookies += 1
        if settlement.is_answered:
            self._settling[self._cookies] = settlement, len(tokens), receipt
        self._handles[number].post(settlement.operation(tokens, self._cookies), self._client, self._answered)

    def _settled(self, settled: Settled) -> None:
        assert isinstance(settled.cookie, int), "cookies of a receiver are numbers"
        locked = self._removals.end(settled.cookie)
        if locked is not None:
            self._removed(locked, settled)
            return
        settlement, count, receipt = self._settling.pop(settled.cookie)
        settlement.count(self._meter, count - len(settled.failures))
        self._taker.settled(receipt, settlement, settled.failures)

    def _failed(self, failed: Failed) -> None:
        if not isinstance(failed.cookie, int):
            return
        if self._removals.end(failed.cookie) is not None:
            self._is_drain_over = self._drain_asked and asyncio.get_running_loop().time() >= self._drain_until
            self.credit_granted()
            return
        _, _, receipt = self._settling.pop(failed.cookie)
        self._taker.not_settled(receipt, Refused(failed.reason, failed.description))

    # --- sessions and partitions that are lost --------------------------------------------------------------

    def _unavailable(self, number: int, for_good: bool) -> None:
        """Locks and demand in the partition are void. Ask again later, unless the partition is down for
        good."""
        if for_good:
            self._plan.give_up(number)
        else:
            self._plan.forget(number)
        if self._session is not None:
            self._session_lost()
            return
        self._withdrawals[number] = 0  # the partition has forgotten any withdrawal it had not answered
        self._shelf.recall(number, self._subqueue)
        self._retry_in(RETRY_UNAVAILABLE_S)

    def _session_lost(self) -> None:
        if not self._has_ended:
            self._taker.session_lost()

    def _retry_in(self, delay_s: float) -> None:
        if self._retry_timer is None and not self._has_ended:
            self._retry_timer = asyncio.get_running_loop().call_later(delay_s, self._retry)

    def _retry(self) -> None:
        self._retry_timer = None
        self._due.soon(self._resumed)

    # --- the end --------------------------------------------------------------------------------------------

    def end(self, returned: Sequence[LockToken] = ()) -> None:
        """The client is gone: unseen messages go back at once, the others when their locks run out.
        `returned` are messages that the taker has taken, but that the client has not seen."""
        self._has_ended = True
        if self._gate is not None:
            self._gate.end()
        for timer in (self._shelf_timer, self._retry_timer, self._withdraw_timer):
            if timer is not None:
                timer.cancel()
        self._shelf_timer = self._retry_timer = self._withdraw_timer = None
        on_shelf = [token for chunk in self._shelf.clear() for token in chunk.tokens]
        unseen = by_partition([*returned, *on_shelf])
        self._meter.receive_cache_returns += sum(map(len, unseen.values()))
        for number, handle in enumerate(self._handles):
            if self._session is not None and number != self._session.partition:
                continue
            handle.post(Detach(unseen.get(number, ())), self._client, self._answered)
        if self._scans is not None:
            self._scans.end()
            self._scans, self._handles = None, self._queue.router.handles
