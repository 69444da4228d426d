"""The turns in which the partitions of one data folder are opened and recovered.

After a restart, clients may ask for thousands of partitions at once. If all were opened side by side, the
first would be done hardly sooner than the last, and the time-out of the disk would pass for most of them
while they wait for each other. So AT_ONCE at a time have a turn, and the time-out counts only within a turn.

*Who is next.* Partitions from which somebody awaits an answer come first, then those that may hold messages
for receivers, then empty ones (`Urgency`). Among these, an entity that has had no turn since it began to wait
comes first, and then each entity gets one turn after the other. So a small queue does not wait behind a large
one, nor a send behind receivers.

*Large logs.* Once the log of a partition has been acquired for LONG_S and it is still being read, the
partition does not count for other entities. They need not wait until a million messages are read.

*Memory.* A partition has its turn only if there is room for what it holds (`opening_room.py`). If there is
none, it waits in another line, and those behind it go ahead. This line is looked at every second: it moves up
as far as there is room, and one partition is opened beyond that, for receivers and for answers in turn. Those
that are too large even for that keep no others waiting. If somebody has awaited an answer for LATE_S, the
partition is told that it is late, as behind a disk that hangs. A partition that turns out to hold more than
was expected asks for more room within its turn. If there is none, its turn ends (`NoRoom`), and it waits for
as much as it is likely to take, or after LATE_S for a quarter more than is certain.

*A disk that hangs* never ends a turn, so a turn that lasts longer than the time-out passes to the next
partition, unless the folder's late ones would then take more than a part of the memory mark. It also shows
what the others wait for: those that have waited as long, and all if nothing was opened meanwhile, are told
that they are late, and answer their clients. They keep their place. They are told a few in a turn of the
event loop, because each may have many clients. Partitions whose disk is known to hang have turns of their
own (`when_hung`), which count as late from the start.

*Before the line.* Clients may ask for thousands of closed partitions in one turn of the event loop: each
credit on a queue with 16 partitions asks all of them. To join the line takes each some dozen microseconds, so
WOKEN_AT_ONCE are woken for it in a turn, those first from which somebody awaits an answer.
"""

from __future__ import annotations

import asyncio
import enum
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain

import structlog

from broker.base.clock import elapsed_s
from broker.base.few import Few
from broker.operations.browsing import Watch
from broker.operations.general import Detach, Update
from broker.operations.interface import Operation
from broker.operations.receiving import Demand, Recalled, Withdraw
from broker.operations.selecting import WatchReturned
from broker.operations.sessions import WatchSessions
from broker.operations.settling import Release
from broker.operations.transfers import FindSources
from broker.partition.opening_room import OpeningRoom, Share

log = structlog.get_logger("partitions")

AT_ONCE = 8
"""How many turns there are at a time: twice the threads that open the logs of a folder. With more, a turn
would be spent waiting for a thread, and nothing would be opened sooner."""
LONG_S = 1.0
"""How long reading a log may keep other entities waiting."""
LATE_S = 5.0
"""How long a partition from which somebody awaits an answer may wait for memory. After as long, any partition
is expected to take only a quarter more than is certain (`Opening.expect_less`)."""
SHORT_AT_ONCE = 64
"""How many partitions without room one look at the line passes over."""
MOVED_AT_ONCE = 256
"""How many partitions one look at the line moves up, if there is room."""
PASSED_AT_ONCE = 256
"""How many partitions without room are put into the other line in one turn of the event loop."""
TOLD_AT_ONCE = 64
"""How many partitions are told in one turn of the event loop that they are late."""
NAMED_MAX = 8
"""How many entities a line of the log names whose partitions wait for memory."""
SURPLUS_PARTS = 4
"""A partition may take this part more than was expected without asking: what is noted is not exact. If there
is no room, it waits for this part more than it is known to take at least (`NoRoom.least`)."""
SURPLUS_BYTES_MAX = 4 * 1024 * 1024
"""The most that a partition may take without asking. What it waits for has no such bound."""
EXPECTED_AGAIN = 2
"""If there is no room for what has been read of a log, at most this many times as much is expected when the
partition has its turn again, however much of the log is left."""
WOKEN_AT_ONCE = 16
"""How many closed partitions are woken in one turn of the event loop, to join the line. Opening them takes
much longer than that."""


class Urgency(enum.IntEnum):
    """What a partition is opened for."""

    ANSWER = 0
    """Somebody awaits an answer from it."""
    MESSAGES = 1
    """It may hold messages for receivers, something falls due in it, or nobody knows what it holds."""
    EMPTY = 2
    """Receivers wait for messages that it may get."""


_FOR_RECEIVERS = (Demand, Watch, WatchReturned, WatchSessions)
"""Operations that are answered when there is something for the client."""
_FOR_NOTHING = (Detach, Release, Recalled, Update, FindSources)
"""Operations that nobody opens a partition for. The broker itself posts `FindSources` to each one that
starts."""


def urgency_of(operation: Operation, for_receivers: Urgency) -> Urgency:
    """How urgent an operation makes it to open its partition. `for_receivers`: if it is for receivers."""
    if isinstance(operation, _FOR_RECEIVERS):
        return for_receivers
    if isinstance(operation, _FOR_NOTHING):
        return max(Urgency)
    return Urgency.MESSAGES if isinstance(operation, Withdraw) else Urgency.ANSWER


class NoRoom(Exception):
    """There is no room in memory for all that a partition holds, which is more than was expected."""

    def __init__(self, size: int, least: int) -> None:
        super().__init__(f"no room in memory for a partition of {size} bytes")
        self.size = size
        """What it is expected to take now, in bytes."""
        self.least = least
        """What it waits for at least, in bytes: a quarter more than it is known to take, so that a log is not
        read again and again in vain."""


class Opening:
    """One partition's place in the line, or its turn. Owned by the event loop."""

    __slots__ = (
        "_late",
        "_openings",
        "_turn",
        "acquired_s",
        "began_s",
        "come",
        "entity",
        "is_told",
        "joined_s",
        "least",
        "line",
        "name",
        "share",
        "size",
        "urgency",
    )

    def __init__(
        self,
        openings: Openings,
        entity: str,
        urgency: Urgency,
        size: int,
        least: int,
        now_s: float,
        late: Callable[[], None],
        name: str,
    ) -> None:
        self._openings, self.entity, self.urgency, self._late = openings, entity, urgency, late
        self.name = name
        """What the log calls the entity."""
        self.size = size
        """What it is expected to take in memory, in bytes."""
        self.least = least
        """What is expected of it once it has waited for long."""
        self.come = 0
        """How much of that is in memory already."""
        self.share: Share | None = None
        """What it takes once it is open. Set by the owner."""
        self.joined_s = now_s
        self.line: _Line | None = None
        """The line in which it waits."""
        self.is_told = False
        """Whether it was told that it is late."""
        self.began_s: float | None = None
        """When its turn began."""
        self.acquired_s: float | None = None
        """When its log had been acquired."""
        self._turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    @property
    def is_waiting(self) -> bool:
        """Whether its turn is still to come."""
        return self.line is not None

    async def has_turn(self) -> bool:
        """Wait for the turn. False if nobody wants it any more (`give_up`)."""
        return await self._turn

    def hasten(self, urgency: Urgency) -> None:
        """The partition is wanted for something else as well."""
        if urgency < self.urgency and self.is_waiting:
            self._openings.leave(self)
            self.urgency = urgency
            self._openings.join(self)

    def acquired(self) -> None:
        """The disk has acquired the log. What is left is to read it."""
        self.acquired_s = self._openings.seconds()

    def takes(self, size: int, come: int, likely: int) -> None:
        """What has been read of the log says that the partition takes `size` bytes at least, of which `come`
        are in memory, and about `likely` in the end. Raises NoRoom: its turn must end."""
        surplus = min(self.size // SURPLUS_PARTS, SURPLUS_BYTES_MAX)
        if size > self.size + surplus and not self._openings.grow(self, size):
            least = size + size // SURPLUS_PARTS
            raise NoRoom(min(max(least, likely), EXPECTED_AGAIN * size), least)
        if come > self.come:
            self._openings.has_come(self, min(come, self.size))

    def expect_less(self, now_s: float) -> None:
        """There has been no room for it. If it has waited for long, expect the least: it must not stay closed
        because too much is expected of it."""
        if now_s - self.joined_s >= LATE_S:
            self.size = self.least

    def is_late(self) -> None:
        """The disk has not answered in time."""
        if self.began_s is not None:
            self._openings.is_late(self, self.began_s)

    def give_up(self) -> None:
        """Nobody wants the partition to be opened any more. Nothing happens if its turn has begun."""
        if self.is_waiting:
            self._openings.leave(self)
            self._go_on(has_turn=False)

    def begin(self, now_s: float) -> None:
        """Its turn has come."""
        self.began_s = now_s
        self._go_on(has_turn=True)

    def _go_on(self, *, has_turn: bool) -> None:
        self.line = None
        if not self._turn.done():  # the task was not cancelled
            self._turn.set_result(has_turn)

    def tell_late(self) -> None:
        """Tell the partition that it has waited too long."""
        if self.is_waiting:
            self._late()


class _Line:
    """Partitions of the same urgency, in a queue for each entity."""

    __slots__ = ("_new", "_served", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Opening]] = {}
        # Not plain dicts: to find the first key of one takes as long as keys were taken from its front.
        self._new: OrderedDict[str, None] = OrderedDict()
        """The entities that have had no turn since they began to wait."""
        self._served: OrderedDict[str, None] = OrderedDict()
        """The others, the one that has its next turn first."""

    def join(self, opening: Opening, *, is_new: bool) -> None:
        """`is_new`: no other partition of the entity has its turn."""
        opening.line = self
        queue = self._waiting.get(opening.entity)
        if queue is None:
            queue = self._waiting[opening.entity] = deque()
            (self._new if is_new else self._served)[opening.entity] = None
        queue.append(opening)

    def leave(self, opening: Opening) -> None:
        self._waiting[opening.entity].remove(opening)
        self._forget_if_empty(opening.entity)

    def take(self, leave_out: Container[str] = ()) -> Opening | None:
        """Take out the next one, but not of these entities."""
        for entity in chain(self._new, self._served):
            if entity not in leave_out:
                opening = self._waiting[entity].popleft()
                self._new.pop(entity, None)
                self._served.pop(entity, None)
                self._served[entity] = None
                self._forget_if_empty(entity)
                return opening
        return None

    def _forget_if_empty(self, entity: str) -> None:
        if not self._waiting[entity]:
            del self._waiting[entity]
            self._new.pop(entity, None)
            self._served.pop(entity, None)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __iter__(self) -> Iterator[Opening]:
        return chain.from_iterable(self._waiting.values())


class Openings:
    """The turns of one data folder. Owned by the event loop."""

    def __init__(
        self,
        at_once: int = AT_ONCE,
        seconds: Callable[[], float] = elapsed_s,
        room: OpeningRoom | None = None,
    ) -> None:
        """`seconds` is the clock. `room` is shared with other folders."""
        self._at_once, self.seconds = at_once, seconds
        self.room = OpeningRoom(seconds) if room is None else room
        self._lines = [_Line() for _ in Urgency]
        self._short = [_Line() for _ in Urgency]
        """Those for which there was no room in memory."""
        self._answers_first = False
        """Whether the next one that is opened beyond the room is one from which somebody awaits an answer."""
        self._under_way: dict[Opening, None] = {}
        """Those that have their turn, and are not late."""
        self._busy: Counter[str] = Counter()
        """How many of them each entity has."""
        self._late: set[Opening] = set()
        """Those that have their turn and are late."""
        self._late_bytes = 0
        """What they will take."""
        self._last_joined_s = self._all_told_s = float("-inf")
        """When the last one joined, and until when all that had joined were told that they are late: whoever
        waits is looked at once, however many turns are late."""
        self._awaited: OrderedDict[Opening, None] = OrderedDict()
        """Those in the line of answers without room, about in the order in which they joined, until they have
        been told that they are late, or wait no more. Some may have moved up since."""
        self._when_hung: Openings | None = None
        self._ended_s = float("-inf")
        """When a turn last ended."""
        self._looking: asyncio.TimerHandle | None = None
        self._passed = 0
        """How many partitions without room were put into the other line in this turn of the event loop."""
        self._going_on = Few(1)
        """Calls `_go_on_anew` in the next turn."""
        self._telling = Few(TOLD_AT_ONCE)
        """Tells partitions that they are late."""
        self.waking = Few(WOKEN_AT_ONCE)
        """Wakes closed partitions that are to join the line."""

    @property
    def when_hung(self) -> Openings:
        """The turns of those whose disk is known to hang: no other of the folder waits for these. Beyond the
        room, they count as one folder, however many they are."""
        if self._when_hung is None:
            self._when_hung = Openings(self._at_once, self.seconds, self.room)
        return self._when_hung

    @contextmanager
    def place(
        self,
        entity: str,
        urgency: Urgency,
        late: Callable[[], None],
        size: int = 0,
        least: int | None = None,
        *,
        name: str | None = None,
    ) -> Iterator[Opening]:
        """A place in the line. The turn ends with this block. `late` is called, perhaps more than once, if
        the partition has waited too long for a disk that does not answer, or for memory. `size`: what it
        is expected to take there, in bytes. `least`: what is expected once it has waited for LATE_S, if that
        is less. `name`: what the log calls the entity, if not `entity`."""
        now_s = self._last_joined_s = self.seconds()
        least = size if least is None else least
        opening = Opening(self, entity, urgency, size, least, now_s, late, entity if name is None else name)
        self.join(opening)
        try:
            yield opening
        finally:
            opening.give_up()
            self._awaited.pop(opening, None)
            if opening.began_s is not None:
                self._ended_s = self.seconds()
                self.room.give_back(opening, opening.size, opening.share, opening.come)
                if opening in self._late:
                    self._late.remove(opening)
                    self._late_bytes -= opening.size
                self._release(opening)

    def join(self, opening: Opening) -> None:
        """Let a partition wait for its turn."""
        self._lines[opening.urgency].join(opening, is_new=opening.entity not in self._busy)
        self._go_on()

    def leave(self, opening: Opening) -> None:
        """The partition does not wait any more."""
        assert opening.line is not None, "it waits"
        opening.line.leave(opening)

    def grow(self, opening: Opening, size: int) -> bool:
        """Whether a partition that has its turn may take `size` bytes, which is more than was expected. If
        so, that is expected of it from now on."""
        if not self.room.grow(opening, opening.size, size):
            return False
        if opening in self._late:
            self._late_bytes += size - opening.size
        opening.size = size
        return True

    def has_come(self, opening: Opening, come: int) -> None:
        """`come` bytes of what a partition takes are in memory now."""
        self.room.has_come(come - opening.come)
        opening.come = come

    def is_late(self, opening: Opening, began_s: float) -> None:
        """The disk has not answered within the time-out, since `began_s`."""
        self._all_are_late(self.seconds() if self._ended_s < began_s else began_s)
        if opening not in self._late:
            self._late.add(opening)
            self._late_bytes += opening.size
        self.room.is_late(opening)
        self._release(opening)

    def _all_are_late(self, joined_s: float) -> None:
        """Tell all that wait and joined until then."""
        told_s, self._all_told_s = self._all_told_s, max(self._all_told_s, joined_s)
        if told_s < min(self._last_joined_s, joined_s):
            waiting = chain.from_iterable((*self._lines, *self._short))
            self._are_late(each for each in waiting if told_s < each.joined_s <= joined_s)

    def _are_late(self, openings: Iterable[Opening]) -> None:
        for each in openings:
            if not each.is_told:
                each.is_told = True
                self._telling.soon(each.tell_late)

    def _release(self, opening: Opening) -> None:
        if opening in self._under_way:
            del self._under_way[opening]
            self._busy[opening.entity] -= 1
            if not self._busy[opening.entity]:
                del self._busy[opening.entity]
        self._go_on()

    def _go_on(self) -> None:
        """Begin the turns that can begin now."""
        now_s = self.seconds()
        while (opening := self._next(now_s)) is not None:
            self._begin(opening, now_s)
        if self._looking is None and any((*self._lines, *self._short)):
            self._looking = asyncio.get_running_loop().call_later(LONG_S, self._look)

    def _go_on_anew(self) -> None:
        """Go on in a new turn of the event loop."""
        self._passed = 0
        self._go_on()

    def _begin(self, opening: Opening, now_s: float) -> None:
        self._awaited.pop(opening, None)
        self._under_way[opening] = None
        self._busy[opening.entity] += 1
        opening.begin(now_s)

    def _look(self) -> None:
        self._looking = None
        left = self.room.left
        for line in self._short:
            left = self._move_up(line, left)
        if any(self._short):
            self._go_beyond()
        self._go_on()
        since_s = self.seconds() - LATE_S
        self._tell_awaited(since_s)
        if self._late and not self._under_way:  # nobody else tells them
            self._all_are_late(since_s)

    def _tell_awaited(self, since_s: float) -> None:
        """Tell those in the line of answers without room that have waited since then."""
        late: list[Opening] = []
        while self._awaited and (opening := next(iter(self._awaited))).joined_s <= since_s:
            del self._awaited[opening]
            if opening.line is self._short[Urgency.ANSWER]:
                late.append(opening)
        if late:
            log.warning(
                "partitions.wait_for_memory",
                partitions=len(late),
                bytes=sum([each.size for each in late]),
                entities=list(dict.fromkeys([each.name for each in late]))[:NAMED_MAX],
            )
            self._are_late(late)

    def _move_up(self, line: _Line, left: int) -> int:
        """Let those go on for which there is room now, as far as can be seen at once. `left` is the room;
        gives what is left of it."""
        still_short: list[Opening] = []
        now_s = self.seconds()
        for _ in range(MOVED_AT_ONCE):
            if len(still_short) == SHORT_AT_ONCE or (opening := line.take()) is None:
                break
            opening.expect_less(now_s)
            if self._may_pass_on(opening) and opening.size <= max(left, 0):
                left -= opening.size
                self._lines[opening.urgency].join(opening, is_new=opening.entity not in self._busy)
            else:
                still_short.append(opening)
        for opening in still_short:
            line.join(opening, is_new=False)
        return left

    def _go_beyond(self) -> None:
        """Begin one turn beyond the room, if that is allowed. Receivers free memory, and others wait for
        answers, so these take turns."""
        if len(self._under_way) >= self._at_once or not self.room.has_turn(self):
            return
        answers, receivers, empty = self._short
        for line in (answers, receivers, empty) if self._answers_first else (receivers, answers, empty):
            opening = self._take_beyond(line)
            if opening is not None:
                self._answers_first = line is not answers
                self._begin(opening, self.seconds())
                break
        self.room.pass_on(self)

    def _take_beyond(self, line: _Line) -> Opening | None:
        """The first one of a line that may be opened beyond the room. Those that are too large wait behind
        the others."""
        found: Opening | None = None
        too_large: list[Opening] = []
        while found is None and len(too_large) < SHORT_AT_ONCE and (opening := line.take()) is not None:
            if self._may_pass_on(opening) and self.room.take_beyond(opening, opening.size):
                found = opening
            else:
                too_large.append(opening)
        for opening in too_large:
            line.join(opening, is_new=False)
        return found

    def _may_pass_on(self, opening: Opening) -> bool:
        """Whether this partition may have the turn that others are late with. What these take counts as soon
        as the disk answers, so one that needs no room never waits for them."""
        return not (self._late_bytes and opening.size) or (
            self._late_bytes + opening.size <= self.room.part_beyond
        )

    def _next(self, now_s: float) -> Opening | None:
        leave_out: Container[str] = ()
        if len(self._under_way) >= self._at_once:
            if sum(not _is_long(each, now_s) for each in self._under_way) >= self._at_once:
                return None
            leave_out = self._busy
        for line, short in zip(self._lines, self._short, strict=True):
            while line and self._passed < PASSED_AT_ONCE and (opening := line.take(leave_out)) is not None:
                if self._may_pass_on(opening) and self.room.take(opening.size):
                    return opening
                self._passed += 1
                self._going_on.soon(self._go_on_anew)
                short.join(opening, is_new=opening.entity not in self._busy)
                if opening.urgency is Urgency.ANSWER and not opening.is_told:
                    self._awaited[opening] = None
        return None


def _is_long(opening: Opening, now_s: float) -> bool:
    return opening.acquired_s is not None and now_s - opening.acquired_s >= LONG_S
