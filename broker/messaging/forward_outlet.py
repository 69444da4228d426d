"""The outlet of a lane to one target: hands messages over to it, each of them exactly once.

A lane (`forward_lane.py`) locks messages at the source. The outlet has the partitions of the target enqueue
them, and then removes them at the source.

*What the target must remember.* An outlet knows which messages were handed over but may not be removed yet,
and tells the partitions of the target with the next load. After a start it does not know. Then the first
answer of each partition says which numbers it has kept, and the outlet removes these messages at the source.
Some time after the last load, it tells the partitions that nothing is in doubt (`forget`).

*Failures.* Messages for a partition of the target that is down are set aside, locked, while the others go on
(`forward_aside.py`). Messages that the target refuses for good become dead letters that say why. Those of a
dead-letter queue go to the transfer dead-letter queue if the reason lies in the message; if the target is
full, disabled or missing, they wait where they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

from broker.base.errors import Reason, Refused
from broker.identifiers import LockToken
from broker.messaging.asking import answer_of, without_lock
from broker.messaging.forward_aside import Aside
from broker.messaging.forward_load import Prepared, Rejection, prepare, rejection_of
from broker.messaging.forward_retry import Retry
from broker.messaging.forward_route import Route
from broker.namespace.entity import Entity
from broker.operations.deleting import DeletedExactly, DeleteExactly
from broker.operations.interface import Answer, Operation
from broker.operations.receiving import Locked
from broker.operations.settling import Complete, DeadLetter, Release, RenewLocks, Settled
from broker.operations.transfers import FailTransfer, HandedOver, HandOver, LockNext

LOCK_MS = 120_000
"""How long the messages of a load stay locked: much longer than anything waits for a disk."""
RENEWED_BEFORE_S = 60.0
"""The locks of messages that were set aside are renewed when they last for less than this."""
_WHOLE = -1
"""Stands for all partitions of a target that is out of service."""


class Source(Protocol):
    """What an outlet needs of its lane."""

    route: Route
    number: int
    """The partition's."""
    name: bytes
    """The source, as the target knows it (`operations/transfers.py`)."""

    def post(self, operation: Operation) -> None:
        """Ask something of the partition, as the lane's client."""

    async def ask(self, operation: Operation) -> Answer | Refused:
        """Ask something of the partition, and wait for the answer."""

    def log_waiting(self, target_name: str | None, reason: Reason) -> None:
        """Log that messages for this target wait."""

    def log_resumed(self, target_name: str | None) -> None:
        """Log that none waits any more."""

    def pause(self, reason: Reason) -> None:
        """Nothing can be forwarded for now: try again after a pause, beginning with one message."""


@dataclass(slots=True)
class _Outcome:
    """What became of the messages of a load, by their places."""

    done: list[int] = field(default_factory=list)
    """The target has stored them."""
    rejected: dict[Rejection, list[int]] = field(default_factory=dict)
    known: dict[int, set[int]] = field(default_factory=dict)
    """By partition of the target: numbers of other messages that it has stored before this outlet began."""


class Outlet:
    """Owned by a lane, which calls one method at a time."""

    def __init__(self, source: Source, target_name: str) -> None:
        self._source, self._route, self._target_name = source, source.route, target_name
        self._loop = asyncio.get_running_loop()
        self._target_generation = ""
        self._doubt: dict[int, set[int]] = {}
        """By partition of the target: numbers of messages that it has stored, and that may still be at the
        source. Unknown for missing partitions."""
        self._marked: set[int] = set()
        """Partitions of the target that keep numbers of this source."""
        self._aside: dict[int, Aside] = {}
        """By partition of the target: messages that were set aside."""
        self.retry = Retry()
        """When to try them again. The lane looks at it."""

    # --- what waits -----------------------------------------------------------------------------------------

    @property
    def is_marked(self) -> bool:
        """Whether the target keeps numbers of this source."""
        return bool(self._marked)

    @property
    def has_aside(self) -> bool:
        """Whether messages were set aside."""
        return bool(self._aside)

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing to remember, so that a new outlet can take its place."""
        return not (self._marked or self._aside)

    def try_again(self) -> None:
        """Release the first of the messages that were set aside."""
        for number in list(self._aside):
            self._release_next(number)

    def _release_next(self, number: int) -> None:
        if tokens := self._aside[number].release_next():
            self._source.post(Release(tokens))
        else:
            del self._aside[number]

    def release_all(self) -> None:
        """Release everything that was set aside."""
        for aside in self._aside.values():
            while tokens := aside.release_next():
                self._source.post(Release(tokens))
        self._aside.clear()
        self.retry.at = None

    def _try_later(self, reason: Reason) -> None:
        """Some messages cannot be forwarded for now: try again after a pause."""
        if self.retry.failed(reason, self._loop.time()):
            self._source.log_waiting(self._target_name, reason)

    def locks_lost(self) -> None:
        """The partition went down: what was set aside is not locked any more."""
        self._aside.clear()

    async def renew(self) -> None:
        """Of what was set aside, renew the locks that end soon."""
        now = self._loop.time()
        for aside in list(self._aside.values()):
            for load in aside.ending(now + RENEWED_BEFORE_S):
                load.until_s = now + LOCK_MS / 1_000
                await self._source.ask(RenewLocks(load.tokens, duration_ms=LOCK_MS))

    def _set_aside(self, number: int, locked: Locked, places: Sequence[int]) -> None:
        aside = self._aside.get(number)
        if aside is None:
            aside = self._aside[number] = Aside()
        aside.add(_some(locked.tokens, places), self._loop.time() + LOCK_MS / 1_000)

    def _open(self, number: int, locked: Locked, places: Sequence[int]) -> Sequence[int]:
        """The places of messages that need not wait. The others are set aside, behind those that wait
        already."""
        aside = self._aside.get(number)
        if aside is None:
            return places
        numbers = locked.sequence_numbers
        behind = [place for place in places if not aside.is_open(numbers[place])]
        if behind:
            self._set_aside(number, locked, behind)
        return [place for place in places if aside.is_open(numbers[place])]

    # --- forwarding -----------------------------------------------------------------------------------------

    async def forward(self, locked: Locked) -> None:
        """Forward locked messages, or dead-letter, release or set them aside."""
        route = self._route
        places = self._open(_WHOLE, locked, range(len(locked.tokens)))
        if not places:
            return
        locked = part_of(locked, places)
        everything = list(range(len(locked.tokens)))
        try:
            target = route.shared.find(self._target_name)
        except Refused as why:
            rejection = rejection_of(why)
            if rejection is not None and not route.is_of_dead_letters:
                await self._settle(locked, _Outcome(rejected={rejection: everything}))
            elif route.target_name is None:
                self._set_aside(_WHOLE, locked, everything)
                self._try_later(why.reason)
            else:
                self._source.post(Release(locked.tokens))
                self._source.pause(why.reason)
            return
        if target.description.generation != self._target_generation:
            self._target_generation = target.description.generation
            self._doubt.clear()
            self._marked.clear()
        prepared = await prepare(
            target,
            locked,
            message_id=route.shared.message_id,
            dead_letter_source=route.source.path_of(route.subqueue) if route.is_of_dead_letters else None,
            is_transfer=route.is_of_transfers,
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
        if _WHOLE in self._aside:
            self._release_next(_WHOLE)
        if self.retry.at is None and not self._aside and self.retry.succeeded():
            self._source.log_resumed(self._target_name)

    async def _hand_over(
        self,
        target: Entity,
        number: int,
        places: Sequence[int],
        locked: Locked,
        prepared: Prepared,
        outcome: _Outcome,
    ) -> None:
        """Have one partition of the target store messages, and add to `outcome` what became of them."""
        places = self._open(number, locked, places)
        if not places:
            return
        send = prepared.send_of(places)
        numbers = [locked.sequence_numbers[place] for place in places]
        doubt = self._doubt.pop(number, None)  # unknown until it answers, also if nobody waits
        operation = HandOver(
            self._source.name,
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
            operation.full, operation.room = why.description, target.take_rest()
        self._marked.add(number)
        answer = await answer_of(target.router.handles[number], operation)
        if isinstance(answer, Refused):
            if doubt is not None and rejection_of(answer) is not None:
                self._doubt[number] = doubt  # it has stored nothing
            self._was_refused(number, places, locked, outcome, answer)
            return
        assert isinstance(answer, HandedOver), f"{answer} is not an answer to HandOver"
        not_taken, known = frozenset((*answer.left_out, *answer.put_off)), frozenset(answer.known)
        taken = [index for index in range(len(places)) if index not in not_taken]
        self._doubt[number] = {*answer.kept, *(numbers[index] for index in taken)}
        if doubt is None and answer.kept:
            outcome.known[number] = set(answer.kept)
        outcome.done += [places[index] for index in taken]
        new = [send.messages[index] for index in taken if index not in known]
        self._route.forwarded(target, new, len(answer.duplicates))
        if answer.put_off:  # the next loads have them again
            self._source.post(Release(_some(locked.tokens, [places[index] for index in answer.put_off])))
        if answer.full is not None:
            full = Refused(Reason.QUOTA_EXCEEDED, answer.full)
            self._was_refused(number, [places[index] for index in answer.left_out], locked, outcome, full)
        elif number in self._aside:
            self._release_next(number)

    def _was_refused(
        self, number: int, places: Sequence[int], locked: Locked, outcome: _Outcome, why: Refused
    ) -> None:
        """A partition of the target does not take messages."""
        rejection = rejection_of(why)
        if rejection is not None and not self._route.is_of_dead_letters:
            outcome.rejected.setdefault(rejection, []).extend(places)
            return
        self._set_aside(number, locked, places)
        self._try_later(why.reason)

    # --- at the source --------------------------------------------------------------------------------------

    async def _settle(self, locked: Locked, outcome: _Outcome) -> None:
        """Remove what the target has stored, and dead-letter what it will never take."""
        settlements: list[tuple[list[int], Operation]] = []
        if outcome.done:
            settlements.append((outcome.done, Complete(_some(locked.tokens, outcome.done))))
        for rejection, places in outcome.rejected.items():
            tokens, changes = _some(locked.tokens, places), rejection.as_changes()
            has_dead_letters = self._route.dead_letters_to is not None
            settlements.append(
                (places, DeadLetter(tokens, changes) if has_dead_letters else FailTransfer(tokens, changes))
            )
            self._route.shared.dead_lettered.warning(
                len(places),
                entity=self._route.source.name,
                subqueue=self._route.subqueue,
                target=self._target_name,
                reason=rejection.reason,
            )
        answers = await asyncio.gather(*(self._source.ask(operation) for _, operation in settlements))
        for (places, operation), answer in zip(settlements, answers, strict=True):
            if isinstance(answer, Refused):
                self._doubt.clear()
                self._source.post(Release(_some(locked.tokens, places)))
                self._source.pause(without_lock(answer).reason)
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

    async def _remove_known(self, number: int, numbers: Iterable[int]) -> None:
        """Remove messages that a partition of the target had stored before this outlet began. They may have
        become dead letters since, or failed transfers. What is locked there stays in doubt."""
        doubt = self._doubt.get(number)
        if doubt is None:
            return  # something has failed since, and the partition will say again what it has kept
        known = doubt.intersection(numbers)
        left = sorted(known)
        for subqueue in (self._route.subqueue, self._route.fails_to):
            if left:
                answer = await self._source.ask(DeleteExactly(subqueue, left))
                if isinstance(answer, Refused):
                    self._doubt.pop(number, None)
                    return
                assert isinstance(answer, DeletedExactly), f"{answer} is not an answer to DeleteExactly"
                left = answer.missing
                known.difference_update(answer.locked)
        doubt -= known

    # --- forgetting -----------------------------------------------------------------------------------------

    def mark(self, target: Entity, number: int) -> None:
        """A partition of the target is known to keep numbers of this source."""
        if target.description.generation != self._target_generation:
            self._target_generation = target.description.generation
            self._doubt.clear()
            self._marked.clear()
        self._marked.add(number)

    async def forget(self) -> None:
        """Tell the partitions of the target which numbers they must still keep. Everything that was removed
        at the source must be synced."""
        target = self._route.shared.namespace.find(self._target_name)
        marked, self._marked = sorted(self._marked), set()
        if target is None or target.gone or target.description.generation != self._target_generation:
            return  # it was deleted; or its partitions say what they keep when they start again
        for number in marked:
            if not await self._forget_in(target, number):
                self._route.shared.look_again(target, number)
            elif self._doubt.get(number):
                self._marked.add(number)

    def leave(self) -> None:
        """This outlet ends, but the source cannot say what is in doubt: have the target say what it keeps."""
        target = self._route.shared.namespace.find(self._target_name)
        if target is not None and target.description.generation == self._target_generation:
            for number in self._marked:
                self._route.shared.look_again(target, number)

    async def _forget_in(self, target: Entity, number: int) -> bool:
        """Tell one partition which numbers it must still keep. False if it does not answer, or the source
        cannot say."""
        handle, name = target.router.handles[number], self._source.name
        doubt = set() if self._route.source.is_deleted else self._doubt.get(number)
        keeps = None if doubt is None else list(doubt)
        answer = await answer_of(handle, HandOver(name, (), (), keeps=keeps))
        if not isinstance(answer, HandedOver):
            return False
        self._doubt[number] = left = set(answer.kept)
        if left and not self._route.source.is_deleted:
            await self._remove_known(number, answer.kept)
            if number not in self._doubt or not await self._is_synced():
                return False
            keeps = list(self._doubt[number])
            answer = await answer_of(handle, HandOver(name, (), (), keeps=keeps))
        return isinstance(answer, HandedOver)

    async def _is_synced(self) -> bool:
        """Have everything synced that was removed at the source. False if it is not available."""
        lock_none = LockNext(self._route.subqueue, 0, 0, 0)
        return isinstance(await self._source.ask(lock_none), Locked)


def part_of(locked: Locked, places: Sequence[int]) -> Locked:
    """Some of the messages that were locked together."""
    if len(places) == len(locked.tokens):
        return locked
    lists: dict[str, Any] = {
        each.name: [value[place] for place in places]
        for each in fields(locked)
        if isinstance(value := getattr(locked, each.name), list)
    }
    columns = {name: [values[place] for place in places] for name, values in locked.columns.items()}
    return replace(locked, **lists, columns=columns)


def _some(tokens: Sequence[LockToken], places: Iterable[int]) -> list[LockToken]:
    return [tokens[place] for place in places]
