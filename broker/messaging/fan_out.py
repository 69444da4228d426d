"""Decide how many messages a receiving link asks of each partition. Pure.

A partition that met the last demand in full most likely has more (it is *flowing*) until it says otherwise.
The others have *standing* demand, which waits in the partition until something arrives. So a link on a queue
with a backlog asks a few flowing partitions, one after the other, each for a run of messages, and a link on
an empty queue waits at all partitions at once. The cost lies in asking, not in the messages, so a run grows
with the credit that the client works with, up to RUN_MESSAGES_MAX.
"""

from __future__ import annotations

from typing import Protocol

RUN_MESSAGES_MAX = 512
"""The longest run. It takes the event loop 2 ms at most, and what is beyond the credit is all that the
partition's other clients can only recall."""
RUN_MESSAGES = 256
"""Ask a flowing partition for at least this many, or half the largest credit so far if that is less. Runs
half as long cost a fifth more for each message: every run is a cycle of its partition, and so is its
settlement."""


class Plan(Protocol):
    """What a receiver asks of the partitions. `DemandPlan` says what the methods do."""

    asked: list[int]

    def ask(self, wanted: int, run_max: int) -> list[tuple[int, int, bool]]: ...
    def ask_once(self, wanted: int, run_max: int, everywhere: bool) -> list[tuple[int, int]]: ...
    def answered(self, number: int, count: int, *, voids_demand: bool = False) -> None: ...
    def unmet(self, number: int) -> None: ...
    def withdraw(self) -> list[int]: ...
    def forget(self, number: int) -> None: ...
    def give_up(self, number: int) -> None: ...


class SessionPlan:
    """The demand of one link for the messages of a session: at the session's partition, and never more than
    the client wants. An abandoned message has to come before those behind it, so none of them may wait in
    the link's cache."""

    __slots__ = ("_flows", "_number", "asked")

    def __init__(self, partitions: int, number: int) -> None:
        self.asked = [0] * partitions
        self._number = number
        self._flows = False
        """Whether the session may have more than it has given."""

    def ask(self, wanted: int, run_max: int) -> list[tuple[int, int, bool]]:
        return [(number, count, False) for number, count in self.ask_once(wanted, run_max, True)]

    def ask_once(self, wanted: int, run_max: int, everywhere: bool) -> list[tuple[int, int]]:
        number = self._number
        missing = min(wanted, run_max) - self.asked[number]
        if missing <= 0 or not (everywhere or self._flows):
            return []
        self.asked[number] += missing
        return [(number, missing)]

    def answered(self, number: int, count: int, *, voids_demand: bool = False) -> None:
        rest = 0 if voids_demand else self.asked[number] - count
        self.asked[number] = max(rest, 0)
        self._flows = rest <= 0

    def unmet(self, number: int) -> None:
        """A partition has no more for now. Nothing changes: it is not asked for more than is wanted."""

    def withdraw(self) -> list[int]:
        number = self._number
        if not self.asked[number]:
            return []
        self.forget(number)
        return [number]

    def forget(self, number: int) -> None:
        self.asked[number] = 0
        self._flows = False

    def give_up(self, number: int) -> None:
        self.forget(number)


class DemandPlan:
    """The demand of one link at all partitions of its entity."""

    __slots__ = ("_flowing", "_given_up", "_has_given", "_next", "_window", "asked")

    def __init__(self, partitions: int) -> None:
        self.asked = [0] * partitions
        """Demand that each partition has not met yet."""
        self._flowing = [False] * partitions
        self._has_given = [False] * partitions
        """Whether each partition has given messages since it was last asked."""
        self._given_up: set[int] = set()
        """Partitions that are down for good."""
        self._next = 0
        self._window = 0

    def ask(self, wanted: int, run_max: int) -> list[tuple[int, int, bool]]:
        """What to ask for now, as (partition, count, whether it should say when it has no more).

        `wanted` is the number of messages wanted; `run_max` the number that may come at once.
        """
        asked, flowing = self.asked, self._flowing
        partitions = len(asked)
        self._window = max(self._window, wanted)
        plan: list[tuple[int, int, bool]] = []
        missing = wanted
        standing = min(-(-wanted // partitions), run_max)
        for number in range(partitions):
            if flowing[number]:
                missing -= asked[number]
            elif not asked[number] and number not in self._given_up:
                asked[number] = standing
                self._has_given[number] = False
                plan.append((number, standing, False))
        if missing > 0:
            run = min(RUN_MESSAGES, max(self._window // 2, 1))
            first = self._next
            for step in range(partitions):
                number = (first + step) % partitions
                if flowing[number] and not asked[number]:
                    count = max(min(max(missing, run), run_max, RUN_MESSAGES_MAX), 1)
                    asked[number] = count
                    self._has_given[number] = False
                    plan.append((number, count, True))
                    missing -= count
                    self._next = number + 1
                    if missing <= 0:
                        break
        if missing > 0:
            # The flowing partitions are not enough: ask again where part of the standing demand was met.
            # A partition recalls other clients' unseen messages only for clients that have asked since
            # they last received something.
            for number in range(partitions):
                if self._has_given[number] and asked[number] and not flowing[number]:
                    count = max(standing - asked[number], 1)
                    asked[number] += count
                    self._has_given[number] = False
                    plan.append((number, count, False))
        return plan

    def ask_once(self, wanted: int, run_max: int, everywhere: bool) -> list[tuple[int, int]]:
        """What to ask for, as (partition, count), before the demand is withdrawn: of all partitions if
        `everywhere`, else of those that flow.

        Each partition is asked for its share at most. Later rounds ask the partitions that gave something for
        the rest.
        """
        numbers = [
            number
            for number, flows in enumerate(self._flowing)
            if flows or (everywhere and number not in self._given_up)
        ]
        if wanted <= 0 or not numbers:
            return []
        share = min(-(-wanted // len(numbers)), run_max)
        plan = [(number, share - self.asked[number]) for number in numbers if self.asked[number] < share]
        for number, count in plan:
            self.asked[number] += count
            self._has_given[number] = False
        return plan

    def answered(self, number: int, count: int, *, voids_demand: bool = False) -> None:
        """A partition has locked `count` messages for the link. With `voids_demand` it has more, but gives
        them only for a new demand."""
        rest = 0 if voids_demand else self.asked[number] - count
        self.asked[number] = max(rest, 0)
        self._flowing[number] = rest <= 0
        self._has_given[number] = True

    def unmet(self, number: int) -> None:
        """A partition has no more for now; its demand stands."""
        self._flowing[number] = False

    def withdraw(self) -> list[int]:
        """Clear all demand; returns the partitions that must be told."""
        withdrawn = [number for number, asked in enumerate(self.asked) if asked]
        for number in withdrawn:
            self.forget(number)
        return withdrawn

    def forget(self, number: int) -> None:
        """The partition no longer holds any demand, and may be empty."""
        self.asked[number] = 0
        self._flowing[number] = False

    def give_up(self, number: int) -> None:
        """The partition will not come back: never ask it again."""
        self.forget(number)
        self._given_up.add(number)
