"""A divided table: it is a dictionary to its owner, but no part of it ever grows large."""

from __future__ import annotations

import random
import sys

import pytest

from broker.partition.divided_table import FEW, PARTS, DividedTable


def key(number: int) -> bytes:
    return b"session %d" % number


def filled(count: int) -> DividedTable[bytes, int]:
    table: DividedTable[bytes, int] = DividedTable()
    for number in range(count):
        table[key(number)] = number
    return table


def part_sizes(table: DividedTable[bytes, int]) -> list[int]:
    return [sys.getsizeof(part) for part in table._parts]


def test_no_call_moves_more_than_a_share_of_the_entries_however_many_there_are() -> None:
    table = filled(100_000)
    assert len(table) == 100_000 and set(table) == set(map(key, range(100_000)))
    # A dictionary moves its entries when it grows, so what counts is how many share one.
    assert max(map(len, table._parts)) < 2 * 100_000 // PARTS
    table.check()


def test_a_table_with_few_entries_is_one_dictionary_in_the_order_of_insertion() -> None:
    table = filled(FEW)
    assert list(table) == list(map(key, range(FEW))) and len(table._parts) == 1
    table[key(FEW)] = FEW
    assert len(table._parts) == PARTS and dict(table.items()) == {key(each): each for each in range(FEW + 1)}


@pytest.mark.parametrize("first", [0, FEW])
def test_it_does_what_a_dictionary_does(first: int) -> None:
    chosen = random.Random(7)
    table = filled(first)
    expected = {key(number): number for number in range(first)}
    for step in range(3_000):
        name = key(chosen.randrange(first + 60))
        match chosen.randrange(4):
            case 0 | 1:
                table[name] = expected[name] = step
            case 2:
                assert table.pop(name) == expected.pop(name, None)
            case 3 if name in expected:
                del table[name], expected[name]
        assert (name in table) == (name in expected) and table.get(name) == expected.get(name)
        assert len(table) == len(expected)
        if step % 100 == 0:
            assert dict(table.items()) == expected and {each: table[each] for each in table} == expected
            table.check()
    for unknown in (table.__getitem__, table.__delitem__):
        with pytest.raises(KeyError):
            unknown(b"unknown")


def test_a_walk_yields_each_key_that_stays_once_whatever_happens_meanwhile() -> None:
    for count in (100, 3 * FEW):
        table = filled(count)
        walk = table.walk()
        seen = [next(walk) for _ in range(10)]
        for number in range(0, count, 2):
            del table[key(number)]
        for number in range(count, count + FEW + 1):  # divides the small one
            table[key(number)] = number
        seen += walk
        assert len(set(seen)) == len(seen) and set(seen) >= {key(number) for number in range(1, count, 2)}
        walk = table.walk()
        next(walk)
        for name in list(table):
            del table[name]
        table[b"new"] = 1
        assert b"new" not in set(walk) and list(table) == [b"new"]


def test_parts_are_made_smaller_when_their_entries_go_and_an_empty_table_is_not_divided() -> None:
    table = filled(100_000)
    assert max(part_sizes(table)) > 18_000
    for number in range(100_000):
        if number % 10_000:  # so few are left that hardly any part has more than one
            del table[key(number)]
    assert len(table) == 10 and max(part_sizes(table)) < 18_000
    table.check()
    for number in range(0, 100_000, 10_000):
        del table[key(number)]
    assert not table and len(table._parts) == 1


def test_it_is_freed_in_steps() -> None:
    table = filled(3 * FEW)
    freed = 0
    while some := table.pop_some(10):
        assert len(some) <= 10
        freed += len(some)
    assert freed == 3 * FEW and not table
