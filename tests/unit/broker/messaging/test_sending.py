"""Sending without a link: the outcomes of messages come back with the caller's own receipts."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import cast

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import QueueSettings
from broker.messaging.sending import JOINED_MESSAGES_MAX, Sending
from broker.namespace.queue import Queue
from broker.namespace.size_quota import SizeQuota
from broker.operations.general import Failed
from broker.operations.sending import Send, Sent
from broker.partition import publishing
from tests.support.amqp_messages import DATA, message, section
from tests.support.forwarding_world import message_of, world
from tests.support.link_stack import LinkStack
from tests.support.topics import copying
from tests.support.waiting import until


class Caller:
    """Sends to a queue by something other than AMQP; its receipts are numbers."""

    def __init__(self, stack: LinkStack) -> None:
        self.heard: list[tuple[list[int], Reason | None]] = []
        self.messages = self.bytes = 0
        services = stack.services
        self.sending: Sending[int] = Sending(
            stack.queue,
            self,
            stored=lambda receipts, count: self.hear(receipts, None),
            refused=lambda receipts, why, count: self.hear(receipts, why.reason),
            memory=services.memory,
            message_id=services.message_id,
        )

    def hear(self, receipts: Sequence[int], reason: Reason | None) -> None:
        self.heard.append((list(receipts), reason))

    def took(self, size: int, messages: int) -> None:
        self.messages, self.bytes = self.messages + messages, self.bytes + size

    def finished_with(self, size: int, messages: int) -> None:
        self.took(-size, -messages)

    def fail(self) -> None:
        raise AssertionError("nothing unforeseen happens here")


async def test_receipts_come_back_with_the_outcome_of_their_own_messages() -> None:
    stack = LinkStack(2)
    caller = Caller(stack)
    caller.sending.send([message(body=[b"a"]), b"no message", message(body=[b"b"])], [1, 2, 3])
    assert caller.heard == [([2], Reason.DECODE)] and caller.messages == 2
    for part in stack.parts:
        part.answer(Send, lambda send: Sent(1, send.cookie))
    assert sorted(caller.heard[1:]) == [([1], None), ([3], None)]
    assert caller.messages == caller.bytes == 0
    assert stack.queue.meter.incoming_messages == 2


async def test_messages_that_come_at_the_same_time_lose_no_copies_because_of_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("COMMIT_BYTES_MAX", "SHARED_BYTES_MAX", "COPIES_OF_SEND_BYTES_MAX"):
        monkeypatch.setattr(publishing, name, 50_000)
    async with world() as here:
        await here.crash()
        here.descriptions["t"] = copying("t", "a", "b")
        here.start()
        stack = LinkStack(1)
        stack.queue = cast(Queue, here.entities["t"])
        caller = Caller(stack)
        texts = [f"{number}".ljust(10_000, "x") for number in range(8)]
        caller.sending.send([message_of(text) for text in texts], list(range(8)))
        await until(lambda: len(caller.heard) == 8)
        assert caller.heard == [([number], None) for number in range(8)] and caller.messages == 0
        # Symptom: all of them were refused as too large; of fewer, one subscription missed some.
        for name in ("a", "b"):
            assert await here.texts("t", f"subscriptions/{name}") == texts


async def test_what_one_partition_cannot_take_another_one_does() -> None:
    stack = LinkStack(2)
    caller = Caller(stack)
    caller.sending.send([message(body=[b"a"])], [1])
    first = stack.part_of(Send)
    first.answer(Send, lambda send: Failed(Reason.PARTITION_UNAVAILABLE, "down", send.cookie))
    second = stack.part_of(Send)
    assert caller.heard == [] and second is not first
    second.answer(Send, lambda send: Sent(1, send.cookie))
    assert caller.heard == [([1], None)] and caller.messages == 0


async def test_a_batch_that_is_no_batch_is_refused_before_anything_is_posted() -> None:
    stack = LinkStack(2)
    caller = Caller(stack)
    with pytest.raises(Refused):
        list(caller.sending.send_batch(b"no batch", [1]))
    assert not any(part.has(Send) for part in stack.parts) and caller.heard == []


async def test_refusals_keep_nothing_of_what_was_sent_until_the_garbage_collector_comes() -> None:
    caller = Caller(LinkStack(2))
    malformed = section(DATA, b"x")[:-1]
    gc.collect()
    gc.disable()
    try:
        caller.sending.send([malformed, message()], [1, 2])
        for batch in (message(body=[message(), malformed]), message(body=[malformed])):
            try:
                list(caller.sending.send_batch(batch, [3]))
            except Refused as why:
                assert why.reason is Reason.DECODE
        assert gc.collect() == 0
    finally:
        gc.enable()
    assert caller.heard == [([1], Reason.DECODE)]


@pytest.mark.parametrize("hinted", [None, "pk"])
@pytest.mark.parametrize("detects_duplicates", [False, True])
async def test_a_batch_has_the_same_key_in_a_transaction_as_outside(
    hinted: str | None, detects_duplicates: bool
) -> None:
    """AMQP contract 4.5: the envelope's key counts, then the message-id of each message."""
    stack = LinkStack(16, QueueSettings(requires_duplicate_detection=detects_duplicates))
    caller = Caller(stack)
    annotations = {"x-opt-partition-key": hinted} if hinted else None
    batch = message(annotations=annotations, body=[message(properties=["one"]), message(properties=["two"])])
    collected = caller.sending.collect([batch], is_batch=True)
    assert len(collected.send.messages) == 2
    list(caller.sending.send_batch(batch, [1]))
    if not hinted and not detects_duplicates:
        assert collected.keys == [None]
        return
    assert collected.keys == (["pk"] if hinted else ["one", "two"])
    asked = {stack.queue.router.number_of(key) for key in collected.keys if key is not None}
    assert asked == {part.number for part in stack.parts if part.has(Send)}


@pytest.mark.parametrize("has_sessions", [False, True])
async def test_a_batch_of_several_keys_is_refused_by_what_they_are(has_sessions: bool) -> None:
    caller = Caller(LinkStack(16, QueueSettings(requires_session=has_sessions)))
    messages = [
        message(properties=[None] * 10 + [key])
        if has_sessions
        else message(annotations={"x-opt-partition-key": key})
        for key in ("a", "b")
    ]
    with pytest.raises(Refused, match=f"different {'session ids' if has_sessions else 'partition keys'} "):
        list(caller.sending.send_batch(message(body=messages), [1]))


async def test_an_entity_that_is_full_as_a_whole_takes_nothing() -> None:
    stack = LinkStack(2)
    caller = Caller(stack)
    stack.queue._quota = SizeQuota("Queue", 1_000, lambda: 990)
    one = message(body=[b"a"])
    for send in (
        lambda: caller.sending.send([one, b"no message"], [1, 2]),
        lambda: list(caller.sending.send_batch(message(body=[one]), [3])),
    ):
        with pytest.raises(Refused) as why:
            send()
        assert why.value.reason is Reason.QUOTA_EXCEEDED
    assert caller.heard == [] and caller.messages == 0, "each message is refused once"
    assert not any(part.has(Send) for part in stack.parts)


async def test_messages_beyond_the_credits_are_refused_and_the_others_sent() -> None:
    stack = LinkStack(1, throttle_credits=2)
    caller = Caller(stack)
    caller.sending.send([message(body=[text]) for text in (b"a", b"b", b"c")], [1, 2, 3])
    assert caller.heard == [([3], Reason.THROTTLED)] and caller.messages == 2
    caller.sending.send([message()], [4])
    assert caller.heard[1:] == [([4], Reason.THROTTLED)] and caller.messages == 2
    stack.clock.advance(1_000)
    caller.sending.send([message()], [5])
    assert caller.messages == 3


async def test_what_the_credits_and_the_quota_refuse_together_is_refused_once() -> None:
    stack = LinkStack(1, throttle_credits=2)
    caller = Caller(stack)
    stack.queue._quota = SizeQuota("Queue", 1_000, lambda: 990)
    caller.sending.send([message(body=[text]) for text in (b"a", b"b", b"c")], [1, 2, 3])
    assert caller.heard == [([3], Reason.THROTTLED), ([1, 2], Reason.QUOTA_EXCEEDED)]
    assert caller.messages == 0 and not any(part.has(Send) for part in stack.parts)


async def test_a_batch_costs_as_much_as_its_messages_and_is_refused_as_a_whole() -> None:
    stack = LinkStack(1, throttle_credits=4)
    caller = Caller(stack)
    batch = message(body=[message(), message(), message()])
    list(caller.sending.send_batch(batch, [1]))
    assert caller.messages == 3
    for attempt in (batch, message(body=[message()])):
        if attempt is not batch:
            list(caller.sending.send_batch(attempt, [2]))
            continue
        with pytest.raises(Refused) as refused:
            list(caller.sending.send_batch(attempt, [2]))
        assert refused.value.reason is Reason.THROTTLED and "Error code: 50009." in refused.value.description
    with pytest.raises(Refused):
        caller.sending.collect([message()], is_batch=False)
    assert caller.messages == 4


async def test_filters_of_a_topic_may_cost_credits(monkeypatch: pytest.MonkeyPatch) -> None:
    """They do for messages alone, in a batch, and in a transaction."""
    stack = LinkStack(1, throttle_credits=10, throttle_filter_credits=1)
    caller = Caller(stack)
    monkeypatch.setattr(type(stack.queue), "filters", 2)
    caller.sending.send([message()] * 4, [1, 2, 3, 4])
    assert caller.heard == [([4], Reason.THROTTLED)] and caller.messages == 3
    for send in (
        lambda: list(caller.sending.send_batch(message(body=[message()]), [5])),
        lambda: caller.sending.collect([message()], is_batch=False),
    ):
        with pytest.raises(Refused) as why:
            send()
        assert why.value.reason is Reason.THROTTLED
        stack.clock.advance(1_000)
        send()
        list(caller.sending.send_batch(message(body=[message()] * 2), [5]))


async def test_a_namespace_bounds_the_properties_of_what_is_sent() -> None:
    """Messages are refused one by one, batches and transactions as a whole."""
    stack = LinkStack(1, properties_kb_max=2, property_kb_max=1)
    caller = Caller(stack)
    small = message(application={"a": "x" * 1_000, "b": "x" * 900})
    large = message(application={"a": "x" * 1_020})
    many = message(application={"a": "x" * 1_000, "b": "x" * 1_000, "c": "x" * 100})
    caller.sending.send([small, large, b"no message", many], [1, 2, 3, 4])
    assert sorted(caller.heard) == [
        ([2], Reason.MESSAGE_TOO_LARGE),
        ([3], Reason.DECODE),
        ([4], Reason.MESSAGE_TOO_LARGE),
    ]
    for send in (
        lambda: list(caller.sending.send_batch(message(body=[small, large]), [5])),
        lambda: caller.sending.collect([large], is_batch=False),
    ):
        with pytest.raises(Refused, match="'a' takes 1025 bytes; the limit is 1024") as why:
            send()
        assert why.value.reason is Reason.MESSAGE_TOO_LARGE
    assert caller.messages == 1


async def test_a_batch_larger_than_a_period_leaves_a_debt() -> None:
    stack = LinkStack(1, throttle_credits=2)
    caller = Caller(stack)
    list(caller.sending.send_batch(message(body=[message()] * 5), [1]))
    for later_ms, sent in ((0, 5), (1_000, 5), (1_000, 6), (0, 6), (1_000, 7)):
        stack.clock.advance(later_ms)
        caller.sending.send([message()], [2])
        assert caller.messages == sent


def keyed(text: str) -> bytes:
    return message(annotations={"x-opt-partition-key": "k"}, body=[f"<{text}>".encode()])


async def test_messages_with_keys_join_those_that_wait_and_never_overtake_others() -> None:
    async with world(a=(1, QueueSettings())) as here:
        stack = LinkStack(1)
        stack.queue = cast(Queue, here.entities["a"])
        caller = Caller(stack)
        caller.sending.send([keyed("1"), keyed("2")], [1, 2])
        caller.sending.send([keyed("3")], [3])
        list(caller.sending.send_batch(message(body=[keyed("4"), keyed("5")]), [4]))
        caller.sending.send([keyed("6")], [6])
        for receipt in range(7, 7 + JOINED_MESSAGES_MAX):
            caller.sending.send([keyed(str(receipt))], [receipt])
        await until(lambda: caller.messages == 0)
        full = [6, *range(7, 6 + JOINED_MESSAGES_MAX)]
        assert [heard for heard, _ in caller.heard] == [[1, 2, 3], [4], full, [6 + JOINED_MESSAGES_MAX]]
        assert caller.bytes == 0 and not any(reason for _, reason in caller.heard)
        expected = [str(number) for number in range(1, 7 + JOINED_MESSAGES_MAX)]
        assert await here.texts("a") == expected


async def test_a_queue_with_one_partition_keeps_the_order_of_messages_with_and_without_a_key() -> None:
    async with world(a=(1, QueueSettings())) as here:
        stack = LinkStack(1)
        stack.queue = cast(Queue, here.entities["a"])
        caller = Caller(stack)
        plain = [message(body=[f"<{number}>".encode()]) for number in range(8)]
        mixed = [keyed(str(number)) if number % 2 else each for number, each in enumerate(plain)]
        caller.sending.send(mixed[:4], [0, 1, 2, 3])
        for receipt in range(4, 8):
            caller.sending.send(mixed[receipt : receipt + 1], [receipt])
        await until(lambda: caller.messages == 0)
        assert await here.texts("a") == [str(number) for number in range(8)]


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_message_is_lone_while_its_sender_awaits_nothing_else(key: str | None) -> None:
    stack = LinkStack(1)
    caller, (part,) = Caller(stack), stack.parts
    annotations = {} if key is None else {"x-opt-partition-key": key}

    def lone(count: int) -> bool:
        """Whether the send is lone that so many messages make."""
        caller.sending.send([message(annotations=annotations, body=[b"x"])] * count, list(range(count)))
        operation, _, _ = part.posted[-1]
        assert isinstance(operation, Send) and len(operation.messages) == count
        return operation.is_lone

    def accept() -> None:
        while part.has(Send):
            part.answer(Send, lambda send: Sent(1, send.cookie))

    assert lone(1) and not lone(1)
    accept()
    assert not lone(2), "it works ahead"
    accept()
    assert lone(1)


async def test_a_send_of_one_partition_is_not_lone_if_its_messages_go_to_several_or_if_it_grows() -> None:
    stack = LinkStack(2)
    caller = Caller(stack)
    messages = [message(annotations={"x-opt-partition-key": f"{number}"}) for number in range(8)]
    numbers = [stack.queue.router.number_of(f"{number}") for number in range(8)]
    first, second = numbers.index(0), numbers.index(1)
    caller.sending.send([messages[first], messages[second]], [1, 2])
    assert [part.take(Send)[0].is_lone for part in stack.parts] == [False, False]

    caller, part = Caller(stack), stack.parts[0]
    caller.sending.send([messages[first]], [1])
    send, _ = part.take(Send)
    assert send.is_lone
    part.join = lambda more, client, cookie: True  # type: ignore[method-assign]
    caller.sending.send([messages[first]], [2])
    assert not send.is_lone and not part.has(Send)
