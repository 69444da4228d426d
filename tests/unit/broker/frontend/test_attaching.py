"""Which links are refused at once, and which requests."""

from __future__ import annotations

from broker.access.addresses import NODE_CBS
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import message
from tests.support.link_stack import LinkStack


async def test_requests_to_cbs_in_a_transaction_are_rejected_and_their_credit_comes_back() -> None:
    client = await LinkStack().connect()
    attach, first = await client.attach(raw.sender_attach(0, NODE_CBS))
    assert attach.code == raw.ATTACH
    state = raw.outcome(raw.TRANSACTIONAL, [b"transaction-1"])
    client.say(
        *(
            raw.frame(raw.TRANSFER, raw.transfer_fields(0, number, state=state), message())
            for number in range(3)
        )
    )
    frames = await client.hear()
    refused = [frame for frame in frames if frame.code == raw.DISPOSITION]
    assert [frame.field(1) for frame in refused] == [0, 1, 2]
    for frame in refused:
        assert frame.field(4).descriptor == raw.REJECTED
        assert frame.field(4).value[0].value[0] == "amqp:not-implemented"
    last = [frame for frame in frames if frame.code == raw.FLOW][-1]
    assert last.field(5) + last.field(6) == 3 + first.field(6), "delivery-count + link-credit"
