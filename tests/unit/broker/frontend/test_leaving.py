"""A connection while the broker stops: what the client has sent is answered, and nothing more is begun. The
end of a connection holds up nobody."""

from __future__ import annotations

import threading

import pytest

from broker.frontend.departure import SETTLED_IN_LOOP_MAX
from broker.operations.receiving import Demand
from broker.operations.sending import Send, Sent
from broker.operations.settling import Complete, Settled
from protocol import proton_values
from protocol.links import Link
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import message
from tests.support.link_stack import LinkStack, turn, until
from tests.support.locked import locked


async def test_messages_under_way_have_their_outcome_before_the_close_and_later_ones_are_not_stored() -> None:
    stack = LinkStack(partitions=1)
    client = await stack.connect()
    await client.sender()
    client.transfer(0, 0, message(body=[b"first"]))
    await turn()
    client.connection.leave()
    client.transfer(0, 1, message(body=[b"second"]))
    await turn()
    assert client.connection.owes_answers and not await client.hear()
    (part,) = stack.parts
    part.answer(Send, lambda send: Sent(1, send.cookie))
    assert not client.connection.owes_answers and not part.has(Send)
    client.connection.shut_down()
    disposition, close = await client.hear()
    assert (disposition.code, disposition.field(4).descriptor) == (raw.DISPOSITION, raw.ACCEPTED)
    assert raw.condition_of(close) == "amqp:connection:forced"


async def test_messages_that_were_removed_for_a_client_reach_it_and_no_others_are_removed() -> None:
    stack = LinkStack(partitions=1)
    client = await stack.connect()
    await client.receiver(credit=10, settled=True)
    (part,) = stack.parts
    part.answer(Demand, lambda demand: locked(0, 2))
    part.take_all(Demand)
    client.connection.leave()
    assert client.connection.owes_answers
    part.answer(Complete, lambda complete: Settled(complete.cookie))
    assert not client.connection.owes_answers and not part.has(Demand)
    client.connection.shut_down()
    assert [frame.code for frame in await client.hear()] == [raw.TRANSFER, raw.TRANSFER, raw.CLOSE]


async def test_a_settlement_under_way_is_answered_and_a_later_one_is_not_begun() -> None:
    stack = LinkStack(partitions=1)
    client = await stack.connect()
    await client.receiver(credit=10)
    (part,) = stack.parts
    part.answer(Demand, lambda demand: locked(0, 2))
    await client.hear()
    accepted = raw.outcome(raw.ACCEPTED)
    client.say(raw.frame(raw.DISPOSITION, raw.disposition_fields(raw.RECEIVER, 0, 0, False, accepted)))
    client.connection.leave()
    client.say(raw.frame(raw.DISPOSITION, raw.disposition_fields(raw.RECEIVER, 1, 1, False, accepted)))
    assert client.connection.owes_answers
    part.answer(Complete, lambda complete: Settled(complete.cookie))
    assert not client.connection.owes_answers and not part.has(Complete)
    client.connection.shut_down()
    assert [frame.code for frame in await client.hear()] == [raw.DISPOSITION, raw.CLOSE]


async def test_the_socket_stays_open_until_the_client_has_closed_the_connection_too() -> None:
    stack = LinkStack(partitions=1)
    client = await stack.connect()
    client.connection.leave()
    client.connection.shut_down()
    await client.heard(raw.CLOSE)
    assert not client.stream.closed
    client.say(raw.frame(raw.CLOSE, []))
    await turn()
    assert client.stream.closed


@pytest.mark.parametrize("count", [10, SETTLED_IN_LOOP_MAX + 1])
async def test_a_connection_with_many_unsettled_deliveries_is_freed_in_a_thread(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Symptom: the event loop stood still while 200,000 of them were freed one by one."""
    free, freed_in = proton_values.free_link, list[bool]()

    def free_link(link: Link) -> None:
        freed_in.append(threading.current_thread() is threading.main_thread())
        free(link)

    monkeypatch.setattr("protocol.freeing.free_link", free_link)
    stack = LinkStack(partitions=1)
    client = await stack.connect()
    await client.receiver(credit=count)
    (part,) = stack.parts
    part.answer(Demand, lambda demand: locked(0, count))
    await client.heard(raw.TRANSFER)
    client.connection.connection_lost()
    await until(lambda: bool(freed_in))
    assert freed_in == [count < SETTLED_IN_LOOP_MAX]
