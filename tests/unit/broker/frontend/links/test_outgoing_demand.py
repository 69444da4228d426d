"""The credit of a client that receives becomes demand at partitions: real engine and connection, with
partitions that the tests answer for."""

from __future__ import annotations

import asyncio

import pytest

from broker.entities.descriptions import QueueSettings
from broker.frontend.slow_readers import LOOK_AGAIN_S
from broker.messaging import receiver as receiver_module
from broker.operations.general import Unavailable
from broker.operations.receiving import Demand, Unmet, Withdraw
from broker.operations.settling import Complete, Release, RenewLocks, Settled
from protocol.codec import UInt
from protocol.proton_values import lib as proton
from protocol.session_window import WAITING_MAX
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import sections
from tests.support.link_stack import Client, LinkStack, tags_of, turn, until
from tests.support.locked import locked
from tests.support.raw_amqp import Frame
from tests.support.receiving import LONG_MS, confirm, demands, give, receiving, waiting


async def test_without_credit_nothing_is_asked_for() -> None:
    stack, _ = await receiving(0)
    assert demands(stack) == {}


async def test_credit_becomes_a_share_of_demand_at_every_partition() -> None:
    stack, _ = await receiving(10)
    assert demands(stack) == {0: 3, 1: 3, 2: 3, 3: 3}


async def test_a_flow_that_says_what_is_known_already_asks_for_nothing_more() -> None:
    """pyamqp repeats its flows unchanged."""
    stack, client = await receiving(credit=8)
    for delivery_count, credit in (
        (0, 8),
        (2, 6),
        (0, 8),
    ):  # the last flow crossed the messages on the wire
        asked = waiting(stack)
        for _ in range(3):
            client.flow(0, delivery_count, credit)
            await turn()
        assert waiting(stack) == asked and sum(asked.values()) >= credit
        if not delivery_count:
            give(stack, 0, 2)
            assert len(tags_of(await client.hear())) == 2
    for number in range(1, 4):
        give(stack, number, 2)
    give(stack, 0, 4)
    assert len(tags_of(await client.hear())) == 8 - 2 - 2, "no more than the credit"


async def test_a_message_is_handed_over_as_soon_as_a_partition_gives_it() -> None:
    stack, client = await receiving(10)
    messages = give(stack, 2, 1)
    (transfer,) = await client.heard(raw.TRANSFER)
    assert transfer.field(2) == messages.tokens[0] and not transfer.field(4) and transfer.field(3) == 0
    found = sections(transfer.payload)
    assert (
        found[0x72]["x-opt-sequence-number"] == messages.sequence_numbers[0]
        and found[0x72]["x-opt-partition-id"] == 2
    )
    assert found[0x72]["x-opt-locked-until"] == stack.clock.now_ms() + LONG_MS and found[0x75] == b"hello"


async def test_what_comes_beyond_the_credit_waits_and_answers_the_next_credit_without_asking_again() -> None:
    stack, client = await receiving(1)
    first = give(stack, 0, 1)
    second = give(stack, 3, 1)
    assert tags_of(await client.hear()) == first.tokens
    demands(stack)
    client.flow(0, 1, 1)
    assert tags_of(await client.hear()) == second.tokens
    assert not any(part.has(RenewLocks) for part in stack.parts), "the lock is nearly new"


async def test_a_message_that_has_waited_gets_its_lock_renewed_when_it_is_handed_over() -> None:
    stack, client = await receiving(1)
    give(stack, 0, 1)
    second = give(stack, 3, 1)
    await client.hear()
    stack.clock.advance(LONG_MS // 2)
    client.flow(0, 1, 1)
    (transfer,) = await client.heard(raw.TRANSFER)
    assert stack.parts[3].take(RenewLocks)[0].tokens == second.tokens
    assert sections(transfer.payload)[0x72]["x-opt-locked-until"] == stack.clock.now_ms() + 60_000


async def test_a_message_whose_lock_ran_out_while_it_waited_is_never_delivered() -> None:
    stack, client = await receiving(1)
    give(stack, 0, 1)
    second = give(stack, 3, 1)
    await client.hear()
    stack.clock.advance(LONG_MS + 1)
    client.flow(0, 1, 1)
    assert tags_of(await client.hear()) == []
    assert stack.parts[3].take(Release)[0].tokens == second.tokens
    assert demands(stack), "and others are asked for instead"


async def test_what_nobody_comes_for_goes_back_before_its_lock_runs_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stack, client = await receiving(1, settings=QueueSettings(lock_duration_ms=100))
    give(stack, 0, 1)
    waiting = locked(3, 1, until_ms=stack.clock.monotonic_ms() + 50)
    stack.parts[3].answer(Demand, lambda demand: waiting)
    stack.clock.advance(30)
    await until(lambda: stack.parts[3].has(Release))
    assert stack.parts[3].take(Release)[0].tokens == waiting.tokens
    assert client.connection.cache.messages == 0


async def test_what_finds_no_room_in_the_cache_goes_back_at_once() -> None:
    stack, client = await receiving(1, receive_cache_messages=1)
    give(stack, 0, 1)
    second, third = give(stack, 1, 1), give(stack, 2, 1)
    assert client.connection.cache.messages == 1 and not stack.parts[1].has(Release) and second.tokens
    assert stack.parts[2].take(Release)[0].tokens == third.tokens


async def test_demand_is_taken_back_when_the_credit_has_been_used_up_for_a_while() -> None:
    stack, client = await receiving(1)
    give(stack, 0, 1)
    assert len(tags_of(await client.hear())) == 1
    assert not any(part.has(Withdraw) for part in stack.parts), (
        "one who receives in a loop asks again at once"
    )
    await until(lambda: all(stack.parts[number].has(Withdraw) for number in (1, 2, 3)))
    assert not stack.parts[0].has(Withdraw), "its demand was met"


async def test_demand_stays_when_the_client_asks_again_at_once() -> None:
    stack, client = await receiving(1)
    give(stack, 0, 1)
    await client.hear()
    client.flow(0, 1, 1)
    await asyncio.sleep(3 * receiver_module.WITHDRAW_AFTER_S)
    assert not any(part.has(Withdraw) for part in stack.parts)


async def test_a_partition_that_said_it_has_no_more_does_not_keep_the_others_from_being_asked() -> None:
    stack, client = await receiving(2, partitions=2)
    give(stack, 0, 1), give(stack, 1, 1)
    await client.hear()
    client.flow(0, 2, 1)
    await turn()
    (asked,) = [part for part in stack.parts if part.has(Demand)]
    operation, sink = asked.take(Demand)
    assert operation.tell_unmet
    sink(Unmet(asked.number, ""))
    other = stack.parts[1 - asked.number]
    assert other.has(Demand), "a message that arrives anywhere is found"


# --- drain --------------------------------------------------------------------------------------------------


async def test_a_drain_is_answered_only_when_every_partition_has_confirmed_that_nothing_is_on_its_way() -> (
    None
):
    stack, client = await receiving(0)
    client.flow(0, 0, 8, drain=True)
    await turn()
    assert demands(stack) == {0: 2, 1: 2, 2: 2, 3: 2} and all(part.has(Withdraw) for part in stack.parts)
    for part in stack.parts:
        assert await client.heard(raw.FLOW) == []
        confirm(part)
    (flow,) = await client.heard(raw.FLOW)
    assert (flow.field(5), flow.field(6), flow.field(8)) == (8, 0, True)


async def test_a_drain_takes_what_a_partition_has_beyond_its_share() -> None:
    stack, client = await receiving(0)
    client.flow(0, 0, 8, drain=True)
    await turn()
    first = give(stack, 2, 2)
    demands(stack)
    for part in stack.parts:
        confirm(part)
    assert tags_of(await client.hear()) == first.tokens
    assert waiting(stack) == {2: 6}, "the one that gave something is asked again, for all that is wanted"
    second = give(stack, 2, 3)
    confirm(stack.parts[2])
    heard = await client.hear()
    assert tags_of(heard) == second.tokens
    await finish_drain(stack)
    flows = [frame for frame in heard + await client.hear() if frame.code == raw.FLOW]
    assert [(flow.field(5), flow.field(6), flow.field(8)) for flow in flows] == [(8, 0, True)]


async def finish_drain(stack: LinkStack) -> None:
    """No partition has anything more."""
    while any(part.has(Withdraw) for part in stack.parts):
        demands(stack)
        for part in stack.parts:
            confirm(part)
        await turn()


async def test_a_drain_ends_although_a_partition_goes_down_before_it_confirms() -> None:
    stack, client = await receiving(4)
    client.flow(0, 0, 4, drain=True)
    await turn()
    _, sink = stack.parts[1].take(Demand)
    for part in stack.parts:
        if part.number != 1:
            confirm(part)
    assert await client.heard(raw.FLOW) == []
    stack.parts[1].posted.clear()
    sink(Unavailable(1))
    await until(lambda: client.stream.written)
    assert [(flow.field(6), flow.field(8)) for flow in await client.heard(raw.FLOW)] == [(0, True)]


async def test_a_drain_takes_back_what_was_asked_for_before_it() -> None:
    stack, client = await receiving(4)
    demands(stack)
    client.flow(0, 0, 4, drain=True)
    await turn()
    assert all(part.has(Withdraw) for part in stack.parts) and demands(stack) == {}
    await finish_drain(stack)
    assert len(await client.heard(raw.FLOW)) == 1


async def test_after_a_drain_the_next_credit_asks_again() -> None:
    stack, client = await receiving(0)
    client.flow(0, 0, 4, drain=True)
    await turn()
    await finish_drain(stack)
    await client.hear()
    client.flow(0, 4, 4)
    await turn()
    assert demands(stack) == {0: 1, 1: 1, 2: 1, 3: 1}


async def test_a_drain_that_is_taken_back_before_it_ends_leaves_the_demand_standing() -> None:
    stack, client = await receiving(0)
    client.flow(0, 0, 4, drain=True)
    await turn()
    client.flow(0, 0, 4)
    await turn()
    for part in stack.parts:
        confirm(part)
    await turn()
    assert demands(stack).keys() == {0, 1, 2, 3} and not any(part.has(Withdraw) for part in stack.parts)


async def test_a_partition_that_was_emptied_while_a_drain_was_taken_back_is_asked_again() -> None:
    stack, client = await receiving(0)
    client.flow(0, 0, 4, drain=True)
    await turn()
    demands(stack)
    client.flow(0, 0, 4)
    await turn()
    give(stack, 0, 1)
    demands(stack)
    for part in stack.parts:
        confirm(part)
    await turn()
    assert 0 in demands(stack)


async def test_a_drain_goes_on_after_the_write_when_the_room_for_output_is_used_up() -> None:
    stack = LinkStack(1, output_buffer_bytes_max=65_536)
    client = await stack.connect()
    await client.receiver(0)
    client.flow(0, 0, 2, drain=True)
    await turn()
    first = give(stack, 0, 1, body=b"x" * 100_000)
    confirm(stack.parts[0])
    heard = await client.hear()
    assert set(tags_of(heard)) - {None} == set(first.tokens) and raw.FLOW not in [
        frame.code for frame in heard
    ]
    second = give(stack, 0, 1)
    await finish_drain(stack)
    assert tags_of(await client.hear()) == second.tokens


async def test_a_drain_of_receive_and_delete_waits_for_removals() -> None:
    stack, client = await receiving(0, settled=True)
    client.flow(0, 0, 1, drain=True)
    await turn()
    give(stack, 0, 1)
    await finish_drain(stack)
    assert await client.hear() == []
    stack.parts[0].answer(Complete, lambda operation: Settled(operation.cookie))
    await finish_drain(stack)
    assert len(await client.heard(raw.TRANSFER)) == 1


# --- bounds -------------------------------------------------------------------------------------------------


async def test_no_more_are_delivered_than_may_be_unsettled_and_settling_lets_the_next_ones_out() -> None:
    stack, client = await receiving(100, partitions=1, unsettled_per_link_max=2)
    assert waiting(stack) == {0: 2}
    part = stack.parts[0]
    give(stack, 0, 2)
    assert len(tags_of(await client.hear())) == 2 and demands(stack) == {}
    client.dispose(0, 0, raw.outcome(raw.ACCEPTED))
    await until(lambda: part.has(Demand))
    assert demands(stack) == {0: 1}


async def test_settling_over_management_lets_the_next_ones_out_too() -> None:
    stack, client = await receiving(100, partitions=1, unsettled_per_link_max=1)
    messages = give(stack, 0, 1)
    await client.hear()
    demands(stack)
    (link,) = client.connection.engine.links()
    link.context.forget({messages.tokens[0]})
    assert demands(stack) == {0: 1}


async def test_a_link_that_found_no_room_for_output_is_served_after_the_write_whoever_used_it_up() -> None:
    stack = LinkStack(1, output_buffer_bytes_max=65_536)
    client = await stack.connect()
    await client.receiver(0, credit=10)
    await client.receiver(1, credit=10)
    part = stack.parts[0]
    (_, greedy), (_, modest) = part.take(Demand), part.take(Demand)
    greedy(locked(0, 1, body=b"x" * 100_000, until_ms=stack.clock.monotonic_ms() + LONG_MS))
    small = locked(0, 1, until_ms=stack.clock.monotonic_ms() + LONG_MS)
    modest(small)
    tags = tags_of(await client.hear())
    assert small.tokens[0] in tags


async def test_a_client_that_does_not_read_is_given_no_more_until_it_does() -> None:
    stack, client = await receiving(100, partitions=1)
    _, sink = stack.parts[0].take(Demand)
    client.connection.pause_writing()
    messages = locked(0, 3, until_ms=stack.clock.monotonic_ms() + LONG_MS)
    sink(messages)
    assert tags_of(await client.hear()) == []
    client.connection.resume_writing()
    assert tags_of(await client.hear()) == messages.tokens


async def test_a_drain_of_a_client_that_does_not_read_is_answered_after_its_messages() -> None:
    stack, client = await receiving(0, partitions=1)
    client.connection.pause_writing()
    client.flow(0, 0, 2, drain=True)
    assert await client.hear() == [] and demands(stack) == {}
    client.connection.resume_writing()
    await until(lambda: stack.parts[0].has(Demand))
    messages = give(stack, 0, 1)
    await finish_drain(stack)
    heard = await client.hear()
    assert tags_of(heard) == messages.tokens and [
        frame.field(6) for frame in heard if frame.code == raw.FLOW
    ] == [0]


async def test_a_client_that_keeps_its_session_window_shut_is_given_a_bounded_number_of_bytes() -> None:
    stack = LinkStack(1, output_buffer_bytes_max=65_536)
    client = await stack.connect(window=0)
    await client.receiver(0)
    shut = raw.flow_fields(0, 0, 5_000)
    shut[1] = UInt(0)
    client.say(raw.frame(raw.FLOW, shut))
    given = 0
    for _ in range(50):
        await turn()
        if stack.parts[0].has(Demand):
            demand, sink = stack.parts[0].take(Demand)
            sink(locked(0, demand.count, body=b"x" * 1_000, until_ms=stack.clock.monotonic_ms() + LONG_MS))
            given += demand.count
        client.say(raw.raw_frame(b""))
    (link,) = client.connection.engine.links()
    assert client.connection.engine.unsent_bytes(link) < 3 * 65_536 and given < 500
    client.say(raw.frame(raw.FLOW, raw.flow_fields()))
    assert tags_of(await client.hear()), "once the window opens it goes on"


async def shut(
    window: int, credit: int, *, messages_ahead: int = 0, **flow: bool
) -> tuple[LinkStack, Client]:
    """A client whose session takes so many messages, and its link more. `messages_ahead`: how many may be
    held ready."""
    stack = LinkStack(1, receive_cache_messages=messages_ahead)
    client = await stack.connect(window=window)
    await client.receiver(0)
    open_for(client, window, credit, 0, **flow)
    return stack, client


def open_for(client: Client, window: int, credit: int, received: int, *, drain: bool = False) -> None:
    """Have the client open its window, after it has received so many messages."""
    fields = raw.flow_fields(0, received, credit, drain=drain)
    fields[0], fields[1] = UInt(received), UInt(window)
    client.say(raw.frame(raw.FLOW, fields))


async def given_all(stack: LinkStack, client: Client) -> int:
    """Give what the link asks for, until it asks no more; gives how many messages that were."""
    given = 0
    for _ in range(2_000):
        await turn()
        if stack.parts[0].has(Demand):
            demand, sink = stack.parts[0].take(Demand)
            sink(locked(0, demand.count, until_ms=stack.clock.monotonic_ms() + LONG_MS))
            given += demand.count
        client.say(raw.raw_frame(b""))
    return given


@pytest.mark.parametrize("window", [0, 10])
async def test_few_messages_wait_for_the_window_of_a_session(window: int) -> None:
    """Symptom: 28,000 small messages waited, and each write of their connection held the loop for 100 ms."""
    stack, client = await shut(window, 5_000)
    given = await given_all(stack, client)
    assert window + WAITING_MAX // 2 < given <= window + WAITING_MAX
    assert len(tags_of(await client.hear())) == window
    open_for(client, 1_000, 5_000 - window, window)
    given += await given_all(stack, client)
    assert len(tags_of(await client.hear())) == 1_000
    assert window + 1_000 + WAITING_MAX // 2 < given <= window + 1_000 + WAITING_MAX


async def test_of_many_that_come_at_once_few_wait_for_the_window_and_the_others_are_held_ready() -> None:
    stack, client = await shut(10, 5_000, messages_ahead=2_000)
    given = await given_all(stack, client)
    (link,) = client.connection.engine.links()
    assert len(tags_of(await client.hear())) == 10
    assert proton.pn_link_queued(link.pn) <= WAITING_MAX < given


async def test_the_receivers_of_a_connection_share_what_may_wait_for_the_window() -> None:
    stack = LinkStack(1)
    client = await stack.connect(window=0)
    for handle in range(64):
        await client.receiver(handle)
    for link in client.connection.engine.links():
        assert client.connection.room_for(link.context) == WAITING_MAX // 64


@pytest.mark.parametrize("messages", [0, 1])
async def test_a_drain_with_a_shut_window_is_answered_behind_the_messages_there_are(messages: int) -> None:
    stack, client = await shut(0, 8, drain=True)
    _, sink = stack.parts[0].take(Demand)
    if messages:
        sink(locked(0, 1, until_ms=stack.clock.monotonic_ms() + LONG_MS))
    else:
        sink(Unmet(0, ""))
    confirm(stack.parts[0])
    await finish_drain(stack)
    answers = await client.heard(raw.FLOW)
    assert len(answers) == 1 - messages
    open_for(client, 100, 8, 0, drain=True)
    await finish_drain(stack)
    heard = await client.hear()
    assert len(tags_of(heard)) == messages
    answers += [frame for frame in heard if frame.code == raw.FLOW]
    assert [(flow.field(5), flow.field(6), flow.field(8)) for flow in answers] == [(8, 0, True)]


async def test_the_drains_of_links_that_share_a_window_are_answered_behind_their_messages() -> None:
    """Symptom: each link counted on the whole window. If the other's messages took it, proton forgot the
    answer, and the link had no credit any more."""
    stack = LinkStack(1, receive_cache_messages=0)
    client = await stack.connect(window=0)
    part, until_ms = stack.parts[0], stack.clock.monotonic_ms() + LONG_MS
    heard: list[Frame] = []

    def flow(handle: int, window: int, *, drain: bool = True) -> None:
        received = [each.field(0) for each in heard if each.code == raw.TRANSFER]
        own = received.count(handle)
        fields = raw.flow_fields(handle, own, 8 - own, received=len(received), drain=drain)
        fields[1] = UInt(window)
        client.say(raw.frame(raw.FLOW, fields))

    for handle in (0, 1):
        await client.receiver(handle)
        flow(handle, 0, drain=False)
        part.take(Demand)[1](locked(0, 2, until_ms=until_ms))
        part.take_all(Demand)
    flow(0, 0)
    for window in (2, 10):
        flow(1, window)
        for _ in range(3):
            part.take_all(Demand)
            confirm(part)
            await turn()
        heard += await client.hear()
    for handle in (0, 1):
        assert len([each for each in heard if each.code == raw.TRANSFER and each.field(0) == handle]) == 2
        answers = [each for each in heard if each.code == raw.FLOW and each.field(4) == handle]
        assert [(each.field(5), each.field(6)) for each in answers] == [(8, 0)]


async def test_a_drain_is_answered_behind_a_message_of_more_frames_than_the_window_takes() -> None:
    """Symptom: the window took the first frame of the message only, and proton forgot the answer."""
    stack, client = await shut(1, 8, drain=True)
    part = stack.parts[0]
    part.take(Demand)[1](locked(0, 1, body=bytes(100_000), until_ms=stack.clock.monotonic_ms() + LONG_MS))
    heard: list[Frame] = []
    for _ in range(2):
        confirm(part)
        part.take_all(Demand)
        heard += await client.hear()
    assert [each.code for each in heard] == [raw.TRANSFER]
    fields = raw.flow_fields(received=1)
    client.say(raw.frame(raw.FLOW, fields))
    for _ in range(3):
        heard += await client.hear()
        confirm(part)
        part.take_all(Demand)
    assert [each.code for each in heard] == [raw.TRANSFER, raw.TRANSFER, raw.FLOW]
    assert (heard[2].field(5), heard[2].field(6)) == (8, 0)


# --- above the memory mark ----------------------------------------------------------------------------------


def resident(stack: LinkStack, percent: int) -> None:
    """Set the broker's memory to a percentage of its mark, and have it look."""
    stack.resident = stack.memory.mark * percent // 100
    stack.memory.look()


async def held() -> tuple[LinkStack, Client]:
    """A client with credit that already has the most unsettled deliveries allowed far above the mark."""
    stack = LinkStack(1)
    resident(stack, 111)
    client = await stack.connect()
    await client.receiver(0, credit=250)
    assert await served(stack, client) == 100
    return stack, client


async def served(stack: LinkStack, client: Client) -> int:
    """The number of messages delivered when the partition has many and the link asks for them in portions."""
    await until(lambda: stack.parts[0].has(Demand))
    delivered = 0
    while stack.parts[0].has(Demand):
        stack.parts[0].answer(
            Demand, lambda demand: locked(0, demand.count, until_ms=stack.clock.monotonic_ms() + LONG_MS)
        )
        delivered += len(tags_of(await client.hear()))
    return delivered


async def test_a_little_above_the_memory_mark_deliveries_are_bounded_by_the_setting_alone() -> None:
    stack = LinkStack(1, receive_cache_messages=1_000)
    resident(stack, 109)
    assert stack.memory.limited
    client = await stack.connect()
    await client.receiver(0, credit=250)
    assert await served(stack, client) == 250


async def test_far_above_the_memory_mark_a_link_with_many_unsettled_deliveries_goes_on_when_it_settles() -> (
    None
):
    stack, client = await held()
    assert not stack.parts[0].has(Demand)
    client.dispose(0, 9, raw.outcome(raw.ACCEPTED))
    assert await served(stack, client) == 10


async def test_far_above_the_memory_mark_a_link_goes_on_when_another_protocol_settles_its_messages() -> None:
    stack, client = await held()
    (link,) = client.connection.engine.links()
    link.context.forget({next(iter(link.context._unsettled.values()))})
    assert await served(stack, client) == 1


@pytest.mark.parametrize("percent", [50, 104])
async def test_links_that_were_held_above_the_memory_mark_go_on_when_memory_has_recovered(
    percent: int,
) -> None:
    stack, client = await held()
    resident(stack, 106)
    await asyncio.sleep(2 * LOOK_AGAIN_S)
    assert not stack.parts[0].has(Demand), "not yet, and it goes on looking"
    resident(stack, percent)
    assert await served(stack, client) == 150


async def test_credit_that_is_granted_above_the_memory_mark_is_served_when_memory_has_recovered() -> None:
    stack, client = await held()
    client.flow(0, 100, 0)
    await turn()
    client.flow(0, 100, 7)
    await turn()
    assert not stack.parts[0].has(Demand)
    resident(stack, 50)
    assert await served(stack, client) == 7


async def test_a_drain_above_the_memory_mark_is_answered_and_the_next_credit_is_served_later() -> None:
    stack, client = await held()
    client.flow(0, 100, 150, drain=True)
    frames: list[raw.Frame] = []
    for _ in range(3):
        await turn()
        confirm(stack.parts[0])
        frames += await client.heard(raw.FLOW)
    assert [frame.field(6) for frame in frames if frame.field(4) is not None] == [0], "no credit is left"
    client.flow(0, 250, 5)
    await turn()
    assert not stack.parts[0].has(Demand)
    client.dispose(0, 99, raw.outcome(raw.ACCEPTED))
    assert await served(stack, client) == 5


async def test_far_above_the_memory_mark_each_receiver_has_its_hundred_and_a_smaller_setting_counts() -> None:
    stack = LinkStack(1, unsettled_per_link_max=20)
    resident(stack, 150)
    client = await stack.connect()
    for handle in range(2):
        await client.receiver(handle, credit=250)
        assert demands(stack) == {0: 20}
        assert not stack.parts[0].has(Demand)


async def test_receiving_and_deleting_is_not_bounded_above_the_memory_mark() -> None:
    stack = LinkStack(1)
    client = await stack.connect()
    await client.receiver(0, credit=250, settled=True)
    resident(stack, 111)
    give(stack, 0, 150)
    stack.parts[0].answer(Complete, lambda complete: Settled(complete.cookie, {}))
    assert len(tags_of(await client.hear())) == 150


async def test_what_waits_on_the_shelf_is_held_above_the_memory_mark_too_and_served_after() -> None:
    stack = LinkStack(1, receive_cache_messages=1_000)
    client = await stack.connect()
    await client.receiver(0, credit=250)
    assert waiting(stack)
    resident(stack, 111)
    give(stack, 0, 150)
    assert len(tags_of(await client.hear())) == 100 and client.connection.cache.messages == 50
    client.dispose(0, 9, raw.outcome(raw.ACCEPTED))
    await until(lambda: client.connection.cache.messages == 40)
    resident(stack, 50)
    await until(lambda: client.connection.cache.messages == 0)
    assert len(tags_of(await client.hear())) == 50
