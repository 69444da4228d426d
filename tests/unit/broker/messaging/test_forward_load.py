"""Preparing messages for the entity that they go to."""

from __future__ import annotations

from itertools import chain

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import QueueSettings
from broker.identifiers import PARTITION_SHIFT
from broker.message.forwarded import HOPS_MAX, Trail, trail_of, with_trail
from broker.message.property_sizes import METADATA_BYTES_MAX
from broker.message.stored import store
from broker.messaging import forward_load
from broker.messaging.forward_load import (
    PREPARED_AT_ONCE,
    PREPARED_BYTES,
    TOO_LARGE,
    TOO_MANY_HOPS,
    Prepared,
    pieces_of,
    prepare,
    rejection_of,
)
from broker.namespace.router import partition_of_key
from broker.operations.receiving import Locked
from protocol.codec import UInt
from tests.support.amqp_messages import message
from tests.support.forwarding_world import locked_of, message_of, world


def stored(text: str, key: str | None = None, session: str | None = None) -> bytes:
    annotations = None if key is None else {"x-opt-partition-key": key}
    return store(message_of(text, annotations, session), str).data


async def prepared_for(
    settings: QueueSettings, given: Locked, partitions: int = 4, source: str | None = None
) -> Prepared:
    async with world(target=(partitions, settings)) as here:
        return await prepare(
            here.entities["target"], given, message_id=lambda: "made", dead_letter_source=source
        )


async def test_a_key_picks_the_partition_and_a_message_without_one_always_goes_to_the_same() -> None:
    messages = [stored("0", key="a"), stored("1"), stored("2", key="b"), stored("3", session="s")]
    given = locked_of(*messages)
    first = await prepared_for(QueueSettings(), given)
    places = {place: number for number, group in first.groups.items() for place in group}
    assert [places[place] for place in (0, 2, 3)] == [partition_of_key(key, 4) for key in ("a", "b", "s")]
    alone = locked_of(messages[1])
    alone.sequence_numbers = given.sequence_numbers[1:2]
    second = await prepared_for(QueueSettings(), alone)
    assert second.groups == {places[1]: [0]}


async def test_messages_without_a_key_are_spread() -> None:
    count = 1_024
    given = locked_of(*[stored("x")] * count)
    given.sequence_numbers = [(3 << PARTITION_SHIFT) + number for number in range(count)]
    found = await prepared_for(QueueSettings(), given)
    assert {number: len(group) for number, group in found.groups.items()} == dict.fromkeys(range(4), 256)
    whole = [message for group in found.groups.values() for message in found.send_of(group).messages]
    assert len(whole) == count > PREPARED_AT_ONCE
    assert sorted(trail_of(each, 0).original for each in whole) == given.sequence_numbers


@pytest.mark.parametrize(
    ("size", "changed", "sizes"),
    [
        (100, 0, [PREPARED_AT_ONCE, PREPARED_AT_ONCE, 2]),
        (METADATA_BYTES_MAX, 0, [2] * PREPARED_AT_ONCE + [2]),
        (1 << 20, 0, [2] * PREPARED_AT_ONCE + [2]),
        (100, PREPARED_BYTES, [1] * (2 * PREPARED_AT_ONCE + 2)),
    ],
)
def test_messages_that_may_have_thousands_of_properties_are_prepared_few_at_a_time(
    size: int, changed: int, sizes: list[int]
) -> None:
    """Symptom: 16 dead letters with ten thousand properties each were prepared in one turn of 50 ms."""
    count = 2 * PREPARED_AT_ONCE + 2
    given = locked_of(*[bytes(size)] * count)
    if changed:
        given.changed = [bytes(changed)] * count
    found = list(pieces_of(given))
    assert [len(piece) for piece in found] == sizes
    assert list(chain.from_iterable(found)) == list(range(count))


async def test_each_hop_is_counted_and_the_fifth_is_refused() -> None:
    messages = [with_trail(stored(f"{hops}"), Trail(hops, 7)) for hops in range(1, HOPS_MAX + 1)]
    found = await prepared_for(QueueSettings(), locked_of(*messages), partitions=1)
    assert found.groups == {0: [0, 1, 2]} and found.rejected == {TOO_MANY_HOPS: [3]}
    assert [trail_of(each, 0) for each in found.send_of([0, 1, 2]).messages] == [
        Trail(hops, 7) for hops in (2, 3, 4)
    ]
    assert TOO_MANY_HOPS.reason == "MaxTransferHopCountExceeded"


async def test_the_dead_letter_source_is_the_last_one() -> None:
    marked = with_trail(stored("a"), Trail(1, 7, "first"))
    for source, shown in ((None, "first"), ("second", "second")):
        found = await prepared_for(QueueSettings(), locked_of(marked), 1, source)
        (there,) = found.send_of([0]).messages
        assert trail_of(there, 0) == Trail(2, 7, shown)


async def test_sessions_and_identities_are_those_of_the_target() -> None:
    given = locked_of(stored("a", session="s"), stored("b"))
    found = await prepared_for(QueueSettings(requires_session=True, requires_duplicate_detection=True), given)
    ((number, places),) = found.groups.items()
    send = found.send_of(places)
    assert (number, places) == (partition_of_key("s", 4), [0])
    assert send.columns == {"session_id": [b"s"]} and send.identities is not None
    ((why, rejected),) = found.rejected.items()
    assert rejected == [1] and why.reason == "Session id is null."
    assert why.description.startswith(
        "The SessionId was not set on a message, and it cannot be sent to the entity"
    )


async def test_what_is_too_large_is_named() -> None:
    large = store(message_of("x" * 100) + b"\x00\x53\x75\xb0\x00\x00\x08\x00" + bytes(2_048), str).data
    found = await prepared_for(QueueSettings(max_message_size_kb=1), locked_of(stored("a"), large), 1)
    ((why, rejected),) = found.rejected.items()
    assert (why.reason, rejected, found.groups) == (TOO_LARGE, [1], {0: [0]})
    full = store(message_of("a", {"own": "a" * 32_000, "more": "b" * 32_000, "last": "c" * 1_475}), str).data
    found = await prepared_for(QueueSettings(), locked_of(full), 1)
    ((why, rejected),) = found.rejected.items()
    assert (why.reason, rejected) == ("HeaderSizeExceeded", [0])


async def test_a_time_to_live_begins_anew_and_a_schedule_has_passed() -> None:
    payload = message(header=[None, None, UInt(9_000)], annotations={"x-opt-scheduled-enqueue-time": None})
    found = await prepared_for(QueueSettings(), locked_of(store(payload, str).data), 1)
    send = found.send_of([0])
    assert (send.time_to_live_ms, send.scheduled_ms) == ([9_000], None)


def test_only_lasting_refusals_make_dead_letters() -> None:
    lasting = {reason for reason in Reason if rejection_of(Refused(reason, "why")) is not None}
    assert lasting == set(forward_load._REASONS)
    assert not lasting & {
        Reason.PARTITION_UNAVAILABLE, Reason.DISK_FULL, Reason.SERVER_BUSY, Reason.TIMEOUT, Reason.INTERNAL
    }  # fmt: skip
