"""Work under way over all connections: heavy senders are held back, light ones never, and the limit follows
the disk."""

from __future__ import annotations

import asyncio

from broker.frontend.pace import LIMIT, LIMIT_AMONG_HEAVY, LIMIT_MAX, MESSAGE_COST, Pace


class Connection:
    def __init__(self) -> None:
        self.cost_under_way = 0


class Bench:
    """A `Pace` with a clock that tests move by hand."""

    def __init__(self) -> None:
        self.told = 0
        self.now_s = 0.0
        self.has_light = True
        self.pace = Pace(self._on_room, lambda: self.has_light, lambda: self.now_s)

    def _on_room(self) -> None:
        self.told += 1

    async def look(self, turn_s: float = 0.0) -> None:
        """Let the pace look once, in a turn of the event loop of that length."""
        assert self.pace.is_looking
        self.pace.look_now()
        self.now_s += turn_s
        done = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(done.set_result, None)
        await done


async def test_beyond_the_pace_only_who_has_more_than_its_share_is_has_held_back() -> None:
    pace = Bench().pace
    heavy, other, light = Connection(), Connection(), Connection()
    pace.add(heavy, LIMIT, 1)
    pace.add(other, 1024, 1)
    assert pace.holds_back(heavy)
    assert not pace.holds_back(other) and not pace.holds_back(light)


async def test_among_heavy_senders_alone_more_is_under_way() -> None:
    bench, heavy = Bench(), Connection()
    bench.has_light = False
    bench.pace.add(heavy, LIMIT_AMONG_HEAVY - MESSAGE_COST, 1)
    assert not bench.pace.holds_back(heavy)
    bench.has_light = True
    assert bench.pace.holds_back(heavy)


async def test_small_messages_count_for_what_they_cost() -> None:
    pace, sender = Bench().pace, Connection()
    pace.add(sender, 0, LIMIT // MESSAGE_COST)
    assert not pace.holds_back(sender)
    pace.add(sender, 0, 1)
    assert pace.holds_back(sender)


async def test_who_was_held_back_is_told_when_there_is_room() -> None:
    bench, heavy, light = Bench(), Connection(), Connection()
    pace = bench.pace
    pace.add(heavy, LIMIT, 1)
    pace.add(light, 100, 1)
    assert pace.holds_back(heavy)
    pace.remove(light, 100, 1)
    told = bench.told
    assert pace.holds_back(heavy)
    pace.remove(heavy, LIMIT // 2, 0)
    assert bench.told == told + 1
    pace.remove(heavy, 100, 0)
    assert bench.told == told + 1, "it was told"


async def test_who_has_nothing_left_under_way_goes_on_while_another_fills_the_pace() -> None:
    bench, stuck, heavy = Bench(), Connection(), Connection()
    pace = bench.pace
    pace.add(stuck, 2 * LIMIT, 1)
    pace.add(heavy, LIMIT, 1)
    assert pace.holds_back(heavy)
    pace.remove(heavy, LIMIT, 1)
    assert bench.told == 1 and not pace.holds_back(heavy)


async def test_the_pace_rises_while_senders_wait_for_a_slow_disk_and_nothing_else() -> None:
    bench, heavy = Bench(), Connection()
    pace = bench.pace
    pace.add(heavy, 2 * LIMIT_MAX, 1)
    for _ in range(40):
        assert pace.holds_back(heavy)
        await bench.look()
    assert pace.limit == LIMIT_MAX and bench.told > 10


async def test_the_pace_stays_where_the_event_loop_is_what_is_short() -> None:
    bench, heavy = Bench(), Connection()
    pace = bench.pace
    pace.add(heavy, 2 * LIMIT, 1)
    for _ in range(10):
        assert pace.holds_back(heavy)
        await bench.look(turn_s=0.001)
    assert pace.limit == LIMIT and bench.told == 0


async def test_the_pace_falls_back_when_the_loop_is_busy_again() -> None:
    bench, heavy = Bench(), Connection()
    pace = bench.pace
    pace.add(heavy, 2 * LIMIT_MAX, 1)
    for _ in range(20):
        assert pace.holds_back(heavy)
        await bench.look()
    assert pace.limit > 4 * LIMIT
    for _ in range(60):
        assert pace.holds_back(heavy)
        await bench.look(turn_s=0.001)
    assert pace.limit == LIMIT


async def test_it_looks_as_long_as_somebody_is_has_held_back() -> None:
    bench, heavy = Bench(), Connection()
    pace = bench.pace
    pace.add(heavy, 2 * LIMIT, 1)
    assert pace.holds_back(heavy)
    await bench.look(turn_s=0.001)
    assert pace.is_looking
    pace.remove(heavy, 2 * LIMIT, 1)
    await bench.look()
    assert not pace.is_looking
