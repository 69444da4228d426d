"""A link that ends while its session's window is shut takes nothing from the links that come after it in the
session, whatever was held back on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from broker.base.errors import Reason, Refused
from broker.frontend.nodes.management import ManagementNode
from broker.frontend.nodes.request_node import Request, Response
from broker.operations.browsing import Peek, Peeked
from broker.operations.receiving import Demand
from broker.operations.settling import Complete, Settled
from broker.operations.streams import RangeRead, ReadRange
from protocol.codec import Described, Long, Symbol, UInt, ULong
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import APPLICATION, PROPERTIES, VALUE, section
from tests.support.link_stack import Client, LinkStack, tags_of, turn
from tests.support.locked import stored
from tests.support.receiving import give

BODY = bytes(1_000_000)
"""Proton gets it as a whole, and what may wait for a client that has not read anything is a quarter of it."""


def flow(handle: int, credit: int, window: int, received: int = 0) -> bytes:
    fields = raw.flow_fields(handle, 0, credit, received=received)
    fields[1] = UInt(window)
    return raw.frame(raw.FLOW, fields)


async def receive(client: Client, window: int, settled: bool) -> None:
    await client.receiver(0, settled=settled)
    client.say(flow(0, 1, window))
    give(client.stack, 0, 1, body=BODY)
    if settled:
        client.stack.parts[0].answer(Complete, lambda complete: Settled(complete.cookie))


async def look(client: Client, window: int, settled: bool, filters: dict[Symbol, Any]) -> None:
    fields = raw.receiver_attach(0, "queue", settled=settled)
    fields[5] = Described(ULong(raw.SOURCE), ["queue", None, None, None, None, None, Symbol("copy"), filters])
    await client.attach(fields)
    client.say(flow(0, 1, window))
    await turn()


async def browse(client: Client, window: int, settled: bool) -> None:
    await look(client, window, settled, {})
    client.stack.parts[0].answer(
        Peek, lambda peek: Peeked([1], [0], [0], [None], [stored(BODY)], [None], [0], peek.cookie)
    )


async def read_range(client: Client, window: int, settled: bool) -> None:
    await look(client, window, settled, {Symbol("partibus:range"): {Symbol("from"): Long(1)}})
    client.stack.parts[0].answer(
        ReadRange,
        lambda read: RangeRead([1], [0], [0], [None], [stored(BODY)], [None], read.cookie, next=2, end=2),
    )


async def ask(client: Client, window: int, settled: bool) -> None:
    fields = raw.receiver_attach(0, "queue/$management", settled=settled)
    fields[6] = Described(ULong(raw.TARGET), ["reply"])
    await client.attach(fields)
    await client.sender(5, "queue/$management")
    client.say(flow(0, 1, window))
    request = (
        section(PROPERTIES, ["1", None, None, None, "reply"])
        + section(APPLICATION, {"operation": "x"})
        + section(VALUE, {})
    )
    client.transfer(5, 0, request, settled=True)
    await turn()


Use = Callable[[Client, int, bool], Awaitable[None]]
USES: list[Use] = [receive, browse, read_range, ask]


@pytest.fixture
def unsent(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Has an item for each response that is given back because it is never sent."""
    given_back: list[None] = []

    async def respond(node: ManagementNode, request: Request) -> Response:
        return Response({"statusCode": 200}, BODY, lambda: given_back.append(None))

    monkeypatch.setattr(ManagementNode, "respond", respond)
    return given_back


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("comes_before_the_end", [True, False])
@pytest.mark.parametrize("ends_by", ["the client", "the broker"])
async def test_a_later_link_gets_its_messages(
    use: Use, window: int, settled: bool, comes_before_the_end: bool, ends_by: str, unsent: list[None]
) -> None:
    """Symptom: once 256 KiB had been held back, no later link of the session got anything."""
    client = await LinkStack(1).connect(window=window)
    await use(client, window, settled)
    received = len(await client.heard(raw.TRANSFER))
    assert received == window
    part, engine = client.stack.parts[0], client.connection.engine
    if comes_before_the_end:
        await client.receiver(1)
        client.say(flow(1, 3, 0, received))
        assert not part.has(Demand)
    if ends_by == "the broker":
        (link,) = (link for link in engine.links() if link.name == "receiver-0")
        client.connection.close_link(link, Refused(Reason.UNAUTHORIZED, "The claim has expired."))
        await client.hear()
    client.detach(0)
    await client.hear()
    assert engine.unsent_bytes_of_all() == 0
    if not comes_before_the_end:
        await client.receiver(1)
        client.say(flow(1, 3, 0, received))
    give(client.stack, 0, 3)
    await client.hear()
    client.say(flow(1, 3, 1_000, received))
    assert len(tags_of(await client.hear())) == 3
    assert engine.unsent_bytes_of_all() == 0


@pytest.mark.parametrize("use", USES)
async def test_a_client_hears_at_once_that_its_link_is_closed(use: Use, unsent: list[None]) -> None:
    """Although its window is shut. Symptom: except for receivers, it heard when it had opened the window for
    everything."""
    client = await LinkStack(1).connect(window=0)
    await use(client, 0, False)
    await client.hear()
    (link,) = (link for link in client.connection.engine.links() if link.name == "receiver-0")
    client.connection.close_link(link, Refused(Reason.UNAUTHORIZED, "The claim has expired."))
    assert [frame.code for frame in await client.hear()] == [raw.DETACH]
    client.say(flow(0, 1, 1_000))
    assert await client.hear() == []


@pytest.mark.parametrize(("window", "given_back"), [(0, 1), (2, 0), (1_000, 0)])
async def test_a_response_that_was_never_written_is_given_back(
    window: int, given_back: int, unsent: list[None]
) -> None:
    client = await LinkStack(1).connect(window=window)
    await ask(client, window, False)
    await client.hear()
    assert not unsent
    client.detach(0)
    assert len(unsent) == given_back


async def test_a_response_with_messages_that_were_removed_for_it_goes_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody else can get them."""

    async def respond(node: ManagementNode, request: Request) -> Response:
        return Response({"statusCode": 200}, BODY, None)

    monkeypatch.setattr(ManagementNode, "respond", respond)
    client = await LinkStack(1).connect(window=0)
    await ask(client, 0, False)
    await client.hear()
    (link,) = (link for link in client.connection.engine.links() if link.name == "receiver-0")
    client.connection.close_link(link, Refused(Reason.UNAUTHORIZED, "The claim has expired."))
    assert await client.hear() == []
    client.say(flow(0, 1, 1_000))
    codes = [frame.code for frame in await client.hear()]
    assert set(codes[:-1]) == {raw.TRANSFER} and codes[-1] == raw.DETACH
