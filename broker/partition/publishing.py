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

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import MESSAGE_OVERHEAD_BYTES, EntityDescription
from broker.entities.topics import (
    DEAD_LETTER_PLACE,
    MAIN_PLACE,
    PLACES,
    SubscriptionDescription,
    TopicDescription,
)
from broker.identifiers import encode_session_id
from broker.message.changes import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON, encode_changes
from broker.operations.columns import SESSION_ID
from broker.operations.interface import Operation
from broker.operations.sending import Send
from broker.operations.streams import SendSinkBatch
from broker.operations.transactions import Transact
from broker.operations.transfers import HandOver
from broker.partition import records
from broker.partition.columns import NO_COLUMNS
from broker.partition.cycle import Cycle
from broker.partition.expiries import expiries
from broker.partition.messages import Messages
from broker.partition.new_messages import NewMessages
from broker.partition.payloads import PayloadShare
from broker.partition.published import published_steps, slices_of
from broker.partition.records import Mark
from broker.partition.scheduled_times import times_of
from broker.partition.targets import Set, Target, Targets
from broker.rules.matching import (
    COPIES_BYTES_MAX,
    COPY_WORK,
    WITHOUT_END,
    ChangedCopy,
    Match,
    Matcher,
)

_STAYS: Set = (Target(MAIN_PLACE, has_sessions=1),)
"""The targets of a scheduled message: it stays in the topic's own subqueue until its time."""
_KNOWN_BYTES_MAX = 1024 * 1024
"""The memory of destinations that are kept ready, about."""
_SET_BYTES, _TARGET_BYTES = 512, 16
"""What a set of targets takes, and each target in it: a place in the key, and one in the set."""
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
"""What the copies of all messages of a send take, apart from the first copy of each: they are in one commit,
and a frame of the log has a limit."""
SHARED_BYTES_MAX = 16 * 1024 * 1024
"""Several sends share a commit as long as their copies take at most this together; so do messages that
another entity hands over, because they may come from many senders."""
REASONS_AT_ONCE = 32
"""Dead letters get their reasons in steps of so many marks."""
COPIES_OF_SEND_BYTES_MAX = 2 * COMMIT_BYTES_MAX
"""A send whose messages get more than one copy each is cut to COMMIT_BYTES_MAX. One that exceeds this all the
same is refused: rules make large copies of its tiny messages, or fail for very many of them."""


class Destinations(NamedTuple):
    """Where one message goes."""

    targets: Set
    dead: tuple[tuple[int, bytes | None], ...] = ()
    """Targets that are dead-letter subqueues, with the properties that give the reason."""
    copies: tuple[ChangedCopy, ...] = ()
    made: int = 0
    """What the copies and dead letters take, in bytes, if this belongs to a single message."""

    def room(self, size: int) -> int:
        """What a message of this size takes in the quota, with all its copies."""
        references = len(self.targets) + len(self.copies)
        return (size if self.targets else 0) + MESSAGE_OVERHEAD_BYTES * references + _bytes_of(self.copies)

    @property
    def effort(self) -> int:
        """What it takes to write a message and add its references, in references."""
        return 1 + len(self.targets) + COPY_WORK * len(self.dead)

    @property
    def memory(self) -> int:
        """The memory that a message takes besides what it was admitted with: that of all references but
        one."""
        return MESSAGE_OVERHEAD_BYTES * max(len(self.targets) + len(self.copies) - 1, 0)


_STAY = Destinations(_STAYS)


class Distribution:
    """Where the messages of a send go. Most share their destinations with others, so sums over thousands of
    messages look at each destination once: even a microsecond for each message would hold the event loop."""

    __slots__ = ("_counted", "_keys", "each")

    def __init__(self, each: Sequence[Destinations]) -> None:
        """`each` has the destinations of each message."""
        self.each = each
        self._keys = list(map(id, each))
        counts = Counter(self._keys)
        self._counted = [(one, counts[key]) for key, one in dict(zip(self._keys, each, strict=True)).items()]

    @property
    def made(self) -> int:
        """What all copies and dead letters take, in bytes."""
        return sum([one.made * count for one, count in self._counted])

    @property
    def memory(self) -> int:
        """The memory that the messages take besides what they were admitted with."""
        return sum([one.memory * count for one, count in self._counted])

    def room(self, sizes: Sequence[int]) -> int:
        """What messages of these sizes take in the quota, with all their copies."""
        room = sum([one.room(0) * count for one, count in self._counted])
        if all(one.targets for one, _ in self._counted):
            return room + sum(sizes)
        return room + sum([size for one, size in zip(self.each, sizes, strict=True) if one.targets])

    @property
    def effort(self) -> int:
        """What it takes to write all messages, without changed copies."""
        return sum([one.effort * count for one, count in self._counted])

    @property
    def efforts(self) -> list[int]:
        """What it takes to write each."""
        efforts = {id(one): one.effort for one, _ in self._counted}
        return list(map(efforts.__getitem__, self._keys))

    @property
    def copies(self) -> list[ChangedCopy]:
        """The changed copies of all messages."""
        if not any(one.copies for one, _ in self._counted):
            return []
        return [copy for one in self.each for copy in one.copies]


class Publishing:
    """The subscriptions of a topic, as one of its partitions sees them. Owned by the state machine."""

    __slots__ = (
        "_ahead",
        "_description",
        "_known",
        "_known_bytes",
        "_matcher",
        "_messages",
        "_subscriptions",
        "_targets",
        "_told",
    )

    def __init__(self, messages: Messages, description: TopicDescription) -> None:
        self._messages = messages
        self._matcher = Matcher()
        self._subscriptions: dict[int, SubscriptionDescription] = {}
        self._known: dict[tuple[tuple[int, ...], bool], Destinations] = {}
        """The destinations of messages that no rule changes or fails on, by the subscriptions and whether the
        message has a session."""
        self._known_bytes = 0
        self._targets: dict[int, Target] = {}
        """The target of each subscription that has got a message lately, shared by all sets."""
        self._ahead: dict[int, tuple[bytes, Destinations]] = {}
        """What `find_ahead` has found, by the identities of the messages, which it keeps."""
        self._told = 0
        """Messages whose destinations have been found, and the references that they get."""
        self.describe(description)

    def describe(self, description: TopicDescription) -> None:
        """The topic has these settings, subscriptions and rules from now on."""
        self._description = description
        self._known.clear()
        self._known_bytes = 0
        self._targets.clear()
        before, self._subscriptions = (
            self._subscriptions,
            {each.number: each for each in description.subscriptions},
        )
        for number in before.keys() - self._subscriptions.keys():
            self._matcher.forget(number)
        for number, each in self._subscriptions.items():
            if number not in before or before[number].rules != each.rules:
                self._matcher.set_rules(number, each.rules)

    @property
    def effort(self) -> int:
        """What finding destinations has cost so far: messages, references, and the work of matching. It only
        rises; callers who must stop in time look at how far it has risen."""
        return self._told + self._matcher.work

    def destinations(
        self,
        message: bytes,
        has_session: bool,
        enqueued_ms: int,
        room: int = COPIES_BYTES_MAX,
        effort_max: int = WITHOUT_END,
    ) -> Generator[None, None, Destinations]:
        """Find out where an active message goes, in steps of about this effort. `room`: what its copies may
        take together, in bytes."""
        room = min(max(room, 0), COPIES_BYTES_MAX)
        match = yield from self._matcher.match_steps(message, enqueued_ms, room, effort_max)
        self._told += 1 + len(match.subscriptions)
        if match.copies or match.failures:
            return self._found(match, has_session)
        key = match.subscriptions, has_session
        known = self._known.get(key)
        if known is None:
            size = _SET_BYTES + _TARGET_BYTES * len(match.subscriptions)
            if self._known_bytes + size > _KNOWN_BYTES_MAX:
                self._known.clear()
                self._known_bytes = 0
            self._known_bytes += size
            known = self._known[key] = self._found(match, has_session)
        return known

    def take_faults(self) -> list[tuple[str, str, str]]:
        """Subscription, rule and error of exceptions in rules since the last call."""
        return [
            (self._subscriptions[each.subscription].name if each.rule else "", each.rule, each.error)
            for each in self._matcher.take_faults()
            if not each.rule or each.subscription in self._subscriptions
        ]

    def only(self, subqueue: int) -> Destinations:
        """The destination of messages for the main subqueue of one subscription alone."""
        return Destinations((self._target(self._subscriptions[subqueue // PLACES]),))

    def find_ahead(
        self, cycle: Cycle, enqueued_ms: int, sends: Sequence[Send | HandOver], effort_max: int
    ) -> Generator[None, None, int]:
        """Find the destinations of messages before the operations that send them are carried out, in steps of
        about this effort. They are known until `forget_ahead`.

        A message that is hard to match is looked at in a later step than the first: many partitions may take
        their first steps in one turn of the event loop, but take turns for the others.

        Returns how many of the operations may share a commit: the first one, and those after it as long as
        there is room for all their copies. So no message loses copies because of what others send. If not all
        of them may, this takes more than one step. It stops in a send whose copies take too much
        (`found_ahead` will refuse that), and in a `HandOver` behind the messages that may share a commit."""
        shared = 0
        until = self.effort + effort_max
        is_first_step = True
        for count, send in enumerate(sends):
            sessions = send.columns.get(SESSION_ID)
            times = times_of(send.scheduled_ms, cycle.wall_ms)
            made = 0
            is_of_many = isinstance(send, HandOver)
            for place, message in enumerate(send.messages):
                if times is not None and times[place]:
                    continue
                if id(message) in self._ahead:
                    _, found = self._ahead[id(message)]
                else:
                    has_session = sessions is not None and sessions[place] is not None
                    most = COPIES_BYTES_MAX if count or is_of_many else COMMIT_BYTES_MAX - made
                    if is_first_step and self._matcher.is_hard(message, effort_max):
                        is_first_step = False
                        yield
                    found = yield from self.destinations(message, has_session, enqueued_ms, most, effort_max)
                    self._ahead[id(message)] = message, found
                made += found.made
                if count and made and shared + made > SHARED_BYTES_MAX:
                    yield
                    return count
                if made > (SHARED_BYTES_MAX if is_of_many else COPIES_OF_SEND_BYTES_MAX):
                    break
                if self.effort >= until:
                    is_first_step = False
                    yield
                    until = self.effort + effort_max
            shared += made
        return len(sends)

    def sharing_a_commit(self, over: HandOver) -> int:
        """How many of these messages, whose destinations were found ahead, may share a commit with all their
        copies, and find room in memory: from the first one on, and at least that one."""
        made = memory = 0
        for place, message in enumerate(over.messages):
            if (ahead := self._ahead.get(id(message))) is not None:  # else it is scheduled, or comes too late
                made += ahead[1].made
                memory += ahead[1].memory
            if place and (made > SHARED_BYTES_MAX or not self._messages.payloads.has_room(memory)):
                return place
        return len(over.messages)

    def forget_ahead(self) -> None:
        """Forget what `find_ahead` has found."""
        self._ahead.clear()

    def found_ahead(self, send: Send, scheduled_ms: Sequence[int] | None) -> Distribution:
        """Where the messages of a send go, which are scheduled for these times, as `find_ahead` has found.
        Raises Refused if their copies take too much."""
        ahead = self._ahead
        if scheduled_ms is None:
            each = [ahead[key][1] for key in map(id, send.messages) if key in ahead]
        else:
            each = []
            for message, at_ms in zip(send.messages, scheduled_ms, strict=True):
                if at_ms:
                    each.append(_STAY)
                elif id(message) in ahead:
                    each.append(ahead[id(message)][1])
        found = Distribution(each)
        if found.made > COPIES_OF_SEND_BYTES_MAX:  # `find_ahead` has stopped there
            raise Refused(
                Reason.MESSAGE_TOO_LARGE,
                f"What rules of the topic '{self._description.name}' make of the first {len(each)} of these "
                f"{len(send.messages)} messages takes {found.made} bytes together; "
                f"{COPIES_OF_SEND_BYTES_MAX} are the maximum. Send fewer messages at once.",
            )
        assert len(each) == len(send.messages), "the destinations of all were found ahead"
        return found

    def write_steps(
        self,
        cycle: Cycle,
        new: NewMessages,
        found: Distribution,
        effort_max: int,
        *,
        keeps_numbers: bool,
    ) -> Iterator[None]:
        """Write and apply new messages with known destinations, in steps of about this effort. What takes
        several of them does nothing in the first. The copies come last. `keeps_numbers`: messages get a
        number even if nobody gets them, because a client is told it: a message that it could mistake for one
        of these must not get it."""
        effort = found.effort
        if effort > effort_max:
            yield  # all partitions may take their first step in one turn of the event loop
        for here in slices_of(found.efforts, effort_max):
            if here.start:
                yield
            yield from self._write_some(cycle, new.part(here), found.each[here], keeps_numbers=keeps_numbers)
        copies = found.copies
        is_short = effort < effort_max
        for here in slices_of([copy.work for copy in copies], effort_max):
            if here.start or not is_short:
                yield
            yield from self._write_copies(cycle, new.enqueued_at_ms, copies[here])

    def write(self, cycle: Cycle, new: NewMessages, found: Sequence[Destinations]) -> Iterator[None]:
        """Write and apply new messages with known destinations, in steps if they go to many subqueues."""
        yield from self._write_some(cycle, new, found)
        copies = [copy for each in found for copy in each.copies]
        if copies:
            yield from self._write_copies(cycle, new.enqueued_at_ms, copies)

    def _write_some(
        self,
        cycle: Cycle,
        new: NewMessages,
        found: Sequence[Destinations],
        *,
        keeps_numbers: bool = False,
    ) -> Iterator[None]:
        targets = targets_of(found)
        if not (keeps_numbers or any(targets.sets)):
            return
        kept = [bool(each.targets) for each in found]
        if not all(kept):
            new = new._replace(
                sizes=[size if keeps else 0 for size, keeps in zip(new.sizes, kept, strict=True)],
                messages=[each if keeps else b"" for each, keeps in zip(new.messages, kept, strict=True)],
            )
        first = self._messages.next_number
        yield from self._write(cycle, new, targets)
        dead: dict[tuple[int, bytes | None], list[int]] = {}
        for number, each in enumerate(found, first):
            for destination in each.dead:
                dead.setdefault(destination, []).append(number)
        for place, ((subqueue, changed), of_reason) in enumerate(dead.items(), 1):
            self._give_reason(cycle, subqueue, changed, of_reason)
            if place % REASONS_AT_ONCE == 0:
                yield

    def _write_copies(self, cycle: Cycle, enqueued_ms: int, copies: Sequence[ChangedCopy]) -> Iterator[None]:
        default_ms = self._description.settings.default_time_to_live_ms
        stored = [copy.message for copy in copies]
        cycle.work += sum([copy.work for copy in copies])
        found = [
            self._found(Match((copy.subscription,)), copy.message.session_id is not None) for copy in copies
        ]
        session_ids = [
            None if each.session_id is None else encode_session_id(each.session_id) for each in stored
        ]
        new = NewMessages(
            enqueued_ms,
            [len(each.data) for each in stored],
            expiries([each.time_to_live_ms for each in stored], default_ms, len(stored), enqueued_ms),
            [each.data for each in stored],
            {SESSION_ID: session_ids} if any(each is not None for each in session_ids) else NO_COLUMNS,
        )
        yield from self._write_some(cycle, new, found)

    def _write(self, cycle: Cycle, new: NewMessages, targets: Targets) -> Iterator[None]:
        messages, start = self._messages, cycle.commit.start
        enqueued = new.add_to(cycle.commit, messages.next_number, targets)
        steps = published_steps(messages, start, enqueued, new.messages, cycle.now_ms, len(cycle.passing))
        cycle.passing += yield from steps
        cycle.work += sum([len(targets.sets[index]) for index in targets.of_messages])
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
        dead: dict[int, bytes | None] = {}
        for number in match.subscriptions:
            subscription = self._subscriptions[number]
            if subscription.settings.requires_session and not has_session:
                dead[subscription.subqueue(DEAD_LETTER_PLACE)] = NO_SESSION
            else:
                targets.append(self._target(subscription))
        for failure in match.failures:
            subscription = self._subscriptions[failure.subscription]
            if subscription.settings.dead_lettering_on_filter_errors:
                place = subscription.subqueue(DEAD_LETTER_PLACE)
                if place not in dead:
                    dead[place] = _reason_of(failure.rule, failure.description)
        every = sorted([*targets, *map(Target, dead)])
        made = 0
        if match.copies or match.failures:
            made = MESSAGE_OVERHEAD_BYTES * (len(dead) + len(match.copies)) + _bytes_of(match.copies)
        return Destinations(tuple(every), tuple(dead.items()), match.copies, made)

    def _target(self, subscription: SubscriptionDescription) -> Target:
        target = self._targets.get(subscription.number)
        if target is None:
            settings = subscription.settings
            target = self._targets[subscription.number] = Target(
                subscription.subqueue(MAIN_PLACE),
                0 if settings.default_time_to_live_ms is None else max(1, settings.default_time_to_live_ms),
                int(settings.requires_session),
            )
        return target


def published_by(operation: Operation) -> Send | HandOver | None:
    """The messages that an operation sends to the subscriptions of a topic, if it may send many."""
    match operation:
        case Send() | HandOver():
            return operation
        case Transact() | SendSinkBatch():
            return operation.send
        case _:
            return None


def take_memory(payloads: PayloadShare, description: EntityDescription, found: Distribution) -> None:
    """Count the memory for messages with these destinations, apart from that with which they were admitted.
    Raises Refused(SERVER_BUSY) if there is not enough up to the mark."""
    memory = found.memory
    if not payloads.take_room(memory):
        raise Refused(
            Reason.SERVER_BUSY,
            f"The broker has too little memory left to give these {len(found.each)} messages to all "
            f"subscriptions of '{description.name}' that they match: their state would take {memory // 1024} "
            "KiB. Please wait 2 seconds and try again, or send fewer messages at once.",
        )


def _bytes_of(copies: Sequence[ChangedCopy]) -> int:
    return sum([len(copy.message.data) for copy in copies])


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
