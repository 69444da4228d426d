"""broker/namespace/appointments.py: the earliest appointment comes first, and no call handles more than a few
of them."""

from __future__ import annotations

import random
from collections.abc import Iterator

from broker.base.sifted_heap import SIFTED_AT_ONCE
from broker.namespace.appointments import SORTED_AT_ONCE, Appointments, Key


class Counted(Appointments):
    """Counts how often an appointment is looked up."""

    looks = 0

    def __contains__(self, appointment: object) -> bool:
        self.looks += 1
        return super().__contains__(appointment)


def taken(appointments: Appointments, until: float) -> Iterator[Key]:
    """The keys that are due, in the order in which they come out."""
    while True:
        if appointments.drop_outdated():
            continue
        key = appointments.take(until)
        if key is None:
            return
        yield key


def test_many_appointments_are_put_in_order_a_few_at_a_time_and_come_out_in_order() -> None:
    count = 10 * SORTED_AT_ONCE + 7
    keys = [(f"queue-{number:05}", number % 16) for number in range(count)]
    times = list(range(count))
    random.Random(3).shuffle(times)
    appointments = Appointments()
    appointments.set_many(zip(times, keys, strict=True))
    assert len(appointments) == count and appointments.count_until(99) == 100
    assert appointments.take(count) is None and appointments.first_at is None, "they are not in order yet"
    steps = 0
    while appointments.put_in_order():
        steps += 1
        assert len(appointments._heap) <= steps * SORTED_AT_ONCE
    assert steps == 11 and appointments.first_at == 0
    in_order = [key for _, key in sorted(zip(times, keys, strict=True))]
    assert list(taken(appointments, 99)) == in_order[:100]
    assert list(taken(appointments, count)) == in_order[100:]
    assert not appointments and appointments.first_at is None


def test_a_changed_or_cancelled_appointment_does_not_come_out_at_its_old_time() -> None:
    appointments = Appointments()
    appointments.set_many([(5, ("a", 0)), (6, ("a", 1)), (7, ("a", 2))])
    appointments.cancel(("a", 1))
    appointments.set(("a", 0), 9)
    while appointments.put_in_order():
        pass
    appointments.set(("a", 2), 7)
    assert list(taken(appointments, 8)) == [("a", 2)]
    appointments.set(("a", 2), 8)
    assert list(taken(appointments, 9)) == [("a", 2), ("a", 0)]
    appointments.cancel(("a", 0))
    assert not appointments


def test_outdated_appointments_are_sifted_out_a_few_at_a_time() -> None:
    appointments = Counted()
    keys = [("a", number) for number in range(2_000)]
    for turn in range(10):
        for number, key in enumerate(keys):
            appointments.looks = 0
            appointments.set(key, 1_000_000 - 1_000 * turn + number)
            assert appointments.looks <= SIFTED_AT_ONCE, "to look at all of them would stop everybody"
    assert len(appointments) == len(keys) and len(appointments._heap) < 4 * len(keys)
    assert list(taken(appointments, 2_000_000)) == keys
