"""Partitions at rest: what they hold, and which of them must be opened on time without a client's request.

A broker may have a hundred thousand partitions, and opens almost none of them at startup. The index
(`storage/partition_index.py`) says what the others hold, in one note each (`broker/partition/summary.py`).
The notes are exact, because a partition is entered as open before its log is acquired, and gets a new note
only after its log has been closed cleanly.

*After a crash* the index says which partitions were open. Their content is unknown until their logs have been
read. They are opened in the background, a few at a time, most urgent first. Meanwhile the broker is
started, and a client's own demand opens a partition at once. While memory is scarce, one after the other is
opened (`broker/partition/opening_room.py`), and closed once it is at rest: what they hold may be why the
kernel ended the broker, and together it would end it at each start. Callers that count messages can wait
until nothing is unknown (`all_known`), and leave out any partition that still is.

*An out-of-date index*: each data folder says whether the index can be trusted about it
(`storage/index_witness.py`). If not, its partitions count as unknown. A folder that does not answer at
startup is asked again until it does.

*Waking*: a note says when something falls due in the partition (`Wake`). Then the partition is opened, and
its own timer does the rest. The times are wall time, and the clock is checked at least every second, so a
clock step or a suspend makes little difference.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Protocol

import structlog

from broker.base.clock import Clock
from broker.namespace.appointments import Appointments
from broker.namespace.appointments import Key as _Key
from broker.operations.message_states import SubqueueCounts
from broker.partition.summary import (
    EMPTY_NOTE,
    SEGMENT_BYTES,
    SUBQUEUES_MAX,
    Summary,
    decode,
    is_readable,
    survey,
    total_in_steps,
    wake_at_ms,
)
from storage.errors import StorageError
from storage.index_witness import Witness
from storage.log import EntityLogs
from storage.partition_index import PartitionIndex
from storage.spread_store import place
from storage.threads import OwnerFailed, mark_retrieved, report_to_loop, start_background

log = structlog.get_logger("resting")

FOLDER_OPENING_MAX = 4
"""How many due or unknown partitions one data folder opens at a time. The bound keeps clients' own demand
from waiting behind them. It holds per folder, so a folder that hangs does not delay the others."""
PASSES_ON_S = 5.0
"""A partition that takes longer to be opened, most likely because memory has no room for it, no longer counts
as being opened, so the next one may begin."""
PASSED_ON_MAX = 256
"""At most so many at a time have let the next one begin and still wait."""
LOOKED_AT_ONCE = 256
"""How many due or unknown partitions one turn of the event loop looks at."""
LOOK_S = 1.0
"""How often to check the clock while something is going to fall due."""
ASKED_WITHIN_S = 5.0
"""How long startup waits for a folder that does not answer."""
ASKED_AGAIN_S = 2.0
"""How long to wait before asking a folder again that did not answer at startup."""
ASKED_S = 0.02
"""One read from a socket can ask for thousands of partitions before the first of them is being opened."""
UNKNOWN_BYTES = 256 * 1024
"""What an unknown partition is expected to take, a thousand messages, when its turn comes to be opened. If it
takes more, that shows while its log is read (`broker/partition/coming_back.py`). Before it may ask for its
turn, there must be room for this beside what its last note says (`Resting.take_room`)."""
LISTING_MAX = 32
"""How many entities' logs are listed at a time when the index is rebuilt."""


class Sleeper(Protocol):
    """A queue whose partitions can be woken."""

    async def wake(self, number: int) -> None:
        """Open a partition if it is not open; returns once it is open or opening has failed."""

    def folder_of(self, number: int) -> int:
        """The number of the data folder that holds a partition."""

    @property
    def subqueues_end(self) -> int:
        """Above the numbers of all subqueues that its partitions ever had."""


class PartitionRegister:
    """One partition's entry in the index: the `Register` (`broker/partition/rest.py`) that its task is
    given."""

    __slots__ = ("_generation", "_number", "_resting")

    def __init__(self, resting: Resting, generation: str, number: int) -> None:
        self._resting, self._generation, self._number = resting, generation, number

    def summary(self) -> Summary | None:
        """What the partition held when it was closed cleanly; None if it is open, was never opened, or its
        content is unknown."""
        return self._resting.summary(self._generation, self._number)

    def expected_bytes(self) -> int:
        """See `Resting.expected_bytes`."""
        return self._resting.expected_bytes(self._generation, self._number)

    async def opening(self) -> None:
        """The partition's log is about to be acquired."""
        await self._resting.opening(self._generation, self._number)

    def closed(self, summary: Summary) -> None:
        """The partition's log was closed cleanly; `summary` says what it holds."""
        self._resting.closed(self._generation, self._number, summary)


class Resting:
    """All partitions at rest. Owned by the event loop."""

    def __init__(
        self,
        index: PartitionIndex,
        clock: Clock,
        *,
        look_s: float = LOOK_S,
        passes_on_s: float = PASSES_ON_S,
        segment_bytes: int = SEGMENT_BYTES,
        failed: OwnerFailed = report_to_loop,
    ) -> None:
        """`segment_bytes`: the largest segment of a log. `failed` is called if the task that wakes partitions
        dies: nothing is opened on time after that."""
        self._index, self._clock, self._look_s, self._failed = index, clock, look_s, failed
        self._segment_bytes, self._passes_on_s = segment_bytes, passes_on_s
        self._store: EntityLogs | None = None
        self._unknown: dict[str, set[int]] = {}
        self._totals: dict[str, dict[int, SubqueueCounts]] = {}
        """What each entity's closed partitions hold. Added up while their notes are read, and kept until
        first used or out of date."""
        self._due = Appointments()
        """When each closed partition must be opened, in wall time."""
        self._sleepers: dict[str, Sleeper] = {}
        self._waiting = Appointments()
        """Unknown partitions still to be looked at: when each had to act next, according to its last note."""
        self._changed = asyncio.Event()
        self._all_known = asyncio.Event()
        self._found_ms = 0
        """When an unknown partition last became known, or came, in monotonic time."""
        self._folders = max(1, len(index.witnesses))
        self._busy: Counter[int] = Counter()
        """How many partitions are being opened, by data folder, without those that have passed on."""
        self._held: dict[int, deque[_Key]] = {}
        """Partitions to open as soon as their data folder has fewer than FOLDER_OPENING_MAX being opened, by
        folder."""
        self._opening: set[asyncio.Task[None]] = set()
        self._keeping: asyncio.Task[None] | None = None
        self._asking: dict[int, asyncio.Task[None]] = {}
        """Data folders that did not answer at startup, by number."""
        self._is_started = False
        self.lost_folders: Collection[int] = frozenset()
        """The data folders whose partitions cannot be opened, by number. Kept up to date by the server."""
        self.slow_folders: Collection[int] = frozenset()
        """These, and those that have left something unanswered."""
        self.look_at_folders: Callable[[], None] = lambda: None
        """Brings both up to date at once. Set by the server."""
        self.is_memory_scarce = False
        """Whether no partitions are to be opened that hold nothing. Kept up to date by the server."""
        self.on_opening: Callable[[], None] = lambda: None
        """Called before a partition takes the memory that an open one needs. Set by the server."""
        self.has_room: Callable[[int], bool] = lambda size: True
        """Whether there is memory for so many bytes of messages; if so, they are accounted for. Set by the
        server."""
        self.asked = 0
        """How many closed partitions clients have asked for in the last ASKED_S: the host does not count
        these as being opened yet, or not for long."""
        self.asked_bytes = 0
        """What the messages take in memory that partitions hold which `take_room` has let be opened in the
        last ASKED_S."""

    # --- starting and stopping ------------------------------------------------------------------------------

    async def load(
        self, generations: Mapping[str, int], store: EntityLogs, with_logs: Collection[str]
    ) -> None:
        """Read the index; rebuild it from the existing logs if it is missing or damaged. Raises StorageError.

        `generations` holds all entities, live or not, each with its number of partitions, or 0 if that is
        unknown. `with_logs` are those that have logs (`EntityLogs.entities`): the folders of the others need
        not be listed, and there may be thousands.
        """
        self._store = store
        witnesses = self._index.witnesses
        reading = [asyncio.create_task(witness.read()) for witness in witnesses]
        for task in reading:
            task.add_done_callback(mark_retrieved)
        awaited = [task for number, task in enumerate(reading) if number not in self.lost_folders]
        if awaited:
            await asyncio.wait(awaited, timeout=ASKED_WITHIN_S)
        read = [witness for witness in witnesses if witness.is_read]
        if not await self._index.load():
            listed = {each: count for each, count in generations.items() if each in with_logs}
            partitions = await _listed(listed, store)
            if any(partitions.values()):
                log.warning(
                    "index.made_anew",
                    partitions=sum(map(len, partitions.values())),
                    reason=(
                        "There was no index of partitions, or it was damaged. Every log is opened, in the "
                        "background."
                    ),
                )
                await self._index.rebuild(partitions)
        elif wrong := [witness for witness in read if self._index.contradicts(witness)]:
            await self._doubt(wrong, generations, store)
        for number, witness in enumerate(witnesses):
            if witness not in read:
                asking = self._ask(witness, generations, store)
                self._asking[number] = start_background(asking, "index-witness", self._failed)
        for generation in set(self._index.entities()) - set(generations):
            self._index.forget(generation)

    async def _doubt(
        self, witnesses: Collection[Witness], generations: Mapping[str, int], store: EntityLogs
    ) -> Mapping[str, Collection[int]]:
        """Treat all partitions of these folders as open, because the index is out of date about them. Returns
        them by generation."""
        folders = {number for number, witness in enumerate(self._index.witnesses) if witness in witnesses}
        doubted: dict[str, list[int]] = {}
        for generation, listed in (await _listed(generations, store)).items():
            known = {number for number, *_ in self._index.partitions(generation)}
            sleeper = self._sleepers.get(generation)
            doubted[generation] = [
                number
                for number in known.union(listed)
                if sleeper is None or sleeper.folder_of(number) in folders
            ]
        if any(doubted.values()):
            log.warning(
                "index.out_of_date",
                folders=[str(witness.path.parent) for witness in witnesses],
                partitions=sum(map(len, doubted.values())),
                reason=(
                    "What it says is older than the logs of these folders. They are opened, in the "
                    "background."
                ),
            )
        await self._index.doubt(doubted)
        return doubted

    async def _ask(self, witness: Witness, generations: Mapping[str, int], store: EntityLogs) -> None:
        """Ask a folder that did not answer at startup until it does."""
        while not witness.is_read:
            try:
                await witness.read()
            except StorageError:
                await asyncio.sleep(ASKED_AGAIN_S)
        if self._index.contradicts(witness):
            for generation, numbers in (await self._doubt([witness], generations, store)).items():
                if self._is_started and generation in self._sleepers and numbers:
                    self._totals.pop(generation, None)
                    self._wait_for(generation, numbers)
            self._changed.set()

    def unasked(self) -> Collection[int]:
        """The numbers of data folders that have not answered since startup, so their content is unknown."""
        return [number for number, task in self._asking.items() if not task.done()]

    def start(self) -> None:
        """Start opening unknown partitions, and waking those that fall due, of all live queues."""
        self._is_started = True
        for generation in self._sleepers:
            self._take_up(generation)
        for generation in self._index.entities():
            if generation not in self._sleepers:  # it may come back, for example if its entry is damaged
                self._keep_room(generation, {})
        if due := self._due.count_until(self._clock.now_ms()):
            log.info(
                "partitions.due",
                partitions=due,
                reason="They are opened now: messages in them have expired or are due, or their logs have "
                "room to give back.",
            )
        if self._waiting:
            log.info(
                "partitions.unknown",
                partitions=len(self._waiting),
                reason="They were open when the broker ended: they are opened now.",
            )
        self._look_whether_all_known()
        self._keeping = start_background(self._keep(), "resting", self._failed)

    async def stop(self) -> None:
        """Stop waking partitions."""
        for task in self._asking.values():  # they may be waiting for a disk that hangs
            task.cancel()
        for each in (self._keeping, *self._opening):
            if each is not None:
                each.cancel()
                await asyncio.wait([each])

    async def close(self) -> None:
        """Write the index, once all partitions are closed."""
        await self._index.close()

    # --- queues and their partitions ------------------------------------------------------------------------

    def enter(self, generation: str, sleeper: Sleeper) -> None:
        """From now on, wake the partitions of this queue."""
        self._sleepers[generation] = sleeper
        if self._is_started:
            self._take_up(generation)
            self._changed.set()

    def leave(self, generation: str, sleeper: Sleeper) -> None:
        """Wake this queue's partitions no more."""
        if self._sleepers.get(generation) is sleeper:
            del self._sleepers[generation]
            self._totals.pop(generation, None)
            self._unknown.pop(generation, None)
            for number, *_ in self._index.partitions(generation):
                self._due.cancel((generation, number))
            self._look_whether_all_known()

    def _take_up(self, generation: str) -> None:
        """Record what a queue holds, what is unknown about it, and when its partitions must be woken."""
        numbers: list[int] = []
        notes: list[bytes] = []
        unknown: list[int] = []
        for number, is_open, note in self._index.partitions(generation):
            if is_open:
                unknown.append(number)
            else:
                numbers.append(number)
                notes.append(note)
        total, wakes, needs, unreadable = survey(notes, self._subqueues_end(generation), self._segment_bytes)
        if notes:
            self._totals[generation] = total
        if needs or unknown:
            self._keep_room(generation, dict(zip(numbers, needs, strict=True)) if needs else {})
        unknown += [numbers[place] for place in unreadable]
        if unknown:
            self._wait_for(generation, unknown)
        self._due.set_many(
            (at_ms, (generation, number))
            for number, at_ms in zip(numbers, wakes, strict=True)
            if at_ms is not None
        )

    def _keep_room(self, generation: str, known: Mapping[int, tuple[int, int] | None]) -> None:
        """Keep room for draining an entity's partitions until they are opened: what is known that they need,
        and for all others what their last notes say."""
        needs = {number: need for number, need in known.items() if need is not None}
        if self._store is None:
            return
        last = [
            (number, note)
            for number, _, note in self._index.partitions(generation)
            if number not in known and note != EMPTY_NOTE
        ]
        if last:
            found = survey([note for _, note in last], self._subqueues_end(generation), self._segment_bytes)
            pairs = zip(last, found.needs, strict=True) if found.needs else ()
            needs |= {number: need for (number, _), need in pairs if need is not None}
        by_folder: dict[int, dict[int, tuple[int, int]]] = {}
        if self._folders == 1 and needs:
            by_folder[0] = needs
        else:
            for number, need in needs.items():
                by_folder.setdefault(self._folder_of((generation, number)), {})[number] = need
        for folder, of_folder in by_folder.items():
            self._store.keep_room(generation, of_folder, folder)

    def _wait_for(self, generation: str, numbers: Collection[int]) -> None:
        """Have these partitions opened, the most urgent first, because their content is unknown."""
        self._unknown.setdefault(generation, set()).update(numbers)
        notes = {number: note for number, _, note in self._index.partitions(generation)}
        count = self._subqueues_end(generation)
        self._waiting.set_many(
            (_urgency(notes.get(number), count), (generation, number)) for number in numbers
        )
        self._all_known.clear()
        self._found_ms = self._clock.monotonic_ms()
        self._changed.set()

    def _subqueues_end(self, generation: str) -> int:
        sleeper = self._sleepers.get(generation)
        return SUBQUEUES_MAX if sleeper is None else sleeper.subqueues_end

    def forget(self, generation: str) -> None:
        """The entity was deleted with all its logs."""
        self._index.forget(generation)

    def summary(self, generation: str, number: int) -> Summary | None:
        """What a closed partition holds; None for one that is open, was never opened, or is unknown."""
        note = self._index.note(generation, number)
        return None if note is None else decode(note, self._subqueues_end(generation))

    def expected_bytes(self, generation: str, number: int) -> int:
        """What the messages of a closed partition are expected to take in memory once it is open. What an
        unknown one held when it was last closed or at rest says little: it may have been emptied since."""
        if number in self.unknown(generation):
            return UNKNOWN_BYTES
        return self._noted_bytes(generation, number)

    def _noted_bytes(self, generation: str, number: int) -> int:
        """What the messages of a partition took when it was last closed or at rest."""
        note = self._index.last_note(generation, number)
        last = None if note is None else decode(note, self._subqueues_end(generation))
        return 0 if last is None else last.state_bytes

    def count_in_steps(
        self, generation: str, leave_out: Collection[int], total: dict[int, SubqueueCounts]
    ) -> Iterator[None]:
        """Count what an entity's closed partitions hold, except those in `leave_out`, by subqueue number.
        `total` is empty and gets the result. Each partition with many subqueues takes a step, and counts as
        it was at the first one."""
        if not leave_out and (known := self._totals.pop(generation, None)) is not None:
            total.update(known)
        else:
            notes = self._index.notes(generation, leave_out)
            yield from total_in_steps(notes, self._subqueues_end(generation), total)

    def register(self, generation: str, number: int) -> PartitionRegister:
        """The register for the task of one partition."""
        return PartitionRegister(self, generation, number)

    def ask(self) -> None:
        """A client is about to ask for a closed partition. `is_memory_scarce` then says whether there is room
        for it, apart from what it holds."""
        self._count_asked(1, 0)
        self.on_opening()

    def take_room(self, generation: str, number: int) -> bool:
        """Whether there is memory for the messages of a closed partition; if so, it is taken. An unknown
        partition counts with its last note and UNKNOWN_BYTES, more than `expected_bytes`: thousands may be
        asked for at once, and those refused are opened one after the other, so too much does little harm."""
        size = self._noted_bytes(generation, number)
        if number in self.unknown(generation):
            size += UNKNOWN_BYTES
        if not size:
            return True
        if self.is_memory_scarce or not self.has_room(size):
            return False
        self._count_asked(0, size)
        return True

    def _count_asked(self, partitions: int, size: int) -> None:
        if not (self.asked or self.asked_bytes):
            asyncio.get_running_loop().call_later(ASKED_S, self._forget_asked)
        self.asked += partitions
        self.asked_bytes += size

    def _forget_asked(self) -> None:
        self.asked = self.asked_bytes = 0

    async def opening(self, generation: str, number: int) -> None:
        """See `PartitionRegister.opening`."""
        self.on_opening()
        self._due.cancel((generation, number))
        self._totals.pop(generation, None)
        sleeper = self._sleepers.get(generation)
        await self._index.opened(generation, number, 0 if sleeper is None else sleeper.folder_of(number))

    def closed(self, generation: str, number: int, summary: Summary) -> None:
        """See `PartitionRegister.closed`."""
        self._index.closed(generation, number, summary.encode())
        self._totals.pop(generation, None)
        if (
            summary.wake_at_ms is not None and generation in self._sleepers
        ):  # a deleted queue's logs are closed after `leave`
            self._due.set((generation, number), summary.wake_at_ms)
            self._changed.set()

    # --- unknown partitions ---------------------------------------------------------------------------------

    def unknown(self, generation: str) -> Collection[int]:
        """Partitions of an entity that may hold messages but whose content is unknown."""
        return self._unknown.get(generation, ())

    @property
    def unknown_count(self) -> int:
        """The number of unknown partitions of all entities."""
        return sum(map(len, self._unknown.values()))

    async def all_known(self, within_s: float) -> bool:
        """Wait until no partition is unknown; False if some still are after `within_s`. Nobody waits if the
        last one became known longer ago than that: memory may have no room for the others, and a scrape
        would take as long each time."""
        if self._all_known.is_set():
            return True
        since_s = (self._clock.monotonic_ms() - self._found_ms) / 1000
        try:
            async with asyncio.timeout(within_s if since_s < within_s else 0):
                await self._all_known.wait()
        except TimeoutError:
            return False
        return True

    # --- waking ---------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Open the unknown partitions in order of urgency, and whatever falls due in the meantime and
        afterwards."""
        while True:
            self._changed.clear()
            if self._due.put_in_order() or self._waiting.put_in_order():
                await asyncio.sleep(0)
                continue
            looked_at = self._start_some()
            if looked_at == LOOKED_AT_ONCE:
                await asyncio.sleep(0)
                continue
            wait_s = self._look_s if self._waiting or any(self._held.values()) else None
            if (first_ms := self._due.first_at) is not None and not self._all_folders_busy:
                wait_s = min(self._look_s, max(0, first_ms - self._clock.now_ms()) / 1_000)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    def _start_some(self) -> int:
        """Start opening what can be opened now; returns how many partitions were looked at."""
        for folder, held in self._held.items():
            while held and self._busy[folder] < FOLDER_OPENING_MAX and self._may_open(held[0]):
                self._start_one(held.popleft(), folder)
        for looked_at in range(LOOKED_AT_ONCE):
            if self._all_folders_busy:
                return looked_at
            if self._due.drop_outdated() or self._waiting.drop_outdated():
                continue
            key = self._due.take(self._clock.now_ms())
            if key is None and not (self.is_memory_scarce and self._busy.total()):
                key = self._waiting.take(float("inf"))
            if key is None:
                return looked_at
            folder = self._folder_of(key)
            if self._busy[folder] >= FOLDER_OPENING_MAX:
                self._held.setdefault(folder, deque()).append(key)
            elif self._may_open(key):
                self._start_one(key, folder)
            else:
                self._held.setdefault(folder, deque()).append(key)
                return looked_at
        return LOOKED_AT_ONCE

    def _may_open(self, key: _Key) -> bool:
        """Whether there is memory for a due or unknown partition. If not, they are opened one by one, for
        what falls due may free memory; each waits for its turn beyond the room
        (`broker/partition/opening_room.py`)."""
        return self.take_room(*key) or not self._busy.total()

    def _start_one(self, key: _Key, folder: int) -> None:
        self._busy[folder] += 1
        task = asyncio.create_task(self._wake(key, folder), name=f"wake {key[0]}/{key[1]}")
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    @property
    def _all_folders_busy(self) -> bool:
        return all(self._busy[folder] >= FOLDER_OPENING_MAX for folder in range(self._folders))

    def _folder_of(self, key: _Key) -> int:
        if self._folders == 1:
            return 0
        sleeper = self._sleepers.get(key[0])
        return place(*key, self._folders) if sleeper is None else sleeper.folder_of(key[1])

    async def _wake(self, key: _Key, folder: int) -> None:
        generation, number = key
        loop, has_passed_on = asyncio.get_running_loop(), False
        timer = loop.call_later(self._passes_on_s, lambda: pass_on())

        def pass_on() -> None:
            nonlocal has_passed_on, timer
            if len(self._opening) - self._busy.total() < PASSED_ON_MAX:
                has_passed_on = True
                self._busy[folder] -= 1
                self._changed.set()
            else:
                timer = loop.call_later(self._passes_on_s, pass_on)

        try:
            sleeper = self._sleepers.get(generation)
            if sleeper is not None:
                await sleeper.wake(number)
        finally:
            timer.cancel()
            if not has_passed_on:
                self._busy[folder] -= 1
            self._changed.set()
            numbers = self._unknown.get(generation)
            if numbers is not None:
                self._found_ms = self._clock.monotonic_ms()
                numbers.discard(number)
                if not numbers:
                    del self._unknown[generation]
                self._look_whether_all_known()

    def _look_whether_all_known(self) -> None:
        if not self._unknown:
            self._all_known.set()


def _urgency(note: bytes | None, subqueues: int) -> float:
    """When a partition that was open had to act next, according to its last note."""
    if note is None or not is_readable(note, subqueues) or (at_ms := wake_at_ms(note)) is None:
        return float("inf")
    return at_ms


async def _listed(generations: Mapping[str, int], store: EntityLogs) -> dict[str, list[int]]:
    """The partitions of each entity that have a log; all of them if the disk cannot say."""
    listing = asyncio.Semaphore(LISTING_MAX)

    async def of(generation: str, partitions: int) -> list[int]:
        async with listing:
            try:
                return await store.partitions(generation)
            except StorageError:
                return list(range(partitions))

    return dict(
        zip(generations, await asyncio.gather(*(of(*each) for each in generations.items())), strict=True)
    )


def add_counts(total: dict[str, SubqueueCounts], counts: Mapping[str, SubqueueCounts]) -> None:
    """Add each subqueue's counts to the total."""
    for subqueue, each in counts.items():
        sum_ = total.setdefault(subqueue, SubqueueCounts())
        sum_.active += each.active
        sum_.locked += each.locked
        sum_.deferred += each.deferred
        sum_.scheduled += each.scheduled
        sum_.bytes += each.bytes
        sum_.message_ids += each.message_ids
