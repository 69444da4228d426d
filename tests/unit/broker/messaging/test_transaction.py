"""One transaction over several entities: which one it is on, what goes through it, and what is refused.

`test_transactions.py` has transactions on one entity.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import MAIN
from broker.message.stored import store_run
from broker.messaging.sending import Collected
from broker.messaging.settlement import COMPLETE, abandon
from broker.messaging.transaction import Transaction
from broker.messaging.transactions import Transactions
from broker.namespace.entity import Entity
from broker.namespace.router import partition_of_key
from broker.namespace.size_quota import SizeQuota
from broker.operations.columns import DESTINATION, SESSION_ID, ColumnLists
from broker.operations.message_states import SubqueueCounts
from broker.operations.sending import Send
from broker.operations.settling import Complete
from broker.operations.transactions import Transact, Transacted
from tests.support.amqp_messages import message
from tests.support.link_stack import LinkStack
from tests.support.locked import locked

KEYS = {partition_of_key(key, 4): key for key in "abcdefghijkl"}
"""A key for each of four partitions."""


class Bench:
    """A connection's transactions over the queues a, b and c. The first one is the via entity."""

    def __init__(self, partitions: int = 4) -> None:
        self.stack = LinkStack(1)
        self.passed_on: list[tuple[str, int]] = []
        self.all = self.stack.services.transactions
        self.all.passed_on = lambda via, number: self.passed_on.append((via.name, number))
        self.transactions = Transactions(self.all, self)
        # A stack each, because the queues of one stack share their partitions.
        self.a, self.b, self.c = (
            LinkStack(partitions).add_queue(name, partitions) for name in ("a", "b", "c")
        )
        self.ends: list[Refused | None] = []
        self.txn_id = self.transactions.declare(self)

    def took(self, size: int, messages: int) -> None: ...
    def finished_with(self, size: int, messages: int) -> None: ...

    def fail(self) -> None:
        raise AssertionError("nothing unforeseen happens here")

    @property
    def transaction(self) -> Transaction:
        return self.transactions.find(self.txn_id)

    def send(
        self, entity: Entity, text: str, key: str | None = None, via_key: str | None = None, **given: Any
    ) -> None:
        notes = {} if via_key is None else {"x-opt-via-partition-key": via_key}
        (stored,) = store_run([message(annotations=notes, body=[text.encode()])], str).data
        columns: ColumnLists = {SESSION_ID: [b"s"]} if given.pop("in_session", False) else {}
        collected = Collected(Send([stored], [5_000], columns=columns, scheduled_ms=[7]), [key])
        self.transaction.send(entity, lambda: collected, **{"via": self.a, **given})

    def settle(self, entity: Entity, partition: int) -> list[bytes]:
        tokens = locked(partition).tokens
        self.transaction.settle(entity, MAIN, tokens, COMPLETE)
        return tokens

    def commit(self) -> tuple[str, int, Transact]:
        """Commit; gives the entity and the partition that were asked, and for what."""
        self.transactions.commit(self.txn_id, self.ends.append)
        for entity in (self.a, self.b, self.c):
            for number, part in enumerate(entity.router.handles):
                if part.has(Transact):  # type: ignore[attr-defined]
                    transact, tell = part.take(Transact)  # type: ignore[attr-defined]
                    tell(Transacted(1, transact.cookie))
                    assert self.ends.pop() is None and self.all.bytes == 0
                    return entity.name, number, transact
        raise AssertionError("nothing was posted")


def texts(send: Send | None) -> list[str]:
    return [] if send is None else [stored[-1:].decode() for stored in send.messages]


async def test_what_is_sent_to_others_goes_through_the_entity_whose_messages_are_settled() -> None:
    bench = Bench()
    bench.send(bench.b, "1", "any key", in_session=True)
    tokens = bench.settle(bench.a, 2)
    bench.send(bench.c, "2")
    bench.send(bench.a, "3", KEYS[2])
    name, number, transact = bench.commit()
    assert (name, number, list(transact.settlements)) == ("a", 2, [Complete(tokens, subqueue=MAIN)])
    assert texts(transact.send) == ["3"] and transact.transfers is not None
    assert texts(transact.transfers) == ["1", "2"]
    assert transact.transfers.columns == {DESTINATION: [b"b", b"c"]}
    assert (transact.transfers.time_to_live_ms, transact.transfers.scheduled_ms) == (None, None)
    assert bench.passed_on == [("a", 2)]


async def test_a_transaction_on_one_entity_goes_through_no_other_one() -> None:
    bench = Bench()
    bench.send(bench.b, "1", "k")
    bench.send(bench.b, "2", "k")
    name, number, transact = bench.commit()
    assert (name, number) == ("b", partition_of_key("k", 4))
    assert texts(transact.send) == ["1", "2"] and transact.transfers is None
    assert transact.send.scheduled_ms == [7, 7] and bench.passed_on == []


async def test_settlements_choose_the_entity_although_it_is_not_the_first_of_the_session() -> None:
    bench = Bench()
    bench.send(bench.c, "1")
    bench.send(bench.b, "2", KEYS[3])
    bench.settle(bench.b, 3)
    name, number, transact = bench.commit()
    assert (name, number, texts(transact.send), texts(transact.transfers)) == ("b", 3, ["2"], ["1"])


@pytest.mark.parametrize(
    ("sends", "number"),
    [
        ([("1", "k", None), ("2", "other", None)], partition_of_key("k", 4)),
        ([("1", "k", None), ("2", None, "v")], partition_of_key("v", 4)),
        ([("1", None, None), ("2", None, None)], None),
    ],
)
async def test_sends_to_several_entities_go_through_the_first_of_the_session(
    sends: list[tuple[str, str | None, str | None]], number: int | None
) -> None:
    bench = Bench()
    for entity, (text, key, via_key) in zip((bench.b, bench.c), sends, strict=True):
        bench.send(entity, text, key, via_key)
    name, found, transact = bench.commit()
    assert name == "a" and number in (None, found)
    assert texts(transact.transfers) == ["1", "2"] and transact.send.messages == []


async def test_messages_that_do_not_fit_together_in_their_only_entity_go_through_the_via_entity() -> None:
    bench = Bench()
    bench.send(bench.b, "1", "k")
    bench.send(bench.b, "2", "another key")
    name, _, transact = bench.commit()
    assert name == "a" and texts(transact.transfers) == ["1", "2"]


async def test_a_sender_that_names_the_via_entity_always_goes_through_it() -> None:
    bench = Bench(1)
    bench.send(bench.b, "1", "k", via=bench.c, is_via=True)
    assert bench.commit()[:2] == ("c", 0)


def refused(bench: Bench) -> Refused:
    """Why the transaction has failed."""
    with pytest.raises(Refused) as why:
        bench.transactions.commit(bench.txn_id, bench.ends.append)
    assert why.value.reason is Reason.TRANSACTION_ROLLED_BACK and bench.all.bytes == 0
    return why.value


async def test_settlements_on_two_entities_are_refused_with_both_named() -> None:
    bench = Bench()
    bench.settle(bench.a, 0)
    with pytest.raises(Refused) as why:
        bench.settle(bench.b, 0)
    assert why.value.reason is Reason.NOT_ALLOWED
    description = refused(bench).description
    assert "'a'" in description and "'b'" in description


async def test_a_send_to_another_entity_is_refused_in_another_session() -> None:
    bench = Bench()
    bench.settle(bench.a, 0)
    with pytest.raises(Refused) as why:
        bench.send(bench.b, "1", via=None)
    assert why.value.reason is Reason.NOT_ALLOWED and "'b'" in refused(bench).description
    late = Bench()
    late.send(late.b, "1")
    with pytest.raises(Refused):
        late.send(late.c, "2", via=None)
    assert "'a'" in refused(late).description


async def test_a_via_key_of_another_partition_is_refused() -> None:
    bench = Bench()
    bench.settle(bench.a, 1)
    bench.send(bench.b, "1", via_key=KEYS[1])
    with pytest.raises(Refused) as why:
        bench.send(bench.b, "2", via_key=KEYS[2])
    assert why.value.reason is Reason.NOT_ALLOWED
    assert "partition 1" in refused(bench).description and f"'{KEYS[2]}'" in refused_text(why.value)
    later = Bench()
    later.send(later.b, "1", via_key=KEYS[2])
    with pytest.raises(Refused):
        later.settle(later.a, 1)
    assert "via-partition-key" in refused(later).description


def refused_text(why: Refused) -> str:
    return why.description


async def test_two_via_entities_are_refused() -> None:
    bench = Bench()
    bench.send(bench.b, "1", is_via=True)
    with pytest.raises(Refused):
        bench.send(bench.b, "2", via=bench.c, is_via=True)
    assert "'a'" in refused(bench).description
    settled = Bench()
    settled.settle(settled.c, 0)
    with pytest.raises(Refused):
        settled.send(settled.b, "1", is_via=True)


@pytest.mark.parametrize("is_via", [False, True], ids=["shared session", "named"])
async def test_a_send_to_a_destination_that_is_full_fails_the_transaction(is_via: bool) -> None:
    bench = Bench(1)
    bench.settle(bench.a, 0)
    (part,) = bench.b.router.handles
    part.counts = lambda: {MAIN: SubqueueCounts(bytes=1 << 30)}  # type: ignore[attr-defined]
    with pytest.raises(Refused) as why:
        bench.send(bench.b, "1", "k", is_via=is_via)
    assert why.value.reason is Reason.QUOTA_EXCEEDED and "'b'" in refused(bench).description


@pytest.mark.parametrize("is_transfer", [False, True], ids=["its own", "for another entity"])
async def test_a_commit_that_its_entity_has_no_room_for_as_a_whole_is_refused(is_transfer: bool) -> None:
    bench = Bench(1)
    bench.a._quota = SizeQuota("Queue", 1_000, lambda: 990)
    bench.send(bench.b if is_transfer else bench.a, "1", is_via=is_transfer)
    bench.transaction.settle(bench.a, MAIN, locked(0).tokens, abandon({}))  # which makes no room
    description = refused(bench).description
    assert "Max entity size in bytes: 1000" in description and "'a'" in description


@pytest.mark.parametrize("settles_first", [False, True])
@pytest.mark.parametrize("is_transfer", [False, True], ids=["its own", "for another entity"])
async def test_the_partition_decides_whether_what_is_completed_makes_room_in_a_full_entity(
    is_transfer: bool, settles_first: bool
) -> None:
    bench = Bench(1)
    bench.a._quota = SizeQuota("Queue", 1_000, lambda: 990)
    if settles_first:
        bench.settle(bench.a, 0)
    bench.send(bench.b if is_transfer else bench.a, "1")
    if not settles_first:
        bench.settle(bench.a, 0)
    _, _, transact = bench.commit()
    assert transact.full is not None and "'a'" in transact.full and transact.room == 10


async def test_a_transaction_that_sends_nothing_needs_no_room() -> None:
    bench = Bench(1)
    bench.a._quota = SizeQuota("Queue", 1_000, lambda: 2_000)
    bench.transaction.settle(bench.a, MAIN, locked(0).tokens, abandon({}))
    assert bench.commit()[2].full is None


async def test_a_full_entity_does_not_refuse_what_turns_out_to_be_stored_in_another() -> None:
    bench = Bench(1)
    bench.a._quota = SizeQuota("Queue", 1_000, lambda: 990)
    bench.send(bench.b, "1")  # the transaction does nothing else, so it is on "b"
    assert bench.commit()[0] == "b"


async def test_a_via_entity_that_is_deleted_before_the_commit_fails_it() -> None:
    bench = Bench()
    bench.send(bench.b, "1")
    bench.send(bench.c, "2")
    await bench.a.end(Refused(Reason.ENTITY_NOT_FOUND, "'a' is gone"), is_deleted=True)
    assert "'a' is gone" in refused(bench).description


async def test_what_waits_for_others_counts_towards_the_limits_and_the_time() -> None:
    bench = Bench()
    bench.send(bench.b, "1")
    assert bench.transaction.messages == 1 and bench.all.bytes > 256
    bench.transactions.roll_back(bench.txn_id)
    assert (bench.all.bytes, bench.all.count) == (0, 0)
