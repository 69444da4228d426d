"""What a raw AMQP client needs for transactions: the coordinator's link, declare and discharge (§4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocol.codec import Array, Described, Symbol, TypeCode, ULong, encode
from tests.support import raw_amqp as raw
from tests.support.link_stack import Client
from tests.support.raw_amqp import Frame

COORDINATOR, DECLARE, DISCHARGE, DECLARED = 0x30, 0x31, 0x32, 0x33
AMQP_VALUE = 0x77


def coordinator_attach(handle: int, *capabilities: str) -> list[Any]:
    """Fields of an attach to the coordinator."""
    fields = raw.sender_attach(handle, None)
    asked = [Symbol(each) for each in capabilities or ("amqp:local-transactions",)]
    fields[6] = Described(ULong(COORDINATOR), [Array(TypeCode.SYMBOL, asked)])
    return fields


def value(content: object) -> bytes:
    """A message whose body is this value."""
    return encode(Described(ULong(AMQP_VALUE), content))


def declare(*fields: object) -> bytes:
    return value(Described(ULong(DECLARE), list(fields)))


def discharge(txn_id: object, *fail: object) -> bytes:
    return value(Described(ULong(DISCHARGE), [txn_id, *fail]))


def state_of(txn_id: bytes, outcome: object = None) -> Described:
    """A transactional state."""
    return Described(ULong(raw.TRANSACTIONAL), [txn_id] if outcome is None else [txn_id, outcome])


class Coordinator:
    """A client's link to the coordinator, and the transactions on it. Delivery numbers are those of the AMQP
    session, so the client's other links count from `first` on."""

    def __init__(self, client: Client, handle: int) -> None:
        self.client, self.handle = client, handle
        self.number = 0

    @classmethod
    async def attach(cls, client: Client, handle: int = 9) -> Coordinator:
        frames = await client.attach(coordinator_attach(handle))
        assert [frame.code for frame in frames] == [raw.ATTACH, raw.FLOW], frames
        return cls(client, handle)

    def say(self, payload: bytes, **given: Any) -> None:
        """Send a message to the coordinator."""
        self.client.transfer(self.handle, self.number, payload, **given)
        self.number += 1

    async def declare(self) -> bytes:
        """Begin a transaction; gives its id."""
        self.say(declare())
        answer = outcome_of(await self.client.hear())
        assert answer.descriptor == DECLARED
        txn_id = answer.value[0]
        assert isinstance(txn_id, bytes)
        return txn_id

    def send(self, handle: int, payload: bytes, txn_id: bytes, **given: Any) -> None:
        """Send a message within a transaction on another link."""
        self.client.transfer(handle, self.number, payload, state=state_of(txn_id), **given)
        self.number += 1

    async def discharge(self, txn_id: bytes, fail: bool | None = False) -> Any:
        """End a transaction; gives the outcome, None while there is none. Drops what the broker has said
        before."""
        await self.client.hear()
        self.say(discharge(txn_id, fail))
        return outcome_of(await self.client.hear())


def outcome_of(frames: Sequence[Frame]) -> Any:
    """The outcome in the only disposition among the frames; None if there is none."""
    found = [frame for frame in frames if frame.code == raw.DISPOSITION]
    assert len(found) <= 1, found
    if not found:
        return None
    assert found[0].field(3) is True, "settled"
    return found[0].field(4)


def condition_of(outcome: Any) -> tuple[str, str]:
    """Condition and description of a rejected outcome."""
    assert outcome is not None and outcome.descriptor == raw.REJECTED, outcome
    return str(outcome.value[0].value[0]), outcome.value[0].value[1]
