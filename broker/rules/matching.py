"""Which subscriptions of a topic get a message, and what copies of it (AMQP contract 11.1). Pure.

All rules without an action produce one copy for their subscription between them: the message as it is. Each
rule with an action produces a copy of its own, with the application property `RuleName`. A rule that fails
does not match; the failure is reported if its subscription gets the message through no other rule.

Subscriptions with the same filter share its evaluation, and an index finds the filters that may match. So
the cost of a message follows the subscriptions that match. Changing the rules of one subscription costs
nothing for the others.

Matching one message with thousands of rules that make copies may take seconds, so it can be done in steps.
What it costs is counted as *work*: a filter that compares one property counts as 1, which takes some 1 µs.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from broker.base.errors import Refused
from broker.entities.rules import Filter, RuleDescription, SqlAction
from broker.message.stored import StoredMessage
from broker.rules.actions import Action, check_new_action, compile_action
from broker.rules.covers import Cover
from broker.rules.filters import CompiledFilter, compile_filter
from broker.rules.index import FilterIndex
from broker.rules.message_view import SEARCHED_CHARACTERS, SEARCHED_MAX, MessageView
from broker.rules.values import EvaluationFailed

COPIES_BYTES_MAX = 16 * 1024 * 1024
"""What the copies of one message may take together, unless it is a single one. Any number of rules with
actions may match, and a commit has a limit."""

COPY_WORK = 16
"""Making or writing a copy counts as much as so many filters, however small it is. So does a failure."""
COPIED_BYTES_OF_WORK = 4_096
"""So many bytes of a copy count as much as one filter more."""
SEARCH_WORK = SEARCHED_MAX // SEARCHED_CHARACTERS
"""What LIKE may search for one filter."""
WITHOUT_END = 2**63
"""More work than there is: everything is one step."""
FAULTS_MAX = 256
"""The most rules of which exceptions are reported."""
_ERROR_CHARACTERS_MAX = 1_000
_PROPERTIES_BYTES_OF_STEP = 8_192
"""Decoding the properties of a message may take longer than a step if they are larger than this."""
_NO_RULE = (0, "")
"""A message that the index cannot look at is nobody's rule."""


def check_expressions(rule: RuleDescription) -> None:
    """Check that the filter and the action of a new rule can be carried out. Raises Refused(ARGUMENT), with
    the position in the expression."""
    compile_filter(rule.filter)
    if rule.action is not None:
        check_new_action(rule.action)


@dataclass(slots=True)
class ChangedCopy:
    """A copy of a message that a rule's action has changed."""

    subscription: int
    rule: str
    message: StoredMessage
    """The changed message, and what routing and timers need to know of it."""

    @property
    def work(self) -> int:
        """What making or writing it costs."""
        return COPY_WORK + len(self.message.data) // COPIED_BYTES_OF_WORK


@dataclass(slots=True)
class Failure:
    """A rule that has no result for a message."""

    subscription: int
    rule: str
    description: str


@dataclass(slots=True, frozen=True)
class Fault:
    """An exception that the code has not foreseen."""

    subscription: int
    rule: str
    error: str


@dataclass(slots=True)
class Match:
    """Who gets a message. Shared between messages: do not change it."""

    subscriptions: tuple[int, ...] = ()
    """The numbers of those that get the message as it is, in ascending order."""
    copies: tuple[ChangedCopy, ...] = ()
    failures: tuple[Failure, ...] = ()
    """Of subscriptions that get nothing. A message may or may not be dead-lettered there, as the subscription
    says."""


@dataclass(slots=True, eq=False)
class _Entry:
    """A filter, and the rules that have it, each known by the number of its subscription and its name."""

    filter: Filter
    compiled: CompiledFilter
    cover: Cover | None = None
    plain: dict[tuple[int, str], None] = field(default_factory=dict)
    acting: dict[tuple[int, str], Action] = field(default_factory=dict)


class _Copies:
    """The copies that actions have made of one message so far."""

    def __init__(self, bytes_max: int) -> None:
        self.copies: list[ChangedCopy] = []
        self._bytes, self._bytes_max = 0, bytes_max

    def check_room(self, size: int) -> None:
        """Raise EvaluationFailed if there is no room for a copy of a message of `size` bytes. There always
        is for the first one."""
        if self.copies and self._bytes + size > self._bytes_max:
            raise EvaluationFailed(f"The copies of the message exceed {self._bytes_max} bytes.")

    def add(self, copy: ChangedCopy) -> None:
        self.copies.append(copy)
        self._bytes += len(copy.message.data)


class Matcher:
    """The rules of all subscriptions of a topic. Owned by one partition."""

    def __init__(self) -> None:
        self._rules: dict[int, tuple[RuleDescription, ...]] = {}
        self._entries: dict[Filter, _Entry] = {}
        self._index: FilterIndex[_Entry] = FilterIndex()
        self._everything: dict[int, int] = {}
        """Subscriptions that get every message as it is, and by how many rules."""
        self._faulty: set[tuple[int, str]] = set()
        """Rules that have met an exception."""
        self._faults: list[Fault] = []
        self.work = 0
        """What matching has cost so far. It only rises."""
        self.hard_work = 0
        """What the copies of a message and searching its texts may cost, besides what its size adds."""
        self.acted = 0
        """How many actions have been carried out so far, including those that failed."""
        self._to_all: Match | None = None
        """What a message gets if no other rule matches it; None after a change of `_everything`."""

    def set_rules(self, subscription: int, rules: Sequence[RuleDescription]) -> None:
        """Replace the rules of a subscription. A rule that cannot be compiled fails on every message."""
        self.forget(subscription)
        self._rules[subscription] = tuple(rules)
        for rule in rules:
            if _is_for_all(rule):
                self._everything[subscription] = self._everything.get(subscription, 0) + 1
                self._to_all = None
            else:
                self._add(subscription, rule)

    def forget(self, subscription: int) -> None:
        """Remove the rules of a subscription that may have some."""
        self._faulty = {each for each in self._faulty if each[0] != subscription}
        for rule in self._rules.pop(subscription, ()):
            if _is_for_all(rule):
                self._everything.pop(subscription, None)
                self._to_all = None
            else:
                self._remove(subscription, rule)

    def is_hard(self, stored: bytes, work_max: int) -> bool:
        """Whether matching a stored message may take far longer than a step of this work. That is known
        without looking at its properties."""
        if not self._entries:
            return False
        if self.hard_work >= work_max:
            return True
        try:
            large = _PROPERTIES_BYTES_OF_STEP
            return len(stored) > large and MessageView(stored, 0).properties_end() > large
        except Exception:  # the failure of each rule, as in `match_steps`
            return True

    def match_steps(
        self,
        stored: bytes,
        enqueued_ms: int,
        copies_bytes_max: int = COPIES_BYTES_MAX,
        work_max: int = WITHOUT_END,
    ) -> Generator[None, None, Match]:
        """Find who gets a stored message, whose enqueued time this is in wall time, in steps of about this
        work. No rules may be changed before the last one. A rule whose copy would exceed `copies_bytes_max`
        together with those before it fails; the first copy is always made."""
        if self._to_all is None:
            self._to_all = Match(tuple(sorted(self._everything)))
        if not self._entries:
            return self._to_all
        message = MessageView(stored, enqueued_ms)
        until = self.work + work_max
        seen: set[_Entry] = set()
        plain: set[int] = set()
        made: _Copies | None = None
        failures: list[Failure] = []
        for entry in self._candidates(message):
            if entry in seen:
                continue
            seen.add(entry)
            message.searched = 0
            self.work += message.work + entry.compiled.work
            message.work = 0
            if self.work >= until:
                yield
                until = self.work + work_max
            try:
                if not entry.compiled.matches(message):
                    continue
            except Exception as why:
                text = self._text_of(why, next(iter((*entry.plain, *entry.acting))))
                failures += [Failure(*rule, text) for rule in (*entry.plain, *entry.acting)]
                continue
            plain.update([subscription for subscription, _ in entry.plain])
            if entry.acting:
                made = made or _Copies(copies_bytes_max)
                for failed in self._act(entry, message, len(stored), made):
                    failures += failed
                    if self.work >= until:
                        yield
                        until = self.work + work_max
        self.work += message.take_work() + COPY_WORK * len(failures)
        copies = made.copies if made else []
        if not (plain or copies or failures):
            return self._to_all
        subscriptions = tuple(sorted(plain.union(self._everything)))
        if failures:
            served = {*subscriptions, *(copy.subscription for copy in copies)}
            failures = [failure for failure in failures if failure.subscription not in served]
        return Match(subscriptions, tuple(sorted(copies, key=_order)), tuple(sorted(failures, key=_order)))

    def _act(
        self, entry: _Entry, message: MessageView, size: int, made: _Copies
    ) -> Iterator[Sequence[Failure]]:
        """Make a copy of a message of `size` bytes for each action of a filter that matches, in steps that
        give the failures."""
        for (subscription, rule), action in entry.acting.items():
            self.acted += 1
            failures: Sequence[Failure] = ()
            try:
                made.check_room(size)
                copy = ChangedCopy(subscription, rule, action.change(message, rule))
                made.add(copy)
            except Exception as why:
                failures = (Failure(subscription, rule, self._text_of(why, (subscription, rule))),)
                self.work += message.take_work() + action.work
            else:
                self.work += message.take_work() + action.work + copy.work
            yield failures

    def _candidates(self, message: MessageView) -> Iterable[_Entry]:
        """The entries that may match; all of them if the message is one that the index cannot look at."""
        try:
            return list(self._index.candidates(message))
        except Exception as why:
            self._text_of(why, _NO_RULE)
            return list(self._entries.values())

    def _text_of(self, why: Exception, rule: tuple[int, str]) -> str:
        """What to report of a rule that has no result.

        Senders choose the values that rules look at, in more ways than this code has foreseen. Any exception
        is the failure of one rule here. Elsewhere it would be a failure of the partition, and since senders
        hand what a partition cannot take to the next one, a single message could put a whole topic out of
        service.
        """
        if isinstance(why, EvaluationFailed):
            return str(why)
        if rule not in self._faulty and len(self._faulty) < FAULTS_MAX:
            self._faulty.add(rule)
            self._faults.append(Fault(*rule, repr(why)[:_ERROR_CHARACTERS_MAX]))
        return f"It has no result ({type(why).__name__})."

    def take_faults(self) -> list[Fault]:
        """The exceptions that rules have met since the last call: one for each rule, until it is changed."""
        faults, self._faults = self._faults, []
        return faults

    def _add(self, subscription: int, rule: RuleDescription) -> None:
        entry = self._entries.get(rule.filter)
        if entry is None:
            entry = self._entries[rule.filter] = _Entry(rule.filter, _compiled(rule.filter))
            self.hard_work += SEARCH_WORK * entry.compiled.searches
            entry.cover = self._index.add(entry, entry.compiled.covers)
        if rule.action is None:
            entry.plain[subscription, rule.name] = None
        else:
            action = entry.acting[subscription, rule.name] = _compiled_action(rule.action)
            self.hard_work += COPY_WORK + action.work

    def _remove(self, subscription: int, rule: RuleDescription) -> None:
        entry = self._entries[rule.filter]
        if rule.action is None:
            del entry.plain[subscription, rule.name]
        else:
            self.hard_work -= COPY_WORK + entry.acting.pop((subscription, rule.name)).work
        if not entry.plain and not entry.acting:
            self._index.remove(entry, entry.cover)
            self.hard_work -= SEARCH_WORK * entry.compiled.searches
            del self._entries[rule.filter]


def _is_for_all(rule: RuleDescription) -> bool:
    return rule.action is None and _compiled(rule.filter).matches_all


def _order(each: ChangedCopy | Failure) -> tuple[int, str]:
    return each.subscription, each.rule


def _compiled(filter: Filter) -> CompiledFilter:
    try:
        return compile_filter(filter)
    except Refused as why:
        description = why.description

    def fails(message: MessageView) -> bool:
        raise EvaluationFailed(description)

    return CompiledFilter(fails)


def _compiled_action(action: SqlAction) -> Action:
    try:
        return compile_action(action)
    except Refused as why:
        description = why.description

    def fails(message: MessageView, rule: str) -> StoredMessage:
        raise EvaluationFailed(description)

    return Action(fails)
