"""Accept message sessions: one by its id, or the next one that is free, over all partitions (AMQP contract
5.4).

A session's id is the key of its messages, so a named session can be in one partition only. For the next free
session, a *finder* knows which partitions have some: each partition tells it once when it has one
(`WatchSessions`), and again after it had none left. Clients that wait are served in the order in which they
came. Each asks one partition at a time, so no session is locked in vain, and a partition that does not answer
holds up nobody before it has said that it has something. Only a few ask the same partition at a time, because
it may have a single free session.

Knows nothing of AMQP. Runs in the event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from heapq import heapify, heappop, heappush

from broker.base.errors import Reason, Refused
from broker.identifiers import ClientId, decode_session_id, encode_session_id
from broker.namespace.entity import Entity, next_client
from broker.operations.browsing import Arrived
from broker.operations.general import Detach, Failed, Unavailable
from broker.operations.interface import Answer
from broker.operations.sessions import AcceptSession, SessionAccepted, SessionLost, WatchSessions

WATCH_AGAIN_S = 0.25
"""How long to wait before asking a partition again that went down."""
ASKING_MAX = 4
"""Clients that ask one partition at a time: all but one of them may ask in vain."""
KEEP_S = 60.0
"""How long to go on watching partitions for nobody: a watch keeps a partition open."""
LEFT_MAX = 64
"""Clients that have stopped waiting and are remembered nevertheless."""


class HeldSession:
    """A session that a client holds. Its receiver asks with the client's number (`Receiver`)."""

    __slots__ = ("_has_ended", "_lost", "accepted", "client", "partition")

    def __init__(self) -> None:
        self.client: ClientId = next_client()
        self.partition = 0
        self.accepted = SessionAccepted(0, "", b"", b"", 0, None)
        """The partition's answer; a placeholder until it comes."""
        self._lost: Callable[[], None] | None = None
        self._has_ended = False

    @property
    def session_id(self) -> str:
        """The id of the session, as clients know it; "" until it is accepted."""
        return decode_session_id(self.accepted.session_id)

    def on_lost(self, lost: Callable[[], None]) -> None:
        """Call this function when the session is lost; at once if it already is."""
        self._lost = lost
        if self._has_ended:
            lost()

    def heard(self, answer: Answer) -> None:
        """Take an answer of the partition that no receiver has asked for."""
        if isinstance(answer, SessionLost | Unavailable):
            self._has_ended = True
            if self._lost is not None:
                self._lost()

    def give_up(self, entity: Entity) -> None:
        """Free the session."""
        entity.router.handles[self.partition].post(Detach(), self.client, self.heard)


async def accept_named(
    entity: Entity, subqueue: str, session_id: str, *, is_shared: bool = False, token: bytes | None = None
) -> HeldSession:
    """Lock a session. Raises Refused: SESSION_LOCKED, PARTITION_UNAVAILABLE; SERVER_BUSY if memory is scarce
    and its partition is closed and holds no messages."""
    held = HeldSession()
    held.partition = entity.router.number_of(session_id)
    if entity.spares(held.partition, subqueue):
        raise Refused(
            Reason.SERVER_BUSY,
            "The broker has reached its memory mark, and opens no partitions without messages. Please wait 2 "
            "seconds and try again.",
        )
    handle = entity.router.pinned(held.partition)
    answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def sink(answer: Answer) -> None:
        if not answered.done():
            answered.set_result(answer)
        else:
            held.heard(answer)

    handle.post(AcceptSession(subqueue, encode_session_id(session_id), is_shared, token), held.client, sink)
    try:
        answer = await answered
    except asyncio.CancelledError:
        held.give_up(entity)
        raise
    if not isinstance(answer, SessionAccepted):
        held.give_up(entity)
        raise _refusal(answer)
    held.accepted = answer
    return held


class _Waiting:
    """A client that waits for the next free session."""

    __slots__ = ("accepted", "held", "is_shared", "number")

    def __init__(self, number: int, is_shared: bool) -> None:
        self.number = number
        self.held = HeldSession()
        self.is_shared = is_shared
        self.accepted: asyncio.Future[HeldSession] = asyncio.get_running_loop().create_future()


class SessionFinder:
    """Finds free sessions in one subqueue of an entity, over all its partitions."""

    def __init__(self, entity: Entity, subqueue: str) -> None:
        self._entity, self._subqueue = entity, subqueue
        self._subqueue_number = entity.description.subqueues.number_of(subqueue)
        self._client = next_client()
        self._with_free: OrderedDict[int, None] = OrderedDict()
        """Partitions that have said they have a free session, in the order in which they are asked next. Each
        other one is watched, or will be (`_to_watch`)."""
        self._asking = [0] * len(entity.router.handles)
        """How many clients ask each partition now."""
        self._to_watch: set[int] = set()
        """Partitions that will be watched again in a moment."""
        self._waiting: list[tuple[int, _Waiting]] = []
        """A heap of the clients that ask no partition now, by the order in which they came. Some of them may
        wait no longer."""
        self._came = 0
        """How many clients have come."""
        self._left = 0
        """How many clients have stopped waiting since the heap was last rid of them."""
        self._is_over = False
        for number in range(len(entity.router.handles)):
            self._watch(number)

    async def accept(self, *, is_shared: bool = False) -> HeldSession:
        """Lock the next free session. Waits until there is one; if cancelled, locks none. Raises Refused if
        the entity is gone."""
        self._came += 1
        waiting = _Waiting(self._came, is_shared)
        heappush(self._waiting, (waiting.number, waiting))
        self._match()
        try:
            return await waiting.accepted
        except asyncio.CancelledError:
            if waiting.accepted.done() and not waiting.accepted.cancelled():
                waiting.held.give_up(self._entity)
            waiting.accepted.cancel()
            self._forget_some()
            raise

    def detach(self) -> None:
        """Stop watching the partitions. No client may wait."""
        self._is_over = True
        for handle in self._entity.router.handles:
            handle.post(Detach(), self._client, _ignore)

    def end(self, why: Refused) -> None:
        """The entity is gone: tell the clients that ask no partition now. The others hear it from theirs."""
        for _, waiting in self._waiting:
            if not waiting.accepted.done():
                waiting.accepted.set_exception(Refused(why.reason, why.description))
        self._waiting.clear()

    def _forget_some(self) -> None:
        """Forget the clients that have stopped waiting, once they make up half of all."""
        self._left += 1
        if self._left > LEFT_MAX + len(self._waiting) // 2:
            self._left = 0
            self._waiting = [entry for entry in self._waiting if not entry[1].accepted.cancelled()]
            heapify(self._waiting)

    def _match(self) -> None:
        """Let the clients that wait ask the partitions with free sessions, one after the other."""
        while self._waiting:
            number = next((each for each in self._with_free if self._asking[each] < ASKING_MAX), None)
            if number is None:
                return
            _, waiting = heappop(self._waiting)
            if waiting.accepted.cancelled():
                continue
            self._with_free.move_to_end(number)
            self._asking[number] += 1
            held = waiting.held
            held.partition = number
            handle = self._entity.router.handles[number]
            accept = AcceptSession(self._subqueue, None, waiting.is_shared, cookie=number)
            handle.post(accept, held.client, partial(self._answered, waiting, held))

    def _answered(self, waiting: _Waiting, held: HeldSession, answer: Answer) -> None:
        """A partition has answered a client, or tells it something later. `held` is what this partition was
        asked for."""
        if isinstance(answer, SessionAccepted | Failed):
            self._asking[held.partition] -= 1
        if isinstance(answer, SessionAccepted):
            held.accepted = answer
            if waiting.accepted.cancelled():
                held.give_up(self._entity)
            else:
                waiting.accepted.set_result(held)
            self._match()
        elif isinstance(answer, Failed):
            held.give_up(self._entity)  # the partition forgets the client
            had_free = held.partition in self._with_free
            self._with_free.pop(held.partition, None)
            if self._entity.gone is not None:
                if not waiting.accepted.cancelled():
                    waiting.accepted.set_exception(_refusal(answer))
                return
            if had_free and answer.reason is Reason.SESSION_NOT_FOUND:
                self._watch(held.partition)
            elif had_free:
                self._watch_later(held.partition)
            if not waiting.accepted.cancelled():
                # With another client number: the partition still has to carry out the last one's `Detach`,
                # and whatever it says to that client until then is not about the next session.
                waiting.held = HeldSession()
                heappush(self._waiting, (waiting.number, waiting))
            self._match()
        else:
            held.heard(answer)

    def _watch(self, number: int) -> None:
        if self._is_over:
            return
        if self._entity.spares(number, self._subqueue):
            self._watch_later(number)
            return
        handle = self._entity.router.handles[number]
        handle.post(WatchSessions(self._subqueue), self._client, partial(self._arrived, number))

    def _arrived(self, number: int, answer: Answer) -> None:
        if isinstance(answer, Arrived):
            self._with_free[number] = None
            self._match()
        elif isinstance(answer, Failed) or (isinstance(answer, Unavailable) and not answer.for_good):
            self._with_free.pop(number, None)
            self._watch_later(number)

    def _watch_later(self, number: int) -> None:
        if number not in self._to_watch:
            self._to_watch.add(number)
            asyncio.get_running_loop().call_later(WATCH_AGAIN_S, self._watch_again, number)

    def _watch_again(self, number: int) -> None:
        self._to_watch.discard(number)
        is_there = self._entity.description.subqueues.number_of(self._subqueue) == self._subqueue_number
        if self._entity.gone is None and is_there:
            self._watch(number)


class _Kept:
    """A finder, while clients use it and for some time after that."""

    __slots__ = ("finder", "timer", "users")

    def __init__(self, finder: SessionFinder) -> None:
        self.finder = finder
        self.users = 0
        """Clients that wait."""
        self.timer: asyncio.TimerHandle | None = None
        """Ends the finder, if nobody uses it now."""


class SessionFinders:
    """The finders of all entities. One for the whole broker, so that all clients are served in order."""

    def __init__(self) -> None:
        self._finders: dict[Entity, dict[int, _Kept]] = {}
        """By entity and number of the subqueue: another one may get its name."""

    async def accept_next(
        self, entity: Entity, subqueue: str, within_s: float, *, is_shared: bool = False
    ) -> HeldSession:
        """Lock the session that has been free for longest in some partition. Raises Refused(TIMEOUT) if none
        becomes free in time, or as the entity says if it is gone or does not allow receiving."""
        if entity.gone is not None:
            raise entity.gone
        entity.check_can_receive(subqueue)
        number = entity.description.subqueues.number_of(subqueue)
        assert number is not None, "the entity has this subqueue"
        finders = self._finders.get(entity)
        if finders is None:
            finders = self._finders[entity] = {}
            entity.at_end.append(partial(self._end, entity))
        kept = finders.get(number)
        if kept is None:
            kept = finders[number] = _Kept(SessionFinder(entity, subqueue))
        if kept.timer is not None:
            kept.timer.cancel()
            kept.timer = None
        kept.users += 1
        try:
            async with asyncio.timeout(within_s):
                return await kept.finder.accept(is_shared=is_shared)
        except TimeoutError as error:
            raise Refused(
                Reason.TIMEOUT,
                f"No session of '{entity.path_of(subqueue)}' with messages became free within "
                f"{within_s:.1f} s.",
            ) from error
        finally:
            kept.users -= 1
            if not kept.users and entity.gone is None:
                loop = asyncio.get_running_loop()
                kept.timer = loop.call_later(KEEP_S, self._drop, entity, number)

    def _drop(self, entity: Entity, number: int) -> None:
        self._finders[entity].pop(number).finder.detach()

    def _end(self, entity: Entity) -> None:
        assert entity.gone is not None, "this is called when the entity ends"
        for kept in self._finders.pop(entity).values():
            if kept.timer is not None:
                kept.timer.cancel()
            kept.finder.end(entity.gone)


def _ignore(answer: Answer) -> None:
    """Ignore the answer."""


def _refusal(answer: Answer) -> Refused:
    if isinstance(answer, Failed):
        return Refused(answer.reason, answer.description)
    return Refused(Reason.PARTITION_UNAVAILABLE, "The session's partition went down. Please try again.")
