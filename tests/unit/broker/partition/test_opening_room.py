"""The memory for partitions that are being opened."""

from __future__ import annotations

from collections.abc import Callable

from broker.partition.opening_room import ASKS_AGAIN_S, BEYOND_PARTS, PAUSE_S, SMALL_PARTS, OpeningRoom


class Open:
    """An open partition."""

    def __init__(self, state_bytes: int) -> None:
        self.state_bytes = state_bytes


class Memory:
    def __init__(self, used: int, mark: int, in_partitions: Callable[[], int] = lambda: 0) -> None:
        self.now_s = 0.0
        self.opened: list[Open] = []
        self.room = OpeningRoom(lambda: self.now_s, lambda: in_partitions() + self._in_opened())
        self.room.measured(used, mark)

    def _in_opened(self) -> int:
        return sum(each.state_bytes for each in self.opened)

    def open_beyond(self, size: int) -> Open | None:
        """Open a partition beyond the room, if that is allowed."""
        partition = Open(size)
        if not (self.room.has_turn("folder") and self.room.take_beyond(partition, size)):
            return None
        self.room.give_back(partition, size, partition)
        self.opened.append(partition)
        self.now_s += PAUSE_S
        return partition


def test_before_memory_is_measured_everything_fits() -> None:
    assert OpeningRoom().take(1 << 50)


def test_what_is_under_way_counts_until_it_is_measured() -> None:
    memory = Memory(900, 1_000)
    assert memory.room.take(60) and not memory.room.take(60) and memory.room.take(40)
    assert memory.room.under_way == 100
    memory.room.give_back("first", 60, None)
    assert not memory.room.fits(1) and memory.room.under_way == 40
    memory.room.measured(950, 1_000)
    assert memory.room.fits(10) and not memory.room.fits(11), "the second is still to come"


def test_what_was_open_needs_no_room() -> None:
    assert Memory(2_000, 1_000).room.take(0)


def test_one_is_opened_beyond_the_room_and_the_next_one_after_a_pause() -> None:
    memory = Memory(2_000, 1_000)
    assert memory.room.has_turn("folder") and memory.room.take_beyond("a", 10)
    assert not memory.room.has_turn("folder")
    memory.room.give_back("a", 10, None)
    assert not memory.room.has_turn("folder")
    memory.now_s = PAUSE_S
    assert memory.room.has_turn("folder") and memory.room.take_beyond("b", 10)


def test_data_folders_take_turns() -> None:
    """Symptom: the folder whose timer came first after the pause won nearly each time."""
    memory = Memory(2_000, 1_000)
    served = []
    for number in range(12):
        for folder in ("first", "second", "third"):
            if memory.room.has_turn(folder) and memory.room.take_beyond(number, 1):
                served.append(folder)
                memory.room.pass_on(folder)
        memory.room.give_back(number, 1, None)
        memory.now_s += PAUSE_S
    assert served == ["first", "second", "third"] * 4


def test_a_folder_that_asks_no_more_has_no_turn() -> None:
    memory = Memory(2_000, 1_000)
    assert memory.room.has_turn("gone")
    assert not memory.room.has_turn("other")
    memory.now_s = ASKS_AGAIN_S + 0.1
    assert memory.room.has_turn("other")


def test_a_disk_that_is_late_keeps_no_other_one_waiting() -> None:
    """Symptom: while a partition that was opened beyond the room waited for a disk that hung, none was on any
    other disk."""
    memory = Memory(2_000, 1_000)
    assert memory.room.has_turn("hangs") and memory.room.take_beyond("late", 10)
    memory.room.is_late("late")
    memory.now_s = ASKS_AGAIN_S + 0.1
    assert memory.room.has_turn("works") and memory.room.take_beyond("next", 10)
    memory.room.give_back("late", 10, Open(125))
    assert not memory.room.has_turn("works"), "the next one is still being opened"
    memory.room.give_back("next", 10, None)
    memory.now_s += PAUSE_S
    assert memory.room.under_way == 0 and memory.open_beyond(100) is None, "what was late is open beyond, too"


def test_a_large_partition_keeps_no_small_ones_waiting() -> None:
    memory = Memory(8_000, 6_400)
    assert memory.open_beyond(5_000) and memory.open_beyond(101) is None
    small = [memory.open_beyond(100) for _ in range(8)]
    assert all(small) and memory.open_beyond(100) is None, "they have an eighth of the mark"


def test_those_opened_beyond_the_room_together_hold_a_part_of_the_mark() -> None:
    """Symptom: receivers that settled nothing had one large partition opened after the other, up to twice the
    mark, and the kernel ended the broker."""
    memory = Memory(2_000, 1_000, lambda: 100)
    half = 1_000 // BEYOND_PARTS // 2
    first, second = memory.open_beyond(half), memory.open_beyond(half)
    assert first is not None and second is not None and memory.open_beyond(20) is None
    second.state_bytes -= 20
    third = memory.open_beyond(20)
    assert third is not None and memory.open_beyond(20) is None
    third.state_bytes = 0
    assert memory.open_beyond(20), "it was closed"


def test_a_partition_larger_than_that_is_opened_alone() -> None:
    memory = Memory(2_000, 1_000)
    large = memory.open_beyond(5_000)
    assert large is not None and memory.open_beyond(20) is None
    large.state_bytes = 0
    assert memory.open_beyond(5_000)


def test_what_a_large_partition_has_left_keeps_no_other_large_one_waiting() -> None:
    """Symptom: one that had been drained but for a dead letter kept all large ones closed for ever, while
    memory was free."""
    memory = Memory(2_000, 1_000)
    first = memory.open_beyond(5_000)
    assert first is not None
    for left in (125, 1):
        first.state_bytes = left
        second = memory.open_beyond(5_000)
        assert second is not None, "it is as good as alone"
        second.state_bytes = 0
    others = 500
    memory = Memory(900, 1_000, lambda: others)
    first = memory.open_beyond(600)
    assert first is not None
    first.state_bytes = 1_000 // SMALL_PARTS
    memory.room.measured(900, 1_000)
    assert memory.open_beyond(600), "the first one is small now"


def test_what_a_large_partition_has_left_counts_among_the_small_ones() -> None:
    memory = Memory(4_000, 6_400, lambda: 1_000)
    small, large = memory.open_beyond(100), memory.open_beyond(5_000)
    assert small is not None and large is not None
    large.state_bytes = 100
    assert all(memory.open_beyond(100) for _ in range(6)) and memory.open_beyond(100) is None
    large.state_bytes = 0
    assert memory.open_beyond(100)


def test_a_large_partition_waits_while_it_would_take_far_more_than_the_mark() -> None:
    """Symptom: two partitions that each had taken most of the mark before a restart were opened together, and
    the kernel ended the broker at each start."""
    held = 700
    memory = Memory(900, 1_000, lambda: held)
    assert memory.open_beyond(601) is None and memory.open_beyond(10), "a small one does not"
    large = memory.open_beyond(580)
    assert large is not None
    large.state_bytes, held = 0, 115
    memory.room.measured(300, 1_000)
    assert memory.room.take(600) and memory.open_beyond(5_000) is None, "the other one is still being opened"
    memory.room.give_back("other", 600, None)
    memory.room.measured(900, 1_000)
    assert memory.open_beyond(5_000), "nothing else would make room for it"


def test_one_that_turns_out_to_be_large_grows_no_further_than_that() -> None:
    memory = Memory(900, 1_000, lambda: 700)
    assert memory.room.has_turn("folder") and memory.room.take_beyond("a", 110)
    assert memory.room.grow("a", 110, 600) and not memory.room.grow("a", 600, 601)
    memory.room.give_back("a", 600, None)
    assert memory.room.under_way == 0


def test_what_is_held_beyond_the_room_is_added_up_once_however_many_are_tried() -> None:
    """Symptom: each of 64 that were tried in a look had all added up that were opened before."""
    looked, each_holds = 0, 1

    class Counted:
        @property
        def state_bytes(self) -> int:
            nonlocal looked
            looked += 1
            return each_holds

    memory = Memory(2_000, 1_000, lambda: 200)
    for number in range(100):
        assert memory.room.has_turn("folder") and memory.room.take_beyond(number, 1)
        memory.room.give_back(number, 1, Counted())
        memory.now_s += PAUSE_S
    looked, each_holds = 0, 2
    assert memory.room.has_turn("folder")
    assert not any(memory.room.take_beyond(number, 1) for number in range(64))
    assert looked <= 2 * 100


def test_a_partition_that_turns_out_to_be_larger_takes_more_if_there_is_room() -> None:
    memory = Memory(900, 1_000)
    assert memory.room.take(60) and memory.room.grow("a", 60, 100) and memory.room.under_way == 100
    assert not memory.room.grow("a", 100, 101) and memory.room.under_way == 100
    memory.room.give_back("a", 100, None)
    assert memory.room.under_way == 0


def test_one_opened_beyond_the_room_may_grow_as_far_as_it_would_have_been_let_in() -> None:
    held = 0
    memory = Memory(8_000, 6_400, lambda: held)
    assert memory.room.has_turn("folder") and memory.room.take_beyond("a", 10)
    assert memory.room.grow("a", 10, 5_000), "it is alone"
    held = 5_000
    memory.room.give_back("a", 5_000, Open(5_000))
    memory.now_s = PAUSE_S
    assert memory.room.has_turn("folder") and memory.room.take_beyond("b", 10)
    assert memory.room.grow("b", 10, 100), "small ones have a part of their own"
    assert not memory.room.grow("b", 100, 101), "it is not small any more"
    memory.room.give_back("b", 100, None)
    assert memory.room.under_way == 0


def test_one_that_grows_is_as_good_as_alone_whatever_it_takes_itself() -> None:
    memory = Memory(8_000, 6_400)
    assert memory.room.has_turn("folder") and memory.room.take_beyond("a", 5_000)
    assert memory.room.grow("a", 5_000, 6_000)
    memory.room.give_back("a", 6_000, None)
    assert memory.room.under_way == 0


def test_those_that_were_late_do_not_each_grow_as_if_they_were_alone() -> None:
    """Symptom: twelve small ones were let in while a disk hung, and when it answered, each of them grew to 90
    MiB."""
    held = 0
    memory = Memory(8_000, 6_400, lambda: held)
    for name in "abc":
        assert memory.room.has_turn("folder") and memory.room.take_beyond(name, 10)
        memory.room.is_late(name)
        memory.now_s += PAUSE_S
    assert memory.room.grow("a", 10, 5_000)
    assert memory.room.grow("b", 10, 100) and not memory.room.grow("b", 100, 101), "a is large, b was small"
    held = 5_000
    memory.room.give_back("a", 5_000, Open(5_000))
    assert not memory.room.grow("c", 10, 101), "a is open now"
    memory.room.give_back("b", 100, None)
    memory.room.give_back("c", 10, None)
    assert memory.room.under_way == 0


def test_what_has_been_read_does_not_count_twice() -> None:
    memory = Memory(100, 1_000)
    assert memory.room.take(600)
    memory.room.has_come(500)
    memory.room.measured(600, 1_000)
    assert memory.room.under_way == 100 and memory.room.left == 300
    memory.room.give_back("a", 600, None, 500)
    assert memory.room.under_way == 0


def test_what_is_read_again_counts_as_it_did_while_it_was_open() -> None:
    """Symptom: while a large partition was read again after a commit that failed, another large one was
    opened as if it were alone, and so was a third one once it was open again."""
    held = 0
    memory = Memory(7_000, 6_400, lambda: held)
    first = memory.open_beyond(5_000)
    assert first is not None
    first.state_bytes = 0
    with memory.room.reload(first, 5_000) as reload:
        memory.room.measured(2_000, 6_400)
        assert memory.room.under_way == 5_000
        reload.takes(400, 300, 0)
        reload.takes(200, 100, 0)
        assert memory.room.under_way == 4_700
        reload.takes(9_000, 9_000, 9_000)
        held = 9_000
        assert memory.room.under_way == 0, "no more counts as read than was expected"
        memory.room.measured(7_000, 6_400)
        assert memory.open_beyond(5_000) is None
        reload.share = again = Open(5_000)
        held = 5_000
    assert memory.room.under_way == 0 and memory.open_beyond(5_000) is None
    memory.room.measured(2_000, 6_400)
    assert memory.open_beyond(3_000) is None, "one that is large is open beyond the room"
    again.state_bytes = held = 0
    assert memory.open_beyond(5_000)


def test_what_cannot_be_read_again_no_longer_counts() -> None:
    memory = Memory(7_000, 6_400)
    first = memory.open_beyond(5_000)
    assert first is not None
    first.state_bytes = 0
    with memory.room.reload(first, 5_000):
        assert memory.open_beyond(5_000) is None
    assert memory.room.under_way == 0 and memory.open_beyond(5_000)
