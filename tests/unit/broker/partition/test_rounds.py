"""Messages wait for a round until senders have replaced what was answered, and no longer than that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from broker.partition import rounds
from broker.partition.rounds import AHEAD_MAX, ROUND_MESSAGES, SHARE, Rounds

FAR_S = 60.0
MANY = 2 * ROUND_MESSAGES


class Disk:
    """Notes what begins together."""

    def __init__(self) -> None:
        self.together: list[int] = []

    def at_lull(self, begin: Callable[[], None]) -> bool:
        raise AssertionError("not asked")

    def begin_together(self, begins: Sequence[Callable[[], None]]) -> None:
        self.together.append(len(begins))
        for begin in begins:
            begin()


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is too slow in these tests."""
    monkeypatch.setattr(rounds, "PAUSE_S", FAR_S)


@pytest.mark.usefixtures("no_pause")
async def test_nobody_waits_before_many_messages_were_answered() -> None:
    each = Rounds()
    for _ in range(MANY):  # a few senders with a message each
        each.arrived(4)
        assert not each.awaits(Disk(), lambda: None)
        each.answered(4)
    each.answered(ROUND_MESSAGES - 5)
    assert not each.awaits(Disk(), lambda: None)


@pytest.mark.usefixtures("no_pause")
async def test_who_waits_begins_together_when_most_messages_were_replaced() -> None:
    each, first, second, begun = Rounds(), Disk(), Disk(), list[str]()
    each.answered(MANY // 2)
    each.answered(MANY // 2)
    for disk, name in ((first, "a"), (second, "b"), (first, "c")):
        assert each.awaits(disk, partial(begun.append, name))
    each.arrived(MANY - MANY // SHARE - 1)
    await asyncio.sleep(0)
    assert not begun
    each.arrived(1)
    assert not begun, "what else comes in this turn belongs to the round"
    await asyncio.sleep(0)
    assert begun == ["a", "c", "b"] and first.together == [2] and second.together == [1]
    assert not each.awaits(first, lambda: None), "they are replaced"


async def test_senders_that_have_stopped_are_not_waited_for() -> None:
    each, begun = Rounds(), asyncio.Event()
    each.answered(MANY)
    assert each.awaits(Disk(), begun.set)
    async with asyncio.timeout(20):
        await begun.wait()
    each.answered(ROUND_MESSAGES - 1)
    assert not each.awaits(Disk(), lambda: None), "those of earlier are forgotten"


async def test_senders_that_come_slowly_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PAUSE_S", 0.02)
    each, begun = Rounds(), asyncio.Event()
    each.answered(1_000 * ROUND_MESSAGES)
    assert each.awaits(Disk(), begun.set)
    arrived = 0
    async with asyncio.timeout(20):
        while not begun.is_set():
            each.arrived(1)
            arrived += 1
            await asyncio.sleep(0.001)
    assert arrived < ROUND_MESSAGES, "a pause or two"


@pytest.mark.usefixtures("no_pause")
async def test_senders_that_keep_coming_are_waited_for() -> None:
    each, begun = Rounds(), list[bool]()
    each.answered(SHARE * 100)
    assert each.awaits(Disk(), lambda: begun.append(True))
    for _ in range(SHARE - 2):
        assert each._timer is not None and not begun
        each._timer.cancel()
        each._look()  # as the timer does
        each.arrived(100)
    await asyncio.sleep(0)
    assert not begun
    each.arrived(100)
    await asyncio.sleep(0)
    assert begun


async def test_nobody_waits_longer_than_the_last_round_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PAUSE_S", 0.0)
    monkeypatch.setattr(rounds, "WAIT_S_MAX", FAR_S)
    now_s, begun = [100.0], list[str]()
    each = Rounds(lambda: now_s[0])
    assert not each.awaits(Disk(), lambda: None), "the first messages begin"
    now_s[0] = 105.0
    each.answered(SHARE * 100)

    def keep_coming(took_s: float, name: str) -> float:
        """The seconds that messages wait which come at a steady pace."""
        assert each.awaits(Disk(), lambda: begun.append(name))
        began_s = now_s[0]
        while name not in begun:
            assert each._timer is not None and now_s[0] < 200.0
            each._timer.cancel()
            each._look()  # as the timer does
            if name not in begun:
                each.arrived(100)
                now_s[0] += 1.0
        waited_s, now_s[0] = now_s[0] - began_s, now_s[0] + took_s
        each.answered(SHARE * 100)
        return waited_s

    assert keep_coming(3.0, "second") == 5.0
    assert keep_coming(2.0, "third") == 3.0
    assert keep_coming(0.0, "fourth") == 2.0


async def test_nobody_waits_long_for_senders_with_a_pace_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They send no sooner because others of their messages were answered. Symptom: at half of the highest
    rate, nine messages in ten waited for rounds, and the slowest tenth for 10 ms."""
    monkeypatch.setattr(rounds, "IN_VAIN_S_MAX", 4 * rounds.PAUSE_S)
    now_s, disk = [100.0], Disk()
    each = Rounds(lambda: now_s[0])

    def go_on(seconds: float, per_s: int = 50_000) -> None:
        now_s[0] += seconds
        each.arrived(round(per_s * seconds))

    async def gather(per_s: int) -> float:
        """For how long nobody waits after that round."""
        each.answered(MANY)
        assert each.awaits(disk, lambda: None)
        while each._timer is not None:
            go_on(rounds.PAUSE_S / 3, per_s)
        await asyncio.sleep(0)
        assert disk.together.pop() == 1 and not disk.together
        return max(0.0, each._next_s - now_s[0])

    assert await gather(50_000) == 0, "nothing is known of them yet"
    go_on(0.1)
    for pauses in (1, 2, 4, 4):
        rest_s = await gather(75_000)  # a little faster, by chance
        assert rest_s == pytest.approx(pauses * rounds.PAUSE_S)
        go_on(0.9 * rest_s)
        each.answered(MANY)
        assert not each.awaits(disk, lambda: None)
        go_on(0.2 * rest_s)
    assert await gather(200_000) == 0, "they have waited for the answers"
    go_on(0.1)
    assert await gather(50_000) == pytest.approx(rounds.PAUSE_S)


@pytest.mark.parametrize(
    ("in_gathering_per_s", "is_in_vain"), [(80_000, True), (140_000, False), (40_000, True)]
)
@pytest.mark.parametrize("is_too_slow", [False, True])
async def test_a_round_was_in_vain_unless_messages_came_twice_as_fast(
    in_gathering_per_s: int, is_in_vain: bool, is_too_slow: bool
) -> None:
    """Whether it has ended because enough came, or because too few did; and whoever was answered in it."""
    now_s = [100.0]
    each = Rounds(lambda: now_s[0])
    for pace in (50_000, in_gathering_per_s):
        now_s[0] += 1.0
        each.arrived(50_000)
        each.answered((1_000 if is_too_slow else 4) * ROUND_MESSAGES)
        for _ in range(100):
            if (timer := each._timer) is None:
                break
            now_s[0] += 0.001
            each.arrived(pace // 1_000)
            if not is_too_slow:
                each.answered(1)
            elif now_s[0] >= each._until_s - 0.0005:
                timer.cancel()
                each._look()  # as the timer does
        assert each._timer is None
        await asyncio.sleep(0)
    assert (each._next_s > now_s[0]) == is_in_vain
    assert each._next_s - now_s[0] <= 1.0


async def test_a_round_is_timed_to_its_last_answer_and_the_time_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds, "PAUSE_S", 0.001)
    now_s = [100.0]
    each, disk = Rounds(lambda: now_s[0]), Disk()
    assert not each.awaits(disk, lambda: None)
    for took_s, waits_s in ((0.006, 0.006), (0.0, 0.001), (5.0, rounds.WAIT_S_MAX)):
        now_s[0] += took_s
        for _ in range(16):  # one partition after the other, each with less than a round
            each.answered(ROUND_MESSAGES // 8)
        assert each.awaits(disk, lambda: None)
        assert each._until_s - now_s[0] == pytest.approx(waits_s)
        each.arrived(2 * ROUND_MESSAGES)
        await asyncio.sleep(0)
        assert disk.together.pop() == 1 and not disk.together


async def test_messages_that_never_wait_are_not_timed_from_the_first_ones() -> None:
    now_s = [100.0]
    each = Rounds(lambda: now_s[0])
    for _ in range(10):
        assert not each.awaits(Disk(), lambda: None)
        now_s[0] += rounds.WAIT_S_MAX
    each.answered(2 * ROUND_MESSAGES)
    assert each._until_s - now_s[0] < 2 * rounds.WAIT_S_MAX
    each.arrived(2 * ROUND_MESSAGES)


async def test_answers_to_others_do_not_prolong_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PAUSE_S", 0.003)
    now_s, disk = [100.0], Disk()
    each = Rounds(lambda: now_s[0])
    assert not each.awaits(disk, lambda: None)
    now_s[0] += 0.001
    each.answered(4 * ROUND_MESSAGES)  # of a sender that sends no more
    assert each.awaits(disk, lambda: None)
    waited_from_s = now_s[0]
    while not disk.together and now_s[0] < 101.0:
        now_s[0] += 0.002
        each.arrived(ROUND_MESSAGES // 2)  # another sender goes on, and gathers nothing
        each.answered(ROUND_MESSAGES // 2)
        if each._timer is not None:
            each._timer.cancel()
            each._look()  # as the timer does
    assert disk.together == [1] and now_s[0] - waited_from_s <= 2 * rounds.WAIT_S_MAX


@pytest.mark.usefixtures("no_pause")
async def test_a_few_messages_may_go_ahead_of_each_round_that_gathers() -> None:
    each = Rounds()
    assert not each.lets_pass(), "there is no round to go ahead of"
    for _ in range(2):
        each.answered(MANY)
        assert [each.lets_pass() for _ in range(AHEAD_MAX + 2)] == [True] * AHEAD_MAX + [False] * 2
        each.arrived(MANY)
        await asyncio.sleep(0)
        assert not each.lets_pass()
