"""The bound on output for slow readers over all connections: on its own, and with connections that do not
read."""

from __future__ import annotations

import pytest

from broker.frontend import slow_readers
from broker.frontend.nodes import request_node
from broker.frontend.slow_readers import ALLOWANCE_BYTES_FIRST, SHARE_BYTES_MIN, Allowance, OutputTotal
from broker.operations.receiving import Demand, Locked
from broker.operations.settling import Release
from protocol.codec import UInt
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import PROPERTIES
from tests.support.link_stack import Client, LinkStack, tags_of, turn, until
from tests.support.locked import locked
from tests.unit.broker.frontend.test_connection import put_token, responders, responses

KIB, MIB = 1024, 1024 * 1024


class Reader:
    """A connection whose pending output is known."""

    def __init__(self, waiting: int = 0) -> None:
        self.waiting, self.counted, self.flushed = waiting, 0, 0

    def waiting_bytes(self) -> int:
        self.counted += 1
        return self.waiting

    def unread_bytes(self) -> int:
        return self.waiting

    def flush_soon(self) -> None:
        self.flushed += 1


# --- on its own ---------------------------------------------------------------------------------------------


async def test_what_waits_is_counted_only_when_as_much_as_the_bound_was_given() -> None:
    reader = Reader()
    total = OutputTotal(16 * MIB, 4 * MIB, [reader])
    for _ in range(16 * 10):
        total.add(reader, MIB)
    assert 10 <= reader.counted <= 20 and not total.is_over and total.allowance == 4 * MIB


async def test_over_the_bound_a_connection_has_room_for_its_share_and_the_others_are_not_held() -> None:
    slow, prompt = [Reader(2 * MIB) for _ in range(4)], Reader()
    total = OutputTotal(16 * MIB, 4 * MIB, [*slow, prompt])
    assert not total.holds(slow[0])
    for reader in slow:
        total.add(reader, 2 * MIB + 1)
    assert total.is_over and total.allowance == 6 * MIB // 5 and not total.holds(prompt)
    assert sum(reader.waiting for reader in slow) <= 16 * MIB


async def test_the_share_is_never_so_small_that_a_connection_could_not_go_on() -> None:
    slow = Reader(MIB)
    total = OutputTotal(MIB, 4 * MIB, [slow, *(Reader() for _ in range(1_000))])
    total.add(slow, 2 * MIB)
    assert total.is_over and total.allowance == SHARE_BYTES_MIN


async def test_who_is_held_is_asked_again_and_goes_on_when_the_others_have_read_or_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slow_readers, "LOOK_AGAIN_S", 0.001)
    connections = [Reader(400 * KIB), Reader(400 * KIB)]
    total = OutputTotal(MIB, MIB, connections)
    for connection in connections:
        total.add(connection, MIB)
    assert total.holds(connections[0]) and total.holds(connections[1])
    await until(lambda: connections[0].flushed)
    assert total.holds(connections[0]), "nothing has changed"
    gone = connections.pop()
    total.forget(gone)
    flushed = gone.flushed
    await until(lambda: not total.is_over)
    assert not total.holds(connections[0]) and gone.flushed == flushed and total.allowance == MIB


async def test_a_connection_has_more_room_when_its_client_has_taken_twice_what_it_had() -> None:
    allowance = Allowance(4 * MIB)
    assert allowance.bytes == ALLOWANCE_BYTES_FIRST and not allowance.grows(2 * ALLOWANCE_BYTES_FIRST - 1)
    assert allowance.grows(2 * ALLOWANCE_BYTES_FIRST) and allowance.bytes == 2 * ALLOWANCE_BYTES_FIRST
    assert not allowance.grows(4 * ALLOWANCE_BYTES_FIRST - 1) and allowance.grows(4 * ALLOWANCE_BYTES_FIRST)
    taken = 4 * ALLOWANCE_BYTES_FIRST
    while allowance.bytes < 4 * MIB:
        taken += 100 * KIB
        allowance.grows(taken)
    assert taken < 8 * MIB and not allowance.grows(100 * MIB)


async def test_only_connections_in_which_something_may_wait_are_counted() -> None:
    idle, prompt = Reader(), Reader()
    total = OutputTotal(MIB, MIB, [idle, prompt])
    for _ in range(100):
        total.add(prompt, MIB)
    assert prompt.counted and not idle.counted


# --- connections --------------------------------------------------------------------------------------------


async def receivers(stack: LinkStack, count: int, *, window: int = 100_000) -> list[Client]:
    clients = []
    for _ in range(count):
        client = await stack.connect(window=window)
        await client.attach(raw.receiver_attach(0, "queue"))
        flow = raw.flow_fields(0, 0, 1_000)
        flow[1] = UInt(window)
        client.say(raw.frame(raw.FLOW, flow))
        clients.append(client)
    await turn()
    for client in clients:
        client.stream.written.clear()
    return clients


def give(stack: LinkStack, size: int) -> int:
    """Meet every standing demand with one message; returns the number of demands."""
    part, until_ms = stack.parts[0], stack.clock.monotonic_ms() + 60_000
    asked = [part.take(Demand) for operation, _, _ in list(part.posted) if isinstance(operation, Demand)]
    for _, sink in asked:
        messages: Locked = locked(0, 1, body=bytes(size), until_ms=until_ms)
        sink(messages)
    return len(asked)


def waiting(clients: list[Client]) -> int:
    return sum(client.connection.waiting_bytes() for client in clients)


@pytest.mark.parametrize("window", [100_000, 0], ids=["does not read", "keeps its session window shut"])
async def test_many_that_do_not_read_are_given_a_bounded_number_of_bytes_and_one_who_reads_is_served(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_readers, "LOOK_AGAIN_S", 0.001)
    size = 20_000
    stack = LinkStack(1, total_output_bytes_max=MIB, receive_cache_messages=2)
    silent = await receivers(stack, 8, window=window)
    for _ in range(200):
        give(stack, size)
        await turn()
    held = waiting(silent)
    assert MIB // 2 < held <= MIB + 2 * 8 * size, "of 4 MiB for each"
    (reader,) = await receivers(stack, 1)
    read = 0
    for _ in range(50):
        give(stack, size)
        read += len(tags_of(await reader.hear()))
    assert read >= 40 and waiting(silent) <= held + 8 * size
    for client in [reader, *silent[1:]]:
        client.connection.connection_lost()
    wanted = waiting(silent[:1]) + 4 * size
    await until(
        lambda: give(stack, size) >= 0 and waiting(silent[:1]) > wanted
    )  # its room is as large as before


async def test_over_the_bound_responses_that_nobody_fetches_close_their_link_earlier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_node, "RESPONSES_WAITING_BYTES_MAX", 10 * MIB)
    stack = LinkStack(1)
    client = await stack.connect()
    await responders(client)
    client.flow(1, 0, 0)
    await client.hear()
    stack.services.output.allowance, stack.services.output.is_over = 2_000, True
    detaches = []
    for number in range(50):
        client.transfer(0, number, put_token("junk"))
        detaches += await client.heard(raw.DETACH)
    assert [str(frame.field(2).value[0]) for frame in detaches] == ["amqp:resource-limit-exceeded"]
    assert client.connection.response_bytes == 0


async def test_over_the_bound_a_response_that_is_larger_than_a_share_does_not_hold_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slow_readers, "LOOK_AGAIN_S", 60)
    stack = LinkStack(1)
    client = await stack.connect()
    await responders(client)
    stack.services.output.allowance, stack.services.output.is_over = 500, True
    client.stream.written.clear()
    client.transfer(0, 0, put_token("junk", message_id="x" * 1_000))
    ((_, found),) = await responses(client)
    assert found[PROPERTIES][5] == "x" * 1_000


async def test_over_the_bound_a_run_that_was_asked_for_before_goes_out_in_part_and_the_rest_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slow_readers, "LOOK_AGAIN_S", 60)
    stack = LinkStack(1)
    (client,) = await receivers(stack, 1)
    stack.services.output.allowance, stack.services.output.is_over = 8_192, True
    until_ms = stack.clock.monotonic_ms() + 60_000
    stack.parts[0].answer(Demand, lambda demand: locked(0, 50, body=bytes(2_000), until_ms=until_ms))
    first = len(tags_of(await client.hear()))
    assert 1 <= first <= 10
    returned = len(stack.parts[0].take(Release)[0].tokens)
    stack.services.output._look_again()
    kept = len(tags_of(await client.hear()))
    assert 1 <= kept <= 10 and first + kept + returned == 50
