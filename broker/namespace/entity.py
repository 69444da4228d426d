"""A running entity: its description, partitions and router, and the watchers to notify when it changes.

Each kind of entity is a subclass (`queue.py`) that says what clients may do with it.

Partitions start when they are first used, so an unused entity costs little more than its description.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import ClassVar, Protocol, cast

from broker.base.errors import Reason, Refused, not_found_text
from broker.entities.descriptions import MAIN, EntityDescription
from broker.identifiers import ClientId
from broker.message.property_sizes import PropertyLimits
from broker.namespace.health import CLOSED, DOWN, MISSING, NOT_OPEN
from broker.namespace.meter import EntityMeter
from broker.namespace.one_after_another import OneAfterAnother
from broker.namespace.resting import Resting, add_counts
from broker.namespace.router import PartitionHandle, RoutedPartition, Router
from broker.namespace.runtime import EntityRuntime, sum_up
from broker.namespace.size_quota import SizeQuota
from broker.operations.general import Detach, Failed, Update
from broker.operations.interface import Answer, Operation, Sink, refusal_of
from broker.operations.message_states import SubqueueCounts
from broker.operations.outlook import outlook_of_all
from broker.operations.receiving import Locked, Recalled
from broker.operations.scheduling import BreakPromise, Promised
from broker.operations.sending import Send
from broker.operations.settling import Release
from broker.partition.counting import SUBQUEUES_PER_STEP
from broker.partition.quotas import check_size
from broker.partition.summary import named
from broker.throttle.throttle import Throttling
from storage.spread_store import place as folder_of

TOLD_AT_ONCE = 64
"""How many watchers are told of a change in one turn of the event loop."""


class Partition(RoutedPartition, Protocol):
    """What an entity needs from a partition's task besides its mailbox."""

    def counts(self, only: str | None = None) -> dict[str, SubqueueCounts]:
        """Message counts by subqueue, or at least of one of them, which costs little; as of its last close if
        the partition is not open."""

    def size(self) -> int:
        """What all subqueues hold together, in bytes. Costs little, however many they are."""

    async def opened(self) -> None:
        """Return once the log is open or opening it has failed."""

    async def stop(self, *, is_deleted: bool = False) -> None:
        """Finish the commit under way and close the log. If the entity is about to be deleted, save nothing
        more. Safe to call twice."""


class Watcher(Protocol):
    """A link, or anything else that serves clients of the entity."""

    subqueue: str
    """The subqueue that it serves."""

    def queue_changed(self) -> None:
        """The description has changed: check whether the operations under way are still permitted."""

    def queue_ended(self, why: Refused) -> None:
        """The entity was deleted or is out of service."""


class _Sleeping:
    """Stands for a partition that has not been used yet. Some clients still hold it after the partition has
    started."""

    __slots__ = ("_entity", "_number")
    available, health = True, CLOSED
    awaits_more = False

    def __init__(self, entity: Entity, number: int) -> None:
        self._entity, self._number = entity, number

    def join(self, more: Send, client: ClientId, cookie: object) -> bool:
        return False

    def post(self, operation: Operation, client: ClientId, sink: Sink) -> None:
        entity, number = self._entity, self._number
        if isinstance(operation, Detach | Release | Recalled) and number not in entity._partitions:
            return  # no client holds anything in it, so there is nothing to end
        gone = entity.gone
        if gone is None:
            entity.partition(number).post(operation, client, sink)
        elif (answer := refusal_of(operation, number, gone.reason, gone.description)) is not None:
            asyncio.get_running_loop().call_soon(sink, answer)


class Entity:
    """A running entity. Owned by the event loop.

    Subclasses define each kind of entity. Links, nodes and the namespace treat all kinds alike.
    """

    FOREIGN_CAPABILITIES: ClassVar[frozenset[str]] = frozenset()
    """Capabilities (§3.5.3) of nodes that behave differently from this kind. A link that asks for one is
    refused."""
    FOREIGN_BECAUSE: ClassVar[str]
    """How this kind is different, for that refusal."""
    TAKES_NO_SENDS: ClassVar[str]
    """What clients are told that send to a subqueue that takes no sends."""
    MULTIPLIES: ClassVar[bool] = False
    """Whether it stores more than is sent to it."""

    def __init__(
        self,
        description: EntityDescription,
        meter: EntityMeter,
        start_partition: Callable[[Entity, int], Partition],
        resting: Resting,
        size_bytes_max: int = 0,
    ) -> None:
        """`resting` knows what the partitions that have not started hold, and wakes them on time.
        `size_bytes_max`: what all partitions may hold together; 0 if only each has a quota."""
        self.description = description
        self.meter = meter
        self.accessed_at_ms: int | None = None
        """When a client last sent, received or peeked; set by the links (`note_access`)."""
        self.watchers: set[Watcher] = set()
        self.receivers: set[Watcher] = set()
        """Those of the watchers that serve a client who receives."""
        self.kept_ready: dict[str, int] = {}
        """By subqueue: messages that are locked for receivers and wait here until these want them."""
        self.at_end: list[Callable[[], object]] = []
        """Called once when the entity ends, so that nothing else keeps it."""
        self.at_start: list[Callable[[int], object]] = []
        """Called with the number of each partition that starts."""
        self.throttle: Throttling | None = None
        """The throttling of the namespace; None if it is not throttled. Set by whoever made the entity."""
        self.property_limits: PropertyLimits | None = None
        """What the properties of a message may take; None if the namespace has no limits of its own. Set by
        whoever made the entity."""
        self.sends_need_session = self.requires_session(MAIN)
        """Whether each message that is sent must name its message session. Fixed at creation, and asked for
        several times with each read from a socket."""
        self.gone: Refused | None = None
        """Why the entity was deleted or is out of service; None while it is live. Once this is set, no
        partition starts, because its log would outlive the entity."""
        self._start_partition, self._resting = start_partition, resting
        self._size_bytes_max = size_bytes_max
        self._quota = SizeQuota(description.KIND, size_bytes_max, self._size, multiplies=self.MULTIPLIES)
        self._partitions: dict[int, Partition] = {}
        self._one_after_another = OneAfterAnother()
        self._at_rest: dict[str, SubqueueCounts] | None = None
        """Totals for the partitions that have not started; None until they are added up."""
        self._handles: list[RoutedPartition] = [
            _Sleeping(self, number) for number in range(description.partitions)
        ]
        self.router = Router(self._handles, self._slow)
        resting.enter(description.generation, self)

    def note_access(self, subqueue: str, now_ms: int) -> None:
        """A client has received from a subqueue, or asked about it."""
        self.accessed_at_ms = now_ms

    def accessed_by(self, subscription: int | None) -> int | None:
        """When a client last used the entity itself, or the subscription with this number."""
        assert subscription is None, "only topics have subscriptions"
        return self.accessed_at_ms

    def is_watched(self, subscription: int | None) -> bool:
        """Whether a link is attached to the entity itself, or to the subscription with this number."""
        assert subscription is None, "only topics have subscriptions"
        return bool(self.watchers)

    def check_one_more_receiver(self, receivers_max: int) -> None:
        """Raises Refused(SERVER_BUSY) if the entity has so many receivers."""
        if len(self.receivers) >= receivers_max:
            raise Refused(
                Reason.SERVER_BUSY,
                f"'{self.name}' has {len(self.receivers)} receivers; the maximum is {receivers_max}. Please "
                "try again once some are closed.",
            )

    @property
    def filters(self) -> int:
        """With how many filters each message is compared that is sent to it."""
        return 0

    @property
    def size_bytes_max(self) -> int:
        """What all partitions together may hold: the quota of each times their number, or less if a setting
        says so."""
        whole = (self.description.partitions * self.description.settings.max_size_mb) << 20
        return min(whole, self._size_bytes_max or whole)

    def check_can_send(self, subqueue: str) -> None:
        """Raises Refused: NOT_ALLOWED if clients never send to this subqueue; ENTITY_DISABLED if they cannot
        at the moment."""
        if not self.description.subqueues.takes_sends(subqueue):
            raise Refused(Reason.NOT_ALLOWED, self.TAKES_NO_SENDS)
        status = self.description.settings.status
        if not status.can_send:
            raise Refused(
                Reason.ENTITY_DISABLED,
                f"Entity '{self.name}' is disabled for sending: its status is {status.value}.",
            )

    def check_can_receive(self, subqueue: str) -> None:
        """Raises Refused: ENTITY_NOT_FOUND if there is no such subqueue; NOT_ALLOWED if its messages are
        forwarded, as in the service; ENTITY_DISABLED if clients cannot receive at the moment."""
        number, path = self.description.subqueues.number_of(subqueue), self.path_of(subqueue)
        if number is None:
            raise Refused(Reason.ENTITY_NOT_FOUND, not_found_text(f"{self.name}/{subqueue}"))
        if (target := self.description.forwarding_of(number)) is not None:
            raise Refused(
                Reason.NOT_ALLOWED,
                "Cannot create a message receiver on an entity with auto-forwarding enabled: the messages of "
                f"'{path}' are forwarded to '{target}'.",
            )
        status = self.description.status_of(number)
        if not status.can_receive:
            raise Refused(
                Reason.ENTITY_DISABLED,
                f"Entity '{path}' is disabled for receiving: its status is {status.value}.",
            )

    def requires_session(self, subqueue: str) -> bool:
        """Whether messages here belong to message sessions: each must name its session and is received with
        it. Dead-letter subqueues have no sessions (AMQP contract 5.4), and what is sent to a topic need not
        belong to one."""
        role = self.description.subqueues.role_of(subqueue)
        return role is not None and role.has_sessions and self.description.delivery(subqueue).requires_session

    @property
    def keeps_sessions(self) -> bool:
        """Whether the sessions of messages that are sent are kept with them."""
        return self.sends_need_session

    @property
    def makes_copies(self) -> bool:
        """Whether it may make changed copies of what is sent to it."""
        return False

    def path_of(self, subqueue: str) -> str:
        """The path of the entity, or of the part of it that a subqueue belongs to."""
        return self.description.path_of(subqueue)

    @property
    def is_deleted(self) -> bool:
        """Whether the entity was deleted. One that is only out of service may come back."""
        return self.gone is not None and self.gone.reason is Reason.ENTITY_NOT_FOUND

    def lock_duration_ms(self, subqueue: str) -> int:
        """How long a message of this subqueue stays locked."""
        return self.description.delivery(subqueue).lock_duration_ms

    @property
    def message_bytes_max(self) -> int:
        """The largest message that the entity takes; a batch counts as one."""
        return self.description.settings.max_message_size_kb * 1024

    @property
    def name(self) -> str:
        return self.description.name

    def partition(self, number: int) -> Partition:
        """A partition, started if it was not."""
        partition = self._partitions.get(number)
        if partition is None:
            assert self.gone is None, "an entity that was deleted wakes no partition"
            partition = self._partitions[number] = self._start_partition(self, number)
            self._handles[number] = partition
            self._at_rest = None
            for call in self.at_start:
                call(number)
        return partition

    def may_hold(self, number: int, subqueue: str) -> bool:
        """Whether a partition has started, or is known to hold messages for receivers of this subqueue. A
        partition whose content is unknown after a crash is started soon, and counts from then on."""
        if number in self._partitions:
            return True
        held = self._held_at_rest(number, subqueue)
        return held is not None and held.active > 0

    def spares(self, number: int, subqueue: str) -> bool:
        """Whether a partition stays closed although clients want to see messages of this subqueue, because
        memory is scarce and it is known to hold none. They should ask again later."""
        if not self._stays_closed(number):
            return False
        partition = self._partitions.get(number)
        if partition is not None:
            held = partition.counts(subqueue).get(subqueue)
        else:
            held = self._held_at_rest(number, subqueue)
        return held is None or not (held.active or held.deferred or held.scheduled)

    def awaits_room(self, number: int, subqueue: str) -> bool:
        """Whether a receiver should ask later, because memory has no room and another partition its turn."""
        if self._health_of(number) != CLOSED or self._resting.take_room(self.description.generation, number):
            return False
        started = self._partitions.values()
        return not self._one_after_another.has_turn(number, subqueue, self._health_of, started)

    def _stays_closed(self, number: int) -> bool:
        """Whether a partition is closed, what it holds is known, and memory is too scarce to open it."""
        partition = self._partitions.get(number)
        if partition is not None and partition.health != CLOSED:
            return False
        resting = self._resting
        if not resting.is_memory_scarce:
            resting.ask()
        return resting.is_memory_scarce and number not in resting.unknown(self.description.generation)

    def may_hold_none(self, number: int, subqueues: Collection[int]) -> bool:
        """Whether a partition has started, or is known to hold nothing in these subqueues, which may be
        gone."""
        summary = self._resting.summary(self.description.generation, number)
        return number in self._partitions or summary is None or summary.counts.keys().isdisjoint(subqueues)

    @property
    def subqueues_end(self) -> int:
        """Above the numbers of all its subqueues, past and present."""
        return self.description.subqueues.end

    def folder_of(self, number: int) -> int:
        """The number of the data folder that holds a partition."""
        return folder_of(self.description.generation, number, self.description.folders)

    async def wake(self, number: int) -> None:
        """Open a partition because something in it is due or its content is unknown. Returns once it is open
        or opening has failed."""
        if self.gone is None and number < self.description.partitions:
            await self.partition(number).opened()

    async def opened(
        self, numbers: Collection[int], opening: asyncio.Semaphore, *, sparing: bool = False
    ) -> None:
        """Return once these partitions and those already started are open or have failed to open. `opening`
        limits how many open at a time. `sparing`: while memory is scarce, only those whose content is
        unknown.

        Raises Refused once the entity is gone.
        """

        async def open_one(number: int) -> None:
            async with opening:
                if self.gone is None and not (sparing and self._stays_closed(number)):
                    await self.partition(number).opened()

        await asyncio.gather(*(open_one(number) for number in sorted({*numbers, *self._partitions})))
        if self.gone is not None:
            raise self.gone

    @property
    def available(self) -> bool:
        """Whether all partitions are available, as far as is known."""
        if self.gone is not None or (self._resting.lost_folders and self._lost()):
            return False
        return not self._partitions or all(partition.available for partition in self._partitions.values())

    def _slow(self, anew: bool) -> Collection[int]:
        """Partitions whose disk has left something unanswered. `anew`: after a new look at the disks."""
        if anew:
            self._resting.look_at_folders()
        if not (slow := self._resting.slow_folders):
            return ()
        return [number for number in range(self.description.partitions) if self.folder_of(number) in slow]

    def _lost(self) -> list[int]:
        """Partitions whose log is not open, in data folders that cannot be used, whether or not clients have
        asked for them."""
        lost = self._resting.lost_folders
        return [
            number
            for number in range(self.description.partitions)
            if self.folder_of(number) in lost and self._health_of(number) in NOT_OPEN
        ]

    def _health_of(self, number: int) -> str:
        partition = self._partitions.get(number)
        return CLOSED if partition is None else partition.health

    def health(self) -> list[str]:
        """Each partition's state, by number."""
        if self._partitions:
            states = [self._health_of(number) for number in range(self.description.partitions)]
        else:
            states = [CLOSED] * self.description.partitions
        for number in self._lost() if self._resting.lost_folders else ():
            states[number] = MISSING
        return states

    def outlook(self, down: Iterable[int]) -> str:
        """What clients are told of these partitions, which are down (`outlook_of_all`)."""
        states = self.health()
        return outlook_of_all({number: states[number] for number in down})

    def count_health(self, into: dict[str, int]) -> None:
        """Add the number of partitions in each state. Costs little for an unused entity."""
        if self._resting.lost_folders:
            for state in self.health():
                into[state] = into.get(state, 0) + 1
            return
        into[CLOSED] = into.get(CLOSED, 0) + self.description.partitions - len(self._partitions)
        for partition in self._partitions.values():
            into[partition.health] = into.get(partition.health, 0) + 1

    def uncounted(self) -> list[int]:
        """Partitions that are down, so that `counts` has their messages as they were when last known, or not
        at all."""
        if self.available:
            return []
        generation = self.description.generation
        return [
            number
            for number, state in enumerate(self.health())
            if state in DOWN and not (state == MISSING and self._resting.summary(generation, number))
        ]

    def counts(self) -> dict[str, SubqueueCounts]:
        """Message counts of all partitions together, by subqueue. Exact except for those that are `unknown`
        or `uncounted`."""
        if self._at_rest is not None and not self._partitions:
            return self._at_rest
        steps = self.count_in_steps()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return cast(dict[str, SubqueueCounts], end.value)

    def count_in_steps(self) -> Generator[None, None, dict[str, SubqueueCounts]]:
        """As `counts`, in a step for each partition: in a topic with a thousand subscriptions, each takes
        milliseconds."""
        partitions = list(self._partitions.values())
        at_rest = yield from self._count_at_rest()
        if not partitions:
            return at_rest
        total: dict[str, SubqueueCounts] = {}
        add_counts(total, at_rest)
        for partition in partitions:
            add_counts(total, partition.counts())
            yield
        return total

    async def counts_in_turns(self) -> dict[str, SubqueueCounts]:
        """As `counts`, with a turn of the event loop for each partition."""
        steps = self.count_in_steps()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return cast(dict[str, SubqueueCounts], end.value)
            await asyncio.sleep(0)

    def counts_of(self, subqueues: Iterable[str]) -> dict[str, SubqueueCounts]:
        """What `counts` has of a few subqueues. Costs little, however many subqueues there are."""
        found: dict[str, SubqueueCounts] = {}
        for name in subqueues:
            for held in (*self._at_rest_in(name), *(each.counts(name) for each in self._partitions.values())):
                if name in held:
                    add_counts(found, {name: held[name]})
        return found

    def active_in(self, subqueue: str) -> int:
        """How many active messages one subqueue has in all partitions together, as far as `counts` knows."""
        held = self.counts_of((subqueue,)).get(subqueue)
        return 0 if held is None else held.active

    def _at_rest_in(self, subqueue: str) -> Iterator[Mapping[str, SubqueueCounts]]:
        """What one subqueue has in the partitions that have not started."""
        if self._at_rest is not None or len(self.description.subqueues) <= SUBQUEUES_PER_STEP:
            yield self._counts_at_rest()
            return
        for number in range(self.description.partitions):
            if number not in self._partitions:
                held = self._held_at_rest(number, subqueue)
                if held is not None:
                    yield {subqueue: held}

    def _held_at_rest(self, number: int, subqueue: str) -> SubqueueCounts | None:
        """What one subqueue has in a partition that is closed; None if it is unknown, or nothing."""
        subqueue_number = self.description.subqueues.number_of(subqueue)
        summary = self._resting.summary(self.description.generation, number)
        if summary is None or subqueue_number is None:
            return None
        return summary.counts.get(subqueue_number)

    def _counts_at_rest(self) -> dict[str, SubqueueCounts]:
        """Message counts of the partitions that have not started."""
        deque(self._count_at_rest(), maxlen=0)
        assert self._at_rest is not None, "it has just been counted"
        return self._at_rest

    def _count_at_rest(self) -> Generator[None, None, dict[str, SubqueueCounts]]:
        """As `_counts_at_rest`, in steps. What starts meanwhile counts as it was."""
        if self._at_rest is not None:
            return self._at_rest
        started = set(self._partitions)
        total: dict[int, SubqueueCounts] = {}
        yield from self._resting.count_in_steps(self.description.generation, started, total)
        at_rest = named(total, self.description.subqueues)
        if started == self._partitions.keys():
            self._at_rest = at_rest
        return at_rest

    def size_of(self, number: int) -> int:
        """What a partition holds, in bytes, as far as is known."""
        partition = self._partitions.get(number)
        if partition is not None:
            return partition.size()
        summary = self._resting.summary(self.description.generation, number)
        return 0 if summary is None else sum(each.bytes for each in summary.counts.values())

    def _size(self) -> int:
        at_rest = sum([each.bytes for each in self._counts_at_rest().values()])
        return at_rest + sum([partition.size() for partition in self._partitions.values()])

    def admit(self, messages: Sequence[bytes]) -> None:
        """Count messages that are about to be sent to the entity. Raises Refused(QUOTA_EXCEEDED) if all
        partitions together have no room for them."""
        self._quota.admit(self.description.name, messages)

    def take_rest(self) -> int:
        """Count the room that all partitions together have left, in bytes, as taken. Returns it."""
        return self._quota.take_rest()

    def check_total_room(self, messages: Sequence[bytes]) -> None:
        """Check that all partitions together have room for messages that come later, as far as is known.
        Raises Refused(QUOTA_EXCEEDED)."""
        self._quota.check(self.name, messages)

    def check_room(self, number: int, size: int) -> None:
        """Check that a partition has room for messages, as far as is known. Raises
        Refused(QUOTA_EXCEEDED)."""
        check_size(self.description, number, self.size_of(number), size)

    def runtime(self) -> EntityRuntime:
        """What the entity holds now, and its health; exact as far as `counts` is."""
        return self.runtime_with(self.counts())

    def runtime_with(self, counts: Mapping[str, SubqueueCounts]) -> EntityRuntime:
        """As `runtime`, given the counts of all subqueues."""
        subqueues, forward_to = self.description.subqueues, self.description.settings.forwarding[0]
        return sum_up(subqueues, forward_to, counts, self.available, self.accessed_at_ms)

    @property
    def started(self) -> Collection[int]:
        """The partitions that have started."""
        return self._partitions.keys()

    @property
    def known_counts(self) -> Mapping[str, SubqueueCounts] | None:
        """`counts`, if these take next to no time: nothing has started, and what the partitions hold was
        added up before. None if not."""
        return None if self._partitions else self._at_rest

    @property
    def unknown(self) -> Collection[int]:
        """Partitions that may hold messages but whose content is unknown until they are opened."""
        return self._resting.unknown(self.description.generation)

    async def update(self, description: EntityDescription) -> None:
        """Switch to another description; returns once every open partition uses it."""
        self.description = description
        await asyncio.gather(*(self._tell(partition) for partition in self._partitions.values()))
        told = set[Watcher]()
        for _ in range(2):  # again, for those that came meanwhile with what they knew of the old one
            await self._tell_watchers(lambda watcher: watcher.queue_changed(), told)

    async def _tell(self, partition: Partition) -> None:
        with contextlib.suppress(Refused):  # the partition is down, but has noted the description
            await ask(partition, Update(self.description))

    async def _tell_watchers(self, tell: Callable[[Watcher], None], told: set[Watcher]) -> None:
        """Tell those that watch and are not in `told`, and add them to it. Takes several turns of the event
        loop: there may be thousands of links, and each that closes takes some 30 µs."""
        untold = iter(self.watchers - told)
        while some := list(islice(untold, TOLD_AT_ONCE)):
            for watcher in some:
                if watcher in self.watchers:
                    tell(watcher)
            told.update(some)
            await asyncio.sleep(0)

    async def stop(self) -> None:
        """Stop the partitions that were used."""
        await asyncio.gather(*(partition.stop() for partition in self._partitions.values()))

    async def end(self, why: Refused, *, is_deleted: bool = False) -> None:
        """Delete the entity or take it out of service: notify watchers, stop the partitions and remove the
        metrics."""
        self.gone = why
        self.meter.end()
        self._resting.leave(self.description.generation, self)
        told = set[Watcher]()
        while self.watchers - told:  # some come meanwhile, such as links that have got a session
            await self._tell_watchers(lambda watcher: watcher.queue_ended(why), told)
        at_end, self.at_end = self.at_end, []
        for call in at_end:
            call()
        await asyncio.gather(
            *(partition.stop(is_deleted=is_deleted) for partition in self._partitions.values())
        )


_clients = iter(range(1, 1 << 62))


def next_client() -> ClientId:
    """A new client number for partitions, unique in this process."""
    return ClientId(next(_clients))


class _Question:
    """One operation whose answer is awaited.

    Nothing that it refers to refers back to it, so an answer is freed with its last user. A cycle would leave
    it to the garbage collector, which holds the event loop for 100 ms while it frees a thousand pages of
    messages.
    """

    __slots__ = ("_client", "_handle", "answer")

    def __init__(self, handle: PartitionHandle) -> None:
        self._handle, self._client = handle, next_client()
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def post(self, operation: Operation) -> None:
        self._handle.post(operation, self._client, self.answered)

    def answered(self, answer: Answer) -> None:
        """Give the answer to the caller. If the caller has gone, release what was locked for it, and break
        promises."""
        if not self.answer.done():
            self.answer.set_result(answer)
        elif isinstance(answer, Locked):
            self.post(Release(answer.tokens))
        elif isinstance(answer, Promised):
            self.post(BreakPromise(answer.first))


async def ask(handle: PartitionHandle, operation: Operation) -> Answer:
    """Post one operation and wait for its answer. Meant for rare operations: the hot path keeps a sink
    and never waits.

    If the caller is cancelled, messages that were locked for it are released at once, and promises are
    broken. Raises Refused if the answer is `Failed`.
    """
    question = _Question(handle)
    question.post(operation)
    try:
        answer = await question.answer
    except asyncio.CancelledError:
        if not question.answer.cancelled():  # it arrived, but the caller was cancelled before taking it
            question.answered(question.answer.result())
        raise
    finally:
        question.post(Detach())
    if isinstance(answer, Failed):
        raise Refused(answer.reason, answer.description)
    return answer
