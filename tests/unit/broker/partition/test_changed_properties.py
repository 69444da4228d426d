"""The changed properties of a partition's messages, which those with the same ones share."""

from __future__ import annotations

from collections import deque

from broker.message.changes import encode_changes, merge_changes
from broker.partition.changed_properties import (
    MERGED_AT_ONCE,
    VALUE_BYTES,
    ChangedProperties,
    Merging,
    MergingRoom,
    cost_of,
    laying_cost,
    laying_costs,
)
from broker.partition.references import Reference, StoredFrame
from storage.log import Position


def messages(*changed: bytes | None) -> list[Reference]:
    found = []
    for number, value in enumerate(changed):
        reference = Reference(number, StoredFrame(Position(0)), 0, 10, 1_000, None)
        reference.changed = None if value is None else bytes(bytearray(value))  # an object of its own
        found.append(reference)
    return found


def change(name: str, size: int = 100) -> bytes:
    changed = encode_changes({name: "x" * size})
    assert changed is not None
    return changed


def test_messages_with_the_same_share_them_until_the_last_has_gone() -> None:
    properties = ChangedProperties()
    found = messages(change("a"), None, change("b"), change("a"))
    assert properties.hold(found[:2]) == len(change("a"))
    assert properties.hold(found[2:]) == 2 * len(change("a"))
    assert found[0].changed is found[3].changed
    assert properties.memory_bytes == 2 * (VALUE_BYTES + len(change("a")))
    properties.check(found)
    assert properties.release([found[0], found[1]]) == len(change("a"))
    properties.check(found[2:])
    assert properties.release(found[2:]) == 2 * len(change("a"))
    assert properties.memory_bytes == 0
    properties.check([])


def test_one_that_moves_keeps_the_object_that_others_hold() -> None:
    properties = ChangedProperties()
    first, second = messages(change("a"), change("a"))
    properties.hold([first])
    assert properties.hold_one(second) == len(change("a")) and second.changed is first.changed
    assert properties.hold_one(*messages(None)) == 0
    properties.check([first, second])


def test_what_is_merged_is_shared_whichever_way_it_came_to_be() -> None:
    properties = ChangedProperties()
    found = messages(None, change("a"), None, change("b"), change("a"))
    properties.hold(found)
    before = sum(len(each.changed or b"") for each in found)
    added = properties.change(found, change("c"))
    assert added == sum(len(each.changed or b"") for each in found) - before
    assert [each.changed for each in found] == [
        merge_changes(each, change("c")) for each in (None, change("a"), None, change("b"), change("a"))
    ]
    assert len({id(each.changed) for each in found}) == 3
    properties.check(found)
    for each in found[1:2] + found[4:5]:  # one after the other
        properties.change([each], change("d"))
    assert found[1].changed is found[4].changed
    properties.check(found)


def test_growth_counts_each_of_those_that_get_a_value_of_their_own() -> None:
    properties = ChangedProperties()
    big, small = change("a", 5_000), change("b", 10)
    found = messages(*[big] * 10, None)
    properties.hold(found)
    merging = properties.merging(found, small)
    assert merging.memory == 2 * (VALUE_BYTES + len(small)) + len(big)
    assert merging.cost == cost_of(big) + cost_of(small), "a first change is not merged"
    before = properties.memory_bytes
    properties.change(found[:1], small)
    assert 0 < properties.memory_bytes - before <= properties.merging(found[1:2], small).memory
    assert properties.merging((), small) == Merging(0)


def test_another_value_takes_the_place_of_the_first() -> None:
    properties = ChangedProperties()
    [message] = messages(change("a"))
    properties.hold([message])
    assert properties.replace(message, change("longer")) == 5
    assert properties.replace(message, None) == -len(change("longer"))
    assert message.changed is None and properties.memory_bytes == 0


def test_many_are_freed_in_steps() -> None:
    properties = ChangedProperties()
    properties.hold(messages(*(change(f"n{number}", 1) for number in range(3_000))))
    assert len(list(properties.drop())) >= 3
    deque(properties.drop(), maxlen=0)


def test_one_step_changes_as_many_as_it_can_merge_and_at_least_one() -> None:
    properties = ChangedProperties()
    many = encode_changes({f"{number:05}": None for number in range(8_000)})
    assert many is not None
    found = messages(*[many] * 10, *(change(f"n{number}") for number in range(20_000)))
    properties.hold(found)

    def fitting(begin: int, end: int | None = None) -> int | None:
        merging = properties.merging(found[begin:end], change("x"), room=1 << 20)
        return None if merging.is_all else merging.fitting

    assert fitting(0, 11) == 10, "equal ones are merged once"
    assert fitting(9, 12) == 1
    some = fitting(10)
    assert some is not None and 512 < some < 2_500
    assert fitting(10, 500) is None, "all of them"
    assert properties.merging(messages(None, None), change("x"), room=0).is_all, "none of them is merged"


def test_a_reason_is_merged_only_with_what_had_its_last_delivery() -> None:
    properties = ChangedProperties()
    found = messages(*(change(f"n{number}", 1_000) for number in range(4)), None)
    for number, each in enumerate(found):
        each.delivery_count = number
    properties.hold(found)
    nothing = properties.merging(found, None, room=0)
    assert nothing == Merging(len(found)), "nothing is changed"
    assert properties.merging(found, None, spent_from=4, room=0)._replace(memory=0) == Merging(len(found))
    merging = properties.merging(found, None, spent_from=2)
    assert merging.is_all and 2 * cost_of(found[3].changed) < merging.cost < 3 * cost_of(found[3].changed)
    assert 2 * 1_000 < merging.memory < 3 * 1_000
    assert properties.merging(found, None, spent_from=2, room=0).fitting == 2, "the third one must be merged"


def test_all_that_gives_reasons_in_a_cycle_shares_what_it_may_merge() -> None:
    properties, room = ChangedProperties(), MergingRoom()
    most = MERGED_AT_ONCE // (cost_of(change("n0000", 30_000)) + cost_of(change("x")))
    found = messages(*(change(f"n{number:04}", 30_000) for number in range(most + 5)), None)
    properties.hold(found)
    assert room.take(properties, found[:10], change("x")).fitting == 10
    assert room.take(properties, found[10:], change("x")).fitting == most - 10
    nothing = room.take(properties, found[most:], change("x"))
    assert nothing == Merging(0, is_all=False) and room.left >= 0
    assert room.take(properties, [found[-1]] * 100, change("x")).is_all, "a first change is not merged"
    assert room.take(properties, found, None, spent_from=1).is_all, "none of them gets a reason"


def test_a_cycle_merges_one_message_whatever_that_takes() -> None:
    properties, room = ChangedProperties(), MergingRoom()
    large = (b"\xd1" + bytes(4) + (1 << 20).to_bytes(4, "big") + bytes([number]) for number in range(3))
    found = messages(None, *large, None)
    properties.hold(found)
    assert cost_of(found[1].changed) > MERGED_AT_ONCE
    assert room.take(properties, found[1:], change("x")).fitting == 1
    assert room.take(properties, found[2:], change("x")).fitting == 0
    assert room.take(properties, found[4:], change("x")).is_all
    assert MergingRoom().take(properties, found, change("x")).fitting == 1, "the large one is the next first"


def test_delivering_a_changed_message_costs_more_the_larger_it_is() -> None:
    """Symptom: 64 messages of 64 KB held the event loop for 30 ms once one property of each had changed."""
    unchanged, small, large, body = messages(None, change("a"), change("a"), change("a"))
    unchanged.size, small.size, large.size, body.size = 60_000, 10, 60_000, 1_000_000
    assert laying_cost(unchanged) == 0
    assert cost_of(small.changed) <= laying_cost(small) < 500 < 100_000 < laying_cost(large)
    assert laying_cost(body) < 2 * laying_cost(large), "a body has no properties"
    assert laying_costs([unchanged, small, large]) == laying_cost(small) + laying_cost(large)
