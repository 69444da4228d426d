"""A table in chunks: it is a dictionary to its owner, but no part of it ever grows large."""

from __future__ import annotations

import random
import sys

import pytest

from broker.partition.chunked_table import CHUNK, ChunkedTable

FIRST = (5 << 48) + 3 * CHUNK - 1_000
"""Sequence numbers begin in the middle of a chunk, and have the partition's bits."""


def filled(count: int) -> ChunkedTable[str]:
    table: ChunkedTable[str] = ChunkedTable()
    for first in range(FIRST, FIRST + count, 7_000):
        numbers = range(first, min(first + 7_000, FIRST + count))
        table.add(numbers, ["x"] * len(numbers))
    return table


def chunk_sizes(table: ChunkedTable[str]) -> list[int]:
    return [sys.getsizeof(chunk) for chunk in table._chunks.values()]


def test_no_call_moves_more_entries_than_a_chunk_holds_however_many_there_are() -> None:
    table = filled(5 * CHUNK)
    assert len(table) == 5 * CHUNK and list(table) == list(range(FIRST, FIRST + 5 * CHUNK))
    # A dictionary moves its entries when it grows, so what counts is how many share one.
    assert max(map(len, table._chunks.values())) <= CHUNK
    table.check()


def test_it_does_what_a_dictionary_does() -> None:
    chosen = random.Random(7)
    table: ChunkedTable[int] = ChunkedTable()
    expected: dict[int, int] = {}
    around = range(FIRST + 1_000 - 40, FIRST + 1_000 + 40)  # the border between two chunks
    for step in range(3_000):
        numbers = sorted(chosen.sample(around, chosen.randint(0, 12)))
        match chosen.randrange(5):
            case 0:
                table.add(numbers, [step] * len(numbers))
                expected.update(dict.fromkeys(numbers, step))
            case 1:
                here = [number for number in numbers if number in expected]
                chosen.shuffle(here)
                assert table.pop_each(here) == [expected.pop(number) for number in here]
            case 2:
                for number in numbers[:1]:
                    table[number] = expected[number] = step
            case 3 if expected:
                number = chosen.choice(list(expected))
                assert table.pop(number) == expected.pop(number)
            case 4 if step % 50 == 0:
                some = table.pop_some(20)
                gone = expected.keys() - set(table)
                assert len(some) == len(gone) == min(20, len(gone))
                for number in gone:
                    del expected[number]
        assert list(table.get_each(numbers)) == [expected.get(number) for number in numbers]
        assert list(map(table.finder(), numbers)) == [table.get(number) for number in numbers]
        assert list(table.known(numbers)) == [number for number in numbers if number in table]
        assert list(table.items()) == [(number, table[number]) for number in table]
        assert dict(table.items()) == expected and sorted(table.values()) == sorted(expected.values())
        assert len(table) == len(expected) and [table[number] for number in table] == list(table.values())
        table.check()


def test_lower_numbers_come_first_although_they_came_later() -> None:
    table: ChunkedTable[str] = ChunkedTable()
    for number in (2 * CHUNK, 0, CHUNK):
        table[number] = str(number)
    assert list(table) == [0, CHUNK, 2 * CHUNK]
    assert list(table.items()) == list(zip(table, table.values(), strict=True))


def test_what_is_unknown_cannot_be_looked_up_or_removed() -> None:
    table = filled(10)
    for call in (table.__getitem__, table.pop):
        for number in (FIRST + 10, FIRST + 10 * CHUNK):
            with pytest.raises(KeyError):
                call(number)
    table.check()


def test_chunks_are_freed_with_their_last_entry_and_made_smaller_before() -> None:
    table = filled(3 * CHUNK)
    assert min(chunk_sizes(table)[1:3]) > 1 << 20
    kept = set(range(FIRST + 17, FIRST + 3 * CHUNK, CHUNK // 4))
    for first in range(FIRST, FIRST + 3 * CHUNK, 900):
        table.pop_each([each for each in range(first, first + 900) if each in table and each not in kept])
    assert set(table) == kept and max(chunk_sizes(table)) < 100_000
    table.pop_each(sorted(kept, reverse=True))
    assert not table and table._chunks == {}


def test_it_is_freed_in_steps() -> None:
    table = filled(CHUNK + 2_000)
    freed = 0
    while some := table.pop_some(1_000):
        assert len(some) <= 1_000
        freed += len(some)
        table.check()
    assert freed == CHUNK + 2_000 and not table
