"""A few messages wait in the mailbox for a lull of the disk; nothing else does."""

from __future__ import annotations

import asyncio

from broker.identifiers import ClientId, LockToken
from broker.operations.browsing import Peek
from broker.operations.interface import Operation
from broker.operations.receiving import Demand
from broker.operations.sending import Send
from broker.operations.settling import Complete
from broker.partition.gathering import Gathering
from broker.partition.mailbox import Mailbox
from broker.partition.rounds import AHEAD_MAX, ROUND_MESSAGES, Rounds
from tests.support.memory_log import MemoryLog

ONE = ClientId(1)


def _gathering(*operations: Operation, is_busy: bool = True) -> tuple[Gathering, MemoryLog, list[bool]]:
    log, mailbox, woken = MemoryLog(), Mailbox(), list[bool]()
    if is_busy:
        log.at_next_lull = []
    mailbox.waiting.extend((ONE, each, lambda _: None, 0) for each in operations)
    return Gathering(log, mailbox, lambda: woken.append(True)), log, woken


def test_a_few_messages_wait_and_the_lull_wakes_the_task_once() -> None:
    few = Send([b"x"], None)
    gathering, log, woken = _gathering(few)
    assert gathering.holds(few, ONE) and gathering.holds(few, ONE) and gathering.begin()
    assert log.at_next_lull is not None and len(log.at_next_lull) == 1
    log.at_next_lull.pop()()
    assert woken == [True] and not gathering.is_awaited


def test_other_operations_many_messages_and_an_idle_disk_wake_the_task() -> None:
    few, many, other = Send([b"x"], None), Send([b"x"] * 64, None), Peek("", 0, 1)
    for operation, is_busy in ((other, True), (many, True), (few, False)):
        gathering, _, _ = _gathering(operation, is_busy=is_busy)
        assert not gathering.holds(operation, ONE)


def test_everything_waits_for_the_end_of_a_cycle_but_only_messages_for_a_lull() -> None:
    gathering, _, _ = _gathering(is_busy=False)
    gathering.is_in_cycle = True
    assert gathering.holds(Send([b"x"] * 64, None), ONE) and gathering.holds(Peek("", 0, 1), ONE)
    gathering.is_in_cycle = False
    assert not gathering.holds(Peek("", 0, 1), ONE)


async def test_messages_wait_for_the_round_on_an_idle_disk_and_behind_a_lull() -> None:
    few = Send([b"x"], None)
    for is_busy in (False, True):
        gathering, log, woken = _gathering(few, is_busy=is_busy)
        assert gathering.begin() == is_busy
        gathering.is_in_cycle = True
        gathering.stored(ROUND_MESSAGES + 1)
        if log.at_next_lull:
            log.at_next_lull.pop()()
        assert not gathering.is_in_cycle and gathering.holds(few, ONE) and gathering.is_awaited
        assert not log.at_next_lull and woken == []
        gathering.holds(Send([b"x"] * ROUND_MESSAGES, None), ONE)
        await asyncio.sleep(0)
        assert woken == [True] and not gathering.is_awaited


async def test_many_messages_wait_for_no_round() -> None:
    many = Send([b"x"] * 64, None)
    gathering, log, woken = _gathering(many, is_busy=False)
    gathering.stored(ROUND_MESSAGES)
    assert not gathering.begin()
    log.at_next_lull = []
    gathering._mailbox.waiting.clear()
    few = Send([b"x"], None)
    gathering._mailbox.waiting.append((ONE, few, lambda _: None, 0))
    gathering._rounds = Rounds()
    assert gathering.begin()
    gathering._mailbox.waiting.append((ONE, many, lambda _: None, 0))
    gathering.stored(ROUND_MESSAGES)
    log.at_next_lull.pop()()
    assert woken == [True]


def test_a_lull_after_a_cycle_has_taken_everything_wakes_nobody() -> None:
    few = Send([b"x"], None)
    gathering, log, woken = _gathering(few)
    assert gathering.holds(few, ONE) and log.at_next_lull is not None
    gathering._mailbox.waiting.clear()
    log.at_next_lull.pop()()
    assert not woken


async def test_what_receivers_want_waits_where_messages_wait_and_for_rounds_but_for_no_lull_of_its_own() -> (
    None
):
    few, settled = Send([b"x"], None), Complete([LockToken(bytes(16))] * 2)
    gathering, log, woken = _gathering(settled)
    assert not gathering.holds(settled, ONE) and log.at_next_lull == [], "no messages wait"
    gathering, log, woken = _gathering(few)
    assert gathering.holds(few, ONE)
    gathering._mailbox.waiting.append((ONE, settled, lambda _: None, 0))
    assert gathering.holds(settled, ONE), "it goes with the messages"
    gathering, log, woken = _gathering(settled, is_busy=False)
    gathering.stored(ROUND_MESSAGES)
    assert gathering.holds(settled, ONE), "messages are expected that it can go with"
    gathering.holds(Send([b"x"] * ROUND_MESSAGES, None), ONE)
    await asyncio.sleep(0)
    assert woken == [True]


async def test_a_single_settlement_and_demand_of_unknown_messages_do_not_wait() -> None:
    for operation in (Complete([LockToken(bytes(16))]), Demand("", 1)):
        gathering, _, _ = _gathering(Send([b"x"], None), operation)
        gathering.stored(ROUND_MESSAGES)
        assert gathering.begin() is False and not gathering.holds(operation, ONE)


def _lone(gathering: Gathering) -> bool:
    """Whether a lone message, put into the mailbox, waits."""
    send = Send([b"x"], None, is_lone=True)
    gathering._mailbox.waiting.append((ONE, send, lambda _: None, 0))
    return gathering.holds(send, ONE)


async def test_a_lone_message_waits_for_a_lull_but_for_no_round_and_takes_along_what_waits_for_one() -> None:
    few = Send([b"x"], None)
    for is_busy in (False, True):
        gathering, log, woken = _gathering(few, is_busy=is_busy)
        gathering.stored(ROUND_MESSAGES)
        assert gathering.holds(few, ONE) and not log.at_next_lull, "they wait for the round"
        assert _lone(gathering) is is_busy is gathering.is_awaited
        if log.at_next_lull:
            gathering.stored(ROUND_MESSAGES)
            assert woken == []
            log.at_next_lull.pop()()
            assert woken == [True] and not gathering.is_awaited
        gathering._mailbox.waiting.clear()
        gathering._mailbox.waiting.append((ONE, few, lambda _: None, 0))
        assert gathering.holds(few, ONE) and gathering.is_awaited, "others wait as before …"
        assert not log.at_next_lull, "… for the round, also behind a lull"
        gathering.holds(Send([b"x"] * 3 * ROUND_MESSAGES, None), ONE)
        await asyncio.sleep(0)
        assert woken and not gathering.is_awaited


async def test_a_lone_message_that_comes_in_a_cycle_waits_for_its_end_and_then_for_no_round() -> None:
    gathering, log, _ = _gathering(is_busy=False)
    gathering.is_in_cycle = True
    gathering.answered(ROUND_MESSAGES)
    assert _lone(gathering)
    gathering.stored(0)
    assert not gathering.begin() and not log.at_next_lull
    gathering._mailbox.waiting.clear()
    gathering._mailbox.waiting.append((ONE, Send([b"x"], None), lambda _: None, 0))
    assert gathering.begin(), "and no other message after it"


async def test_only_a_few_lone_messages_go_ahead_of_a_round() -> None:
    rounds = Rounds()
    gatherings = [_gathering(is_busy=False)[0] for _ in range(AHEAD_MAX + 1)]
    for each in gatherings:
        each._rounds = rounds
    rounds.answered(ROUND_MESSAGES)
    assert [_lone(each) for each in gatherings] == [False] * AHEAD_MAX + [True]


async def test_lone_messages_in_one_mailbox_count_once_and_wait_for_one_lull() -> None:
    rounds = Rounds()
    first, log, _ = _gathering()
    others = [_gathering(is_busy=False)[0] for _ in range(AHEAD_MAX)]
    for each in (first, *others):
        each._rounds = rounds
    rounds.answered(ROUND_MESSAGES)
    assert _lone(first) and _lone(first) and log.at_next_lull is not None and len(log.at_next_lull) == 1
    assert [_lone(each) for each in others] == [False] * (AHEAD_MAX - 1) + [True]
