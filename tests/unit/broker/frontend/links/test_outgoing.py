"""A link on which a client receives, from attach to detach: real engine and connection, with partitions that
the tests answer for."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from broker.base.errors import Reason, Refused
from broker.identifiers import LockToken
from broker.messaging import receiver as receiver_module
from broker.operations.general import Detach, Unavailable
from broker.operations.receiving import Demand, Recall, Recalled, Unmet, Withdraw, Withdrawn
from broker.operations.settling import Complete, Release, RenewLocks, Settled
from protocol.codec import Described, Symbol, UInt, ULong
from tests.support import raw_amqp as raw
from tests.support.link_stack import Client, LinkStack, Part, tags_of, until
from tests.support.locked import locked
from tests.support.receiving import LONG_MS, ends_when_receiving_is_disabled, give, receiving


async def refused(client: Client, fields: list[Any]) -> tuple[str, str]:
    attach, detach = await client.attach(fields)
    assert attach.field(5) is None and attach.field(6) is None and detach.code == raw.DETACH
    condition, description, _ = detach.field(2).value
    return str(condition), description


async def test_a_link_to_what_does_not_exist_is_refused_in_the_words_that_clients_know() -> None:
    client = await LinkStack().connect()
    condition, description = await refused(client, raw.receiver_attach(0, "nothing"))
    assert (
        condition == "amqp:not-found"
        and "The messaging entity" in description
        and "could not be found" in description
    )


async def test_a_link_to_a_queue_that_gives_nothing_out_is_refused_and_one_that_is_attached_is_closed() -> (
    None
):
    stack, client = await receiving(4)
    await ends_when_receiving_is_disabled(stack, client)
    assert (await refused(client, raw.receiver_attach(1, "queue")))[0] == "com.microsoft:entity-disabled"


async def test_a_link_is_closed_when_its_queue_is_deleted() -> None:
    stack, client = await receiving(4)
    await stack.queue.end(
        Refused(Reason.ENTITY_NOT_FOUND, "The messaging entity 'queue' could not be found.")
    )
    (detach,) = await client.heard(raw.DETACH)
    assert detach.field(1) is True and detach.field(2).value[0] == "amqp:not-found"
    client.detach(0)
    assert await client.hear() == [] and not stack.queue.watchers


async def test_a_session_filter_is_refused_where_there_are_no_sessions() -> None:
    client = await LinkStack().connect()
    fields = raw.receiver_attach(0, "queue")
    filters = {Symbol("com.microsoft:session-filter"): "cart"}
    fields[5] = Described(ULong(raw.SOURCE), ["queue", None, None, None, None, None, None, filters])
    assert (await refused(client, fields))[0] == "amqp:not-allowed"


async def test_what_goes_wrong_in_an_answer_ends_the_connection_and_reaches_no_partition() -> None:
    stack, client = await receiving(4)
    _, sink = stack.parts[0].take(Demand)
    broken = locked(0, 1)
    sink(replace(broken, messages=[b""]))
    assert client.stream.aborted


async def test_the_dead_letter_subqueue_is_received_from_under_its_path() -> None:
    stack = LinkStack()
    client = await stack.connect()
    await client.receiver(0, credit=4, address="queue/$DeadLetterQueue")
    assert {part.take(Demand)[0].subqueue for part in stack.parts} == {"$deadletterqueue"}


# --- recall and return --------------------------------------------------------------------------------------


async def test_large_messages_of_one_turn_go_to_the_socket_in_one_call() -> None:
    stack, client = await receiving(4)
    calls: list[int] = []
    client.stream.writelines = lambda list_of_data: calls.append(len(list_of_data))  # type: ignore[method-assign]
    give(stack, 0, 4, body=bytes(20_000))
    await client.hear()
    assert calls == [8], "a front and a body for each, without a copy"


async def test_a_recall_gives_back_what_nobody_has_seen_of_that_partition() -> None:
    stack, client = await receiving(1)
    seen = give(stack, 0, 1)
    sink = any_sink(stack)
    unseen, other = give(stack, 1, 1), give(stack, 2, 1)
    sink(Recall(1, ""))
    sink(Recall(0, ""))
    assert list(stack.parts[1].take(Recalled)[0].tokens) == unseen.tokens
    assert list(stack.parts[0].take(Recalled)[0].tokens) == [], "answered also when there is nothing"
    assert tags_of(await client.hear()) == seen.tokens
    client.flow(0, 1, 1)
    assert tags_of(await client.hear()) == other.tokens


def any_sink(stack: LinkStack) -> Any:
    """The sink that takes the answers for the only link."""
    return next(entry[2] for part in stack.parts for entry in part.posted)


@pytest.mark.parametrize("end", ["detach", "end", "close", "connection lost"])
async def test_unseen_messages_go_back_at_once_when_the_link_ends_and_seen_ones_do_not(end: str) -> None:
    stack, client = await receiving(1)
    give(stack, 0, 1)
    unseen = give(stack, 2, 1)
    await client.hear()
    match end:
        case "detach":
            client.detach(0)
        case "end":
            client.say(raw.frame(raw.END, []))
        case "close":
            client.say(raw.frame(raw.CLOSE, []))
        case _:
            client.connection.connection_lost()
    given_back = {part.number: list(part.take(Detach)[0].unseen) for part in stack.parts}
    assert given_back == {0: [], 1: [], 2: unseen.tokens, 3: []}
    assert client.connection.cache.messages == 0 and not stack.queue.watchers
    client.connection.connection_lost()
    assert not any(part.has(Detach) for part in stack.parts), "it ends once"


async def with_window(window: int, *, settled: bool = False, **given: Any) -> tuple[LinkStack, Client]:
    """A client whose session takes so many transfers, and its link more messages."""
    stack = LinkStack(1, **given)
    client = await stack.connect(window=window)
    await client.receiver(0, settled=settled)
    fields = raw.flow_fields(0, 0, 100)
    fields[1] = UInt(window)
    client.say(raw.frame(raw.FLOW, fields))
    return stack, client


def leave(client: Client, end: str, *before: bytes) -> None:
    """Have the client go, after it has said something else in the same piece."""
    match end:
        case "detach":
            client.say(*before, raw.frame(raw.DETACH, raw.detach_fields(0)))
        case "end":
            client.say(*before, raw.frame(raw.END, []))
        case "detach and end":
            client.say(*before, raw.frame(raw.DETACH, raw.detach_fields(0)), raw.frame(raw.END, []))
        case "close":
            client.say(*before, raw.frame(raw.CLOSE, []))
        case _:
            client.connection.connection_lost()


ENDS = ["detach", "end", "detach and end", "close", "connection lost"]


@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.parametrize("end", ENDS)
async def test_what_the_window_holds_back_goes_back_when_the_client_goes(end: str, window: int) -> None:
    """Symptom: it stayed locked, and its delivery counted: after MaxDeliveryCount such attaches, messages
    were dead-lettered that no client had seen."""
    stack, client = await with_window(window)
    messages = give(stack, 0, 20)
    assert len(tags_of(await client.hear())) == window
    leave(client, end)
    detach, _ = stack.parts[0].take(Detach)
    assert sorted(detach.unseen) == messages.tokens[window:]
    assert stack.services.memory.unsettled == 0
    assert tags_of(await client.hear()) == []


@pytest.mark.parametrize("end", ["detach", "end", "detach and end", "close"])
async def test_what_goes_back_is_not_sent_any_more(end: str) -> None:
    """The client opens its window, and goes."""
    stack, client = await with_window(0)
    messages = give(stack, 0, 20, body=bytes(20_000))
    await client.hear()
    leave(client, end, raw.frame(raw.FLOW, raw.flow_fields()))
    detach, _ = stack.parts[0].take(Detach)
    assert sorted(detach.unseen) == messages.tokens
    assert tags_of(await client.hear()) == []


@pytest.mark.parametrize("end", ENDS)
async def test_a_message_of_which_a_part_was_sent_counts_as_delivered(end: str) -> None:
    stack, client = await with_window(1)
    messages = give(stack, 0, 2, body=bytes(200_000))
    assert len(await client.heard(raw.TRANSFER)) == 1
    leave(client, end)
    assert list(stack.parts[0].take(Detach)[0].unseen) == messages.tokens[1:]


async def test_what_was_delivered_in_the_turn_in_which_the_client_goes_goes_back() -> None:
    stack, client = await with_window(100)
    messages = give(stack, 0, 3)
    client.detach(0)
    assert sorted(stack.parts[0].take(Detach)[0].unseen) == messages.tokens
    assert tags_of(await client.hear()) == []


async def test_a_client_with_a_shut_window_hears_at_once_that_its_link_is_closed() -> None:
    """Symptom: it heard when it had opened its window for all that waited."""
    stack, client = await with_window(0)
    messages = give(stack, 0, 20)
    await client.hear()
    await ends_when_receiving_is_disabled(stack, client)
    assert sorted(stack.parts[0].take(Detach)[0].unseen) == messages.tokens


async def test_what_was_removed_for_a_client_does_not_come_back() -> None:
    """Receive-and-delete: each message goes out at most once."""
    stack, client = await with_window(0, settled=True)
    give(stack, 0, 20)
    stack.parts[0].answer(Complete, lambda complete: Settled(complete.cookie))
    await client.hear()
    client.detach(0)
    assert list(stack.parts[0].take(Detach)[0].unseen) == []


async def test_what_was_settled_by_a_request_before_it_was_sent_does_not_come_back() -> None:
    stack, client = await with_window(0)
    messages = give(stack, 0, 3)
    await client.hear()
    (link,) = client.connection.engine.links()
    link.context.forget({messages.tokens[1]})
    client.detach(0)
    assert sorted(stack.parts[0].take(Detach)[0].unseen) == [messages.tokens[0], messages.tokens[2]]


@pytest.mark.parametrize("end", ["detach", "close the connection"])
async def test_a_delivery_counts_as_unsettled_until_it_is_settled_or_its_link_ends(end: str) -> None:
    stack, client = await receiving(4)
    memory = stack.services.memory
    give(stack, 0, 3)
    assert memory.unsettled == len(await client.heard(raw.TRANSFER)) == 3
    client.dispose(0, 0, raw.outcome(raw.ACCEPTED))
    await client.hear()
    assert memory.unsettled == 2
    client.dispose(0, 1, raw.outcome(raw.ACCEPTED), settled=True)  # one of them for the second time
    await client.hear()
    assert memory.unsettled == 1
    if end == "detach":
        client.detach(0)
        await client.hear()
    else:
        client.connection.connection_lost()
    assert memory.unsettled == 0


async def test_messages_that_come_after_the_link_has_ended_go_back() -> None:
    stack, client = await receiving(4)
    sinks = [part.take(Demand)[1] for part in stack.parts]
    client.detach(0)
    late = locked(1, 2)
    sinks[1](late)
    assert list(stack.parts[1].take(Release)[0].tokens) == late.tokens
    sinks[2](Recall(2, ""))
    assert list(stack.parts[2].take(Recalled)[0].tokens) == []
    sinks[3](Withdrawn(3, ""))
    sinks[3](Unavailable(3))


# --- partitions that go down --------------------------------------------------------------------------------


async def test_a_partition_that_went_down_is_asked_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiver_module, "RETRY_UNAVAILABLE_S", 0.01)
    stack, _ = await receiving(4)
    _, sink = stack.parts[1].take(Demand)
    sink(Unavailable(1))
    assert not stack.parts[1].has(Demand)
    await until(lambda: stack.parts[1].has(Demand))


async def test_a_partition_that_is_down_for_good_is_asked_no_more_and_the_others_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiver_module, "RETRY_UNAVAILABLE_S", 0.01)
    stack, client = await receiving(4)
    _, gone = stack.parts[1].take(Demand)
    _, back = stack.parts[2].take(Demand)
    gone(Unavailable(1, for_good=True))
    back(Unavailable(2))
    await until(lambda: stack.parts[2].has(Demand))
    for part in (0, 2, 3):
        give(stack, part, 1)
    assert len(tags_of(await client.hear())) == 3
    client.flow(3, 1, 100, drain=True)
    await client.hear()
    assert not stack.parts[1].has(Demand) and not stack.parts[1].has(Withdraw)


async def test_what_a_partition_gave_before_it_went_down_is_not_delivered_from_the_cache() -> None:
    stack, client = await receiving(1)
    give(stack, 0, 1)
    sink = any_sink(stack)
    give(stack, 1, 1)
    await client.hear()
    sink(Unavailable(1))
    client.flow(0, 1, 1)
    assert tags_of(await client.hear()) == [] and client.connection.cache.messages == 0


# --- all together -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
async def test_every_message_reaches_a_client_that_keeps_asking_whatever_the_order_of_answers(
    seed: int,
) -> None:
    """Partitions hold messages at random and answer at random; the client has little credit, settles, and
    drains at times."""
    random = Random(seed)
    stack = LinkStack(random.choice((1, 2, 5)), receive_cache_messages=random.choice((0, 3, 100)))
    client = await stack.connect()
    await client.receiver(0)
    held: list[list[LockToken]] = [[] for _ in stack.parts]
    wanted = [0] * len(stack.parts)
    sinks: list[Any] = [None] * len(stack.parts)
    seen: list[LockToken] = []
    sent = 0

    def serve(part: Part) -> None:
        number = part.number
        operation, _, sink = part.posted.popleft()
        sinks[number] = sink
        match operation:
            case Demand():
                wanted[number] += operation.count
                hand_out(number)
                if operation.tell_unmet and wanted[number]:
                    sink(Unmet(number, ""))
            case Withdraw():
                wanted[number] = 0
                sink(Withdrawn(number, ""))
            case Release() | Recalled():
                held[number][:0] = operation.tokens
                hand_out(number)
            case Complete():
                sink(Settled(operation.cookie))
            case _:
                assert isinstance(operation, RenewLocks)

    def hand_out(number: int) -> None:
        count = min(wanted[number], len(held[number]))
        if count:
            wanted[number] -= count
            tokens, held[number][:] = held[number][:count], held[number][count:]
            messages = locked(number, count, until_ms=stack.clock.monotonic_ms() + LONG_MS)
            sinks[number](replace(messages, tokens=tokens))

    credit_until = 0
    for _ in range(3000):
        if sent < 60 and random.random() < 0.1:
            sent += 1
            number = random.randrange(len(stack.parts))
            held[number].append(bytes([0, number]) + sent.to_bytes(14, "big"))
            if sinks[number]:
                hand_out(number)
        busy = [part for part in stack.parts if part.posted]
        if busy:
            serve(random.choice(busy))
        if random.random() < 0.2:
            for frame in await client.hear():
                if frame.code == raw.TRANSFER:
                    seen.append(frame.field(2))
                    client.dispose(frame.field(1), frame.field(1), raw.outcome(raw.ACCEPTED))
                elif frame.code == raw.FLOW and frame.field(8):
                    credit_until = frame.field(5)
        if len(seen) >= credit_until and not busy:
            credit = random.choice((1, 2, 10))
            credit_until = len(seen) + credit
            client.flow(0, len(seen), credit)
        if len(seen) == 60:
            break
    assert sorted(token[2:] for token in seen) == [number.to_bytes(14, "big") for number in range(1, 61)], (
        f"seed {seed}"
    )
