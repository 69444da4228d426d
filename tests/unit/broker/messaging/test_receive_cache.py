"""The shelf of a link, and the bound that a connection's shelves share."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.identifiers import LockToken
from broker.messaging.receive_cache import ReceiveCache, Shelf, split, without
from broker.operations.receiving import Locked
from tests.support.locked import locked


def tokens_of(parts: Sequence[Locked | None]) -> list[LockToken]:
    return [token for part in parts if part is not None for token in part.tokens]


def filled(cache: ReceiveCache, *chunks: Locked) -> Shelf:
    shelf = Shelf(cache, {})
    for chunk in chunks:
        assert shelf.put(chunk) is None
    return shelf


def test_messages_leave_the_shelf_in_the_order_in_which_they_came() -> None:
    first, second = locked(1, 3), locked(2, 2)
    shelf = filled(ReceiveCache(10, 1000), first, second)
    taken = [shelf.take(2), shelf.take(2), shelf.take(10), shelf.take(10)]
    assert [len(part.tokens) if part else 0 for part in taken] == [2, 1, 2, 0]
    assert tokens_of(taken) == [*first.tokens, *second.tokens]
    assert not shelf and shelf.take(1) is None


def test_nothing_is_taken_where_nothing_is_wanted() -> None:
    shelf = filled(ReceiveCache(10, 1000), locked(1, 3))
    assert shelf.take(0) is None and shelf.take(-1) is None and shelf


def test_what_finds_no_room_by_count_is_given_back() -> None:
    cache = ReceiveCache(5, 1000)
    shelf = filled(cache, locked(1, 3))
    chunk = locked(2, 4)
    over = shelf.put(chunk)
    assert over is not None and over.tokens == chunk.tokens[2:]
    assert cache.messages == 5


def test_what_finds_no_room_by_bytes_is_given_back() -> None:
    cache = ReceiveCache(100, 25)
    over = Shelf(cache, {}).put(locked(1, 4, size=10))
    assert over is not None and len(over.tokens) == 2 and (cache.messages, cache.bytes) == (2, 20)


def test_without_room_everything_is_given_back() -> None:
    shelf, chunk = Shelf(ReceiveCache(0, 0), {}), locked(1, 2)
    assert shelf.put(chunk) is chunk and not shelf


def test_the_shelves_of_one_connection_share_the_bound() -> None:
    cache = ReceiveCache(5, 1000)
    one, other = filled(cache, locked(1, 4)), Shelf(cache, {})
    over = other.put(locked(2, 4))
    assert over is not None and len(over.tokens) == 3
    assert len(tokens_of(list(one.clear()))) == 4
    assert other.put(over) is None and cache.messages == 4


def test_a_recall_takes_what_is_of_its_partition_and_subqueue_and_leaves_the_rest() -> None:
    mine, other, dead = locked(1, 2), locked(2, 2), locked(1, 2, subqueue="$deadletterqueue")
    cache = ReceiveCache(100, 1000)
    shelf = filled(cache, mine, other, dead)
    assert shelf.recall(1, "") == mine.tokens and shelf.recall(1, "") == []
    assert tokens_of(list(shelf.clear())) == [*other.tokens, *dead.tokens]
    assert (cache.messages, cache.bytes) == (0, 0)


def test_what_runs_out_is_taken_off_and_what_lasts_stays() -> None:
    soon, later = locked(1, 2, until_ms=1000), locked(2, 2, until_ms=1001)
    shelf = filled(ReceiveCache(100, 1000), soon, later)
    assert shelf.locked_until_ms() == 1000
    assert shelf.expire(999) == []
    assert shelf.expire(1000) == soon.tokens
    assert (
        shelf.locked_until_ms() == 1001
        and shelf.expire(5000) == later.tokens
        and shelf.locked_until_ms() is None
    )


@given(st.integers(1, 30), st.integers(-2, 40))
def test_a_split_loses_nothing(total: int, count: int) -> None:
    whole = locked(1, total)
    first, rest = split(whole, count)
    assert tokens_of([first, rest]) == whole.tokens
    assert len(first.tokens if first else []) == min(max(count, 0), total)
    for part in (first, rest):
        if part is not None:
            for name in (
                "sequence_numbers",
                "enqueued_at_ms",
                "delivery_counts",
                "expires_at_ms",
                "messages",
                "changed",
            ):
                assert len(getattr(part, name)) == len(part.tokens)
            assert (part.partition, part.subqueue, part.locked_until_ms) == (1, "", whole.locked_until_ms)


@given(st.integers(1, 20), st.sets(st.integers(0, 25)))
def test_without_leaves_out_what_it_is_told_to(total: int, places: set[int]) -> None:
    whole = locked(1, total)
    kept = without(whole, places)
    assert kept.tokens == [token for place, token in enumerate(whole.tokens) if place not in places]
    assert len(kept.messages) == len(kept.changed) == len(kept.tokens)


class Shelves(RuleBasedStateMachine):
    """Two shelves of one cache against lists."""

    @initialize(messages_max=st.integers(0, 30), bytes_max=st.integers(0, 300))
    def start(self, messages_max: int, bytes_max: int) -> None:
        self.cache = ReceiveCache(messages_max, bytes_max)
        self.kept_ready: dict[str, int] = {}
        self.shelves = [Shelf(self.cache, self.kept_ready), Shelf(self.cache, self.kept_ready)]
        self.held: list[list[tuple[int, int, LockToken, int]]] = [[], []]
        """Partition, locked until, token, size."""

    @rule(
        which=st.integers(0, 1),
        partition=st.integers(0, 3),
        count=st.integers(1, 12),
        size=st.integers(0, 40),
        until_ms=st.integers(1, 20),
    )
    def put(self, which: int, partition: int, count: int, size: int, until_ms: int) -> None:
        chunk = locked(partition, count, size=size, until_ms=until_ms)
        over = self.shelves[which].put(chunk)
        kept = chunk.tokens[: count - (len(over.tokens) if over else 0)]
        assert [*kept, *tokens_of([over])] == chunk.tokens
        self.held[which] += [(partition, until_ms, token, size) for token in kept]

    @rule(which=st.integers(0, 1), count=st.integers(0, 15))
    def take(self, which: int, count: int) -> None:
        taken = self.shelves[which].take(count)
        tokens = tokens_of([taken])
        assert tokens == [each[2] for each in self.held[which][: len(tokens)]] and len(tokens) <= count
        assert bool(tokens) == bool(count and self.held[which])
        del self.held[which][: len(tokens)]

    @rule(which=st.integers(0, 1), partition=st.integers(0, 3))
    def recall(self, which: int, partition: int) -> None:
        assert self.shelves[which].recall(partition, "") == [
            each[2] for each in self.held[which] if each[0] == partition
        ]
        self.held[which] = [each for each in self.held[which] if each[0] != partition]

    @rule(which=st.integers(0, 1), until_ms=st.integers(0, 21))
    def expire(self, which: int, until_ms: int) -> None:
        assert self.shelves[which].expire(until_ms) == [
            each[2] for each in self.held[which] if each[1] <= until_ms
        ]
        self.held[which] = [each for each in self.held[which] if each[1] > until_ms]

    @rule(which=st.integers(0, 1))
    def clear(self, which: int) -> None:
        assert tokens_of(list(self.shelves[which].clear())) == [each[2] for each in self.held[which]]
        self.held[which] = []

    @invariant()
    def the_bound_holds(self) -> None:
        if hasattr(self, "cache"):
            held = [each for shelf in self.held for each in shelf]
            assert self.cache.messages == len(held) <= self.cache.messages_max
            assert self.kept_ready.get("", 0) == len(held)
            assert self.cache.bytes == sum(each[3] for each in held) <= self.cache.bytes_max
            for shelf, own in zip(self.shelves, self.held, strict=True):
                assert bool(shelf) == bool(own) and shelf.locked_until_ms() == min(
                    (each[1] for each in own), default=None
                )


test_shelves_hold_what_a_list_would_within_the_bound = Shelves.TestCase
