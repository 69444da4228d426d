"""What is known of the counts of a partition that is closed, open or down."""

from __future__ import annotations

from broker.entities.descriptions import MAIN, QUEUE_SUBQUEUES
from broker.operations.general import Failed
from broker.operations.message_states import SubqueueCounts
from broker.operations.sending import Send
from broker.partition.health import Health
from broker.partition.known_counts import KnownCounts
from broker.partition.summary import Summary
from storage.errors import CommitFailed, DiskFailed
from tests.support.partition_harness import Harness, one


def test_a_closed_partition_has_what_the_index_says() -> None:
    known = KnownCounts(QUEUE_SUBQUEUES, Summary({0: SubqueueCounts(active=3, bytes=900)}, {}), None)
    assert known.counts(None)[MAIN].active == 3 and known.size(None) == 900
    counts, is_whole = known.report(None)
    assert (
        is_whole
        and counts == known.counts(None)
        and counts.keys() == {each.name for each in QUEUE_SUBQUEUES.values()}
    )
    assert known.report(None) == ({}, False), "nothing has changed"


async def test_a_partition_that_goes_down_reports_what_was_durable() -> None:
    harness = Harness()
    assert harness.task.report_counts()[1]
    await harness.send(b"a", b"b")
    await harness.receive(1, 1)
    counts, is_whole = harness.task.report_counts()
    assert is_whole and (counts[MAIN].active, counts[MAIN].locked) == (2, 1)
    harness.log.fail_append(CommitFailed("no"))
    harness.log.on_acquire = lambda: DiskFailed("down")
    one(await harness.do(9, Send([b"c"], None)), Failed)
    assert harness.task.health is Health.RECOVERING
    counts, is_whole = harness.task.report_counts()
    assert is_whole and (counts[MAIN].active, counts[MAIN].locked) == (2, 0)
    assert harness.task.report_counts() == ({}, False)
    harness.log.on_acquire = lambda: None
    await harness.advance(60_000)
    assert harness.task.report_counts() == (harness.task.counts(), True), "it is open again"
    assert not harness.task.report_counts()[1]
