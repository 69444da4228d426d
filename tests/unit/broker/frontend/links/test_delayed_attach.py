"""A link whose attach is answered later: its credit and its detach keep their order, and nothing is left
over.

The tests write the client's frames by hand. In place of a free session, the links wait for a gate that a test
opens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from broker.access.addresses import Address
from broker.access.sas import Claim
from broker.base.errors import Reason, Refused
from broker.frontend.attaching import attach_to_entity
from broker.frontend.connection_view import ConnectionView
from broker.frontend.links.delayed_attach import Later
from broker.operations.general import Detach
from broker.operations.receiving import Demand
from protocol.codec import UInt
from protocol.links import Link
from tests.support import raw_amqp as raw
from tests.support.link_stack import Client, LinkStack, tags_of, turn
from tests.support.raw_amqp import Frame
from tests.support.receiving import confirm, give


class Gate:
    """Attaches to `queue` wait until the gate opens; all others are answered at once."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.why: Exception | None = None
        """The error that ends the wait; None to accept the attach."""
        self.waiting = self.cancelled = 0

    def resolve(self, connection: ConnectionView, link: Link, address: Address) -> Later | None:
        if address.entity != "queue":
            return attach_to_entity(connection, link, address)
        rights = ("Send",) if link.incoming else ("Listen",)
        return Later(address.path, rights, partial(self._wait, connection, link, address))

    async def _wait(self, connection: ConnectionView, link: Link, address: Address) -> Callable[[], None]:
        self.waiting += 1
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.why is not None:
            raise self.why

        def accept() -> None:
            assert attach_to_entity(connection, link, address) is None

        return accept


async def waiting() -> tuple[LinkStack, Client, Gate]:
    """A client whose receiver waits for its answer."""
    stack, gate = LinkStack(2), Gate()
    client = await stack.connect(resolve=gate.resolve)
    assert await client.attach(raw.receiver_attach(0, "queue")) == [] and gate.waiting == 1
    return stack, client, gate


def codes(frames: list[Frame]) -> list[int | None]:
    return [frame.code for frame in frames]


def refusal(frames: list[Frame]) -> str:
    """The condition of a refused attach: an attach without source, then a detach with an error."""
    assert codes(frames) == [raw.ATTACH, raw.DETACH] and frames[0].field(5) is None
    return str(frames[1].field(2).value[0])


async def test_credit_that_was_granted_before_the_answer_takes_effect_right_after_it() -> None:
    stack, client, gate = await waiting()
    client.flow(0, 0, 1)
    client.flow(0, 0, 3)
    assert await client.hear() == [] and not stack.parts[0].has(Demand)
    gate.open.set()
    assert codes(await client.hear()) == [raw.ATTACH]
    messages = give(stack, 0, 3)
    assert tags_of(await client.hear()) == messages.tokens


async def test_a_drain_that_was_asked_for_before_the_answer_is_answered_after_it() -> None:
    stack, client, gate = await waiting()
    client.flow(0, 0, 5, drain=True)
    gate.open.set()
    assert codes(await client.hear()) == [raw.ATTACH]
    for part in stack.parts:
        confirm(part)
    (flow,) = await client.heard(raw.FLOW)
    assert (flow.field(5), flow.field(6)) == (5, 0), "delivery-count and link-credit"


async def test_a_client_that_detaches_first_waits_no_longer_and_may_attach_again() -> None:
    stack, client, gate = await waiting()
    client.flow(0, 0, 5)
    client.detach(0)
    frames = await client.hear()
    assert codes(frames) == [raw.ATTACH, raw.DETACH] and frames[1].field(2) is None
    assert gate.cancelled == 1 and not stack.tasks
    gate.open.set()
    assert codes(await client.attach(raw.receiver_attach(0, "queue"))) == [raw.ATTACH]
    assert not stack.parts[0].has(Demand), "the credit was the other link's"


async def test_a_detach_that_comes_with_the_attach_is_answered_behind_it() -> None:
    stack, gate = LinkStack(2), Gate()
    client = await stack.connect(resolve=gate.resolve)
    client.say(
        raw.frame(raw.ATTACH, raw.receiver_attach(0, "queue")),
        raw.frame(raw.FLOW, raw.flow_fields(0, 0, 5)),
        raw.frame(raw.DETACH, [UInt(0), True]),
    )
    assert codes(await client.hear()) == [raw.ATTACH, raw.DETACH] and not stack.tasks


async def test_a_detach_that_meets_the_answer_leaves_nothing_behind() -> None:
    stack, client, gate = await waiting()
    client.flow(0, 0, 1)
    gate.open.set()
    client.detach(0)
    assert codes(await client.hear()) == [raw.ATTACH, raw.DETACH]
    assert not stack.tasks and not stack.queue.watchers


async def test_other_links_are_served_meanwhile() -> None:
    stack, client, gate = await waiting()
    stack.add_queue("other", 2)
    await client.receiver(1, credit=1, address="other")
    messages = give(stack, 0, 1)
    assert tags_of(await client.hear()) == messages.tokens and not gate.open.is_set()


@pytest.mark.parametrize("end", ["socket", "close", "end"])
async def test_nothing_waits_on_once_the_connection_or_the_session_has_ended(end: str) -> None:
    stack, client, gate = await waiting()
    if end == "socket":
        client.connection.connection_lost()
    else:
        client.say(raw.frame(raw.CLOSE if end == "close" else raw.END, [None]))
    await turn()
    assert gate.cancelled == 1 and not stack.tasks and not client.stream.aborted
    gate.open.set()
    await turn()
    assert not stack.queue.watchers and not any(part.has(Demand) or part.has(Detach) for part in stack.parts)


async def test_a_wait_that_ends_in_vain_refuses_the_link_and_no_other() -> None:
    stack, client, gate = await waiting()
    stack.add_queue("other", 2)
    gate.why = Refused(Reason.PARTITION_UNAVAILABLE, "There is none.")
    gate.open.set()
    assert refusal(await client.hear()) == "com.microsoft:server-busy"
    await client.receiver(1, address="other")


async def test_an_entity_that_was_disabled_meanwhile_refuses_the_link() -> None:
    stack, client, gate = await waiting()
    del stack.namespace.queues["queue"]
    gate.open.set()
    assert refusal(await client.hear()) == "amqp:not-found"


async def test_a_link_that_loses_its_permission_while_it_waits_is_refused_at_once() -> None:
    stack, client, gate = await waiting()
    client.connection.put_claim("", Claim("", frozenset({"Listen"}), stack.clock.now_ms() + 1_000, "app"))
    stack.clock.advance(2_000)
    client.connection.tokens.expire()
    assert refusal(await client.hear()) == "amqp:unauthorized-access"
    assert gate.cancelled == 1 and not stack.tasks


async def test_messages_on_a_link_without_an_answer_end_the_link() -> None:
    stack, gate = LinkStack(2), Gate()
    client = await stack.connect(resolve=gate.resolve)
    assert await client.attach(raw.sender_attach(0, "queue")) == []
    client.transfer(0, 0, b"\x00\x53\x75\xa0\x01a")
    await turn()
    frames = [frame for frame in await client.hear() if frame.code != raw.DISPOSITION]
    assert refusal(frames) == "amqp:not-allowed" and gate.cancelled == 1


async def test_an_error_that_nobody_foresaw_ends_this_connection() -> None:
    _, client, gate = await waiting()
    gate.why = ValueError("unforeseen")
    gate.open.set()
    await turn()
    assert client.stream.aborted
