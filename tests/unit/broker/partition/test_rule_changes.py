"""Changes of rules that transactions note in their partition."""

from __future__ import annotations

import pytest

from broker.base.errors import Reason
from broker.operations.general import Failed
from broker.operations.rule_changes import FindRuleChanges, ForgetRuleChanges, RuleChangesFound
from broker.operations.sending import Send
from broker.operations.settling import Complete, Settled
from broker.operations.transactions import Transact, Transacted
from broker.operations.transfers import FindSources, SourcesFound
from broker.partition.rule_changes import RULE_CHANGES, RuleChanges
from broker.partition.tables import UnreadableRecord
from storage.log import Position, Record
from tests.support.partition_harness import Harness, one
from tests.support.topics import RED, A, bodies, topic


def transact(change_id: bytes, *messages: bytes) -> Transact:
    return Transact(Send(messages, None), [], change_id=change_id, rule_changes=b"of " + change_id)


async def noted(harness: Harness) -> list[bytes]:
    found = one(await harness.do(3, FindRuleChanges("c")), RuleChangesFound)
    assert found.cookie == "c" and found.changes == [b"of " + each for each in found.ids]
    return found.ids


@pytest.mark.parametrize("clean", [False, True], ids=["crash", "checkpoint"])
async def test_changes_are_kept_in_their_order_until_they_are_forgotten(clean: bool) -> None:
    harness = Harness(description=topic("a"))
    assert await noted(harness) == []
    for change_id in (b"z", b"b", b"a"):
        assert await harness.do(1, transact(change_id, RED)) == [Transacted(1, None)]
    await harness.restart(clean=clean)
    assert await noted(harness) == [b"z", b"b", b"a"]
    assert one(await harness.do(3, FindSources()), SourcesFound).changes_rules
    assert await harness.do(3, ForgetRuleChanges([b"b", b"no"], "f")) == [Settled("f")]
    await harness.do(1, transact(b"c"))
    await harness.restart(clean=clean)
    assert await noted(harness) == [b"z", b"a", b"c"]
    await harness.do(3, ForgetRuleChanges([b"z", b"a", b"c"]))
    assert await noted(harness) == []
    assert not one(await harness.do(3, FindSources()), SourcesFound).changes_rules
    assert len(await bodies(harness, A)) == 3


async def test_a_full_disk_leaves_no_change_of_a_transaction_that_sends() -> None:
    harness = Harness(description=topic("a"))
    await harness.send(RED)
    tokens = (await harness.receive(2, 1, A)).tokens
    harness.log.fill_disk()
    refused = transact(b"x", RED)
    refused.settlements = [Complete(tokens)]
    assert one(await harness.do(1, refused), Failed).reason is Reason.DISK_FULL
    assert await harness.do(1, transact(b"y")) == [Transacted(0, None)], "it may use the reserve"
    harness.log.empty_disk()
    assert await noted(harness) == [b"y"]
    await harness.restart()
    assert await noted(harness) == [b"y"] and await bodies(harness, A) == [RED]


@pytest.mark.parametrize("body", [b"", bytes(11) + b"ab", b"\0" * 8 + b"\x05\0\0id"])
def test_a_record_that_does_not_fit_its_head_is_unreadable(body: bytes) -> None:
    forgotten = body[:10] + b"\x01" + body[11:] if len(body) > 11 else body
    with pytest.raises(UnreadableRecord):
        RuleChanges().apply(Record(RULE_CHANGES, 1, 0, memoryview(forgotten)), Position(0))
