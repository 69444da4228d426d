"""The order of a subqueue: sequence numbers stay in order, and no call touches more than a few chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from broker.partition.order import CHUNK, Order

MANY = 20_000


class Present(set[int]):
    """Numbers of messages. Counts how many numbers were asked about."""

    sifted = 0

    def known(self, numbers: Sequence[int]) -> Iterator[int]:
        self.sifted += len(numbers)
        return filter(self.__contains__, numbers)


def test_removing_a_few_messages_sifts_a_chunk_at_most() -> None:
    present = Present(range(MANY))
    order = Order(present, list(range(MANY)))
    most = 0
    for start in range(0, MANY, 7):
        numbers = list(range(start, min(start + 5, MANY)))
        present.difference_update(numbers)
        before = present.sifted
        order.left(numbers)
        most = max(most, present.sifted - before)
    assert 0 < most <= 2 * CHUNK
    order.check()
    assert [number for number in order.numbers(0) if number in present] == sorted(present)


def test_runs_that_leave_in_order_are_taken_off_without_a_look_at_any_number() -> None:
    present = Present(range(MANY))
    order = Order(present, list(range(MANY)))
    for start in range(0, MANY, 150):  # some of them lie in two chunks
        numbers = list(range(start, min(start + 150, MANY)))
        present.difference_update(numbers)
        order.left(numbers[::-1])
        assert present.sifted == 0
        assert list(order.numbers(0)) == sorted(present)
        order.check()
        present.sifted = 0  # without what `check` has asked about


def test_a_run_with_a_gap_is_not_taken_off_the_front() -> None:
    present = Present(range(CHUNK))
    order = Order(present, list(range(CHUNK)))
    numbers = [*range(100), *range(101, 201)]
    present.difference_update(numbers)
    order.left(numbers)
    order.check()
    present.remove(100)
    order.left([100])
    order.check()
    more = list(range(201, 401))
    present.difference_update(more)
    order.left(more)
    order.check()
    assert [number for number in order.numbers(0) if number in present] == sorted(present)


def test_numbers_that_come_out_of_order_keep_the_order() -> None:
    present = Present(range(0, 3 * CHUNK, 3))
    order = Order(present, sorted(present))
    for number in range(3 * CHUNK, 0, -1):
        if number not in present:
            present.add(number)
            order.insert(number)
    order.check()
    assert list(order.numbers(0)) == sorted(present)
    assert list(order.numbers(5_000)) == [number for number in sorted(present) if number >= 5_000]


def test_a_number_that_has_left_may_come_back_and_what_is_cut_off_may_be_used_again() -> None:
    present = Present((1, 2, 3))
    order = Order(present, [1, 2, 3])
    present.remove(2)
    order.left([2])
    present.add(2)
    order.insert(2)
    order.check()
    present.difference_update((2, 3))
    order.left([2, 3])
    order.cut(2)
    present.update((2, 3))
    order.extend([2, 3])
    order.check()
    assert list(order.numbers(0)) == [1, 2, 3]


def test_numbers_are_counted_from_any_place_on() -> None:
    numbers = list(range(0, 3 * MANY, 3))
    order = Order(Present(numbers), numbers)
    for start in (0, 1, 3, 3 * CHUNK, 3 * CHUNK + 1, 3 * MANY - 3, 3 * MANY):
        assert order.count_from(start) == len([each for each in numbers if each >= start])


def test_the_place_where_something_begins_is_found_without_looking_at_all_chunks() -> None:
    numbers = list(range(MANY))
    order = Order(Present(numbers), numbers)
    looked_at = 0

    def is_before(number: int) -> bool | None:
        nonlocal looked_at
        looked_at += 1
        return None if number % 3 == 0 else number < begin

    for begin in (0, 1, 2, CHUNK, CHUNK + 1, MANY - 1):
        looked_at = 0
        assert order.find(is_before) == begin + (begin % 3 == 0)
        assert looked_at <= 2 * CHUNK + 32
    begin = MANY
    assert order.find(is_before) is None


def test_numbers_that_do_not_count_make_what_is_found_too_low_but_never_too_high() -> None:
    numbers = list(range(6 * CHUNK))
    order = Order(Present(numbers), numbers)
    found = order.find(lambda number: None if CHUNK <= number < 5 * CHUNK else number < 5 * CHUNK)
    assert found is not None and CHUNK <= found <= 5 * CHUNK
