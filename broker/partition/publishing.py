"""Publishing: what is sent to a topic goes to its subscriptions at once. Pure.

Each message is matched with the rules of all subscriptions (`broker/rules/matching.py`) and written once,
with the list of its targets (`targets.py`); a message that matches nothing is not written at all. Copies that
actions have changed are messages of their own: they have their own bytes and sequence numbers, and follow in
a second record. The result is in the records, so a replay never matches again.

A message goes to the dead-letter subqueue of a subscription if a filter has no result for it and the
subscription says so, or if the subscription requires sessions and the message has none (AMQP contract 10.4).

A scheduled message waits in the topic's own subqueue and is matched when it becomes active
(`publishing_later.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from broker.entities.topics import (
    DEAD_LETTER_PLACE,
    MAIN_PLACE,
    PLACES,
    SubscriptionDescription,
    TopicDescription,
)
from broker.identifiers import encode_session_id
from broker.message.changes import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON, encode_changes
from broker.operations import SESSION_ID
from broker.partition import records
from broker.partition.columns import NO_COLUMNS, Columns
from broker.partition.cycle import Cycle
from broker.partition.expiries import expiries
from broker.partition.messages import Messages
from broker.partition.published import apply_published
from broker.partition.records import Enqueued, Mark
from broker.partition.targets import Set, Target, Targets
from broker.rules.matching import COPIES_BYTES_MAX, ChangedCopy, Match, Matcher

_STAYS: Set = (Target(MAIN_PLACE, has_sessions=1),)
"""The targets of a scheduled message: it stays in the topic's own subqueue until its time."""
_SETS_MAX = 4_096
"""Different sets of targets that are kept ready."""
NO_SESSION = encode_changes({
    DEAD_LETTER_REASON: "Session id is null.",
    DEAD_LETTER_DESCRIPTION:
        "Session enabled entity doesn't allow a message whose session identifier is null.",
})  # fmt: skip
FILTER_FAILED = "FilterException"
"""The reason of messages for which a rule has no result."""
_DESCRIPTION_CHARACTERS_MAX = 4_096
"""The text may quote values of the message; a property has at most 32 KiB."""
COMMIT_BYTES_MAX = 256 * 1024 * 1024
"""In a commit of this size, each message gets one copy at most: a frame of the log has a limit."""
COPIED_BYTES_OF_WORK = 4_096
"""Writing so many bytes of copies counts as much as a message."""


class Destinations(NamedTuple):
    """Where one message goes."""

    targets: Set
    dead: tuple[tuple[int, bytes | None], ...] = ()
    """Targets that are dead-letter subqueues, with the properties that give the reason."""
    copies: tuple[ChangedCopy, ...] = ()

    @property
    def copied(self) -> int:
        """The bytes of all copies."""
        return sum([len(copy.message.data) for copy in self.copies]) if self.copies else 0


class Publishing:
    """The subscriptions of a topic, as one of its partitions sees them. Owned by the state machine."""

    __slots__ = ("_description", "_known", "_matcher", "_messages", "_subscriptions", "effort", "fan_out")

    def __init__(self, messages: Messages, description: TopicDescription) -> None:
        self._messages = messages
        self._matcher = Matcher()
        self._subscriptions: dict[int, SubscriptionDescription] = {}
        self._known: dict[tuple[tuple[int, ...], bool], Destinations] = {}
        """The destinations of messages that no rule changes or fails on, by the subscriptions and whether the
        message has a session."""
        self.fan_out = 1
        """How many references a message has got lately, at least 1."""
        self.effort = 0
        """What finding destinations has cost so far: messages, filters looked at, references, and copies. It
        only rises; callers who must stop in time look at how far it has risen."""
        self.describe(description)

    def describe(self, description: TopicDescription) -> None:
        """The topic has these settings, subscriptions and rules from now on."""
        self._description = description
        self._known.clear()
        before, self._subscriptions = (
            self._subscriptions,
            {each.number: each for each in description.subscriptions},
        )
        for number in before.keys() - self._subscriptions.keys():
            self._matcher.forget(number)
        for number, each in self._subscriptions.items():
            if number not in before or before[number].rules != each.rules:
                self._matcher.set_rules(number, each.rules)

    def destinations(self, message: bytes, has_session: bool, enqueued_ms: int, room: int) -> Destinations:
        """Where an active message goes. `room`: what its copies may take in the commit, in bytes."""
        before = self._matcher.looked_at
        match = self._matcher.match(message, enqueued_ms, min(max(room, 0), COPIES_BYTES_MAX))
        self.effort += 1 + self._matcher.looked_at - before + len(match.subscriptions)
        if match.copies or match.failures:
            found = self._found(match, has_session)
            self.effort += found.copied // COPIED_BYTES_OF_WORK
            return found
        key = match.subscriptions, has_session
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _SETS_MAX:
                self._known.clear()
            known = self._known[key] = self._found(match, has_session)
        return known

    def only(self, subqueue: int) -> Set:
        """The targets of messages for the main subqueue of one subscription alone."""
        return (self._target(self._subscriptions[subqueue // PLACES]),)

    def enqueue(
        self,
        cycle: Cycle,
        enqueued_ms: int,
        sizes: Sequence[int],
        expire: Sequence[int] | None,
        messages: Sequence[bytes],
        columns: Columns,
        scheduled_ms: Sequence[int] | None = None,
        only: Set | None = None,
    ) -> None:
        """Write and apply new messages. `only`: their targets, if they are not to be matched."""
        sessions = columns.get(SESSION_ID)
        found: list[Destinations] = []
        room = room_for_copies(cycle)
        for place, message in enumerate(messages):
            if only is not None:
                found.append(Destinations(only))
            elif scheduled_ms is not None and scheduled_ms[place]:
                found.append(Destinations(_STAYS))
            else:
                has_session = sessions is not None and sessions[place] is not None
                found.append(self.destinations(message, has_session, enqueued_ms, room))
                room -= found[-1].copied
        self.write(cycle, enqueued_ms, sizes, expire, messages, columns, found, scheduled_ms)

    def use_up(self, cycle: Cycle, enqueued_ms: int, count: int) -> None:
        """Give numbers to messages that match nothing, because a client is told them: a message that it could
        mistake for one of these must not get them."""
        sizes, targets = [0] * count, Targets([()], [0] * count)
        self._write(cycle, enqueued_ms, sizes, None, [b""] * count, NO_COLUMNS, None, targets)

    def write(
        self,
        cycle: Cycle,
        enqueued_ms: int,
        sizes: Sequence[int],
        expire: Sequence[int] | None,
        messages: Sequence[bytes],
        columns: Columns,
        found: Sequence[Destinations],
        scheduled_ms: Sequence[int] | None = None,
    ) -> None:
        """Write and apply new messages with known destinations."""
        targets = targets_of(found)
        if any(targets.sets):
            kept = [bool(each.targets) for each in found]
            if not all(kept):
                sizes = [size if keeps else 0 for size, keeps in zip(sizes, kept, strict=True)]
                messages = [message if keeps else b"" for message, keeps in zip(messages, kept, strict=True)]
            first = self._messages.next_number
            self._write(cycle, enqueued_ms, sizes, expire, messages, columns, scheduled_ms, targets)
            dead: dict[tuple[int, bytes | None], list[int]] = {}
            for number, each in enumerate(found, first):
                for destination in each.dead:
                    dead.setdefault(destination, []).append(number)
            for (subqueue, changed), numbers in dead.items():
                self._give_reason(cycle, subqueue, changed, numbers)
        copies = [copy for each in found for copy in each.copies]
        if copies:
            self._write_copies(cycle, enqueued_ms, copies)

    def _write_copies(self, cycle: Cycle, enqueued_ms: int, copies: Sequence[ChangedCopy]) -> None:
        default_ms = self._description.settings.default_time_to_live_ms
        stored = [copy.message for copy in copies]
        cycle.work += sum(len(each.data) for each in stored) // COPIED_BYTES_OF_WORK
        found = [
            self._found(Match((copy.subscription,)), copy.message.session_id is not None) for copy in copies
        ]
        session_ids = [
            None if each.session_id is None else encode_session_id(each.session_id) for each in stored
        ]
        self.write(
            cycle,
            enqueued_ms,
            [len(each.data) for each in stored],
            expiries([each.time_to_live_ms for each in stored], default_ms, len(stored), enqueued_ms),
            [each.data for each in stored],
            {SESSION_ID: session_ids} if any(each is not None for each in session_ids) else NO_COLUMNS,
            found,
        )

    def _write(
        self,
        cycle: Cycle,
        enqueued_ms: int,
        sizes: Sequence[int],
        expire: Sequence[int] | None,
        messages: Sequence[bytes],
        columns: Columns,
        scheduled_ms: Sequence[int] | None,
        targets: Targets,
    ) -> None:
        first = self._messages.next_number
        offset = records.add_enqueued(
            cycle.commit, first, enqueued_ms, sizes, expire, messages, columns, scheduled_ms, targets
        )
        enqueued = Enqueued(first, enqueued_ms, sizes, expire, offset, columns, scheduled_ms, targets)
        cycle.passing += apply_published(self._messages, cycle.commit.start, enqueued, messages, cycle.now_ms)
        references = 0
        for index in targets.of_messages:
            references += len(targets.sets[index])
        self.fan_out = max(1, references // len(sizes))
        cycle.work += references
        for each in targets.sets:
            cycle.arrived_in.update([target.subqueue for target in each])

    def _give_reason(self, cycle: Cycle, subqueue: int, changed: bytes | None, numbers: list[int]) -> None:
        """Say why messages are in a dead-letter subqueue. On a full disk, this goes with the messages, so it
        is not one of the cycle's marks."""
        cycle.dead_lettered += len(numbers)
        mark = Mark(records.CHANGED, subqueue, numbers, changed)
        cycle.commit.add(mark.kind, [records.encode_mark(mark)], records.VERSION)
        self._messages.apply_mark(mark)

    def _found(self, match: Match, has_session: bool) -> Destinations:
        targets: list[Target] = []
        dead: list[tuple[int, bytes | None]] = []
        for number in match.subscriptions:
            subscription = self._subscriptions[number]
            if subscription.settings.requires_session and not has_session:
                dead.append((subscription.subqueue(DEAD_LETTER_PLACE), NO_SESSION))
            else:
                targets.append(self._target(subscription))
        for failure in match.failures:
            subscription = self._subscriptions[failure.subscription]
            if subscription.settings.dead_lettering_on_filter_errors:
                place = subscription.subqueue(DEAD_LETTER_PLACE)
                if all(subqueue != place for subqueue, _ in dead):
                    dead.append((place, _reason_of(failure.rule, failure.description)))
        every = sorted([*targets, *(Target(subqueue) for subqueue, _ in dead)])
        return Destinations(tuple(every), tuple(dead), match.copies)

    def _target(self, subscription: SubscriptionDescription) -> Target:
        settings = subscription.settings
        return Target(
            subscription.subqueue(MAIN_PLACE),
            0 if settings.default_time_to_live_ms is None else max(1, settings.default_time_to_live_ms),
            int(settings.requires_session),
        )


def room_for_copies(cycle: Cycle) -> int:
    """How many more bytes the copies of messages may take in the cycle's commit."""
    return COMMIT_BYTES_MAX - cycle.commit.bytes


def targets_of(found: Sequence[Destinations]) -> Targets:
    """The targets of all these messages."""
    sets: dict[Set, int] = {}
    of_messages = [sets.setdefault(each.targets, len(sets)) for each in found]
    return Targets(list(sets), of_messages)


def _reason_of(rule: str, description: str) -> bytes | None:
    return encode_changes(
        {
            DEAD_LETTER_REASON: FILTER_FAILED,
            DEAD_LETTER_DESCRIPTION: f"Rule '{rule}': {description}"[:_DESCRIPTION_CHARACTERS_MAX],
        }
    )
