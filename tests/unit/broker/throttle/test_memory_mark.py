"""The memory mark: when sends are refused, when they are accepted again, and what the system reports about
its memory."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import MESSAGE_OVERHEAD_BYTES
from broker.throttle.memory_mark import (
    CROWD,
    DELIVERY_BYTES,
    PART_BYTES,
    PART_BYTES_LEAST,
    PARTS_SPARE_MIN,
    PARTS_UNSEEN,
    RETURN_S,
    UNSETTLED_ABOVE_MARK_MAX,
    Memory,
    file_backed_bytes,
    memory_of_the_machine,
    resident_bytes,
    return_free_pages,
    traffic_bytes,
)

MIB = 1 << 20
MARK = 100 * MIB


def test_what_is_on_its_way_takes_a_part_of_the_mark_at_most() -> None:
    assert traffic_bytes(256 * MIB, mark=8192 * MIB) == 256 * MIB
    assert traffic_bytes(256 * MIB, mark=256 * MIB) == 32 * MIB
    assert traffic_bytes(256 * MIB, mark=MIB) == 16 * MIB
    assert traffic_bytes(2 * MIB, mark=256 * MIB) == 2 * MIB


class Process:
    """A process whose memory the tests set by hand."""

    def __init__(self, resident: int = 50 * MIB) -> None:
        self.resident, self.counted, self.expected, self.looks = resident, 0, 0, 0
        self.memory = Memory(
            MARK, self._look, lambda: self.counted, lambda limited: None, lambda: self.expected
        )

    def _look(self) -> int:
        self.looks += 1
        return self.resident

    def admits(self, messages: int = 1) -> bool:
        try:
            self.memory.admit(messages)
        except Refused as refused:
            assert refused.reason is Reason.SERVER_BUSY and "100 MiB" in refused.description
            return False
        return True

    def fill(self, size: int) -> None:
        """Messages take memory that the process gets from the system."""
        self.resident += size
        self.counted += size
        self.memory.look()

    def drain(self, size: int) -> None:
        """Messages leave; the process stays as large as it is."""
        self.counted -= size
        self.memory.look()


def test_clients_take_too_much_once_the_process_is_a_third_above_the_mark() -> None:
    process = Process()
    for resident, crowded in ((99, False), (133, False), (134, True), (101, False)):
        process.resident = resident * MIB
        process.memory.look()
        assert process.memory.crowded is crowded


def test_what_comes_in_between_two_looks_is_noticed_where_the_mark_is_near() -> None:
    process = Process(MARK - 2 * MIB)
    process.memory.look()
    looks = process.looks
    process.memory.expect(MIB)
    assert process.looks == looks and not process.memory.limited
    process.resident += 3 * MIB
    process.memory.expect(2 * MIB)
    assert process.looks == looks + 1 and process.memory.limited
    process.memory.expect(MIB)
    assert process.looks == looks + 1, "it is known already"


def test_partitions_that_are_being_opened_count_before_they_take_memory() -> None:
    process = Process(MARK - 10 * MIB)
    process.expected = 9 * MIB
    process.memory.look()
    assert process.admits() and process.memory.room == MIB
    process.expected = 11 * MIB
    process.memory.look()
    assert not process.admits() and not process.memory.exceeded
    process.expected = 0
    process.memory.look()
    assert process.admits(), "they have taken less"


def test_above_the_mark_messages_are_refused_and_each_change_is_logged_once() -> None:
    process = Process()
    with capture_logs() as lines:
        process.fill(49 * MIB)
        assert process.admits()
        process.fill(2 * MIB)
        assert [process.admits() for _ in range(3)] == [False] * 3
        for _ in range(4):
            process.memory.look()
    assert [(line["event"], line["log_level"]) for line in lines] == [("memory.limited", "warning")]
    assert lines[0]["used_mib"] == 101 and lines[0]["mark_mib"] == 100


def test_messages_are_accepted_again_only_when_a_twentieth_of_the_mark_is_free() -> None:
    process = Process()
    process.fill(51 * MIB)
    with capture_logs() as lines:
        for _ in range(5):
            process.drain(MIB)
            assert not process.admits()
        process.drain(MIB)
        assert process.admits()
    assert [line["event"] for line in lines] == ["memory.accepting"]


def test_what_messages_have_given_back_is_used_again_before_the_process_grows() -> None:
    process = Process()
    process.fill(50 * MIB)
    process.drain(50 * MIB)
    assert process.resident == 100 * MIB and process.memory.used == 50 * MIB
    process.counted += 30 * MIB
    process.memory.look()
    assert process.memory.used == 80 * MIB and process.admits()


def test_memory_that_went_back_to_the_system_is_not_subtracted_twice() -> None:
    process = Process()
    process.fill(40 * MIB)
    process.resident -= 40 * MIB
    process.drain(40 * MIB)
    assert process.memory.used == 50 * MIB


def test_memory_taken_by_others_than_messages_limits_too() -> None:
    process = Process()
    process.resident = 101 * MIB
    process.memory.look()
    assert not process.admits()
    process.resident = 90 * MIB
    process.memory.look()
    assert process.admits()


def test_what_connections_have_given_back_is_used_again_too() -> None:
    process = Process()
    process.memory.connections = 2_000
    process.resident += 60 * MIB
    process.memory.look()
    assert not process.admits()
    process.memory.connections = 0
    process.memory.look()
    assert process.resident == 110 * MIB and process.admits()


@pytest.mark.parametrize("seed", range(20))
def test_the_process_stays_below_one_and_a_half_times_the_mark_whatever_was_freed(seed: int) -> None:
    """Something else may repeatedly take the memory that messages gave back; messages then take new
    memory."""
    chance, process = random.Random(seed), Process()
    for _ in range(2_000):
        step = chance.randrange(4 * MIB)
        if chance.random() < 0.5:
            process.drain(min(step, process.counted))
        elif process.admits():
            process.fill(step)
        assert process.resident < MARK + MARK // 2 + 4 * MIB
        assert process.memory.used <= process.resident


def test_messages_count_from_their_admission_so_that_a_burst_between_two_looks_is_refused() -> None:
    process = Process()
    process.memory.look()
    most = 50 * MIB // MESSAGE_OVERHEAD_BYTES
    admitted = 0
    while process.admits(1_000):
        admitted += 1_000
        process.memory.under_way += 1_000
        assert admitted <= most + 1_000, "at most one admission goes beyond"
    assert admitted > most - 2_000
    assert process.looks < 5, "the system is asked near the mark only"


def test_an_admission_looks_only_near_the_mark() -> None:
    process = Process()
    process.memory.look()
    for _ in range(1_000):
        assert process.admits(10)
    assert process.looks == 1


def test_the_resident_memory_of_this_process_is_known() -> None:
    assert 5 * MIB < resident_bytes() < memory_of_the_machine()
    assert 1 * MIB < file_backed_bytes() < resident_bytes(), "the interpreter and its libraries"


def files(root: Path, contents: Sequence[tuple[str, str]]) -> Path:
    for name, text in contents:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    return root


MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
V2, V1 = "0::/box/inner\n", "11:memory,hugetlb:/docker/0123\n4:cpu:/docker/0123\n0::/\n"


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ([], MACHINE),
        ([("proc/self/cgroup", V2), ("sys/fs/cgroup/memory.max", "max\n")], MACHINE),
        ([("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "268435456\n")], 256 * MIB),
        (
            [
                ("proc/self/cgroup", V2),
                ("sys/fs/cgroup/box/inner/memory.max", "max\n"),
                ("sys/fs/cgroup/box/memory.max", "1048576\n"),
            ],
            MIB,
        ),
        (
            [
                ("proc/self/cgroup", V1),
                ("sys/fs/cgroup/memory/docker/0123/memory.limit_in_bytes", "4194304\n"),
            ],
            4 * MIB,
        ),
        ([("proc/self/cgroup", V1), ("sys/fs/cgroup/memory/memory.limit_in_bytes", "4194304\n")], 4 * MIB),
        (
            [
                ("proc/self/cgroup", V1),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ],
            MACHINE,
        ),
    ],
    ids=[
        "no groups",
        "unlimited",
        "container",
        "group above",
        "version 1",
        "version 1 in a container",
        "version 1 unlimited",
    ],
)
def test_the_limit_of_the_container_is_found(
    tmp_path: Path, contents: Sequence[tuple[str, str]], expected: int
) -> None:
    assert memory_of_the_machine(files(tmp_path, contents)) == expected


def test_free_pages_between_blocks_in_use_are_returned_to_the_system() -> None:
    blocks = [b"x" * (60_000 + number % 2) for number in range(2_000)]
    full = resident_bytes()
    kept = blocks[::50] + blocks[-1:]
    blocks.clear()
    return_free_pages()
    assert len(kept) == 41 and resident_bytes() < full - 60 * MIB


def test_pages_are_returned_after_a_crowd_has_left_and_now_and_then_above_the_mark() -> None:
    process = Process()
    memory = process.memory
    now_s = 0.0
    memory.connections = CROWD + 7
    assert not memory.may_return_pages(now_s)
    memory.connections = 8
    assert not memory.may_return_pages(now_s), "most are still there"
    memory.connections = 7
    assert memory.may_return_pages(now_s) and not memory.may_return_pages(now_s + RETURN_S)
    process.fill(60 * MIB)
    assert memory.limited and memory.may_return_pages(now_s + RETURN_S)
    assert not memory.may_return_pages(now_s + 1.9 * RETURN_S) and memory.may_return_pages(
        now_s + 2 * RETURN_S
    )


def test_what_settled_deliveries_have_given_back_is_used_again_too() -> None:
    process = Process()
    process.memory.deliver(60_000)
    process.resident += 60 * MIB
    process.memory.look()
    assert not process.admits()
    process.memory.settled(60_000)
    process.memory.look()
    # Symptom: messages were refused until the process shrank, which it hardly ever does.
    assert process.resident == 110 * MIB and process.admits()


def test_above_the_mark_all_links_together_hold_what_an_eighth_of_it_has_room_for() -> None:
    memory, held = Process().memory, [0] * 5_000
    for _ in range(3):
        for link, unsettled in enumerate(held):
            more = max(0, memory.unsettled_room(unsettled))
            memory.deliver(more)
            held[link] += more
    assert max(held) == UNSETTLED_ABOVE_MARK_MAX and min(held) == 1, "each link goes on"
    assert sum(held) * DELIVERY_BYTES < MARK // 8 + len(held) * DELIVERY_BYTES
    assert memory.unsettled == sum(held) and memory.unsettled_left <= 0
    memory.settled(held[-1])
    assert memory.unsettled_room(0) == 1
    memory.settled(sum(held) // 2)
    assert memory.unsettled_room(1) == UNSETTLED_ABOVE_MARK_MAX - 1


def test_the_mark_is_exceeded_from_a_tenth_above_it_until_a_twentieth_above_it() -> None:
    process = Process()
    seen = []
    for resident in (100, 109, 111, 109, 106, 105, 109, 111, 90, 109):
        process.resident = resident * MIB
        process.memory.look()
        seen.append(process.memory.exceeded)
    assert seen == [False, False, True, True, True, False, False, True, False, False]


def test_the_mark_is_not_exceeded_while_messages_are_accepted() -> None:
    """After receiving many messages the process is large, and it uses that memory again."""
    process = Process()
    process.fill(75 * MIB)
    assert process.memory.exceeded
    process.drain(75 * MIB)
    assert process.resident > 1.1 * MARK and not process.memory.limited and not process.memory.exceeded


def test_what_is_delivered_between_two_looks_is_noticed_before_the_mark_is_far_exceeded() -> None:
    process = Process(MARK + MIB)
    process.memory.look()
    looks, delivered = process.looks, 0
    while not process.memory.exceeded:
        process.memory.deliver(100)
        process.resident += 100 * 1300
        delivered += 1
        assert process.resident < MARK * 1.12
    assert process.looks - looks < 30 < delivered, "and not by looking each time"


def test_what_is_being_opened_may_take_a_quarter_of_the_room_and_refuses_no_sends() -> None:
    resident, opening = 60 * MIB, 0
    memory = Memory(MARK, lambda: resident, lambda: 0, expected=lambda: opening)
    memory.look()
    assert not memory.take_room(11 * MIB)
    for _ in range(2):
        assert memory.take_room(5 * MIB)
        opening += 5 * MIB
    assert not memory.take_room(MIB)
    resident, opening = 70 * MIB, 0
    assert not memory.take_room(8 * MIB) and memory.take_room(7 * MIB), "less near the mark"
    opening = 7 * MIB
    assert not memory.take_room(MIB)
    memory.admit(1)
    assert not memory.limited
    resident = 101 * MIB
    memory.look()
    assert not memory.take_room(1)


def test_memory_is_looked_at_before_new_sessions_and_links_could_take_all_of_it() -> None:
    """Symptom: four times a second was too seldom. Sessions took 180 MiB a second."""
    process = Process(resident=110 * MIB)
    process.memory.look()
    made = 0
    while process.memory.admit_parts(1, 1, few=False):
        made += 1
        process.resident = 110 * MIB + made * PART_BYTES
        assert made < 100_000
    assert process.memory.crowded and process.resident - MARK * 4 // 3 <= 2 * PARTS_UNSEEN * PART_BYTES
    assert process.looks < 200


def test_while_the_process_is_crowded_only_clients_that_have_few_begin_sessions_and_links() -> None:
    process = Process(resident=MARK * 4 // 3 + MIB)
    process.memory.look()
    assert not process.memory.admit_parts(1, 1, few=False)
    assert process.memory.admit_parts(3, 1, few=True)
    assert (process.memory.parts, process.memory.sessions_and_links) == (3, 1)


def test_while_the_process_is_crowded_all_clients_together_begin_no_more_than_fits() -> None:
    process = Process()
    assert process.memory.admit_parts(5_000, 5_000, few=False)
    process.resident = MARK * 4 // 3 + MIB
    process.memory.look()
    most = max(MARK // 32 // PART_BYTES, PARTS_SPARE_MIN)

    def begun(memory: Memory) -> int:
        return sum(memory.admit_parts(1, 1, few=True) for _ in range(2 * most))

    assert begun(process.memory) == most
    process.memory.look()
    assert begun(process.memory) == 0
    process.memory.admit_parts(-4_000, -4_000, few=False)
    process.memory.look()
    assert begun(process.memory) == most, "as many as if there had been no more than these before"


def test_sessions_and_links_that_have_gone_leave_free_memory_in_the_process_and_their_values_none() -> None:
    process = Process(resident=50 * MIB)
    process.memory.look()
    process.memory.admit_parts(100_000, 20_000, few=False)
    process.resident = 120 * MIB
    process.memory.look()
    assert process.memory.limited
    process.memory.admit_parts(-100_000, -20_000, few=False)
    process.memory.look()
    assert process.memory.used == 120 * MIB - 20_000 * PART_BYTES_LEAST and process.admits()
