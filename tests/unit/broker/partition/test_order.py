"""The order of a subqueue: sequence numbers stay in order, and no call touches more than a few chunks."""

from __future__ import annotations

from broker.partition.order import CHUNK, Order

MANY = 20_000


def test_removing_a_few_messages_sifts_a_chunk_at_most() -> None:
    sifted = 0

    class Present(set[int]):
        def __contains__(self, number: object) -> bool:
            nonlocal sifted
            sifted += 1
            return super().__contains__(number)

    present = Present(range(MANY))
    order = Order(present, list(range(MANY)))
    most = 0
    for start in range(0, MANY, 7):
        numbers = list(range(start, min(start + 5, MANY)))
        present.difference_update(numbers)
        before = sifted
        order.left(numbers)
        most = max(most, sifted - before)
    assert 0 < most <= 2 * CHUNK
    order.check()
    assert [number for number in order.numbers(0) if set.__contains__(present, number)] == sorted(present)


def test_numbers_that_come_out_of_order_keep_the_order() -> None:
    present = set(range(0, 3 * CHUNK, 3))
    order = Order(present, sorted(present))
    for number in range(3 * CHUNK, 0, -1):
        if number not in present:
            present.add(number)
            order.insert(number)
    order.check()
    assert list(order.numbers(0)) == sorted(present)
    assert list(order.numbers(5_000)) == [number for number in sorted(present) if number >= 5_000]


def test_a_number_that_has_left_may_come_back_and_what_is_cut_off_may_be_used_again() -> None:
    present = {1, 2, 3}
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
