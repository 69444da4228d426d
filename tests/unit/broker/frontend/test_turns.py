"""The order, budgets and bounds of turns. Time passes only while a client is served."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from broker.frontend import turns
from broker.frontend.turns import (
    HEAVY_S,
    QUICK_BYTES,
    READ_BYTES,
    READ_BYTES_MAX,
    READ_BYTES_MIN,
    SHRINKS_AT_ONCE,
    SLICE_BYTES_MIN,
    TURN_AMONG_HEAVY_S,
    TURN_S,
    WAITING_BYTES_MAX,
    Inbox,
    Turns,
)

MICROSECOND = 0.000_001


class Bench:
    """Turns, their clock, and the order in which clients were served."""

    def __init__(self, waiting_bytes_max: int = WAITING_BYTES_MAX) -> None:
        self.now_s = 0.0
        self.turns = Turns(lambda: self.now_s, waiting_bytes_max)
        self.served: list[tuple[str, int]] = []
        """(name, bytes) of each slice."""

    def client(self, name: str, seconds_per_byte: float = 0.01 * MICROSECOND) -> ServedClient:
        return ServedClient(self, name, seconds_per_byte)

    def order(self) -> list[str]:
        """The order in which clients were served; consecutive slices of one client count once."""
        return [name for name, _ in itertools.groupby(self.served, key=lambda slice_: slice_[0])]

    async def until_served(self) -> None:
        """Let turns pass until nothing waits."""
        for _ in range(10_000):
            if not self.turns.waiting_bytes:
                return
            await asyncio.sleep(0)
        raise AssertionError("it never ends")


class ServedClient:
    def __init__(self, bench: Bench, name: str, seconds_per_byte: float) -> None:
        self.bench, self.name, self.seconds_per_byte = bench, name, seconds_per_byte
        self.inbox = Inbox(self)
        self.data = b""
        self.is_read = self.may = self.is_waiting = True
        self.calls_more = 0
        """How many calls without bytes the client asks for after the next slice."""

    def receive(self, data: bytes) -> None:
        self.bench.turns.received(self.inbox, data)

    def serve(self, data: bytes) -> bool:
        self.data += data
        self.bench.served.append((self.name, len(data)))
        self.bench.now_s += len(data) * self.seconds_per_byte
        self.calls_more -= bool(self.calls_more)
        return bool(self.calls_more)

    def may_be_served(self) -> bool:
        return self.may

    def waits(self) -> bool:
        return self.is_waiting

    def hold_reading(self, why: str) -> None:
        assert why == "turns" and self.is_read
        self.is_read = False

    def release_reading(self, why: str) -> None:
        assert why == "turns" and not self.is_read
        self.is_read = True


async def test_bytes_come_back_whole_and_in_order_whatever_the_slices() -> None:
    bench = Bench()
    dear = bench.client("dear", seconds_per_byte=MICROSECOND)
    sent = b"".join(number.to_bytes(4, "big") for number in range(40_000))
    for start in range(0, len(sent), 50_000):
        dear.receive(sent[start : start + 50_000])
    await bench.until_served()
    assert dear.data == sent and len(bench.served) > 10


async def test_a_light_client_is_served_as_its_bytes_are_read_however_much_others_have_waiting() -> None:
    bench = Bench()
    for number in range(50):
        bench.client(f"heavy {number}", seconds_per_byte=0.1 * MICROSECOND).receive(bytes(READ_BYTES))
    light = bench.client("light")
    for _ in range(20):
        await asyncio.sleep(0)
        light.receive(b"a message")
        assert bench.served[-1] == ("light", 9), "others were served before it"


async def test_messages_that_come_one_at_a_time_are_all_served_as_they_are_read() -> None:
    bench = Bench()
    light = bench.client("light", seconds_per_byte=10 * MICROSECOND)
    for number in range(20):
        light.receive(b"a message ")
        assert len(bench.served) == number + 1, "0.1 ms each, and the sockets are polled between them"
        await asyncio.sleep(0)


async def test_small_reads_take_turns_too_once_their_time_is_used_up() -> None:
    bench = Bench()
    crowd = [bench.client(f"small {number}", seconds_per_byte=0.1 * MICROSECOND) for number in range(20)]
    for client in crowd:
        client.receive(bytes(QUICK_BYTES))
    assert len(bench.served) == 2, "0.41 ms each, where 0.5 ms are for what is served at once"
    await bench.until_served()
    assert len(bench.served) == 20


@pytest.mark.parametrize(
    ("has_light", "turn_s"),
    [(True, TURN_S), (False, TURN_AMONG_HEAVY_S)],
    ids=["beside a light client", "among heavy ones"],
)
async def test_a_turn_ends_when_its_time_is_used_up(has_light: bool, turn_s: float) -> None:
    bench = Bench()
    slice_s = READ_BYTES * 0.001 * MICROSECOND
    if has_light:
        bench.client("light").receive(b"a message")
    for number in range(40):
        bench.client(f"heavy {number}", seconds_per_byte=0.001 * MICROSECOND).receive(bytes(READ_BYTES))
    held_s = []
    while bench.turns.waiting_bytes:
        began = bench.now_s
        await asyncio.sleep(0)
        held_s.append(bench.now_s - began)
    assert turn_s <= max(held_s) <= turn_s + slice_s + MICROSECOND


async def test_small_reads_of_a_heavy_client_wait_for_their_turn() -> None:
    bench = Bench()
    heavy = bench.client("heavy", 0.001 * MICROSECOND)
    heavy.receive(bytes(READ_BYTES))
    await bench.until_served()
    heavy.receive(b"an outcome")
    assert bench.served == [("heavy", READ_BYTES)]
    await bench.until_served()
    bench.now_s += HEAVY_S
    heavy.receive(b"the first thing in a while")
    assert len(bench.served) == 3, "it is a light one again"


async def test_who_has_had_the_least_time_comes_next() -> None:
    bench = Bench()
    greedy, modest = bench.client("greedy", MICROSECOND / 64), bench.client("modest", MICROSECOND / 64)
    for _ in range(4):
        greedy.receive(bytes(READ_BYTES))
    await asyncio.sleep(0)
    modest.receive(bytes(READ_BYTES))
    await bench.until_served()
    assert bench.order()[:3] == ["greedy", "modest", "greedy"]


async def test_who_has_little_waiting_does_not_wait_for_the_slices_of_all_who_came_before_with_much() -> None:
    bench = Bench()
    crowd = [bench.client(f"heavy {number}", seconds_per_byte=MICROSECOND / 64) for number in range(100)]
    for client in crowd:
        client.receive(bytes(READ_BYTES))
    bench.client("spends the time of quick reads", seconds_per_byte=MICROSECOND).receive(bytes(QUICK_BYTES))
    bench.served.clear()
    bench.client("modest").receive(b"an attach")
    assert not bench.served, "it waits for its turn"
    await bench.until_served()
    assert bench.served[0][0] == "modest"


async def test_those_with_little_waiting_are_not_served_for_ever_before_those_with_much() -> None:
    bench = Bench()
    heavy = bench.client("heavy", seconds_per_byte=MICROSECOND / 64)
    heavy.receive(bytes(READ_BYTES))
    small = [bench.client(f"small {number}", seconds_per_byte=MICROSECOND) for number in range(3)]
    for client in small:  # from now on, each reads on as soon as it was served, and takes half a slice's time
        client.inbox.heavy_until_s = 1e9
    for _ in range(20):
        for client in small:
            if not client.inbox.is_listed:
                client.receive(bytes(1000))
        await asyncio.sleep(0)
    before = [name for name, _ in bench.served].index("heavy")
    assert before <= 6, "each takes 1 ms at a time, and the heavy one stands 2 ms behind them"


async def test_who_was_away_has_no_claim_on_the_time_of_the_others() -> None:
    bench = Bench()
    away, busy = bench.client("away", MICROSECOND / 64), bench.client("busy", MICROSECOND / 64)
    for _ in range(20):
        busy.receive(bytes(READ_BYTES))
        await bench.until_served()
    bench.served.clear()
    for _ in range(4):
        away.receive(bytes(READ_BYTES))
        busy.receive(bytes(READ_BYTES))
    await bench.until_served()
    names = [name for name, _ in bench.served]
    assert "busy" in names[:3], names


async def test_dear_bytes_are_served_a_few_at_a_time_and_cheap_ones_many() -> None:
    bench = Bench()
    dear, cheap = bench.client("dear", 10 * MICROSECOND), bench.client("cheap", 0.001 * MICROSECOND)
    for _ in range(4):
        dear.receive(bytes(READ_BYTES))
    cheap.receive(bytes(READ_BYTES))
    await bench.until_served()
    assert bench.served[-1] == ("dear", SLICE_BYTES_MIN)
    assert ("cheap", READ_BYTES) in bench.served
    for _ in range(4):
        dear.seconds_per_byte = 0.001 * MICROSECOND
        dear.receive(bytes(READ_BYTES))
    await bench.until_served()
    assert max(size for name, size in bench.served[-6:]) == READ_BYTES, "slices grow again"


async def test_who_has_a_read_waiting_is_not_read_from_until_it_is_served() -> None:
    bench = Bench()
    client = bench.client("client", 0.1 * MICROSECOND)
    client.receive(bytes(READ_BYTES - 1))
    assert client.is_read
    client.receive(b"x")
    assert not client.is_read
    await bench.until_served()
    assert client.is_read and client.inbox.bytes == 0


async def test_what_waits_is_bounded_over_all_clients() -> None:
    bench = Bench()
    crowd = [bench.client(f"{number}") for number in range(WAITING_BYTES_MAX // (READ_BYTES // 2))]
    for client in crowd:
        client.receive(bytes(READ_BYTES // 2))
    assert bench.turns.read_bytes == READ_BYTES_MIN
    late = bench.client("late")
    late.receive(bytes(READ_BYTES_MIN + 1))
    assert not late.is_read, "one small read is all that it has room for"
    await bench.until_served()
    assert bench.turns.read_bytes == READ_BYTES and late.is_read


async def test_clients_with_expensive_bytes_do_not_exceed_the_bound_by_and_by() -> None:
    """Symptom: a few hundred clients had 56 MiB waiting, with a bound of 32 MiB."""
    bench = Bench(1 << 20)
    crowd = [bench.client(f"{number}", 10 * MICROSECOND) for number in range(32)]
    for client in crowd:
        client.receive(bytes((1 << 20) // len(crowd)))
    for _ in range(500):
        await asyncio.sleep(0)
        for client in crowd:
            if client.is_read:
                client.receive(bytes(bench.turns.read_bytes))
        assert bench.turns.waiting_bytes <= (1 << 20) + READ_BYTES + len(crowd) * READ_BYTES_MIN


async def test_who_may_not_be_served_is_held_back_and_keeps_its_bytes() -> None:
    bench = Bench()
    held, other = bench.client("held"), bench.client("other")
    held.may = False
    held.receive(bytes(READ_BYTES))
    held.receive(b"y")
    other.receive(bytes(READ_BYTES))
    for _ in range(5):
        await asyncio.sleep(0)
    assert bench.order() == ["other"] and not held.is_read and bench.turns.holds_some_back
    held.may = True
    bench.turns.look_again()
    await bench.until_served()
    assert held.data == bytes(READ_BYTES) + b"y" and held.is_read and not bench.turns.holds_some_back


async def test_what_a_client_has_not_finished_comes_before_its_next_bytes_and_other_clients_in_between() -> (
    None
):
    bench = Bench()
    slow, other = bench.client("slow", 0.1 * MICROSECOND), bench.client("other", 0.1 * MICROSECOND)
    slow.calls_more = 3
    slow.receive(bytes(READ_BYTES))
    slow.receive(b"next")
    other.receive(bytes(READ_BYTES))
    await bench.until_served()
    own = [size for name, size in bench.served if name == "slow"]
    assert own == [READ_BYTES, 0, 0, 4]
    assert bench.order()[:2] == ["slow", "other"]


async def test_the_end_comes_after_the_bytes() -> None:
    bench = Bench()
    client = bench.client("client")
    ends: list[int] = []
    bench.turns.then(client.inbox, lambda: ends.append(0))
    assert ends == [0], "nothing was waiting"
    client.receive(bytes(READ_BYTES))
    bench.turns.then(client.inbox, lambda: ends.append(len(client.data)))
    assert ends == [0]
    for _ in range(10):
        await asyncio.sleep(0)
    assert ends == [0, READ_BYTES]


async def test_cleared_bytes_are_not_served_and_the_end_still_comes() -> None:
    bench = Bench()
    client = bench.client("client")
    ends: list[int] = []
    client.receive(bytes(READ_BYTES))
    bench.turns.then(client.inbox, lambda: ends.append(1))
    bench.turns.clear(client.inbox)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not bench.served and ends == [1] and bench.turns.waiting_bytes == 0


async def test_a_client_can_tell_that_its_slice_has_lasted_long_enough() -> None:
    bench = Bench()
    told: list[bool] = []

    class Watching(ServedClient):
        def serve(self, data: bytes) -> bool:
            told.append(bench.turns.is_late())
            bench.now_s += turns.SLICE_S
            told.append(bench.turns.is_late())
            return False

    Watching(bench, "watching", 0).receive(bytes(READ_BYTES))
    await bench.until_served()
    assert told == [False, True]


async def test_slices_are_shorter_while_a_light_client_is_served() -> None:
    bench = Bench()
    light = bench.client("light")
    light.receive(b"a message")
    for number in range(8):
        bench.client(f"heavy {number}", seconds_per_byte=0.01 * MICROSECOND).receive(bytes(READ_BYTES))
    await bench.until_served()
    light.receive(b"a message")
    bench.served.clear()
    for client in [
        bench.client(f"heavy {number}", seconds_per_byte=0.01 * MICROSECOND) for number in range(2)
    ]:
        for _ in range(3):
            client.receive(bytes(READ_BYTES))
    await bench.until_served()
    took_s = [size * 0.01 * MICROSECOND for _, size in bench.served]
    assert max(took_s[4:]) <= turns.SLICE_BESIDE_LIGHT_S, (
        "each client's first slices find out how long its bytes take"
    )


async def test_slices_grow_again_once_no_light_client_is_left() -> None:
    bench = Bench()
    bench.client("light").receive(b"a message")
    heavy = bench.client("heavy", seconds_per_byte=0.01 * MICROSECOND)
    for _ in range(4):
        heavy.receive(bytes(READ_BYTES))
    await bench.until_served()
    assert heavy.inbox.slice_bytes < READ_BYTES
    bench.now_s += turns.LIGHT_S
    for _ in range(4):
        heavy.receive(bytes(READ_BYTES))
    await bench.until_served()
    assert heavy.inbox.slice_bytes == READ_BYTES


async def read_and_serve(bench: Bench, client: ServedClient, times: int) -> None:
    """Read as much as is asked for, and let it be served, several times."""
    for _ in range(times):
        client.receive(bytes(bench.turns.read_bytes_of(client.inbox)))
        await bench.until_served()


async def test_who_sends_cheap_bytes_is_read_more_from_at_a_time_until_they_are_dear() -> None:
    bench = Bench()
    client = bench.client("large messages", 0.000_3 * MICROSECOND)
    await read_and_serve(bench, client, 5)
    assert bench.served[-1] == ("large messages", READ_BYTES_MAX)
    client.receive(bytes(READ_BYTES_MAX - 1))
    assert client.is_read, "there is room for a whole read"
    client.receive(b"x")
    assert not client.is_read
    await bench.until_served()
    client.seconds_per_byte = 0.1 * MICROSECOND
    await read_and_serve(bench, client, 5)
    assert bench.turns.read_bytes_of(client.inbox) == READ_BYTES


async def test_bytes_that_take_a_while_are_not_read_more_of() -> None:
    bench = Bench()
    client = bench.client("messages of 1 KiB", 0.01 * MICROSECOND)
    await read_and_serve(bench, client, 5)
    assert {size for _, size in bench.served} == {READ_BYTES}


async def test_beside_a_light_client_reads_and_slices_are_no_larger() -> None:
    bench = Bench()
    client = bench.client("large messages", 0.000_3 * MICROSECOND)
    await read_and_serve(bench, client, 5)
    client.receive(bytes(READ_BYTES_MAX))
    bench.client("light").receive(b"a message")
    assert bench.turns.read_bytes_of(client.inbox) == READ_BYTES
    bench.served.clear()
    await bench.until_served()
    assert {size for _, size in bench.served} == {READ_BYTES}


async def test_a_large_read_takes_a_small_part_of_the_room_that_is_left() -> None:
    bench = Bench()
    client = bench.client("large messages", 0.000_3 * MICROSECOND)
    await read_and_serve(bench, client, 5)
    for number in range(7):
        bench.client(f"{number}").receive(bytes(WAITING_BYTES_MAX // 8))
    assert bench.turns.read_bytes_of(client.inbox) == WAITING_BYTES_MAX // 64
    bench.client("last").receive(bytes(WAITING_BYTES_MAX // 8))
    assert bench.turns.read_bytes_of(client.inbox) == READ_BYTES_MIN


@pytest.mark.parametrize("waits", [True, False])
async def test_turns_are_short_for_a_client_that_waits_for_an_outcome_and_not_for_one_that_does_not(
    waits: bool,
) -> None:
    bench = Bench()
    other = bench.client("other")
    other.is_waiting = waits
    heavy = bench.client("heavy", MICROSECOND)
    heavy.receive(bytes(READ_BYTES))
    for _ in range(5):
        other.receive(b"a settlement")
        assert bench.served[-1][0] == "other", "served at once in any case"
        await asyncio.sleep(0)
    assert bench.turns.has_light is waits


@pytest.mark.parametrize(("rest_s", "turn_s"), [(0.008, 0.001), (1.0, TURN_AMONG_HEAVY_S)])
async def test_beside_light_clients_a_turn_grows_with_the_rest_of_the_work(
    rest_s: float, turn_s: float
) -> None:
    bench = Bench()
    bench.client("light").receive(b"a message")
    heavy = [bench.client(f"heavy {number}", 0.05 * MICROSECOND) for number in range(50)]
    for client in heavy:
        client.receive(bytes(READ_BYTES))
    await asyncio.sleep(0)
    began = bench.now_s = bench.now_s + rest_s  # partitions commit, answers are written
    bench.client("light").receive(b"a message")
    bench.served.clear()
    await asyncio.sleep(0)
    slice_s = READ_BYTES * 0.05 * MICROSECOND
    assert turn_s <= bench.now_s - began <= turn_s + slice_s + MICROSECOND


async def test_one_slice_that_took_far_too_long_makes_the_next_one_much_smaller() -> None:
    bench = Bench()
    client = bench.client("grown", 0.000_3 * MICROSECOND)
    await read_and_serve(bench, client, 5)
    bench.served.clear()
    client.seconds_per_byte = 0.1 * MICROSECOND
    for _ in range(3):
        client.receive(bytes(READ_BYTES_MAX))
    await bench.until_served()
    assert [size for _, size in bench.served[:2]] == [READ_BYTES_MAX, READ_BYTES_MAX // SHRINKS_AT_ONCE]
    took_s = [size * client.seconds_per_byte for _, size in bench.served]
    assert max(took_s[2:]) <= turns.SLICE_S


async def test_who_has_always_been_served_at_once_waits_for_no_more_than_a_round_of_newcomers() -> None:
    """What a client was served at once while nobody waited is no debt."""
    bench = Bench()
    light = bench.client("light", seconds_per_byte=10 * MICROSECOND)
    for _ in range(100):
        light.receive(b"a message ")
        await asyncio.sleep(0)
    crowd = [bench.client(f"crowd {number}", seconds_per_byte=10 * MICROSECOND) for number in range(200)]
    for client in crowd:
        client.receive(b"a message ")
    light.receive(b"the last  ")
    began_s = bench.now_s
    while not light.data.endswith(b"the last  "):
        await asyncio.sleep(0)
        for client in crowd:  # each sends the next message as soon as the last one was served
            if not client.inbox.bytes:
                client.receive(b"a message ")
    round_s = len(crowd) * 10 * light.seconds_per_byte
    assert bench.now_s - began_s <= 4 * round_s, "besides the round, some are served at once in each turn"


async def test_who_is_served_at_once_again_and_again_lets_nobody_wait_longer() -> None:
    """Beside clients that always have much waiting, one that is served at once for as long as it likes."""
    bench = Bench()
    heavy = [bench.client(f"heavy {number}", seconds_per_byte=0.1 * MICROSECOND) for number in range(10)]
    quick = bench.client("quick", seconds_per_byte=10 * MICROSECOND)
    other = bench.client("other", seconds_per_byte=0.02 * MICROSECOND)
    message, sent_s = bytes(QUICK_BYTES + 1), 0.0
    waits_s: list[float] = []
    while bench.now_s < 6:
        for client in heavy:
            while client.is_read and client.inbox.bytes < READ_BYTES:
                client.receive(bytes(READ_BYTES // 2))
        if not quick.inbox.is_listed:
            quick.receive(b"a message ")
        if sent_s and len(other.data) == len(message) * (len(waits_s) + 1):
            waits_s.append(bench.now_s - sent_s)
            sent_s = 0.0
        elif not sent_s and bench.now_s >= len(waits_s) + 1:
            sent_s = bench.now_s
            other.receive(message)
        await asyncio.sleep(0)
    assert len(waits_s) >= 4 and max(waits_s) <= 0.05
