"""What a partition writes into checkpoints, and how much: blocks, sections, and the format of earlier
releases."""

from __future__ import annotations

import zlib
from collections import deque
from dataclasses import replace
from itertools import chain

import pytest

from broker.entities.roles import OWN_END
from broker.message.changes import encode_changes
from broker.partition import records
from broker.partition import snapshot as snapshot_module
from broker.partition.block_content import STEP_BYTES, content_of
from broker.partition.blocks import BLOCK_MESSAGES, SUBQUEUE_SHIFT
from broker.partition.gradual_sort import AT_ONCE
from broker.partition.messages import Messages
from broker.partition.records import Mark, Relocated
from broker.partition.snapshot import Snapshot
from broker.partition.tables import UnreadableRecord, table
from storage.log import Checkpoint, Position, Section, whole
from tests.support.mapped import mapped
from tests.support.old_checkpoint import state_of_version_1
from tests.support.partition_messages import (
    NUMBER,
    changed_blocks,
    contents,
    fresh,
    live_frames,
    loaded,
    mark,
    new_messages,
    send,
    taken,
    varied,
)


def read_again(messages: Messages) -> Messages:
    """The messages as their first checkpoint has them."""
    checkpoint = taken(Snapshot(messages), Position(1400), None)
    sections = [
        replace(section, taken=dict.fromkeys(section.blocks, checkpoint.position))
        for section in checkpoint.sections
    ]
    return loaded(replace(checkpoint, sections=tuple(sections)))


def test_a_checkpoint_brings_back_every_reference() -> None:
    messages = varied()
    again = read_again(messages)
    assert contents(again) == contents(messages)
    assert again.first_live() == 100


def test_only_the_blocks_that_have_changed_are_taken() -> None:
    messages = new_messages()
    snapshot = Snapshot(messages)
    first = send(messages, 100, 10 * BLOCK_MESSAGES)
    assert len(changed_blocks(taken(snapshot, Position(500), None))) == 11
    assert len(changed_blocks(taken(snapshot, Position(500), Position(100)))) == 11
    assert changed_blocks(taken(snapshot, Position(500), Position(500))) == {}
    mark(messages, 500, Mark(records.RETURNED, 0, [first + 3 * BLOCK_MESSAGES]))
    mark(
        messages, 600, Mark(records.REMOVED, 0, [first + 5 * BLOCK_MESSAGES, first + 5 * BLOCK_MESSAGES + 7])
    )
    mark(messages, 700, Mark(records.MOVED, 0, [first + 7 * BLOCK_MESSAGES], None, 1))
    found = {
        base: sorted(changed_blocks(taken(snapshot, Position(800), Position(base))))
        for base in (500, 600, 700, 800)
    }
    assert found == {500: [3, 5, 7, 1 << 38 | 7], 600: [5, 7, 1 << 38 | 7], 700: [7, 1 << 38 | 7], 800: []}
    messages.check()


def test_the_cost_of_a_checkpoint_is_that_of_what_has_changed_and_not_of_what_is_there() -> None:
    costs: dict[int, list[int]] = {}
    for backlog in (10_240, 204_800):
        messages = new_messages()
        snapshot = Snapshot(messages)
        for step in range(backlog // 10_240):
            send(messages, 1_000_000 * (step + 1), 10_240)
        end = 1_000_000 * 100
        first = messages.next_number
        send(messages, end, 1_000)
        mark(
            messages,
            end + 1,
            Mark(records.REMOVED, 0, [first - 1, *range(NUMBER << 48 | 1, NUMBER << 48 | 900)]),
        )
        checkpoint = taken(snapshot, Position(end + 2), Position(end))
        sizes = [sum(map(len, section.blocks.values())) for section in checkpoint.sections]
        assert snapshot.cost(Position(end)) >= sum(sizes)
        costs[backlog] = sizes
    assert costs[204_800] == costs[10_240]


def test_a_block_without_a_message_is_said_to_be_gone_and_then_forgotten() -> None:
    messages = new_messages()
    snapshot = Snapshot(messages)
    first = send(messages, 100, 3 * BLOCK_MESSAGES)
    assert first & (BLOCK_MESSAGES - 1) == 1
    mark(messages, 200, Mark(records.REMOVED, 0, range(first, first + 2 * BLOCK_MESSAGES)))
    checkpoint = taken(snapshot, Position(300), Position(200))
    assert [number for number, data in sorted(changed_blocks(checkpoint).items()) if not data] == [0, 1]
    assert len(messages.blocks) == 4
    snapshot.saved(checkpoint)
    assert len(messages.blocks) == 2
    messages.check()


def with_many_frames() -> Messages:
    """Thousands of messages, each in a frame of its own; some were relocated to later frames."""
    messages = new_messages()
    for position in range(100, 100 + 5 * AT_ONCE):
        send(messages, position, 1)
    first = messages.first_number | 1
    for number in range(first, first + 2 * AT_ONCE, 2):
        moved = Relocated([number], [1000], [0], [10], [0], [0], [0], [None], 64)
        messages.apply_relocated(Position(1_000_000 + number - first), moved)
    mark(messages, 1_100_100, Mark(records.RETURNED, 0, range(first, first + 3_000), b"\xc1\x01\x00"))
    return messages


@pytest.mark.parametrize("version", [1, 2])
def test_no_step_of_bringing_back_a_checkpoint_touches_more_than_a_block_of_messages_or_frames(
    version: int,
) -> None:
    messages = with_many_frames()
    if version == 1:
        checkpoint = Checkpoint(Position(1_100_200), (Section("", 1, {0: state_of_version_1(messages)}),))
    else:
        checkpoint = taken(Snapshot(messages), Position(1_100_200), None)
        sections = [
            replace(section, taken=dict.fromkeys(section.blocks, checkpoint.position))
            for section in checkpoint.sections
        ]
        checkpoint = replace(checkpoint, sections=tuple(sections))
    again = fresh()

    def sizes() -> list[int]:
        return [again.count, len(again._frames), len(again.blocks)]

    before = sizes()
    most = 0
    snapshot = Snapshot(again)
    for _ in chain(snapshot.load_steps(checkpoint), snapshot.loaded_steps(checkpoint)):
        now = sizes()
        most = max(most, *(after - earlier for after, earlier in zip(now, before, strict=True)))
        before = now
    assert 0 < most <= BLOCK_MESSAGES
    deque(again.finish_steps(0), maxlen=0)
    again.check()
    assert contents(again) == contents(messages)
    assert [frame.position for frame in live_frames(again)] == sorted(
        frame.position for frame in live_frames(messages)
    )


@pytest.mark.parametrize(
    "section",
    [
        Section("sessions", 1, {0: b"of a later release"}),
        Section("messages", 2, {}),
        Section("messages", 1, {0: b"short"}),
        Section("messages", 1, {0: bytes([1] + [0] * 7)}),
        Section("messages", 1, {9 << 38: bytes(8)}),
        Section("counters", 1, {0: bytes(15)}),
        Section("counters", 1, {1: bytes(16)}),
    ],
)
def test_a_section_that_is_unknown_or_does_not_fit_is_not_read(section: Section) -> None:
    with pytest.raises(UnreadableRecord):
        loaded(Checkpoint(Position(0), (section,)))


def test_differences_are_read_as_the_numbers_they_were_made_of() -> None:
    numbers = [1 << 63, 0, 7, 7, 1 << 40]
    data = snapshot_module._differences("Q", numbers)
    assert list(snapshot_module._read_differences("Q", memoryview(data), 0, 5)[0]) == numbers


def test_messages_that_share_changed_properties_share_them_when_they_are_read_again() -> None:
    messages = new_messages()
    first = send(messages, 100, 20)
    changed = b"\xc1\x01\x00"
    mark(messages, 500, Mark(records.RETURNED, 0, list(range(first, first + 10)), changed))
    mark(messages, 600, Mark(records.RETURNED, 0, [first + 12], b"\xc1\x03\x02\x43\x43"))
    again = read_again(messages)
    assert contents(again) == contents(messages)
    found = [reference.changed for reference in again.subqueues[0].references.values()]
    assert found.count(changed) == 10 and len({id(each) for each in found if each == changed}) == 1


NOTES = {"a": encode_changes({"note": "a"}), "bb": encode_changes({"note": "bb"})}
WITHOUT_SHARING = bytes.fromhex(
    "050004000100030064000000000000004c040000000000004c040000000000004c040000000000004c040000000000004c04"
    "000000000000400000004a000000540000005e000000680000000a0000000a0000000a0000000a0000000a0000000c000000"
    "0d0000000c000000010002000300040005000000000000000000000000000100010001000000010002000300c10a02a1046e"
    "6f7465a10161c10b02a1046e6f7465a1026262c10a02a1046e6f7465a10161"
)
"""Five messages as a checkpoint of an earlier release has them. The second to fourth are deferred and have
changed properties, each of them its own bytes."""
WITH_SHARING = bytes.fromhex(
    "05004400010003008c00000064000000000000004c040000000000004c040000000000004c040000000000004c0400000000"
    "00004c04000000000000400000004a000000540000005e000000680000000a0000000a0000000a0000000a0000000a000000"
    "01000200030004000500000000000000000000000000010001000100000001000200030002000000010000000c0000000d00"
    "0000c10a02a1046e6f7465a10161c10b02a1046e6f7465a1026262"
)
"""The same block since version 4 of the storage format."""


def deferred_with_notes() -> Messages:
    messages = new_messages()
    first = send(messages, 100, 5)
    mark(messages, 400, Mark(records.DEFERRED, 0, [first + 1, first + 3], NOTES["a"]))
    mark(messages, 400, Mark(records.DEFERRED, 0, [first + 2], NOTES["bb"]))
    return messages


@pytest.mark.parametrize("block", [WITHOUT_SHARING, WITH_SHARING], ids=["version 3", "version 4"])
def test_changed_properties_are_read_and_shared_whichever_version_has_written_them(block: bytes) -> None:
    assert whole(Snapshot(deferred_with_notes())._stored_messages.encode(0)) == WITH_SHARING
    checkpoint = taken(Snapshot(deferred_with_notes()), Position(500), None)
    sections = [
        replace(section, blocks={0: block}) if section.name == "messages" else section
        for section in checkpoint.sections
    ]
    sections = [replace(each, taken=dict.fromkeys(each.blocks, Position(500))) for each in sections]
    messages = loaded(replace(checkpoint, sections=tuple(sections)))
    assert contents(messages) == contents(deferred_with_notes())
    changed = [each.changed for each in messages.main.references.values()]
    assert changed == [None, NOTES["a"], NOTES["bb"], NOTES["a"], None] and changed[1] is changed[3]


@pytest.mark.parametrize("is_of_subscription", [False, True], ids=["queue", "subscription"])
def test_a_block_has_changed_properties_once_and_does_not_copy_them(is_of_subscription: bool) -> None:
    messages = new_messages()
    first = send(messages, 100, 900)
    notes = [encode_changes({name: "x" * 30_000}) for name in "ab"]
    for turn, note in enumerate(notes):
        mark(messages, 200 + turn, Mark(records.DEFERRED, 0, range(first + turn, first + 900, 2), note))
    section = Snapshot(messages)._stored_messages
    if is_of_subscription:
        section._messages.subqueues._made[OWN_END] = section._messages.subqueues[0]
    block = section.encode(OWN_END << SUBQUEUE_SHIFT if is_of_subscription else 0)
    assert isinstance(block, tuple) and len(block) == 3
    held = [messages.main.references[number].changed for number in (first, first + 1)]
    assert block[1] is held[0] and block[2] is held[1]
    assert len(block[0]) < 60 * 900
    assert Snapshot(messages).cost(None) >= sum(map(len, block))
    assert Snapshot(messages).cost(None) < 10 * sum(map(len, block)), "they count once, not for each message"


def with_large_properties() -> Messages:
    """400 deferred messages, each with 30,000 bytes of changed properties of its own."""
    messages = new_messages()
    first = send(messages, 100, 400)
    for number in range(first, first + 400):
        note = encode_changes({"note": f"{number:030000}"})
        mark(messages, 1_000 + number - first, Mark(records.DEFERRED, 0, [number], note))
    return messages


def without_sharing(messages: Messages, *, is_packed: bool) -> bytes:
    """A block of deferred messages, all with changed properties, as earlier releases have written it."""
    found = list(messages.main.references.values())
    values = [each.changed or b"" for each in found]
    frame = found[0].frame
    assert {each.frame for each in found} == {frame}
    ascending = snapshot_module._differences if is_packed else table
    tables = [
        ascending("Q", [frame.position]),
        ascending("Q", [each.enqueued_at_ms for each in found]),
        ascending("I", [each.offset for each in found]),
        table("I", [each.size for each in found]),
        table("I", map(len, values)),
        ascending("H", [each.sequence_number & (BLOCK_MESSAGES - 1) for each in found]),
        ascending("H", [0] * len(found)),
        table("H", [each.state for each in found]),
        table("H", range(len(found))),
    ]
    data = b"".join(tables + values)
    head = table("H", [len(found), 4 | 32 if is_packed else 4, 1, len(found)])
    return head + (zlib.compress(data, 1) if is_packed else data)


@pytest.mark.parametrize("form", ["shared", "packed", "earlier", "earlier, packed"])
def test_a_block_with_many_bytes_of_changed_properties_is_decoded_in_steps(form: str) -> None:
    messages = with_large_properties()
    section = Snapshot(messages)._stored_messages
    block = OWN_END << SUBQUEUE_SHIFT if "packed" in form else 0
    if block:
        section._messages.subqueues._made[OWN_END] = section._messages.subqueues[0]
    data = whole(section.encode(block))
    if "earlier" in form:
        data = without_sharing(messages, is_packed=bool(block))
        assert "packed" in form or len(data) > 400 * 30_000
    parts = mapped(data, 100_000)
    again = fresh()
    if block:
        again.subqueues._made[OWN_END] = again.subqueues[0]
    steps = most = before = 0
    sizes: list[int] = []
    for _ in Snapshot(again)._stored_messages.decode_steps(block, content_of(parts)):
        steps += 1
        most = max(most, again.work.properties.memory_bytes - before)
        before = again.work.properties.memory_bytes
        sizes.append(before + sum(map(len, parts)))
    assert steps > 10 and 0 < most < STEP_BYTES + 2 * 30_000
    if form == "shared":
        assert max(sizes) < len(data) + 300_000, "the block and its messages are not in memory at once"
    read = [(each.sequence_number, each.changed) for each in again.main.references.values()]
    assert read == [(each.sequence_number, each.changed) for each in messages.main.references.values()]


@pytest.mark.parametrize(
    "block",
    [WITHOUT_SHARING, WITH_SHARING, whole(Snapshot(varied())._stored_messages.encode(0))],
    ids=["version 3", "version 4", "varied"],
)
def test_a_block_is_read_or_refused_whichever_of_its_bytes_differs(block: bytes) -> None:
    """Symptom: the number of a frame that is not there ended the partition with an IndexError, and `partibus
    repair` too, which then uses the checkpoint before."""
    refused = 0
    for at, byte in enumerate(block):
        for value in {0, 1, 127, 255, byte ^ 1, byte ^ 128}:
            try:
                Snapshot(fresh())._stored_messages.decode(0, block[:at] + bytes([value]) + block[at + 1 :])
            except UnreadableRecord:
                refused += 1
    assert refused


@pytest.mark.parametrize("change", ["cut", "longer", "place", "tables"])
def test_a_block_whose_changed_properties_do_not_fit_is_not_read(change: str) -> None:
    section = Snapshot(deferred_with_notes())._stored_messages
    data = bytearray(whole(section.encode(0)))
    places = len(data) - len(NOTES["a"] or b"") - len(NOTES["bb"] or b"") - 2 * 4 - 3 * 2
    match change:
        case "cut":
            del data[-1]
        case "longer":
            data += b"x"
        case "place":
            data[places] = 2
        case "tables":
            data[8:12] = (len(data) + 1).to_bytes(4, "little")
    with pytest.raises(UnreadableRecord):
        Snapshot(fresh())._stored_messages.decode(0, bytes(data))
    with pytest.raises(UnreadableRecord):
        Snapshot(fresh())._stored_messages.decode(0, bytes(data[:9]))


def test_a_block_that_refers_to_a_renumbered_message_beyond_its_last_is_not_read() -> None:
    messages = new_messages()
    first = send(messages, 100, 5)
    messages.renumbered.add(messages.main.references[first + 4])
    block = whole(Snapshot(messages)._stored_messages.encode(0))
    again = fresh()
    Snapshot(again)._stored_messages.decode(0, block)
    assert [again.renumbered.has(each) for each in again.main.references.values()] == [False] * 4 + [True]
    assert block[-2:] == bytes([4, 0])
    with pytest.raises(UnreadableRecord, match="refers to message 5, and there are 5"):
        Snapshot(fresh())._stored_messages.decode(0, block[:-2] + bytes([5, 0]))


def test_what_was_kept_of_a_checkpoint_that_was_not_read_to_its_end_is_freed_in_steps() -> None:
    """Symptom: a partition for which memory had no room kept the event loop for 31 ms when it gave up,
    because the frames of 490,000 messages were freed at once."""
    messages = new_messages()
    count = 4 * BLOCK_MESSAGES
    for number in range(count):
        send(messages, 100 + number, 1)
    checkpoint = taken(Snapshot(messages), Position(100 + count), None)
    snapshot = Snapshot(new_messages())
    for _ in snapshot.load_steps(checkpoint):
        pass
    assert len(snapshot._stored_messages._frames) == count
    assert len(list(snapshot.drop())) == 4 and not snapshot._stored_messages._frames
