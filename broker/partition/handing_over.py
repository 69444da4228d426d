"""Messages of another entity that are handed over to this partition, each of them once. Pure.

`operations/transfers.py` explains how a message gets from one entity to another. What `origins.py` keeps is
in the commit of the messages, so a crash leaves both or neither.
"""

from __future__ import annotations

from broker.base.errors import Reason, Refused
from broker.entities.roles import PASSES_ON
from broker.identifiers import ClientId
from broker.operations.sending import Send
from broker.operations.transfers import FindSources, HandedOver, HandOver, SourcesFound
from broker.partition.origins import Origins, handed_over
from broker.partition.rule_changes import RuleChanges
from broker.partition.sending import Sending
from broker.partition.workspace import Workspace
from broker.send_lists import at, part_of


class HandingOver:
    """Takes what other entities hand over. Owned by the state machine."""

    __slots__ = ("_sending", "_space")

    def __init__(self, space: Workspace, sending: Sending) -> None:
        self._space, self._sending = space, sending

    def take(self, client: ClientId, operation: HandOver) -> None:
        """Enqueue the messages that are new. Raises Refused; then nothing has changed."""
        space = self._space
        origins = space.messages.states.of(Origins)
        before = origins.of(operation.source)
        seen = set(before)
        new: list[int] = []
        known: list[int] = []
        taken_now = self._sending.sharing_a_commit(operation)
        for place, number in enumerate(operation.numbers[:taken_now]):
            (known if number in seen else new).append(place)
            seen.add(number)
        send = Send(
            operation.messages,
            operation.time_to_live_ms,
            columns=operation.columns,
            identities=operation.identities,
            scheduled_ms=operation.scheduled_ms,
        )
        if len(new) < len(operation.numbers):
            send = part_of(send, at(new))
        left_out: list[int] = []
        full: str | None = None
        try:
            if new and operation.full is not None:
                raise Refused(Reason.QUOTA_EXCEEDED, operation.full)
            _, duplicates = self._sending.send_new(space.cycle, space.description, send)
        except Refused as why:
            if why.reason is not Reason.QUOTA_EXCEEDED:
                raise
            entity_room = None if operation.full is None else operation.room
            fitting = self._sending.fitting(space.cycle, space.description, send, entity_room)
            full = why.description
            taken = frozenset(fitting)
            left_out = [place for index, place in enumerate(new) if index not in taken]
            new = [new[index] for index in fitting]
            gone = {operation.numbers[place] for place in left_out}
            left_out += [place for place in known if operation.numbers[place] in gone]  # named twice
            known = [place for place in known if operation.numbers[place] not in gone]
            _, duplicates = self._sending.send_new(space.cycle, space.description, part_of(send, at(fitting)))
        if operation.keeps is not None:
            wanted = {*operation.keeps, *operation.numbers[taken_now:]}
            before = [number for number in before if number in wanted]
        here = {operation.numbers[place] for place in (*known, *new)}
        kept = [number for number in before if number not in here]
        came_again = dict.fromkeys(operation.numbers[place] for place in known)
        fresh = [operation.numbers[place] for place in new]
        numbers = (*kept, *(number for number in came_again if number not in set(fresh)), *fresh)
        if numbers != origins.of(operation.source):
            # If the cycle has sent anything, a full disk undoes this record with it. Otherwise the numbers of
            # an earlier operation of the cycle could outlive its messages.
            record = handed_over(operation.source, numbers, len(fresh))
            space.record(record, with_send=space.cycle.has_sent)
        places = [new[place] for place in duplicates]
        put_off = list(range(taken_now, len(operation.numbers)))
        answer = HandedOver(known, places, kept, operation.cookie, left_out, full, put_off)
        space.cycle.unsynced.append(answer)
        space.answer(client, answer)

    def find(self, client: ClientId, find: FindSources) -> None:
        """Say of which sources numbers are kept, and whether messages are on their way to other entities."""
        messages = self._space.messages
        passes_on = any(each.role is PASSES_ON for each in messages.work.occupied.values())
        sources = messages.states.of(Origins).sources
        changes_rules = bool(messages.states.of(RuleChanges).entries)
        self._space.answer(client, SourcesFound(sources, passes_on, find.cookie, changes_rules))
