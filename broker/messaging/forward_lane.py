"""Forwards the messages of one subqueue of one partition to another entity, each of them exactly once.

A lane locks a load of messages, has the partitions of the target enqueue them, and then removes them. One
load follows the other. If the broker ends in between, the messages are available again at the next start and
are handed over a second time. The target's partition then knows their numbers (`transfer_operations.py`).

*What the target must remember.* The lane knows which messages were handed over but may not be removed yet,
and tells the partitions of the target with the next load. After a start it does not know. Then the first
answer of each partition says which numbers it has kept, and the lane removes these messages at the source.
Some time after the last load, it tells the partitions that nothing is in doubt.

*Failures.* Messages for a partition of the target that is down are *set aside*, locked, while the others go
on. They are tried again after a pause, which doubles with each failure. If many are set aside, the lane
waits. Messages that the target refuses for good become dead letters that say why. Those of a dead-letter
queue go to the transfer dead-letter queue if the reason lies in the message; if the target is full, disabled
or missing, they wait where they are.

An idle lane has a demand for one message at its partition, and no timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import DEAD_LETTER, MAIN, TRANSFER, TRANSFER_DEAD_LETTER
from broker.messaging.asking import answer_of
from broker.messaging.forward_load import Prepared, Rejection, prepare, rejection_of
from broker.namespace.entity import Entity, next_client
from broker.namespace.router import PartitionHandle
from broker.operations import (
    Answer,
    Complete,
    DeadLetter,
    DeletedExactly,
    DeleteExactly,
    Demand,
    Detach,
    Locked,
    LockToken,
    Operation,
    Recall,
    Recalled,
    Release,
    Settled,
    Unavailable,
)
from broker.transfer_operations import FailTransfer, HandedOver, HandOver, LockNext, source_of

LOAD_MESSAGES = 256
LOAD_BYTES = 2 * 1024 * 1024
LOCK_MS = 120_000
"""How long the messages of a load stay locked: much longer than anything waits for a disk."""
SET_ASIDE_MESSAGES = 1_024
SET_ASIDE_BYTES = 16 * 1024 * 1024
"""How much may be set aside before a lane waits."""
RETRY_S, RETRY_S_MAX = 0.1, 10.0
"""The pause after the first failure, and the longest one."""
FORGET_S = 5.0
"""How long after its last load a lane tells the target that nothing is in doubt."""
STOPS_WITHIN_S = 5.0
"""How long a load may take to end when the lane stops. After that it is as in a crash."""

log = structlog.get_logger("forwarding")


class Road(Protocol):
    """What the lanes of one subqueue have in common (`forwarding.py`)."""

    source: Entity
    subqueue: str
    target_name: str
    turns: asyncio.Semaphore
    """Bounds how many loads are in memory at a time."""
    message_id: Callable[[], str]

    def target(self) -> Entity:
        """The target as it is now. Raises Refused if it takes no messages."""

    def admit(self, messages: int) -> None:
        """Raises Refused(SERVER_BUSY) while the broker takes no messages."""

    def forwarded(self, target: Entity, messages: int, size: int, duplicates: int) -> None:
        """Count messages that were forwarded."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run this in the background."""


@dataclass(slots=True)
class _Outcome:
    """What became of the messages of a load, by their places."""

    done: list[int] = field(default_factory=list)
    """The target has stored them."""
    rejected: dict[Rejection, list[int]] = field(default_factory=dict)
    later: dict[int, list[int]] = field(default_factory=dict)
    """By partition of the target: those to be tried again."""
    known: dict[int, set[int]] = field(default_factory=dict)
    """By partition of the target: numbers of other messages that it has stored before this lane began."""


class Lane:
    """The forwarding of one subqueue of one partition. Owned by the event loop."""

    def __init__(self, road: Road, number: int) -> None:
        """`number` is the partition's."""
        self._road, self._number = road, number
        self._client = next_client()
        description = road.source.description
        subqueue = [each.name for each in description.subqueues].index(road.subqueue)
        self._source = source_of(description.generation, number, subqueue)
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._demands = self._stopping = self._is_down_for_good = False
        self._target_generation = ""
        self._doubt: dict[int, set[int]] = {}
        """By partition of the target: numbers of messages that it has stored, and that may still be at the
        source. Unknown for missing partitions."""
        self._marked: set[int] = set()
        """Partitions of the target that keep numbers of this lane."""
        self._aside: dict[int, list[LockToken]] = {}
        """By partition of the target: the locks of messages that were set aside."""
        self._aside_bytes = 0
        self._retry_at: float | None = None
        """When to try again what has failed, by the loop's clock."""
        self._waits = False
        """Nothing can be forwarded until then."""
        self._delay_s = RETRY_S
        self._trouble: Reason | None = None
        self._forget_timer: asyncio.TimerHandle | None = None
        self._forgets = False

    # --- what others call -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Forward what there is and what will come."""
        if self._task is None:
            self._demand()

    def try_now(self) -> None:
        """The target has changed: do not wait any longer."""
        if self._retry_at is not None:
            self._retry_at = self._loop.time()
            self._woken.set()

    async def stop(self, *, forgets: bool) -> None:
        """End the load under way, and forward nothing more. `forgets`: tell the target so, because this lane
        does not go on after a restart."""
        self._stopping = True
        self._woken.set()
        if self._forget_timer is not None:
            self._forget_timer.cancel()
        if self._task is not None:
            _, pending = await asyncio.wait([self._task], timeout=STOPS_WITHIN_S)
            for task in pending:
                task.cancel()
                await asyncio.wait([task])
        self._post(Detach())
        if forgets:
            await self._forget()

    # --- waking up ------------------------------------------------------------------------------------------

    @property
    def _handle(self) -> PartitionHandle:
        return self._road.source.router.handles[self._number]

    def _post(self, operation: Operation) -> None:
        self._handle.post(operation, self._client, self._heard)

    def _demand(self) -> None:
        """Ask to be woken when there is a message."""
        if not (self._demands or self._stopping or self._is_down_for_good):
            self._demands = True
            self._post(Demand(self._road.subqueue, 1))

    def _heard(self, answer: Answer) -> None:
        match answer:
            case Locked():
                self._demands = False
                self._post(Release(answer.tokens))
                self._wake()
            case Recall():
                self._post(Recalled(self._road.subqueue, ()))
            case Unavailable():
                self._demands, self._is_down_for_good = False, answer.for_good
                self._demand()  # the partition answers once it is back
            case _:
                pass

    def _wake(self) -> None:
        self._woken.set()
        if self._task is None and not self._stopping:
            if self._forget_timer is not None:
                self._forget_timer.cancel()
                self._forget_timer = None
            self._task = self._road.spawn(self._run())

    def _time_to_forget(self) -> None:
        self._forget_timer = None
        self._forgets = True
        self._wake()

    # --- load after load ------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Forward until there is nothing left to do for now."""
        try:
            while not self._stopping and await self._go_on():
                pass
        finally:
            self._release_aside()
            self._task = None
            self._waits, self._retry_at = False, None
            self._demand()
            if self._marked and not self._stopping:
                self._forget_timer = self._loop.call_later(FORGET_S, self._time_to_forget)

    async def _go_on(self) -> bool:
        """Do the next step, or wait until there is one. False if there is nothing left to wait for."""
        self._woken.clear()
        if self._is_down_for_good:
            return False
        if self._retry_at is not None and self._retry_at <= self._loop.time():
            self._release_aside()
            self._retry_at = None
        if self._retry_at is None:
            is_probe, self._waits = self._waits, False
        elif self._waits or self._is_aside_full:
            await self._wait()
            return True
        else:
            is_probe = False
        try:
            if await self._forward_next(1 if is_probe else LOAD_MESSAGES):
                return True
        except Exception:
            log.exception("forward.failed", entity=self._road.source.name, partition=self._number)
            self._pause(Reason.INTERNAL)
            return True
        if self._retry_at is None:
            return False
        self._demand()
        await self._wait()
        return True

    @property
    def _is_aside_full(self) -> bool:
        return (
            self._aside_bytes >= SET_ASIDE_BYTES or sum(map(len, self._aside.values())) >= SET_ASIDE_MESSAGES
        )

    async def _wait(self) -> None:
        """Wait until it is time to try again, or something happens."""
        if self._retry_at is None or self._stopping:
            return
        try:
            async with asyncio.timeout_at(self._retry_at):
                await self._woken.wait()
        except TimeoutError:
            pass

    def _pause(self, reason: Reason) -> None:
        """Nothing can be forwarded for now: try again later, beginning with one message."""
        self._waits = True
        self._try_later(reason)

    def _try_later(self, reason: Reason) -> None:
        if self._retry_at is None:
            self._retry_at = self._loop.time() + self._delay_s
            self._delay_s = min(2 * self._delay_s, RETRY_S_MAX)
        if self._trouble is not reason:
            self._trouble = reason
            road = self._road
            log.warning(
                "forward.waits",
                entity=road.source.name,
                subqueue=road.subqueue,
                partition=self._number,
                target=road.target_name,
                reason=reason.value,
            )

    def _release_aside(self) -> None:
        for tokens in self._aside.values():
            self._post(Release(tokens))
        self._aside.clear()
        self._aside_bytes = 0

    async def _forward_next(self, count: int) -> bool:
        """Forward the next load. False if there is none."""
        road = self._road
        async with road.turns:
            if self._stopping:
                return False
            lock = LockNext(road.subqueue, count, LOAD_BYTES, LOCK_MS)
            locked = await self._ask_source(lock)
            if isinstance(locked, Refused):
                self._pause(locked.reason)
                self._demand()  # so that it says whether it is down for good
                return True
            assert isinstance(locked, Locked), f"{locked} is not an answer to LockNext"
            if not locked.tokens:
                if self._forgets:
                    self._forgets = False
                    await self._forget()
                return False
            try:
                await self._forward(locked)
            except BaseException:
                self._post(Release(locked.tokens))
                raise
            return True

    async def _ask_source(self, operation: Operation) -> Answer | Refused:
        answer = await answer_of(self._handle, operation)
        if isinstance(answer, Unavailable):
            return Refused(Reason.PARTITION_UNAVAILABLE, "The partition is not available.")
        return answer

    async def _forward(self, locked: Locked) -> None:
        """Forward the messages of a load, or dead-letter or release them."""
        road = self._road
        everything = list(range(len(locked.tokens)))
        try:
            target = road.target()
            road.admit(len(locked.tokens))
        except Refused as why:
            rejection = rejection_of(why)
            if rejection is None or road.subqueue == DEAD_LETTER:
                self._post(Release(locked.tokens))
                self._pause(why.reason)
            else:
                await self._settle(locked, _Outcome(rejected={rejection: everything}))
            return
        if target.description.generation != self._target_generation:
            self._target_generation = target.description.generation
            self._doubt.clear()
            self._marked.clear()
        prepared = await prepare(
            target,
            locked,
            message_id=road.message_id,
            dead_letter_source=road.source.name if road.subqueue == DEAD_LETTER else None,
            is_transfer=road.subqueue == TRANSFER,
        )
        outcome = _Outcome(rejected=dict(prepared.rejected))
        results = await asyncio.gather(
            *(
                self._hand_over(target, number, places, locked, prepared, outcome)
                for number, places in prepared.groups.items()
            ),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
        await self._settle(locked, outcome)

    async def _hand_over(
        self,
        target: Entity,
        number: int,
        places: Sequence[int],
        locked: Locked,
        prepared: Prepared,
        outcome: _Outcome,
    ) -> None:
        """Have one partition of the target store messages, and note in `outcome` what became of them."""
        if number in self._aside:  # behind the others, so that they stay in order
            outcome.later.setdefault(number, []).extend(places)
            return
        send = prepared.send_of(places)
        numbers = [locked.sequence_numbers[place] for place in places]
        doubt = self._doubt.get(number)
        operation = HandOver(
            self._source,
            numbers,
            send.messages,
            send.time_to_live_ms,
            send.columns,
            send.identities,
            None if doubt is None else list(doubt),
            scheduled_ms=send.scheduled_ms,
        )
        try:
            target.admit(send.messages)
        except Refused as why:
            operation.full = why.description
        self._marked.add(number)
        answer = await answer_of(target.router.handles[number], operation)
        if isinstance(answer, Refused):
            await self._was_refused(target, number, places, locked, prepared, outcome, answer)
            return
        assert isinstance(answer, HandedOver), f"{answer} is not an answer to HandOver"
        self._doubt[number] = {*answer.kept, *numbers}
        if doubt is None and answer.kept:
            outcome.known[number] = set(answer.kept)
        outcome.done += places
        new = [message for place, message in enumerate(send.messages) if place not in set(answer.known)]
        self._road.forwarded(target, len(new), sum(map(len, new)), len(answer.duplicates))

    async def _was_refused(
        self,
        target: Entity,
        number: int,
        places: Sequence[int],
        locked: Locked,
        prepared: Prepared,
        outcome: _Outcome,
        why: Refused,
    ) -> None:
        rejection = rejection_of(why)
        if rejection is None:
            self._doubt.pop(number, None)  # whatever has become of them there, they come to it again
        elif why.reason is Reason.QUOTA_EXCEEDED and len(places) > 1:  # some of them may fit
            middle = len(places) // 2
            for half in (places[:middle], places[middle:]):
                await self._hand_over(target, number, half, locked, prepared, outcome)
            return
        elif self._road.subqueue != DEAD_LETTER:
            outcome.rejected.setdefault(rejection, []).extend(places)
            return
        outcome.later.setdefault(number, []).extend(places)
        self._try_later(why.reason)

    # --- at the source --------------------------------------------------------------------------------------

    async def _settle(self, locked: Locked, outcome: _Outcome) -> None:
        """Remove what the target has stored, and dead-letter what it will never take."""
        for number, places in outcome.later.items():
            self._aside.setdefault(number, []).extend(_some(locked.tokens, places))
            self._aside_bytes += sum(len(locked.messages[place]) for place in places)
        settlements: list[tuple[list[int], Operation]] = []
        if outcome.done:
            settlements.append((outcome.done, Complete(_some(locked.tokens, outcome.done))))
        for rejection, places in outcome.rejected.items():
            tokens, changes = _some(locked.tokens, places), rejection.as_changes()
            is_main = self._road.subqueue == MAIN
            settlements.append(
                (places, DeadLetter(tokens, changes) if is_main else FailTransfer(tokens, changes))
            )
            log.warning(
                "forward.dead_lettered",
                entity=self._road.source.name,
                target=self._road.target_name,
                messages=len(places),
                reason=rejection.reason,
            )
        answers = await asyncio.gather(*(self._ask_source(operation) for _, operation in settlements))
        failed = False
        for (places, operation), answer in zip(settlements, answers, strict=True):
            if isinstance(answer, Refused):
                failed = True
                self._doubt.clear()
                self._post(Release(_some(locked.tokens, places)))
                self._pause(answer.reason)
                continue
            assert isinstance(answer, Settled), f"{answer} is not an answer to a settlement"
            if isinstance(operation, Complete):
                removed = {
                    locked.sequence_numbers[place]
                    for index, place in enumerate(places)
                    if index not in answer.failures
                }
                for doubt in self._doubt.values():
                    doubt -= removed
        for number, numbers in outcome.known.items():
            await self._remove_known(number, numbers)
        if not (failed or self._aside or self._retry_at is not None):
            if self._trouble is not None:
                log.info("forward.goes_on", entity=self._road.source.name, partition=self._number)
            self._delay_s, self._trouble = RETRY_S, None

    async def _remove_known(self, number: int, numbers: Iterable[int]) -> None:
        """Remove messages that a partition of the target had stored before this lane began. They may have
        become dead letters since, or failed transfers. What is locked there stays in doubt."""
        doubt = self._doubt.get(number)
        if doubt is None:
            return  # something has failed since, and the partition will say again what it has kept
        known = doubt.intersection(numbers)
        left = sorted(known)
        dead = DEAD_LETTER if self._road.subqueue == MAIN else TRANSFER_DEAD_LETTER
        for subqueue in (self._road.subqueue, dead):
            if left:
                answer = await self._ask_source(DeleteExactly(subqueue, left))
                if isinstance(answer, Refused):
                    self._doubt.pop(number, None)
                    return
                assert isinstance(answer, DeletedExactly), f"{answer} is not an answer to DeleteExactly"
                left = answer.missing
                known.difference_update(answer.locked)
        doubt -= known

    async def _forget(self) -> None:
        """Tell the partitions of the target which numbers they must still keep."""
        try:
            target = self._road.target()
        except Refused:
            return
        if target.description.generation != self._target_generation:
            self._marked.clear()
        is_deleted = self._road.source.is_deleted
        if not is_deleted:
            answer = await self._ask_source(LockNext(self._road.subqueue, 0, 0, 0))
            if isinstance(answer, Refused):
                return  # nobody knows whether the removals outlive a power cut
        for number in sorted(self._marked):
            doubt = set() if is_deleted else self._doubt.get(number)
            keeps = None if doubt is None else list(doubt)
            handle = target.router.handles[number]
            answer = await answer_of(handle, HandOver(self._source, (), (), keeps=keeps))
            if not isinstance(answer, HandedOver):
                continue
            self._doubt[number] = set(answer.kept)
            if doubt is None and answer.kept:
                await self._remove_known(number, answer.kept)
                keeps = list(self._doubt.get(number, answer.kept))
                answer = await answer_of(handle, HandOver(self._source, (), (), keeps=keeps))
            if isinstance(answer, HandedOver) and not answer.kept:
                self._marked.discard(number)


def _some(tokens: Sequence[LockToken], places: Iterable[int]) -> list[LockToken]:
    return [tokens[place] for place in places]
