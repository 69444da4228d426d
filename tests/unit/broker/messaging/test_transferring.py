"""Transfers from a via entity to others: each message exactly once over crashes, and what becomes of those
that a destination does not take."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import (
    MAIN,
    QUEUE_SUBQUEUES,
    TRANSFER,
    TRANSFER_DEAD_LETTER,
    EntityStatus,
    QueueSettings,
)
from broker.message.stored import store_run
from broker.messaging import forward_lane, forward_retry
from broker.messaging.forward_lane import Lane
from broker.messaging.sends import transfer_of
from broker.namespace.entity import ask
from broker.operations.message_states import MessageState, SubqueueCounts
from broker.operations.sending import Send
from broker.operations.transactions import Transact, Transacted
from broker.partition import totals
from broker.partition.subqueue import Subqueue
from protocol.codec import Timestamp
from storage.errors import CommitFailed, DiskFailed
from tests.support.amqp_messages import message
from tests.support.forwarding_world import World, held_now, is_troubled, message_of, world
from tests.support.memory_log import MemoryLog
from tests.support.topics import topic
from tests.support.waiting import until

PLAIN = QueueSettings()


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_retry, "RETRY_S", 0.001)
    monkeypatch.setattr(forward_retry, "RETRY_S_MAX", 0.01)


async def pass_on(here: World, to: str, *texts: str, partition: int = 0, announced: bool = True) -> None:
    """Have the entity "via" keep messages for another one."""
    via = here.entities["via"]
    if announced:
        here.forwarding.transfers.passed_on(via, partition)
    run = store_run([message_of(text) for text in texts], str)
    operation = Transact(Send([], None), [], transfers=transfer_of(Send(run.data, None), to))
    answer = await ask(via.router.handles[partition], operation)
    assert answer == Transacted(len(texts), None)


async def test_messages_reach_their_destinations_and_leave_nothing_behind() -> None:
    async with world(via=(2, PLAIN), b=(1, PLAIN), c=(4, PLAIN)) as here:
        await pass_on(here, "b", "1", "2")
        await pass_on(here, "C", "3", partition=1)
        await pass_on(here, "b", "4", partition=1)
        assert sorted(await here.until_at("b", 3)) == ["1", "2", "4"]
        assert await here.until_at("c", 1) == ["3"]
        await here.until_empty("via", TRANSFER)
        assert here.entities["via"].runtime().transfer == 0
        assert here.entities["via"].meter.forwarded_messages == 4
        assert here.entities["b"].meter.incoming_messages == 3


async def test_a_schedule_counts_from_the_destination() -> None:
    async with world(via=(1, PLAIN), b=(1, PLAIN)) as here:
        at_ms = here.clock.now_ms() + 60_000
        notes: dict[str, Any] = {"x-opt-scheduled-enqueue-time": Timestamp(at_ms)}
        run = store_run([message(annotations=notes, properties=["m"], body=[b"<x>"])], str)
        here.forwarding.transfers.passed_on(here.entities["via"], 0)
        sent = transfer_of(Send(run.data, None), "b")
        await ask(here.entities["via"].router.handles[0], Transact(Send([], None), [], transfers=sent))
        b = here.entities["b"]
        await until(lambda: b.counts().get(MAIN, SubqueueCounts()).scheduled == 1)
        (page,) = await here.held("b")
        assert (page.states, page.enqueued_at_ms) == ([MessageState.SCHEDULED], [at_ms])


@pytest.mark.parametrize("how", ["missing", "disabled", "full", "too large", "without a session"])
async def test_what_a_destination_does_not_take_goes_to_the_transfer_dead_letter_queue(how: str) -> None:
    settings = {
        "missing": PLAIN,
        "disabled": replace(PLAIN, status=EntityStatus.SEND_DISABLED),
        "full": replace(PLAIN, max_size_mb=0),
        "too large": replace(PLAIN, max_message_size_kb=0),
        "without a session": replace(PLAIN, requires_session=True),
    }[how]
    async with world(via=(1, PLAIN), b=(1, settings), c=(1, PLAIN)) as here:
        await pass_on(here, "nowhere" if how == "missing" else "b", "1")
        await pass_on(here, "c", "2")
        assert await here.until_at("via", 1, TRANSFER_DEAD_LETTER) == ["1"]
        assert await here.until_at("c", 1) == ["2"]
        (page,) = await here.held("via", TRANSFER_DEAD_LETTER)
        assert page.changed[0] is not None and b"DeadLetterReason" in page.changed[0]
        assert here.entities["via"].runtime().transfer_dead_letter == 1


async def test_a_destination_that_is_down_holds_up_no_other_one_however_much_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forward_lane, "LOAD_MESSAGES", 2)
    waiting = [f"waits {number:02}" for number in range(20)]
    async with world(via=(1, PLAIN), b=(1, PLAIN), c=(1, PLAIN)) as here:
        down = True

        def refuse(name: str, number: int, log: MemoryLog) -> None:
            if name == "b":
                log.on_acquire = lambda: DiskFailed("down") if down else None

        here.on_log = refuse
        await pass_on(here, "b", *waiting[:15])
        await pass_on(here, "c", "goes")
        assert await here.until_at("c", 1) == ["goes"]
        await pass_on(here, "b", *waiting[15:])
        await pass_on(here, "c", "goes too")
        assert await here.until_at("c", 2) == ["goes", "goes too"]
        down = False
        here.clock.advance(60_000)
        here.partitions["b", 0].wake()
        assert await here.until_at("b", 20) == waiting
        await here.until_empty("via", TRANSFER)


async def test_a_destination_that_is_out_of_service_holds_up_no_other_one() -> None:
    waiting = [f"waits {number}" for number in range(9)]
    async with world(via=(1, PLAIN), b=(1, PLAIN), c=(1, PLAIN)) as here:
        b = here.entities.pop("b")
        here.missing = lambda name: Refused(Reason.PARTITION_UNAVAILABLE, "damaged")  # type: ignore[method-assign]
        for text in waiting[:6]:
            await pass_on(here, "b", text)
        await pass_on(here, "c", "goes")
        assert await here.until_at("c", 1) == ["goes"]
        here.entities["b"] = b
        here.changed(b)
        for text in waiting[6:]:
            await pass_on(here, "b", text)
        assert await here.until_at("b", 9) == waiting
        await here.until_empty("via", TRANSFER)


async def test_an_entity_that_comes_back_after_a_failed_deletion_passes_on_what_it_holds() -> None:
    async with world(via=(1, PLAIN), b=(1, PLAIN)) as here:
        via = here.entities["via"]
        via.gone = Refused(Reason.PARTITION_UNAVAILABLE, "being undone")
        here.forwarding.transfers.changed(via)
        await until(lambda: not here.forwarding.transfers._lanes)
        via.gone = None
        await pass_on(here, "b", "1", announced=False)
        assert held_now(via, TRANSFER) == 1
        here.changed(via)
        assert await here.until_at("b", 1) == ["1"]


@pytest.mark.parametrize("stops", [False, True], ids=["crash", "stop"])
async def test_what_is_left_is_transferred_after_a_restart(stops: bool) -> None:
    async with world(via=(4, PLAIN), b=(1, PLAIN)) as here:
        await pass_on(here, "b", "1", "2", partition=3, announced=False)
        await (here.stop() if stops else here.crash())
        number = QUEUE_SUBQUEUES.number_of(TRANSFER)
        held = {number: SubqueueCounts(active=2)}
        resting: Any = here.resting
        if stops:
            resting.counts = lambda generation, started: held if "via" in generation and not started else {}
        else:
            resting.unknown = lambda generation: [3] if generation.endswith("via") else []
        here.start()
        assert await here.until_at("b", 2) == ["1", "2"]
        await here.until_empty("via", TRANSFER)
        via = here.entities["via"]
        assert [via.may_hold(number, MAIN) for number in range(4)] == [False, False, False, True]


async def test_a_stop_ends_the_look_for_what_is_left_which_opens_partitions() -> None:
    async with world(via=(4, PLAIN)) as here:
        await here.crash()
        resting: Any = here.resting
        resting.unknown = lambda generation: [0, 1, 2, 3]
        here.on_log = lambda name, number, log: setattr(log, "on_acquire", lambda: DiskFailed("down"))
        here.start()
        (looking,) = [task for task in here.tasks if task.get_name() == "transfers left"]
        await here.forwarding.stop()
        assert looking.done() and not here.partitions


async def test_while_memory_is_scarce_no_partition_is_opened_to_look_for_what_is_left() -> None:
    """Symptom: the kernel had ended the broker for lack of memory, and ended it again at each start."""
    async with world(via=(2, PLAIN), b=(1, PLAIN)) as here:
        await pass_on(here, "b", "1", partition=1, announced=False)
        await here.crash()
        resting: Any = here.resting
        resting.unknown = lambda generation: [1] if generation.endswith("via") else []
        here.start()
        memory = here.forwarding._shared.memory
        memory.limited = True
        for _ in range(10):
            await asyncio.sleep(0)
        assert not here.partitions
        memory.limited = False
        assert await here.until_at("b", 1) == ["1"]


async def test_what_a_partition_holds_that_is_down_after_a_restart_is_transferred_when_it_is_back() -> None:
    async with world(via=(2, PLAIN), b=(1, PLAIN)) as here:
        await pass_on(here, "b", "1", "2", partition=1, announced=False)
        await here.crash()
        resting: Any = here.resting
        resting.unknown = lambda generation: [1] if generation.endswith("via") else []
        down = True

        def refuse(name: str, number: int, log: MemoryLog) -> None:
            log.on_acquire = lambda: DiskFailed("down") if down else None

        here.on_log = refuse
        here.start()
        await until(lambda: bool(here.entities["via"].uncounted()))
        down = False

        def arrived() -> bool:
            here.clock.advance(60_000)
            for partition in here.partitions.values():
                partition.wake()
            return held_now(here.entities["b"]) == 2

        await until(arrived)
        await here.until_empty("via", TRANSFER)


async def test_a_message_whose_removal_is_lost_in_a_crash_comes_once() -> None:
    """The destination has stored it, and the via entity dies before it has removed it."""
    async with world(via=(1, PLAIN), b=(1, PLAIN)) as here:
        await pass_on(here, "b", "0")
        await here.until_at("b", 1)
        await here.until_empty("via", TRANSFER)
        await here.texts("via")  # the removal has been committed
        here.logs["via", 0].fail_append(CommitFailed("no"), after=1)
        await pass_on(here, "b", "1", "2")
        await here.until_at("b", 3)
        await here.crash()
        resting: Any = here.resting
        resting.unknown = lambda generation: [0]
        here.start()
        await pass_on(here, "b", "3")
        assert await here.until_at("b", 4) == ["0", "1", "2", "3"]
        await here.until_empty("via", TRANSFER)
        assert await here.texts("b") == ["0", "1", "2", "3"]


async def test_a_disk_that_fails_at_any_record_of_a_transfer_loses_and_doubles_nothing() -> None:
    for name in ("via", "b"):
        for after in range(4):
            async with world(via=(1, PLAIN), b=(1, PLAIN)) as here:
                await pass_on(here, "b", "0")
                await here.until_at("b", 1)
                here.logs[name, 0].fail_append(CommitFailed("no"), after=after)
                for text in ("1", "2"):
                    try:
                        await pass_on(here, "b", text)
                    except Exception:
                        here.clock.advance(60_000)
                        here.partitions["via", 0].wake()
                        await pass_on(here, "b", text)
                for _ in range(3):
                    here.clock.advance(60_000)
                    for part in here.partitions.values():
                        part.wake()
                await here.until_at("b", 3)
                await here.until_empty("via", TRANSFER)
                assert await here.texts("b") == ["0", "1", "2"], (name, after)


def lanes_to(here: World) -> dict[str, dict[Lane, None]]:
    """The lanes by the target that they have forwarded to, or that something waits for."""
    return cast(dict[str, dict[Lane, None]], here.forwarding._shared.lanes_to)


async def test_a_via_entity_that_is_deleted_ends_its_lanes() -> None:
    async with world(via=(1, PLAIN), b=(1, PLAIN)) as here:
        await pass_on(here, "b", "1")
        await here.until_at("b", 1)
        via = here.entities["via"]
        await here.delete("via")
        here.forwarding.transfers.changed(via)
        await until(lambda: not here.forwarding.transfers._lanes)
        here.forwarding.transfers.passed_on(via, 0)
        assert not here.forwarding.transfers._lanes
        await until(lambda: not lanes_to(here))


async def test_the_destination_forgets_what_came_some_time_after_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forward_lane, "FORGET_S", 0.01)
    async with world(via=(1, PLAIN), b=(1, PLAIN)) as here:
        await pass_on(here, "b", "1")
        await here.until_at("b", 1)
        await until(lambda: not (lanes_to(here) or held_now(here.entities["via"], TRANSFER)))


async def test_a_destination_that_waits_holds_up_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    is_down = True

    def refuse(name: str, number: int, log: MemoryLog) -> None:
        if name != "via":
            log.on_acquire = lambda: DiskFailed("down") if is_down else None

    monkeypatch.setattr(forward_retry, "RETRY_S", 60.0)
    monkeypatch.setattr(forward_retry, "RETRY_S_MAX", 60.0)
    async with world(via=(1, PLAIN), b=(1, PLAIN), c=(1, PLAIN)) as here:
        here.on_log = refuse
        await pass_on(here, "b", "later")
        await until(lambda: any(is_troubled(lane) for lane in lanes_to(here).get("b", ())))
        monkeypatch.setattr(forward_retry, "RETRY_S", 0.001)
        await pass_on(here, "c", "sooner")
        await until(lambda: "c" in lanes_to(here) and ("c", 0) in here.partitions)
        is_down = False
        here.clock.advance(60_000)
        for name in ("b", "c"):
            here.partitions[name, 0].wake()
        assert await here.until_at("c", 1) == ["sooner"]
        assert held_now(here.entities["b"]) == 0
        await here.update("b", PLAIN)
        assert await here.until_at("b", 1) == ["later"], "its target has changed"


async def test_a_change_of_a_topic_counts_only_what_it_passes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Symptom: to create or delete a subscription of a topic counted all subscriptions in all partitions, in
    one turn of the event loop: 60 to 160 ms with 1,000 subscriptions and 16 partitions."""
    description = topic(*(f"s{number}" for number in range(50)), partitions=3)
    counted: list[int] = []
    row_of = totals._row_of

    def noted(subqueue: Subqueue) -> tuple[int, int, int, int, int]:
        counted.append(subqueue.number)
        return row_of(subqueue)

    async with world(b=(1, PLAIN)) as here:
        await here.stop()
        here.descriptions[description.name] = description
        here.start()
        events = here.entities[description.name]
        for number in range(3):
            await here.send(description.name, "1", partition=number)
        assert events.counts()["subscriptions/s7"].active == 3
        monkeypatch.setattr(totals, "_row_of", noted)
        here.forwarding.transfers.changed(events)
        transfers = events.description.subqueues.number_of(TRANSFER)
        assert len(counted) <= 3 and set(counted) <= {transfers}
        assert events.active_in("subscriptions/s7") == 3 and events.active_in(TRANSFER) == 0
