"""The turns in which the partitions of a folder are opened."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial

import pytest
from structlog.testing import capture_logs

from broker.entities.descriptions import MAIN
from broker.operations.browsing import Peek
from broker.operations.general import Detach
from broker.operations.interface import Operation
from broker.operations.receiving import Demand, Withdraw
from broker.operations.sending import Send
from broker.operations.settling import Complete
from broker.operations.transfers import FindSources
from broker.partition.opening_room import PAUSE_S, OpeningRoom
from broker.partition.openings import (
    AT_ONCE,
    LATE_S,
    LONG_S,
    MOVED_AT_ONCE,
    NAMED_MAX,
    PASSED_AT_ONCE,
    SHORT_AT_ONCE,
    SURPLUS_BYTES_MAX,
    SURPLUS_PARTS,
    TOLD_AT_ONCE,
    NoRoom,
    Opening,
    Openings,
    Urgency,
    urgency_of,
)
from tests.support.waiting import until

ANSWER, MESSAGES, EMPTY = Urgency


class Held:
    """An open partition."""

    def __init__(self, state_bytes: int) -> None:
        self.state_bytes = state_bytes


class Turns:
    """Partitions that wait for their turns, by name: the entity and a number."""

    def __init__(self, at_once: int = 1) -> None:
        self.now_s = 0.0
        self.held = 0
        """What the messages of all partitions take."""
        self.room = OpeningRoom(lambda: self.now_s, lambda: self.held)
        self.openings = Openings(at_once, lambda: self.now_s, self.room)
        self.begun: list[str] = []
        self.late: list[str] = []
        self._places: dict[str, tuple[Opening, ExitStack]] = {}
        self._seen: set[str] = set()

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *_: object) -> None:
        self.end(*reversed(self._places))

    def join(self, *names: str, urgency: Urgency = MESSAGES, size: int = 0, least: int | None = None) -> None:
        for name in names:
            stack = ExitStack()
            late = partial(self.late.append, name)
            opening = stack.enter_context(self.openings.place(name[0], urgency, late, size, least))
            self._places[name] = opening, stack
        self._look()

    def end(self, *names: str) -> None:
        for name in names:
            self._places.pop(name)[1].close()
            self._look()

    def __contains__(self, name: str) -> bool:
        """Whether it waits, or has its turn."""
        return name in self._places

    def of(self, name: str) -> Opening:
        return self._places[name][0]

    def order(self) -> list[str]:
        """End turn after turn, and give the order in which they began."""
        while begun := [name for name, (each, _) in self._places.items() if each.began_s is not None]:
            self.end(begun[0])
        return self.begun

    def look(self) -> None:
        """Let the timer fire."""
        self.openings._look()
        self._look()

    def _look(self) -> None:
        new = [name for name, (opening, _) in self._places.items() if opening.began_s is not None]
        self.begun += [name for name in new if name not in self._seen]
        self._seen.update(new)


async def test_few_are_opened_at_a_time_and_each_that_is_done_lets_the_next_one_begin() -> None:
    with Turns(at_once=2) as turns:
        turns.join("a0", "a1", "a2", "a3")
        assert turns.begun == ["a0", "a1"] and turns.of("a2").is_waiting
        turns.end("a1")
        assert turns.begun == ["a0", "a1", "a2"]
        turns.end("a0", "a2")
        assert turns.begun == ["a0", "a1", "a2", "a3"]
        turns.end("a3")
        turns.join("a4")
        assert turns.begun[-1] == "a4"


async def test_who_awaits_an_answer_comes_first_and_empty_partitions_last() -> None:
    with Turns() as turns:
        turns.join("a0")
        turns.join("a1", "b1", urgency=EMPTY)
        turns.join("a2", urgency=MESSAGES)
        turns.join("a3", urgency=ANSWER)
        turns.of("b1").hasten(MESSAGES)
        turns.of("a3").hasten(EMPTY)
        turns.of("a0").hasten(ANSWER)  # it has its turn
        assert turns.order() == ["a0", "a3", "b1", "a2", "a1"]


async def test_a_small_queue_does_not_wait_behind_large_ones() -> None:
    with Turns() as turns:
        turns.join("a0", "a1", "a2", "b0", "b1", "b2")
        turns.end("a0")
        turns.join("c0", "a3")
        assert turns.order() == ["a0", "b0", "c0", "a1", "b1", "a2", "b2", "a3"]


async def test_a_large_log_does_not_keep_other_entities_waiting() -> None:
    with Turns(at_once=2) as turns:
        turns.join("a0", "a1", "a2", "b0", "b1")
        turns.of("a0").acquired()
        turns.of("a1").acquired()
        turns.now_s = LONG_S / 2
        turns.look()
        assert turns.begun == ["a0", "a1"]
        turns.now_s = LONG_S
        turns.look()
        assert turns.begun == ["a0", "a1", "b0"], "one more of each entity that has none under way"
        turns.end("b0")
        assert turns.begun[-1] == "b1"
        turns.end("a0", "b1")
        assert turns.begun[-1] == "a2"


async def test_a_disk_that_hangs_gives_its_turn_away_and_those_that_wait_hear_of_it() -> None:
    with Turns() as turns:
        turns.join("a0", "b0")
        turns.now_s = 3.0
        turns.join("c0")
        turns.now_s = 5.0
        turns.of("a0").is_late()
        await asyncio.sleep(0)
        assert turns.late == ["c0"], "nothing was opened meanwhile, and b0 has its turn now"
        turns.end("a0")
        assert turns.order() == ["a0", "b0", "c0"], "late ones keep their place"


async def test_while_others_are_opened_only_those_hear_of_a_late_one_that_have_waited_as_long() -> None:
    with Turns(at_once=2) as turns:
        turns.join("a0", "a1", "b0", "b1")
        turns.now_s = 2.0
        turns.join("c0", "c1", "c2")
        turns.end("a1")
        turns.now_s = 5.0
        turns.of("a0").is_late()
        turns.look()
        await asyncio.sleep(0)
        assert turns.begun == ["a0", "a1", "b0", "c0"] and turns.late == ["b1"]


async def test_thousands_are_told_a_few_at_a_time() -> None:
    with Turns() as turns:
        turns.join(*(f"a{number}" for number in range(2 * TOLD_AT_ONCE + 2)))
        turns.now_s = 5.0
        turns.of("a0").is_late()
        told = []
        for _ in range(4):
            await asyncio.sleep(0)
            told.append(len(turns.late))
        assert told == [TOLD_AT_ONCE - 1, 2 * TOLD_AT_ONCE - 1, 2 * TOLD_AT_ONCE, 2 * TOLD_AT_ONCE]


async def test_beyond_the_room_in_memory_one_partition_is_opened_after_the_other() -> None:
    with Turns(at_once=5) as turns:
        turns.room.measured(900, 1_000)
        turns.join("a0", "b0", "c0", "d0", size=60)
        turns.join("e0", size=0)
        assert turns.begun == ["a0", "e0"], "what has no room keeps nobody waiting"
        turns.end("a0")
        assert turns.begun == ["a0", "e0"], "what a0 has taken is not given back before it is measured"
        turns.look()
        assert turns.begun[2:] == ["b0"], "beyond the room"
        turns.look()
        assert turns.begun[2:] == ["b0"]
        turns.end("b0")
        turns.look()
        assert turns.begun[2:] == ["b0"], "memory is to be measured first"
        turns.now_s = PAUSE_S
        turns.look()
        assert turns.begun[2:] == ["b0", "c0"]
        turns.room.measured(800, 1_000)
        turns.look()
        assert turns.begun[2:] == ["b0", "c0", "d0"], "there is room again, beside what c0 will take"


async def test_beyond_the_room_receivers_and_answers_take_turns() -> None:
    with Turns(at_once=2) as turns:
        turns.room.measured(2_000, 1_000)
        turns.join("a0", "b0", "c0", "d0", urgency=ANSWER, size=10)
        turns.join("v0", "w0", urgency=MESSAGES, size=10)
        order = []
        for _ in range(6):
            turns.look()
            order.append(turns.begun[-1])
            turns.end(order[-1])
            turns.now_s += PAUSE_S
        assert order == ["v0", "a0", "w0", "b0", "c0", "d0"]


async def test_a_partition_that_holds_more_than_was_expected_takes_what_there_is_or_ends_its_turn() -> None:
    """Symptom: after a crash, large partitions were opened at once, because little was noted
    about them."""
    with Turns(at_once=2) as turns:
        turns.room.measured(0, 1_000)
        turns.join("a0", "b0", size=100)
        assert turns.room.left == 800
        turns.of("a0").takes(100 + 100 // SURPLUS_PARTS, 0, 0)
        assert turns.of("a0").size == 100, "what is expected is not exact"
        turns.of("a0").takes(500, 300, 0)
        assert (turns.room.left, turns.room.under_way) == (400, 300)
        turns.of("a0").takes(500, 200, 0)
        assert turns.room.under_way == 300, "what has come does not go"
        with pytest.raises(NoRoom) as raised:
            turns.of("b0").takes(600, 50, 800)
        assert (raised.value.size, raised.value.least) == (800, 750) and turns.of("b0").size == 100
        for likely, expected in ((599, 750), (5_000, 1_200)):
            with pytest.raises(NoRoom) as raised:
                turns.of("b0").takes(600, 50, likely)
            assert raised.value.size == expected, "it comes to an end, whatever is likely"
        turns.end("a0", "b0")
        assert turns.room.under_way == 0


async def test_a_large_partition_takes_little_more_than_was_expected_without_asking() -> None:
    """Symptom: one of 178 MiB was let in beyond the room, and took 35 MiB more than it was let in for."""
    size = 100 * SURPLUS_BYTES_MAX
    with Turns() as turns:
        turns.room.measured(0, size)
        turns.join("a0", size=size)
        turns.of("a0").takes(size + SURPLUS_BYTES_MAX, 0, 0)
        with pytest.raises(NoRoom) as raised:
            turns.of("a0").takes(size + SURPLUS_BYTES_MAX + 1, 0, 0)
        assert raised.value.least > 1.2 * size, "it is not read again and again for a little more each time"


async def test_a_partition_that_has_waited_for_long_is_expected_to_take_what_is_certain() -> None:
    """Symptom: twice too much was expected of a partition, for which there was never room again, and it
    stayed closed."""
    with Turns() as turns:
        turns.room.measured(0, 1_000)
        turns.join("a0", size=2_000, least=900)
        turns.join("b0", size=1_800, least=1_100)
        turns.room.take_beyond("other", 1)  # nobody else is opened beyond the room
        turns.now_s = LATE_S / 2
        turns.look()
        assert turns.begun == []
        turns.now_s = LATE_S
        turns.look()
        assert turns.begun == ["a0"] and turns.of("a0").size == 900
        assert turns.room.under_way == 901
        turns.end("a0")
        assert turns.of("b0").is_waiting and turns.of("b0").size == 1_100


async def test_a_late_partition_counts_with_all_that_it_turns_out_to_take() -> None:
    with Turns() as turns:
        turns.room.measured(0, 800)
        turns.join("a0", size=50)
        turns.of("a0").is_late()
        turns.of("a0").takes(100, 0, 0)
        turns.join("b0", size=10)
        assert turns.begun == ["a0"], "an eighth of the mark is late"
        turns.end("a0")
        turns.look()
        assert turns.begun == ["a0", "b0"]


async def test_a_large_partition_without_room_holds_up_no_other_one_of_its_entity() -> None:
    with Turns(at_once=2) as turns:
        turns.room.measured(0, 100)
        turns.join("a0", size=1_000, urgency=ANSWER)
        turns.join("a1", size=10, urgency=ANSWER)
        assert turns.begun == ["a1"]


@pytest.mark.parametrize("large", [ANSWER, MESSAGES])
@pytest.mark.parametrize("small", [ANSWER, MESSAGES, EMPTY])
async def test_partitions_too_large_even_beyond_the_room_keep_no_small_ones_waiting(
    large: Urgency, small: Urgency
) -> None:
    """Symptom: the first of the line was tried every second, and while it did not fit, nothing was opened."""
    with Turns(at_once=2) as turns:
        turns.room.measured(9_000, 6_400)
        turns.join("o0", size=5_000)
        turns.look()
        assert turns.begun == ["o0"]
        turns.of("o0").share, turns.held = Held(5_000), 5_000
        turns.end("o0")
        turns.join(*(f"l{number}" for number in range(SHORT_AT_ONCE + 9)), urgency=large, size=4_000)
        turns.join("s0", "s1", urgency=small, size=10)
        for _ in range(8):
            turns.now_s += PAUSE_S
            turns.look()
            turns.end(*(name for name in turns.begun if name[0] == "s" and name in turns))
        assert turns.begun == ["o0", "s0", "s1"]


async def test_a_disk_that_hangs_holds_a_part_of_the_mark_at_most() -> None:
    """Symptom: one turn after the other passed on, and what they would take counted until sends were
    refused."""
    with Turns() as turns:
        turns.room.measured(0, 800)
        turns.join("a0", "b0", "c0", "d0", urgency=ANSWER, size=40)
        for name in ("a0", "b0", "c0"):
            turns.now_s += LATE_S
            if turns.of(name).began_s is not None:
                turns.of(name).is_late()
        turns.look()
        assert turns.begun == ["a0", "b0"] and turns.room.under_way == 80
        turns.join("e0", urgency=MESSAGES, size=40)
        turns.now_s += LATE_S
        turns.look()
        await asyncio.sleep(0)
        assert {"c0", "d0", "e0"} <= set(turns.late), "they are told, too"
        turns.end("a0")
        turns.look()
        assert turns.begun == ["a0", "b0", "c0"], "the disk works again"


async def test_however_many_turns_are_late_whoever_waits_is_looked_at_once() -> None:
    """Symptom: each turn that was late, and each second after that, walked all that waited."""
    looked_at = 0

    class Counted(Openings):
        def _are_late(self, openings: Iterable[Opening]) -> None:
            nonlocal looked_at
            given = list(openings)
            looked_at += len(given)
            super()._are_late(given)

    with Turns(at_once=3) as turns:
        turns.openings = Counted(3, lambda: turns.now_s, turns.room)
        turns.join(*(f"a{number}" for number in range(103)), urgency=ANSWER, size=10)
        turns.room.measured(0, 80)
        turns.now_s = 5.0
        for name in ("a0", "a1", "a2"):
            turns.of(name).is_late()
        assert looked_at == 100
        for turns.now_s in (6.0, 16.0):
            turns.look()
        assert looked_at == 100
        turns.join("b0", size=10)
        turns.now_s += LATE_S
        turns.look()
        assert looked_at == 101


async def test_only_as_many_move_up_as_there_is_room_for() -> None:
    """Symptom: each one fitted alone, so thousands moved up in one turn of the event loop, and back."""
    with Turns() as turns:
        turns.room.measured(100, 100)
        turns.join("x0", *(f"{chr(0x4E00 + number)}0" for number in range(2_000)), size=10)
        await until(lambda: not any(turns.openings._lines))
        turns.room.measured(60, 100)
        turns.openings._go_on = lambda: None  # type: ignore[method-assign]
        turns.look()
        assert [len(list(line)) for line in turns.openings._lines] == [0, 4, 0]
        turns.room.measured(0, 100_000)
        turns.look()
        assert len(list(turns.openings._lines[MESSAGES])) == 4 + MOVED_AT_ONCE


async def test_who_awaits_an_answer_is_told_once_that_there_is_no_room() -> None:
    with Turns(at_once=2) as turns:
        turns.room.measured(10, 0)
        turns.join("r0", "r1", urgency=MESSAGES, size=10)
        turns.look()
        turns.join("a0", urgency=ANSWER, size=10)
        turns.now_s = LATE_S / 2
        turns.look()
        await asyncio.sleep(0)
        assert not turns.late
        with capture_logs() as logged:
            for turns.now_s in (LATE_S, 2 * LATE_S):
                turns.look()
                await asyncio.sleep(0)
                assert turns.late == ["a0"], "receivers wait"
        assert [(each["event"], each["partitions"], each["bytes"]) for each in logged] == [
            ("partitions.wait_for_memory", 1, 10)
        ]


async def test_one_that_has_moved_up_and_fallen_back_is_told_once() -> None:
    """Symptom: the line in the log counted it as often as it had fallen back."""
    with Turns() as turns:
        turns.join("x0")
        turns.join("b0", urgency=ANSWER, size=20)
        turns.room.measured(10, 0)
        turns.end("x0")
        turns.join("x1", "x2", "x3")
        turns.join("a0", urgency=ANSWER, size=10)
        for ended in ("x1", "x2"):
            turns.room.measured(0, 10)
            turns.look()
            assert turns.of("a0").line is turns.openings._lines[ANSWER]
            turns.room.measured(10, 0)
            turns.end(ended)
            assert turns.of("a0").line is turns.openings._short[ANSWER]
        turns.now_s = LATE_S
        with capture_logs() as logged:
            turns.look()
            await asyncio.sleep(0)
        assert [(each["partitions"], each["entities"]) for each in logged] == [(2, ["b", "a"])]
        assert sorted(turns.late) == ["a0", "b0"]


async def test_one_that_has_moved_up_does_not_wait_for_memory() -> None:
    with Turns() as turns:
        turns.room.measured(10, 0)
        turns.join("x0", size=0)
        turns.join("a0", urgency=ANSWER, size=10)
        turns.end("x0")
        assert turns.of("a0").line is turns.openings._short[ANSWER]
        turns.join("x1", size=0)
        turns.now_s = LATE_S
        turns.room.measured(0, 10)
        turns.look()
        await asyncio.sleep(0)
        assert turns.of("a0").is_waiting and not turns.late, "it waits for its turn"


async def test_who_waits_no_more_is_forgotten() -> None:
    """Symptom: those that had ended were kept until their clients would have waited for too long."""
    with Turns() as turns:
        turns.room.measured(10, 0)
        turns.join("a0", "b0", urgency=ANSWER, size=10)
        assert len(turns.openings._awaited) == 2
        turns.end("a0")
        turns.room.measured(0, 10)
        turns.look()
        assert turns.begun == ["b0"] and not turns.openings._awaited


async def test_the_log_names_a_few_entities_whose_partitions_wait_for_memory() -> None:
    with Turns() as turns:
        turns.room.measured(10, 0)
        for letter in "abcdefghijkl":
            turns.join(f"{letter}0", f"{letter}1", urgency=ANSWER, size=10)
        turns.now_s = LATE_S
        with capture_logs() as logged:
            turns.look()
        assert [each["entities"] for each in logged] == [list("abcdefghijkl")[:NAMED_MAX]]


async def test_one_that_needs_no_room_waits_for_no_late_one() -> None:
    with Turns() as turns:
        turns.room.measured(0, 800)
        turns.join("a0", size=200)
        turns.of("a0").is_late()
        turns.join("b0", size=1)
        turns.join("c0", size=0)
        assert turns.begun == ["a0", "c0"]


async def test_waiting_for_memory_costs_little_whatever_the_number_of_partitions() -> None:
    """Symptom: each that came looked at all that waited; 8,000 took half a minute."""
    count = 0

    class Counted(OpeningRoom):
        def fits(self, size: int) -> bool:
            nonlocal count
            count += 1
            return super().fits(size)

    with Turns() as turns:
        turns.openings.room = turns.room = Counted(lambda: turns.now_s)
        turns.room.measured(10, 0)
        turns.join(*(f"{chr(0x4E00 + number)}0" for number in range(2_000)), size=10)
        await until(lambda: not any(turns.openings._lines))
        assert count == 2_000
        turns.look()
        assert count <= 2_000 + SHORT_AT_ONCE


async def test_when_the_room_is_used_up_those_without_room_are_passed_over_in_several_turns() -> None:
    """Symptom: when a turn ended after the memory mark had been reached, all that waited were put into the
    other line at once: 40,000 held the event loop for 120 to 170 ms."""
    with Turns() as turns:
        turns.join("a0", size=10)
        turns.join(*(f"{chr(0x4E00 + number)}0" for number in range(2 * PASSED_AT_ONCE + 9)), size=10)
        turns.join("z0", size=0)
        turns.room.measured(100, 0)
        turns.end("a0")
        passed = []
        for _ in range(3):
            passed.append(len(list(turns.openings._short[MESSAGES])))
            turns.openings._go_on()
            assert len(list(turns.openings._short[MESSAGES])) == passed[-1], "in the same turn"
            await asyncio.sleep(0)
        assert passed == [PASSED_AT_ONCE, 2 * PASSED_AT_ONCE, 2 * PASSED_AT_ONCE + 9]
        turns._look()
        assert turns.begun == ["a0", "z0"], "it needs no room"


async def test_what_waits_for_its_turn_alone_is_not_late() -> None:
    with Turns() as turns:
        turns.join("a0", "a1", urgency=ANSWER)
        turns.now_s = LATE_S
        turns.look()
        await asyncio.sleep(0)
        assert not turns.late


async def test_who_gives_up_does_not_get_its_turn() -> None:
    with Turns() as turns:
        turns.join("a0", "a1", "a2")
        turns.of("a0").give_up()
        turns.of("a1").give_up()
        assert await turns.of("a0").has_turn() and not await turns.of("a1").has_turn()
        turns.end("a2", "a1")
        turns.end("a0")
        turns.join("a3")
        assert turns.begun == ["a0", "a3"]


async def test_a_task_that_is_cancelled_leaves_the_line() -> None:
    openings, waiting = Openings(), asyncio.Event()

    async def open_one() -> None:
        with openings.place("a", MESSAGES, lambda: None) as opening:
            assert await opening.has_turn()
            await waiting.wait()

    tasks = [asyncio.create_task(open_one()) for _ in range(3 * AT_ONCE)]
    await asyncio.sleep(0)
    for task in tasks[: 2 * AT_ONCE]:
        task.cancel()
    waiting.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [task.cancelled() for task in tasks] == [True] * 2 * AT_ONCE + [False] * AT_ONCE
    assert not openings._under_way and not any(openings._lines)


@pytest.mark.parametrize(
    ("operation", "urgency"),
    [
        (Send([b"a"], None), ANSWER),
        (Peek(MAIN, 0, 1), ANSWER),
        (Complete([b"x" * 16]), ANSWER),
        (Withdraw(MAIN), MESSAGES),
        (Demand(MAIN, 1), EMPTY),
        (Detach(), EMPTY),
        (FindSources(), EMPTY),
    ],
)
def test_what_is_urgent(operation: Operation, urgency: Urgency) -> None:
    assert urgency_of(operation, EMPTY) is urgency
    assert urgency_of(Demand(MAIN, 1), MESSAGES) is MESSAGES
