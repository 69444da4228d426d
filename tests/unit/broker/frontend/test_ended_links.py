"""What serves a link is freed when the link has ended, and does not wait for Python's collector."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from broker.entities.descriptions import QueueSettings
from broker.frontend.links.via_link import TRANSFER_DESTINATION
from broker.operations.browsing import Peek
from broker.operations.general import Unavailable
from broker.operations.receiving import Demand
from broker.operations.sending import Send, Sent
from broker.operations.sessions import AcceptSession, SessionAccepted
from broker.operations.settling import Complete, Settled
from broker.operations.transactions import Transact, Transacted
from protocol.codec import Described, Symbol, ULong
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import APPLICATION, VALUE, message, section
from tests.support.link_stack import Client, LinkStack, until
from tests.support.receiving import LONG_MS, give
from tests.support.transactions import Coordinator

SERVING = ("broker.frontend.", "broker.messaging.", "broker.throttle.", "protocol.links")


def in_use() -> Counter[str]:
    """The objects that serve links and are younger than the last `gc.freeze`, by class."""
    return Counter(
        type(each).__qualname__ for each in gc.get_objects() if str(type(each).__module__).startswith(SERVING)
    )


async def receive(stack: LinkStack, client: Client) -> None:
    """The link ends with one message settled, one unsettled and one unseen."""
    await client.receiver(0, credit=2)
    give(stack, 0, 3)
    await client.hear()
    client.dispose(0, 0, raw.outcome(raw.ACCEPTED))
    stack.parts[0].answer(Complete, lambda complete: Settled(complete.cookie))


async def receive_and_settle_at_the_end(stack: LinkStack, client: Client) -> None:
    """The settlement becomes durable after the link has ended."""
    await client.receiver(0, credit=1)
    give(stack, 0, 1)
    await client.hear()
    client.dispose(0, 0, raw.outcome(raw.ACCEPTED))


async def receive_and_delete(stack: LinkStack, client: Client) -> None:
    await client.receiver(0, credit=1, settled=True)
    give(stack, 0, 1)
    stack.parts[0].answer(Complete, lambda complete: Settled(complete.cookie))


def source(*fields: Any, filters: Any = None) -> list[Any]:
    """Fields of a receiver's attach."""
    attach = raw.receiver_attach(0, "queue")
    attach[5] = Described(ULong(raw.SOURCE), [*fields, *[None] * (7 - len(fields)), filters])
    return attach


async def select(stack: LinkStack, client: Client) -> None:
    selector = {Symbol("apache.org:selector-filter:string"): "colour = 'red'"}
    await client.attach(source("queue", filters=selector))
    client.flow(0, 0, 1)
    await until(lambda: any(part.has(Peek) for part in stack.parts))


async def browse(stack: LinkStack, client: Client) -> None:
    await client.attach(source("queue", None, None, None, None, None, Symbol("copy")))
    client.flow(0, 0, 1)
    await until(lambda: any(part.has(Peek) for part in stack.parts))


async def receive_from_a_session(stack: LinkStack, client: Client) -> None:
    await client.attach(source("queue", filters={Symbol("com.microsoft:session-filter"): "a"}))
    until_ms = stack.clock.monotonic_ms() + LONG_MS
    part = stack.part_of(AcceptSession)
    part.answer(
        AcceptSession, lambda each: SessionAccepted(part.number, "", b"a", bytes(16), until_ms, each.cookie)
    )
    assert [frame.code for frame in await client.hear()] == [raw.ATTACH]
    client.flow(0, 0, 1)
    assert part.has(Demand)


async def send(stack: LinkStack, client: Client) -> None:
    """The second message becomes durable after the link has ended."""
    await client.sender(0)
    client.transfer(0, 0, message())
    stack.part_of(Send).answer(Send, lambda send: Sent(1, send.cookie))
    client.transfer(0, 1, message())


async def send_via(stack: LinkStack, client: Client) -> None:
    stack.add_queue("other", 1)
    fields = [*raw.sender_attach(0, "queue"), None, None, None, {Symbol(TRANSFER_DESTINATION): "other"}]
    await client.attach(fields)
    client.transfer(0, 0, message())
    stack.part_of(Transact).answer(Transact, lambda transact: Transacted(1, transact.cookie))


async def ask(stack: LinkStack, client: Client) -> None:
    """Requests, whose node ends with the last of its links."""
    await client.receiver(1, address="queue/$management", credit=10)
    await client.sender(0, "queue/$management")
    request = section(APPLICATION, {"operation": "com.microsoft:unknown"}) + section(VALUE, {})
    client.transfer(0, 0, request)
    await client.hear()
    client.detach(1)


async def declare(stack: LinkStack, client: Client) -> None:
    await (await Coordinator.attach(client, 0)).declare()


USES: list[Callable[[LinkStack, Client], Awaitable[None]]] = [
    receive,
    receive_and_settle_at_the_end,
    receive_and_delete,
    select,
    browse,
    receive_from_a_session,
    send,
    send_via,
    ask,
    declare,
]  # fmt: skip


@pytest.mark.parametrize("end", ["by the client", "by the broker"])
@pytest.mark.parametrize(
    ("use", "throttle_credits"),
    [*((use, 0) for use in USES), *((use, 1_000) for use in (receive, select, browse))],
)
async def test_nothing_of_an_ended_link_is_left(
    use: Callable[[LinkStack, Client], Awaitable[None]], end: str, throttle_credits: int
) -> None:
    settings = QueueSettings(requires_session=use is receive_from_a_session)
    stack = LinkStack(2, settings, throttle_credits=throttle_credits)
    client = await stack.connect()
    await client.sender(5)  # the AMQP session begins with its first link, and stays
    client.detach(5)
    await client.hear()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        await use(stack, client)
        assert in_use(), "the link is served"
        if end == "by the broker":
            await stack.queue.end(stack.namespace.missing("queue"))
        client.detach(0)
        await client.hear()
        for part in stack.parts:  # everything is answered
            while part.has(Complete):
                part.answer(Complete, lambda complete: Settled(complete.cookie))
            while part.has(Send):
                part.answer(Send, lambda send: Sent(1, send.cookie))
            while part.has(Peek):
                part.answer(Peek, lambda peek: Unavailable(0))
            part.posted.clear()
        await client.hear()
        # Symptom: links were freed by the collector alone, thousands at once, and the loop stood for 90 ms.
        assert not in_use()
    finally:
        gc.enable()
        gc.unfreeze()
