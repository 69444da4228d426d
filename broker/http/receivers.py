"""Receives for clients of the runtime REST API, with the receiver that links use (HTTP contract 4.3).

Each keep-alive connection has its own receivers and its own receive cache. What a connection holds ready for
its next requests is recalled when another client asks, and goes back when the connection ends. A request that
may wait waits here; when its time is up, its receiver drains, so that no message is on its way when the
client is told that there is none.

A message that receive-and-delete has removed must reach its client (durability rule 2), so a request never
ends while its removal is being written. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping

from broker.base.clock import Clock
from broker.base.errors import Reason, Refused
from broker.base.few import Few
from broker.http.refusals import HttpRefusal
from broker.messaging.receive_cache import ReceiveCache
from broker.messaging.receiver import DUE_AT_ONCE, Receiver
from broker.messaging.settlement import Settlement
from broker.namespace.entity import Entity, next_client
from broker.operations.interface import Answer
from broker.operations.receiving import Locked
from broker.operations.settling import Release
from broker.throttle.throttle import throttled

RECEIVERS_MAX = 8
"""Receivers of one connection. Beyond that, the one that was used longest ago ends."""
WAITING_SHARE = 4
"""A quarter of the port's connections is never taken by requests that wait for messages."""


class Waiting:
    """All requests that wait for messages, and the answers that are being sent. One per HTTP port."""

    def __init__(self, connections_max: int, cache_messages: int, cache_bytes: int, bytes_max: int) -> None:
        """`bytes_max` limits what all connections hold ready together, and the answers being sent."""
        self._waiting_max = max(1, connections_max - connections_max // WAITING_SHARE)
        self.cache_messages, self._cache_bytes, self._bytes_max = cache_messages, cache_bytes, bytes_max
        self.due = Few(DUE_AT_ONCE)
        """Makes the calls of receivers for which the time has come."""
        self._waiting = 0
        self.is_stopping = False
        self._caches: set[ReceiveCache] = set()
        self.answer_bytes = 0
        """Bytes of the answers being sent."""
        self._held: dict[HttpReceiver, None] = {}
        """Receivers that get nothing until other clients have taken their answers."""

    def begin(self) -> None:
        """A request begins to wait. Raises Refused(SERVER_BUSY) if too many do, or the broker stops."""
        if self.is_stopping:
            raise stopping()
        if self._waiting >= self._waiting_max:
            raise Refused(
                Reason.SERVER_BUSY,
                f"{self._waiting} requests wait for messages, as many as may. Please wait 2 seconds and try "
                "again, or ask with timeout=0.",
            )
        self._waiting += 1

    def end(self) -> None:
        """A request waits no longer."""
        self._waiting -= 1

    def cache(self) -> ReceiveCache:
        """The receive cache of a new connection."""
        cache = ReceiveCache(self.cache_messages, self._cache_bytes)
        self._caches.add(cache)
        return cache

    def forget(self, cache: ReceiveCache) -> None:
        """The connection with this cache has ended."""
        self._caches.discard(cache)

    def cache_bytes(self, own: ReceiveCache) -> int:
        """How many bytes a connection may hold ready now."""
        others = sum(cache.bytes for cache in self._caches) - own.bytes
        return min(self._cache_bytes, max(0, self._bytes_max - others))

    @property
    def has_room(self) -> bool:
        """Whether more answers may be sent."""
        return self.answer_bytes < self._bytes_max

    def hold(self, receiver: HttpReceiver) -> None:
        """Have a receiver ask again when there is room for answers."""
        self._held.setdefault(receiver)

    def release(self, receiver: HttpReceiver) -> None:
        """The receiver waits no longer."""
        self._held.pop(receiver, None)

    def sent(self, size: int) -> None:
        """An answer of this size has been sent."""
        self.answer_bytes -= size
        while self._held and self.has_room:
            next(iter(self._held)).go_on()


class HttpReceiver:
    """Receives from one subqueue for one connection: the `Taker` of a `Receiver`, and a `Watcher` of the
    entity. One request at a time uses it."""

    def __init__(
        self,
        queue: Entity,
        subqueue: str,
        *,
        removes: bool,
        cache: ReceiveCache,
        clock: Clock,
        waiting: Waiting,
        receivers_max: int,
    ) -> None:
        """`receivers_max` is the limit of one entity."""
        self.queue, self.subqueue = queue, subqueue
        self._receivers_max = receivers_max
        self.has_ended = False
        self._cache, self.waiting = cache, waiting
        self._found: asyncio.Future[Locked | None] | None = None
        """What the present request waits for; None for no message."""
        self._check_rights: Callable[[], object] | None = None
        """That of the present request (`receive`)."""
        self._lost: Refused | HttpRefusal | None = None
        """Why the client may receive no more, kept while a message for it is being removed."""
        self._is_draining = False
        self._drained = asyncio.Event()
        """Set unless a drain is under way whose request has its answer already."""
        self._drained.set()
        self._receiver: Receiver[None] = Receiver(
            queue, subqueue, self, cache=cache, clock=clock, due=waiting.due, removes=removes
        )
        queue.watchers.add(self)

    async def receive(self, wait_s: float, check_rights: Callable[[], object]) -> Locked | None:
        """One message; None if none has come in `wait_s` seconds. The caller has checked that the client may
        receive; `check_rights` raises Refused or HttpRefusal once it may not. Raises these, and
        ConnectionResetError."""
        if not self._drained.is_set():
            await self._drained.wait()
            check_rights()  # they may have changed meanwhile
        if self.has_ended:
            raise ConnectionResetError("the connection has ended")
        self.queue.check_one_more_receiver(self._receivers_max)
        found: asyncio.Future[Locked | None] = asyncio.get_running_loop().create_future()
        self._found, self._check_rights = found, check_rights
        self.queue.receivers.add(self)
        try:
            if wait_s > 0:
                self._receiver.credit_granted()
                await asyncio.wait((found,), timeout=wait_s)
            if not found.done():
                self._drain()
            return await found
        finally:
            self._found = self._check_rights = self._lost = None
            self.queue.receivers.discard(self)
            self.waiting.release(self)
            if not self.has_ended:
                self._is_draining = self._receiver.drains
                if self._is_draining:
                    self._drained.clear()
                self._receiver.credit_granted()  # nothing is wanted now

    def _drain(self) -> None:
        """End the request with what is there now. Raises Refused if nothing may be handed over."""
        throttle = self.queue.throttle
        if not self._removes_now:
            if throttle is not None and throttle.left_for_receivers() <= 0:
                raise throttled()
            if not self.waiting.has_room:
                raise Refused(
                    Reason.SERVER_BUSY,
                    "Too many messages are on their way to clients that read slowly. Please wait 2 seconds "
                    "and try again.",
                )
        self._is_draining = True
        self._receiver.credit_granted()

    def go_on(self) -> None:
        """There is room for answers again."""
        self.waiting.release(self)
        self._receiver.credit_granted()

    def stop(self) -> None:
        """The broker stops: end a request that waits, unless its message is being removed."""
        if not self._removes_now:
            self._fail(stopping())

    def give_back(self, locked: Locked) -> None:
        """Release a message whose client is gone, also after the end."""
        handle = self.queue.router.handles[locked.partition]
        handle.post(Release(locked.tokens), next_client(), _no_answer)

    def end(self, why: BaseException) -> None:
        """End with the connection, or because the receiver cannot be used any more: what it holds ready goes
        back."""
        if self.has_ended:
            return
        self.has_ended = True
        self.queue.watchers.discard(self)
        self.waiting.release(self)
        self._receiver.end()
        del self._receiver  # it reports to this receiver, and only Python's collector could free the two
        self._drained.set()
        self._fail(why)

    @property
    def _removes_now(self) -> bool:
        """Whether the message for the present request is being removed."""
        return not self.has_ended and self._receiver.removes_now

    def _fail(self, why: BaseException) -> None:
        if self._found is not None and not self._found.done():
            self._found.set_exception(why)

    # --- for the receiver (Taker) ---------------------------------------------------------------------------

    @property
    def allowance(self) -> int:
        """A client gets one message at a time."""
        return self._cache.bytes_max

    def wanted(self) -> int:
        if self._lost is not None and not self._removes_now:  # the removal has failed
            self._fail(self._lost)
        if not self.has_credit():
            return 0
        return 0 if self.is_blocked() else 1

    def has_credit(self) -> bool:
        return self._found is not None and not self._found.done()

    def is_draining(self) -> bool:
        return self._is_draining

    def is_blocked(self) -> bool:
        if self.waiting.has_room:
            return False
        self.waiting.hold(self)
        return True

    def may_answer_drain(self) -> bool:
        return True

    def drained(self) -> None:
        self._is_draining = False
        self._drained.set()
        if self._found is not None and not self._found.done():
            self._found.set_result(None)

    def take(self, locked: Locked) -> None:
        assert len(locked.tokens) == 1, "one message was wanted"
        if self._found is None or self._found.done():  # the request was given up
            self.give_back(locked)
        else:
            self._found.set_result(locked)

    def shelf_bytes(self) -> int:
        return self.waiting.cache_bytes(self._cache)

    def shelved(self, size: int) -> None:
        """What is held ready is counted when more of it comes (`Waiting.cache_bytes`)."""

    def settled(self, receipt: None, settlement: Settlement, failures: Mapping[int, Reason]) -> None:
        raise AssertionError("messages are settled by their lock tokens")

    def not_settled(self, receipt: None, why: Refused) -> None:
        raise AssertionError("messages are settled by their lock tokens")

    def refuse(self, why: Refused) -> None:
        """The client has waited for credits for too long. They may have come at the last moment: a message
        that is being removed must reach it."""
        if not self._removes_now:
            self._fail(why)

    def session_lost(self) -> None:
        raise AssertionError("this receiver receives from no session")

    def fail(self) -> None:
        error = sys.exception()
        assert error is not None, "called where an exception is handled"
        self.end(error)

    # --- for the namespace, and for the entity (Watcher) ----------------------------------------------------

    def rules_changed(self) -> None:
        """End a request whose client has lost the right to receive. One whose message is being removed is
        given that, and no other."""
        if self._check_rights is None or not self.has_credit():
            return
        try:
            self._check_rights()
        except (Refused, HttpRefusal) as why:
            if self._removes_now:
                self._lost = why
            else:
                self._fail(why)

    def queue_changed(self) -> None:
        """End a request that the new settings do not permit. One whose message is being removed ends with
        it."""
        try:
            self.queue.check_can_receive(self.subqueue)
        except Refused as why:
            if not self._removes_now:
                self._fail(why)

    def queue_ended(self, why: Refused) -> None:
        """The entity was deleted."""
        self.end(why)


class ConnectionReceivers:
    """The receivers of one connection."""

    def __init__(self, clock: Clock, waiting: Waiting, receivers_max: int) -> None:
        """`receivers_max` is the limit of one entity."""
        self._clock, self._waiting, self._receivers_max = clock, waiting, receivers_max
        self._cache = waiting.cache()
        self._receivers: dict[tuple[Entity, str, bool], HttpReceiver] = {}
        """By entity, subqueue and whether they remove. The one used last is last."""

    def of(self, queue: Entity, subqueue: str, *, removes: bool) -> HttpReceiver:
        """The receiver for a request."""
        receiver = self._receivers.pop((queue, subqueue, removes), None)
        if receiver is None or receiver.has_ended:
            if len(self._receivers) >= RECEIVERS_MAX:
                oldest = next(iter(self._receivers))
                self._receivers.pop(oldest).end(ConnectionResetError("no request uses it"))
            receiver = HttpReceiver(
                queue,
                subqueue,
                removes=removes,
                cache=self._cache,
                clock=self._clock,
                waiting=self._waiting,
                receivers_max=self._receivers_max,
            )
        self._receivers[queue, subqueue, removes] = receiver
        return receiver

    def rules_changed(self) -> None:
        """Authorization rules have changed: end requests whose clients have lost their right."""
        for receiver in self._receivers.values():
            receiver.rules_changed()

    def stop(self) -> None:
        """The broker stops: end a request that waits."""
        for receiver in self._receivers.values():
            receiver.stop()

    def end(self) -> None:
        """The connection has ended: messages that no request has taken go back."""
        for receiver in self._receivers.values():
            receiver.end(ConnectionResetError("the connection has ended"))
        self._receivers.clear()
        self._waiting.forget(self._cache)


def _no_answer(answer: Answer) -> None:
    """A release has none."""


def stopping() -> Refused:
    """The answer to requests that wait while the broker stops."""
    return Refused(Reason.SERVER_BUSY, "The broker is stopping. Please try again.")
