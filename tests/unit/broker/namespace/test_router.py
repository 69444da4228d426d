"""Which partition a message goes to: the promise of docs/partitioning.md."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.base.errors import Reason, Refused
from broker.identifiers import ClientId
from broker.namespace._placing import divide
from broker.namespace.router import EVEN_TO, FULL_S, RUN_MESSAGES_MAX, Router, partition_of_key
from broker.operations.interface import Operation, Sink
from broker.operations.sending import Send

ROOT = Path(__file__).parents[4]


@dataclass(eq=False)
class Handle:
    number: int
    available: bool = True
    awaits_more: bool = False
    health: str = "healthy"

    def join(self, more: Send, client: ClientId, cookie: object) -> bool:
        return False

    def post(self, operation: Operation, client: ClientId, sink: Sink) -> None:
        raise AssertionError("a router posts nothing")


def handles(count: int) -> list[Handle]:
    return [Handle(number) for number in range(count)]


@given(st.lists(st.none() | st.text(st.characters(), max_size=300)), st.integers(1, 100))
def test_a_run_is_divided_as_the_reference_places_each_of_its_keys(
    keys: list[str | None], partitions: int
) -> None:
    expected: dict[int | None, list[int]] = {}
    for index, key in enumerate(keys):
        number = None if key is None else partition_of_key(key, partitions)
        expected.setdefault(number, []).append(index)
    divided = Router(handles(partitions)).divide(keys, [range(len(keys)), [], keys])
    assert [(number, [*parts]) for number, parts in divided] == [
        (number, [indexes, [], [keys[index] for index in indexes]]) for number, indexes in expected.items()
    ]


@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 255, 256, 257, 1000])
def test_keys_of_any_length_are_placed_as_by_the_reference(size: int) -> None:
    for key in ("k" * size, "\u00e4" * size, "\ud800" * size):
        ((number, parts),) = Router(handles(97)).divide([key], [[0]])
        assert (number, [*parts]) == (partition_of_key(key, 97), [[0]])


@pytest.mark.parametrize(
    "arguments",
    [
        (["k"], 0, []),
        (["k"], -1, []),
        (["k"], 1 << 17, []),
        (["k"], "16", []),
        ([1], 16, []),
        ([b"k"], 16, []),
        (5, 16, []),
        (["k"], 16, 5),
        (["k"], 16, [5]),
        (["k"], 16, [[1, 2]]),
    ],
)
def test_only_keys_and_lists_of_their_length_are_divided(arguments: tuple[Any, Any, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        divide(*arguments)


def spread(router: Router, count: int) -> list[tuple[int, int, int]]:
    runs = router.spread(count, 0.0)
    assert [start for _, start, _ in runs] == [0, *(stop for _, _, stop in runs[:-1])] and runs[-1][
        2
    ] == count, "all, in order, once"
    return runs


# --- with a key ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "of_2", "of_16", "of_256"),
    [
        ("a", 1, 15, 47),
        ("A", 0, 6, 70),
        ("order-42", 1, 3, 243),
        ("Zürich", 0, 8, 8),
        ("日本", 0, 10, 58),
        ("", 0, 4, 180),
        ("x" * 128, 0, 2, 2),
    ],
)
def test_a_key_goes_to_the_partition_it_has_always_gone_to(
    key: str, of_2: int, of_16: int, of_256: int
) -> None:
    assert (partition_of_key(key, 2), partition_of_key(key, 16), partition_of_key(key, 256)) == (
        of_2,
        of_16,
        of_256,
    )
    assert Router(handles(16)).keyed(key).available and partition_of_key(key, 1) == 0


def test_the_documented_vectors_are_right() -> None:
    text = (ROOT / "docs" / "partitioning.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (?:`(.+?)`|\(empty\)) \| `([0-9a-f]{16})` \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$",
        text,
        re.MULTILINE,
    )
    assert len(rows) >= 5
    for key, digest, *partitions in rows:
        assert [str(int(digest, 16) % count) for count in (2, 4, 16, 256)] == partitions
        assert [str(partition_of_key(key, count)) for count in (2, 4, 16, 256)] == partitions


def test_text_that_is_no_utf_8_has_a_partition_too() -> None:
    assert 0 <= partition_of_key("\ud800", 16) < 16


def test_keys_are_spread_over_all_partitions() -> None:
    counts = Counter(partition_of_key(f"key-{number}", 16) for number in range(16_000))
    assert len(counts) == 16 and min(counts.values()) > 850 and max(counts.values()) < 1150


def test_a_key_whose_partition_is_down_is_refused_and_never_goes_elsewhere() -> None:
    parts = handles(16)
    router = Router(parts)
    parts[partition_of_key("a", 16)].available = False
    with pytest.raises(Refused) as refused:
        router.keyed("a")
    assert refused.value.reason is Reason.PARTITION_UNAVAILABLE and "15" in refused.value.description
    assert refused.value.description.endswith("Please try again.")
    assert router.keyed("A") is parts[6]
    parts[15].health = "damaged"
    with pytest.raises(
        Refused, match=r"is damaged\. It stays unavailable until an operator repairs it"
    ) as refused:
        router.keyed("a")
    assert refused.value.reason is Reason.PARTITION_UNAVAILABLE


# --- without a key ------------------------------------------------------------------------------------------


def test_messages_that_come_one_by_one_go_one_by_one_to_the_partitions() -> None:
    router = Router(handles(4))
    assert [spread(router, 1)[0][0] for _ in range(9)] == [0, 1, 2, 3, 0, 1, 2, 3, 0]


def test_messages_that_come_together_are_shared_out() -> None:
    runs = spread(Router(handles(4)), 10)
    assert len(runs) == 4 and max(stop - start for _, start, stop in runs) == 3


@given(st.integers(1, 20), st.lists(st.integers(1, 2000), min_size=1, max_size=60))
def test_the_spread_is_even_to_one_run_for_any_sequence_of_counts(partitions: int, counts: list[int]) -> None:
    router = Router(handles(partitions))
    got = Counter(dict.fromkeys(range(partitions), 0))
    longest = 1
    for count in counts:
        least = min(got.values())
        for number, start, stop in spread(router, count):
            assert stop - start <= max(-(-count // partitions), min(RUN_MESSAGES_MAX, least // EVEN_TO))
            got[number] += stop - start
            longest = max(longest, stop - start)
    assert max(got.values()) - min(got.values()) <= longest


@given(st.lists(st.integers(1, 4), min_size=1, max_size=200))
def test_small_counts_are_even_to_one_message(counts: list[int]) -> None:
    router, got = Router(handles(8)), Counter(dict.fromkeys(range(8), 0))
    for count in counts:
        if sum(got.values()) >= 8 * 2 * EVEN_TO:
            break
        for number, start, stop in spread(router, count):
            got[number] += stop - start
        assert max(got.values()) - min(got.values()) <= 1


def test_a_pattern_of_counts_favours_no_partition_for_ever() -> None:
    router, got = Router(handles(16)), Counter[int]()
    for _ in range(2000):
        for count in (17, 1, 1, 1, 1, 1, 1, 1):
            for number, start, stop in spread(router, count):
                got[number] += stop - start
    assert max(got.values()) - min(got.values()) <= RUN_MESSAGES_MAX


def routed_evenly(parts: list[Handle]) -> Router:
    """A router whose runs may have four messages, and whose partitions have had the same so far."""
    router = Router(parts)
    assert {stop - start for _, start, stop in spread(router, len(parts) * 4 * EVEN_TO)} == {4 * EVEN_TO}
    return router


def test_messages_join_the_last_run_while_its_partition_awaits_more_and_it_has_room() -> None:
    parts = handles(4)
    router = routed_evenly(parts)
    assert spread(router, 1) == [(0, 0, 1)] and spread(router, 1) == [(1, 0, 1)], "none awaits more"
    parts[1].awaits_more = True
    assert spread(router, 2) == [(1, 0, 2)]
    assert spread(router, 2) == [(2, 0, 2)], "the run would have five"
    assert spread(router, 1) == [(3, 0, 1)], "the last run is that of another one"
    parts[3].awaits_more = True
    assert [spread(router, 1)[0][0] for _ in range(4)] == [3, 3, 3, 0]


def test_no_message_joins_a_run_in_a_partition_that_is_down_or_full() -> None:
    parts = handles(4)
    router = routed_evenly(parts)
    for part in parts:
        part.awaits_more = True
    assert spread(router, 1) == [(0, 0, 1)]
    parts[0].available = False
    assert spread(router, 1) == [(1, 0, 1)]
    router.full(1, 0.0)
    assert spread(router, 1) == [(2, 0, 1)]


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(0, 15)), min_size=1, max_size=60))
def test_counts_stay_even_when_messages_join_runs(reads: list[tuple[int, int]]) -> None:
    parts = handles(16)
    router, got = Router(parts), Counter(dict.fromkeys(range(16), 0))
    for count, waiting in reads:
        for part in parts:
            part.awaits_more = part.number >= waiting
        for number, start, stop in spread(router, count):
            got[number] += stop - start
        assert max(got.values()) - min(got.values()) <= max(
            -(-max(each for each, _ in reads) // 16), RUN_MESSAGES_MAX, 1
        )


def test_partitions_that_are_down_are_stepped_over_and_get_no_flood_when_they_come_back() -> None:
    parts = handles(4)
    router = Router(parts)
    parts[2].available = False
    assert {spread(router, 1)[0][0] for _ in range(300)} == {0, 1, 3}
    parts[2].available = True
    assert Counter(spread(router, 1)[0][0] for _ in range(400))[2] <= 120


def test_without_any_partition_a_send_is_refused_with_what_clients_retry() -> None:
    parts = handles(2)
    for part in parts:
        part.available = False
    with pytest.raises(Refused) as refused:
        Router(parts).spread(3, 0.0)
    assert refused.value.reason is Reason.PARTITION_UNAVAILABLE


def test_partitions_whose_disk_does_not_answer_get_something_only_if_there_are_no_others() -> None:
    parts, slow, looks = handles(4), {1, 2}, list[bool]()
    router = Router(parts, lambda anew: looks.append(anew) or slow)  # type: ignore[func-returns-value]
    router.full(0, 0.0)
    assert {router.spread(1, 0.0)[0][0] for _ in range(9)} == {3}
    assert router.another([3], 1, 0.0) == 0 and looks == [False] * 9 + [True], "a refusal has a reason"
    assert router.another([0, 3], 1, 0.0) in slow
    parts[3].available = parts[0].available = False
    assert {spread(router, 1)[0][0] for _ in range(9)} == slow


# --- full partitions ----------------------------------------------------------------------------------------


def test_a_partition_that_was_full_is_given_nothing_for_a_while_and_then_no_flood() -> None:
    router = Router(handles(4))
    router.full(2, 10.0)
    before = [router.spread(1, 10.0 + FULL_S * at / 300)[0][0] for at in range(300)]
    assert Counter(before) == {0: 100, 1: 100, 3: 100}
    after = Counter(router.spread(1, 10.0 + FULL_S)[0][0] for _ in range(400))
    assert 80 <= after[2] <= 120


def test_a_partition_that_is_found_full_again_is_passed_over_again() -> None:
    router = Router(handles(2))
    for at in range(5):
        now = at * FULL_S
        router.full(1, now)
        assert {router.spread(1, now + FULL_S / 2)[0][0] for _ in range(4)} == {0}


def test_when_all_are_full_they_take_turns_as_ever_and_one_that_is_down_is_given_nothing() -> None:
    parts = handles(4)
    router = Router(parts)
    for number in range(4):
        router.full(number, 0.0)
    assert [spread(router, 1)[0][0] for _ in range(5)] == [0, 1, 2, 3, 0]
    parts[1].available = False
    assert {spread(router, 1)[0][0] for _ in range(9)} == {0, 2, 3}


def test_what_partitions_have_refused_goes_to_each_other_one_once_first_to_those_with_room() -> None:
    parts = handles(5)
    router = Router(parts)
    router.full(0, 0.0)
    router.full(1, 0.0)
    parts[3].available = False
    tried: list[int] = []
    while (number := router.another(tried, 10, 0.0)) is not None:
        tried.append(number)
    assert tried == [2, 4, 0, 1]


def test_what_another_partition_takes_counts_as_given_to_it() -> None:
    router = Router(handles(3))
    assert router.another([0], 10, 0.0) == 1
    assert Counter(spread(router, 1)[0][0] for _ in range(20)) == {0: 10, 2: 10}


# --- by number ----------------------------------------------------------------------------------------------


def test_a_sequence_number_and_a_lock_token_lead_to_the_partition_that_gave_them() -> None:
    parts = handles(16)
    router = Router(parts)
    number = 5 << 48 | 77
    assert router.of_sequence_number(number) is parts[5]
    assert router.of_token(number.to_bytes(8, "big") + bytes(8)) is parts[5]


@pytest.mark.parametrize("number", [16 << 48, -1, 1 << 63])
def test_a_sequence_number_that_nobody_gave_is_not_found(number: int) -> None:
    with pytest.raises(Refused) as refused:
        Router(handles(16)).of_sequence_number(number)
    assert refused.value.reason is Reason.MESSAGE_NOT_FOUND


@pytest.mark.parametrize("token", [b"\xff" * 16, bytes(8)])
def test_a_lock_token_that_nobody_gave_leads_nowhere(token: bytes) -> None:
    assert Router(handles(16)).of_token(token) is None
