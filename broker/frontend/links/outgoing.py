"""The client receives: credit in, deliveries out, settlement back.

Credit becomes demand at every partition (a share each), so that a message anywhere is found at once; what
comes back beyond the credit waits on the shelf (`receive_cache.py`). Locked messages leave the shelf with
their locks renewed. Receive-and-delete is the same with one step more: the messages are completed first, and
sent, settled, when their removal is durable (durability rule 2).

A drain asks every partition once, takes the demand back, and is answered when all have confirmed that nothing
more is on its way (§2.6.7). Detaching is not a settlement: what the client has seen stays locked until its
lock runs out; what it has not seen goes back at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set
from typing import Any

from broker.access.addresses import Address
from broker.base.errors import Reason, Refused
from broker.frontend.host import Host
from broker.frontend.links.fan_out import DemandPlan
from broker.frontend.links.receive_cache import Shelf, split, without
from broker.frontend.links.termini import check_sessions
from broker.message.annotations import deliverables
from broker.message.changes import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON, encode_changes
from broker.message.stored import HEAD
from broker.namespace.queue import Queue, next_client
from broker.operations import (
    Abandon,
    Answer,
    Complete,
    DeadLetter,
    Defer,
    Demand,
    Detach,
    Failed,
    Locked,
    LockToken,
    Recall,
    Recalled,
    Release,
    RenewLocks,
    Settled,
    Unavailable,
    Unmet,
    Withdraw,
    Withdrawn,
    partition_of_token,
)
from broker.wording import error_of, no_transactions
from protocol.codec import DecodeError
from protocol.events import DeliveriesUpdated, ErrorCondition, Outcome
from protocol.links import SETTLED, Delivery, Link
from protocol.values import decode_bounded

WITHDRAW_AFTER_S = 0.02
"""How long demand outlives the client's credit: one who receives in a loop asks again at once."""
RETRY_UNAVAILABLE_S = 0.25
"""How long to wait before asking a partition again that went down."""
DEAD_LETTER_CONDITION = "com.microsoft:dead-letter"


class OutgoingLink:
    """A link on which a client receives from a subqueue. Owned by its connection."""

    rights = ("Listen",)

    @classmethod
    def attach(cls, connection: Host, link: Link, queue: Queue, address: Address) -> None:
        """Accept the link. Raises Refused."""
        accept_receiver(connection, link, queue, address)
        link.context = cls(connection, link, queue, address)

    def __init__(self, connection: Host, link: Link, queue: Queue, address: Address) -> None:
        self.link, self.queue, self.subqueue, self.path = link, queue, address.subqueue, address.path
        self._connection, self._engine = connection, connection.engine
        self._client = next_client()
        self._settled_mode = link.snd_settle_mode == SETTLED
        self._handles = queue.router.handles
        self._plan = DemandPlan(len(self._handles))
        self._withdrawals = [0] * len(self._handles)
        """By partition: answers `Withdrawn` that are still to come."""
        self._drain_asked = False
        self._shelf = Shelf(connection.cache)
        self._unsettled: dict[Delivery, LockToken] = {}
        self._settling: dict[int, tuple[Sequence[Delivery], DeliveriesUpdated]] = {}
        """By cookie: deliveries whose settlement is on its way to the log."""
        self._removing: dict[int, Locked] = {}
        """By cookie: with receive-and-delete, messages whose removal is."""
        self._removing_count = 0
        self._cookies = 0
        self._message_bytes = 1024
        """A running estimate: how large one message is, to ask for no more than the shelf can hold."""
        self._shelf_timer: asyncio.TimerHandle | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._withdraw_timer: asyncio.TimerHandle | None = None
        self._meter = queue.meter
        queue.watchers.add(self)

    # --- credit in, demand out ------------------------------------------------------------------------------

    def credit_granted(self) -> None:
        """The client's credit is another one, or the wire takes bytes again."""
        if self.link.gone:
            return
        self._serve_from_shelf()
        if not (self._engine.draining(self.link) and self._engine.credit(self.link) > 0):
            self._ask()
        elif not self._drain_asked and not self._is_blocked():
            self._drain_asked = True
            self._drain_round(everywhere=True)
        self._finish_drain()

    def _wanted(self) -> int:
        """How many messages may be handed over now."""
        credit = self._engine.credit(self.link)
        if credit <= 0 or self._is_blocked():
            return 0
        connection = self._connection
        wanted = (
            min(credit, connection.services.settings.unsettled_per_link_max - len(self._unsettled))
            - self._removing_count
        )
        return min(wanted, max(connection.room // self._message_bytes, 1))

    def _is_blocked(self) -> bool:
        """The client does not read as fast as it grants credit. Its connection calls `credit_granted` when
        there is room again."""
        return not self._connection.has_room_for(self)

    def _ask(self) -> None:
        """Ask for what is wanted; take the demand back if nothing has been wanted for a while."""
        wanted = self._wanted()
        if wanted <= 0:
            if self._withdraw_timer is None and any(self._plan.asked):
                self._withdraw_timer = asyncio.get_running_loop().call_later(
                    WITHDRAW_AFTER_S, self._withdraw_is_due
                )
            return
        for number, count, tell_unmet in self._plan.ask(wanted, self._run_max()):
            self._handles[number].post(
                Demand(self.subqueue, count, tell_unmet, self._bytes_max()), self._client, self._answered
            )

    def _run_max(self) -> int:
        """How many messages may come from one partition at once."""
        connection = self._connection
        return max(
            min(
                connection.room // (4 * self._message_bytes),
                connection.services.settings.receive_cache_messages // 2,
            ),
            1,
        )

    def _bytes_max(self) -> int:
        """The same in bytes, which only the partition knows exactly."""
        return self._connection.room // 4

    def _withdraw_is_due(self) -> None:
        self._withdraw_timer = None
        if not self.link.gone and self._wanted() <= 0:
            self._withdraw()

    def _withdraw(self) -> None:
        """The client wants nothing now: no partition shall lock anything more for it."""
        for number in self._plan.withdraw():
            self._withdrawals[number] += 1
            self._handles[number].post(Withdraw(self.subqueue), self._client, self._answered)

    def _drain_round(self, *, everywhere: bool) -> None:
        """Ask for what there is now, in all partitions or in those that gave something in the round
        before."""
        for number, count in self._plan.ask_once(self._wanted(), self._run_max(), everywhere):
            self._handles[number].post(
                Demand(self.subqueue, count, bytes_max=self._bytes_max()), self._client, self._answered
            )
        self._withdraw()

    def _finish_drain(self) -> None:
        """Answer the drain when nothing is on its way any more, and no partition has more."""
        if not self._drain_asked or any(self._withdrawals) or self._removing_count:
            return
        is_draining = self._engine.draining(self.link)
        if is_draining and self._engine.credit(self.link) > 0:
            if self._is_blocked():
                return
            if self._wanted() > 0:
                self._drain_round(everywhere=False)
                if any(self._withdrawals):
                    return
        self._drain_asked = False
        if is_draining:
            self._engine.drained(self.link)
            self._connection.flush_soon()
        else:  # the client has thought better of it
            self._ask()

    # --- answers of the partitions --------------------------------------------------------------------------

    def _answered(self, answer: Answer) -> None:
        """Called by the partitions' tasks: what goes wrong here ends this connection, and no partition."""
        try:
            self._take(answer)
        except Exception:
            self._connection.fail()

    def _take(self, answer: Answer) -> None:
        match answer:
            case Locked():
                self._locked(answer)
            case Settled():
                self._settled(answer)
            case Unmet():
                self._plan.unmet(answer.partition)
                if not self.link.gone and not self._drain_asked:
                    self._ask()
            case Withdrawn():
                if self._withdrawals[answer.partition]:
                    self._withdrawals[answer.partition] -= 1
                if not self.link.gone:
                    self._finish_drain()
            case Recall():
                tokens = self._shelf.recall(answer.partition, answer.subqueue)
                self._meter.receive_cache_recalls += len(tokens)
                self._handles[answer.partition].post(
                    Recalled(answer.subqueue, tokens), self._client, self._answered
                )
            case Failed():
                self._failed(answer)
            case Unavailable():
                self._unavailable(answer.partition, answer.for_good)
            case _:  # Renewed: the lock was extended when it was handed over
                pass

    def _locked(self, locked: Locked) -> None:
        count = len(locked.tokens)
        self._plan.answered(locked.partition, count, voids_demand=locked.voids_demand)
        if self.link.gone:
            self._handles[locked.partition].post(Release(locked.tokens), self._client, self._answered)
            return
        self._message_bytes = max(64, (self._message_bytes + sum(map(len, locked.messages)) // count) // 2)
        rest: Locked | None = locked
        wanted = 0
        if not self._shelf:
            wanted = self._wanted()
            if wanted > 0:
                now, rest = split(locked, wanted)
                assert now is not None
                self._meter.receive_cache_misses += len(now.tokens)
                self._hand_over(now)
        if rest is not None:
            self._keep(rest)
            self._serve_from_shelf()
        if not self._drain_asked:
            self._ask()

    # --- the shelf ------------------------------------------------------------------------------------------

    def _keep(self, locked: Locked) -> None:
        connection, output = self._connection, self._connection.services.output
        cache = connection.cache
        cache.bytes_max = min(
            connection.services.settings.receive_cache_bytes, output.shelf_bytes(connection.room)
        )
        before = cache.bytes
        over = self._shelf.put(locked)
        output.add(connection, cache.bytes - before)
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
            duration_ms = self.queue.description.settings.lock_duration_ms
            now_ms = self._connection.services.clock.monotonic_ms()
            # A lock that is nearly new is left as it is: messages pass over the shelf in passing, too.
            if locked.locked_until_ms < now_ms + duration_ms - duration_ms // 20 and not self._settled_mode:
                self._handles[locked.partition].post(RenewLocks(locked.tokens), self._client, self._answered)
                locked.locked_until_ms = now_ms + duration_ms
            self._hand_over(locked)

    def _margin_ms(self) -> int:
        """A lock that runs out this soon is not handed over: its renewal might come too late."""
        return min(self.queue.description.settings.lock_duration_ms // 4, 5_000)

    def _expire_shelf(self) -> None:
        now_ms = self._connection.services.clock.monotonic_ms()
        self._release(self._shelf.expire(now_ms + self._margin_ms()))

    def _watch_shelf(self) -> None:
        """Give back, in good time, what nobody came for."""
        until_ms = self._shelf.locked_until_ms()
        if self._shelf_timer is None and until_ms is not None and not self.link.gone:
            delay_ms = max(until_ms - self._margin_ms() - self._connection.services.clock.monotonic_ms(), 10)
            self._shelf_timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._shelf_is_due)

    def _shelf_is_due(self) -> None:
        self._shelf_timer = None
        self._expire_shelf()
        self._watch_shelf()

    def _release(self, tokens: Sequence[LockToken]) -> None:
        for number, group in _by_partition(tokens).items():
            self._handles[number].post(Release(group), self._client, self._answered)

    # --- deliveries out -------------------------------------------------------------------------------------

    def _hand_over(self, locked: Locked) -> None:
        if self._settled_mode:
            self._cookies += 1
            self._removing[self._cookies] = locked
            self._removing_count += len(locked.tokens)
            self._handles[locked.partition].post(
                Complete(locked.tokens, self._cookies), self._client, self._answered
            )
            return
        deliveries = self._transfer(locked)
        self._unsettled.update(zip(deliveries, locked.tokens, strict=True))

    def _transfer(self, locked: Locked) -> list[Delivery]:
        clock = self._connection.services.clock
        now_ms = clock.now_ms()
        fronts, rests = deliverables(
            locked,
            peek_lock=not self._settled_mode,
            partitioned=len(self._handles) > 1,
            wall_ahead_ms=now_ms - clock.monotonic_ms(),
        )
        size = sum(map(len, fronts)) + sum(map(len, rests)) - HEAD.size * (len(rests) - rests.count(b""))
        deliveries = self._engine.send(self.link, locked.tokens, fronts, self._settled_mode, rests, HEAD.size)
        self._meter.outgoing_messages += len(fronts)
        self._meter.outgoing_bytes += size
        self.queue.accessed_at_ms = now_ms
        self._connection.sent(size)
        return deliveries

    def _removed(self, settled: Settled, locked: Locked) -> None:
        """Receive-and-delete: the removal is durable, so the messages may leave (durability rule 2)."""
        self._removing_count -= len(locked.tokens)
        if self.link.gone:
            return
        if settled.failures:
            locked = without(locked, settled.failures)
        if locked.tokens:
            self._transfer(locked)
        self.credit_granted()

    # --- settlement back ------------------------------------------------------------------------------------

    def updated(self, event: DeliveriesUpdated) -> None:
        """The client gave deliveries an outcome (§2.7.6). It is answered when the outcome is durable
        (durability rule 1)."""
        unsettled = self._unsettled
        known: list[Delivery] = []
        groups: dict[int, tuple[list[Delivery], list[LockToken]]] = {}
        for delivery in event.deliveries:
            token = unsettled.pop(delivery, None)
            if token is None:  # settled before, or told twice
                continue
            known.append(delivery)
            group = groups.get(number := token[0] << 8 | token[1])
            if group is None:
                group = groups[number] = ([], [])
            group[0].append(delivery)
            group[1].append(token)
        if event.settled:
            self._engine.settle(known, 0)
        for number, (deliveries, tokens) in groups.items():
            self._settle(number, [] if event.settled else deliveries, tokens, event)
        if len(unsettled) + len(known) >= self._connection.services.settings.unsettled_per_link_max:
            self.credit_granted()  # the bound had held messages back
        self._connection.flush_soon()

    def _settle(
        self, number: int, deliveries: Sequence[Delivery], tokens: list[LockToken], event: DeliveriesUpdated
    ) -> None:
        self._cookies += 1
        cookie = self._cookies
        try:
            operation = self._operation(event, tokens, cookie)
        except Refused as why:
            self._handles[number].post(Release(tokens), self._client, self._answered)
            self._engine.reject(deliveries, error_of(why))
            return
        if operation is None:
            self._handles[number].post(Release(tokens), self._client, self._answered)
            self._engine.settle(deliveries, Outcome.RELEASED)
            return
        self._settling[cookie] = (deliveries, event)
        if event.annotations or event.error is not None:
            self._connection.took_changes(event.bytes)
        self._handles[number].post(operation, self._client, self._answered)

    def _operation(
        self, event: DeliveriesUpdated, tokens: list[LockToken], cookie: int
    ) -> Complete | Abandon | Defer | DeadLetter | None:
        """What the outcome asks of the partition; None to give the messages back. Raises Refused."""
        meter = self._meter
        match event.outcome:
            case Outcome.ACCEPTED:
                meter.completed_messages += len(tokens)
                return Complete(tokens, cookie)
            case Outcome.REJECTED:
                return DeadLetter(tokens, _reason(event.error), cookie)
            case Outcome.MODIFIED if event.undeliverable_here:
                changed = _changes(event.annotations)
                meter.deferred_messages += len(tokens)
                return Defer(tokens, changed, cookie)
            case Outcome.MODIFIED:
                changed = _changes(event.annotations)
                meter.abandoned_messages += len(tokens)
                return Abandon(tokens, changed, cookie)
            case Outcome.RELEASED | Outcome.NONE | Outcome.RECEIVED:
                return None
            case _:
                raise no_transactions()

    def _settled(self, settled: Settled) -> None:
        assert isinstance(settled.cookie, int), "cookies of this link are numbers"
        removed = self._removing.pop(settled.cookie, None)
        if removed is not None:
            self._removed(settled, removed)
            return
        deliveries, event = self._take_settling(settled.cookie)
        if self.link.gone or not deliveries:
            return
        if settled.failures:
            for reason in set(settled.failures.values()):
                refused = [deliveries[index] for index, each in settled.failures.items() if each is reason]
                self._engine.reject(refused, error_of(not_settled(reason)))
            deliveries = [
                delivery for index, delivery in enumerate(deliveries) if index not in settled.failures
            ]
        # The same outcome as the client's, and a dead-lettering without its error (AMQP contract 6.2).
        self._engine.settle(
            deliveries, event.outcome, failed=event.failed, undeliverable_here=event.undeliverable_here
        )
        self._connection.flush_soon()

    def _take_settling(self, cookie: int) -> tuple[Sequence[Delivery], DeliveriesUpdated]:
        deliveries, event = self._settling.pop(cookie)
        if event.annotations or event.error is not None:
            self._connection.finished_with(event.bytes, 0)
        return deliveries, event

    def _failed(self, failed: Failed) -> None:
        if not isinstance(failed.cookie, int):
            return
        removed = self._removing.pop(failed.cookie, None)
        if removed is not None:
            self._removing_count -= len(removed.tokens)
            self.credit_granted()
            return
        deliveries, _ = self._take_settling(failed.cookie)
        if not self.link.gone:
            self._engine.reject(deliveries, error_of(Refused(failed.reason, failed.description)))
            self._connection.flush_soon()

    def forget(self, tokens: Set[LockToken]) -> None:
        """Messages were settled another way (`$management`): settle those of this link here, too (AMQP
        contract 6.2)."""
        deliveries = [delivery for delivery, held in self._unsettled.items() if held in tokens]
        if deliveries:
            for delivery in deliveries:
                del self._unsettled[delivery]
            self._engine.settle(deliveries, Outcome.ACCEPTED)
            self._connection.flush_soon()
            self.credit_granted()  # the bound on unsettled deliveries may have held messages back

    # --- partitions that go down ----------------------------------------------------------------------------

    def _unavailable(self, number: int, for_good: bool) -> None:
        """Locks and demand in the partition are void. Ask again in a while, but not a partition that does not
        come back."""
        if for_good:
            self._plan.give_up(number)
        else:
            self._plan.forget(number)
        self._withdrawals[number] = 0  # one that waited for messages to come back is forgotten there
        self._shelf.recall(number, self.subqueue)
        if self._retry_timer is None and not self.link.gone:
            self._retry_timer = asyncio.get_running_loop().call_later(RETRY_UNAVAILABLE_S, self._retry)

    def _retry(self) -> None:
        self._retry_timer = None
        self.credit_granted()

    # --- the end --------------------------------------------------------------------------------------------

    def detached(self) -> None:
        """The link is gone: unseen messages go back at once, the others when their locks run out."""
        for timer in (self._shelf_timer, self._retry_timer, self._withdraw_timer):
            if timer is not None:
                timer.cancel()
        self._shelf_timer = self._retry_timer = self._withdraw_timer = None
        self.queue.watchers.discard(self)
        unseen = _by_partition([token for chunk in self._shelf.clear() for token in chunk.tokens])
        self._meter.receive_cache_returns += sum(map(len, unseen.values()))
        for number, handle in enumerate(self._handles):
            handle.post(Detach(unseen.get(number, ())), self._client, self._answered)
        self._unsettled.clear()

    def queue_changed(self) -> None:
        """Other settings: the queue may not hand out messages any more."""
        try:
            check_can_receive(self.queue)
        except Refused as why:
            self._connection.close_link(self.link, why)

    def queue_ended(self, why: Refused) -> None:
        """The queue was deleted."""
        self._connection.close_link(self.link, why)


def _reason(error: ErrorCondition | None) -> bytes | None:
    """Why a message is dead-lettered, as changed application properties (AMQP contract 6.1, 5.5)."""
    if error is None:
        return None
    info = _map(error.info)
    if error.condition != DEAD_LETTER_CONDITION and DEAD_LETTER_REASON not in info:
        info |= {DEAD_LETTER_REASON: error.condition, DEAD_LETTER_DESCRIPTION: error.description or None}
    return encode_changes(info, drop_nulls=True)


def _changes(annotations: bytes) -> bytes | None:
    """Properties to modify at abandon and defer: they become application properties (AMQP contract 6.1)."""
    return encode_changes(_map(annotations))


def _map(encoded: bytes) -> dict[Any, Any]:
    try:
        value = decode_bounded(encoded)[0] if encoded else {}
    except DecodeError as error:
        raise Refused(Reason.DECODE, f"The outcome's map cannot be decoded: {error}.") from error
    return value if isinstance(value, dict) else {}


def _by_partition(tokens: Sequence[LockToken]) -> dict[int, list[LockToken]]:
    groups: dict[int, list[LockToken]] = {}
    for token in tokens:
        groups.setdefault(partition_of_token(token), []).append(token)
    return groups


def lock_lost() -> Refused:
    """The refusal of a settlement that came too late."""
    return Refused(
        Reason.LOCK_LOST,
        (
            "The lock supplied is invalid. Either the lock expired, or the message has already been "
            "removed from the queue."
        ),
    )


def not_settled(reason: Reason) -> Refused:
    """The refusal of a settlement that did not reach a message, for a reason that its partition gave."""
    if reason is Reason.LOCK_LOST:
        return lock_lost()
    assert reason is Reason.NOT_ALLOWED, "partitions refuse a settlement for these reasons alone"
    return Refused(
        reason,
        "A message in a dead-letter queue cannot be dead-lettered again. It stays as it is, and locked.",
    )


def accept_receiver(connection: Host, link: Link, queue: Queue, address: Address) -> None:
    """Accept a client's receiver. Raises Refused when the queue does not let messages out, or not with or
    without sessions as asked."""
    check_can_receive(queue)
    check_sessions(connection.engine, link, queue, address)
    connection.engine.accept_link(link)


def check_can_receive(queue: Queue) -> None:
    """Raises Refused(ENTITY_DISABLED) when the queue's status does not let messages out."""
    status = queue.description.settings.status
    if not status.can_receive:
        raise Refused(
            Reason.ENTITY_DISABLED,
            f"Entity '{queue.name}' is disabled for receiving: its status is {status.value}.",
        )
