"""A link on which a client browses: real engine and connection, with partitions that the tests answer for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import QueueSettings
from broker.frontend.links import browse as browse_link
from broker.identifiers import PARTITION_SHIFT
from broker.messaging.page_places import PAGES_AT_ONCE
from broker.namespace.health import ENDED
from broker.operations.browsing import Arrived, Peek, Peeked, Watch
from broker.operations.general import Detach, Failed, Unavailable
from broker.operations.interface import Answer, Operation, Sink
from broker.operations.message_states import MessageState
from protocol.codec import Described, Symbol, UInt, ULong
from protocol.events import Outcome
from protocol.proton_values import lib as proton
from protocol.session_window import WAITING_MAX
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import sections
from tests.support.link_stack import Client, LinkStack, turn, until
from tests.support.locked import stored
from tests.support.raw_amqp import Frame
from tests.support.receiving import ends_when_receiving_is_disabled
from tests.support.rule_messages import stored_with
from tests.support.transactions import Coordinator, condition_of


def browser_attach(handle: int = 0, address: str = "queue", **given: Any) -> list[Any]:
    fields = raw.receiver_attach(handle, address, **given)
    fields[5] = Described(ULong(raw.SOURCE), [address, None, None, None, None, None, Symbol("copy")])
    return fields


def browse_of(client: Client) -> browse_link.BrowseLink:
    """The client's only browse."""
    (browse,) = [
        link.context
        for link in client.connection.engine.links()
        if isinstance(link.context, browse_link.BrowseLink)
    ]
    return browse


class Shelf:
    """What the partitions of a stack hold, and their answers to a browsing link."""

    def __init__(self, stack: LinkStack, held: Sequence[int], *, size: int = 5) -> None:
        """`held` gives the number of messages in each partition."""
        self.stack = stack
        self.numbers = [
            [number << PARTITION_SHIFT | place for place in range(1, count + 1)]
            for number, count in enumerate(held)
        ]
        self.message = stored(bytes(size))
        self.peeks: list[tuple[int, Peek]] = []
        self.states: dict[int, int] = {}
        self.messages: dict[int, bytes] = {}
        """Those that differ from the others, by number."""

    async def serve(self, *down: int) -> None:
        """Answer every peek, partition by partition, until none is left; partitions in `down` refuse."""
        await turn()
        while any(part.has(Peek) for part in self.stack.parts):
            for part in self.stack.parts:
                while part.has(Peek):
                    operation = part.answer(Peek, self._answer(part.number, down))
                    assert isinstance(operation, Peek)
                    self.peeks.append((part.number, operation))
            await turn()

    def _answer(self, number: int, down: Sequence[int]) -> Callable[[Peek], Answer]:
        return lambda peek: self._answer_to(number, peek, down)

    def _answer_to(self, number: int, peek: Peek, down: Sequence[int]) -> Answer:
        if number in down:
            return Failed(Reason.PARTITION_UNAVAILABLE, "It is down.", peek.cookie)
        room = len(self.message) * 1_000 if peek.bytes_max is None else peek.bytes_max
        behind = [each for each in self.numbers[number] if each >= peek.from_sequence_number]
        shown = behind[: min(peek.count, max(-(-room // len(self.message)), 1))]
        return Peeked(
            shown,
            [0] * len(shown),
            [0] * len(shown),
            [None] * len(shown),
            [self.messages.get(each, self.message) for each in shown],
            [None] * len(shown),
            [self.states.get(each, MessageState.ACTIVE) for each in shown],
            peek.cookie,
            more=len(shown) < len(behind) and len(shown) < peek.count,
        )

    def every(self) -> list[int]:
        return [number for numbers in self.numbers for number in numbers]

    def watched(self) -> dict[int, int]:
        """By partition: the sequence number from which the link watches it now."""
        found: dict[int, int] = {}
        for part in self.stack.parts:
            for operation, _, _ in part.posted:
                if isinstance(operation, Watch):
                    assert part.number not in found, "one at a time"
                    found[part.number] = operation.from_sequence_number
        return found

    async def arrive(self, number: int, count: int = 1) -> None:
        """Add messages to a partition, and let it announce them."""
        last = max(self.numbers[number], default=number << PARTITION_SHIFT)
        self.numbers[number] += range(last + 1, last + 1 + count)
        self.stack.parts[number].answer(Watch, lambda watch: Arrived(number, watch.subqueue))
        await self.serve()


async def browsing(
    held: Sequence[int],
    *,
    credit: int = 0,
    settled: bool = False,
    size: int = 5,
    queue: QueueSettings | None = None,
    **given: Any,
) -> tuple[LinkStack, Client, Shelf]:
    stack = LinkStack(len(held), queue, **given)
    client = await stack.connect()
    (attach,) = await client.attach(browser_attach(settled=settled))
    assert attach.field(5).value[6] == "copy" and attach.field(9) == 0
    shelf = Shelf(stack, held, size=size)
    if credit:
        client.flow(0, 0, credit)
        await shelf.serve()
    return stack, client, shelf


def shown(frames: Sequence[Frame]) -> list[int]:
    """The sequence numbers of the transfers among frames."""
    return [
        sections(frame.payload)[0x72]["x-opt-sequence-number"]
        for frame in frames
        if frame.code == raw.TRANSFER
    ]


async def drained(client: Client) -> Frame | None:
    """The flow that answers a drain, if there is one."""
    flows = [frame for frame in await client.heard(raw.FLOW) if frame.field(8)]
    return flows[-1] if flows else None


# --- messages shown -----------------------------------------------------------------------------------------


async def test_few_messages_wait_for_the_window_of_a_session() -> None:
    stack = LinkStack(1)
    client = await stack.connect(window=10)
    await client.attach(browser_attach())
    fields = raw.flow_fields(0, 0, 5_000)
    fields[1] = UInt(10)
    client.say(raw.frame(raw.FLOW, fields))
    await Shelf(stack, [2_000]).serve()
    (link,) = client.connection.engine.links()
    assert len(shown(await client.hear())) == 10
    assert 0 < proton.pn_link_queued(link.pn) <= WAITING_MAX


async def test_each_message_of_all_partitions_is_shown_once_and_nothing_is_asked_of_them_but_to_look() -> (
    None
):
    stack, client, shelf = await browsing([3, 0, 2, 1], credit=100)
    assert shown(await client.hear()) == shelf.every()
    asked: set[type[Operation]] = {type(operation) for part in stack.parts for operation, _, _ in part.posted}
    assert asked == {Watch, Detach}, "no demand, no settlement"
    assert len(shelf.peeks) == 4, "one look at each partition"


async def test_a_delivery_shows_the_message_as_it_stands_and_no_lock() -> None:
    _, client, shelf = await browsing([0, 0, 2])
    shelf.states[shelf.numbers[2][1]] = MessageState.DEFERRED
    client.flow(0, 0, 10)
    await shelf.serve()
    first, second = await client.heard(raw.TRANSFER)
    assert first.field(3) == 0 and not first.field(4)
    annotations = sections(first.payload)[0x72]
    assert annotations["x-opt-message-state"] == 0 and annotations["x-opt-partition-id"] == 2
    assert "x-opt-locked-until" not in annotations and 0x71 not in sections(first.payload)
    assert sections(second.payload)[0x72]["x-opt-message-state"] == 1
    assert first.field(2) != second.field(2)


async def test_a_settled_link_gets_settled_deliveries() -> None:
    _, client, _ = await browsing([2], credit=10, settled=True)
    assert [frame.field(4) for frame in await client.heard(raw.TRANSFER)] == [True, True]


async def test_no_more_is_shown_than_the_credit_and_the_next_credit_goes_on_from_there() -> None:
    _, client, shelf = await browsing([3, 3], credit=2)
    seen = shown(await client.hear())
    assert len(seen) == 2
    client.flow(0, 2, 3)
    await shelf.serve()
    seen += shown(await client.hear())
    client.flow(0, 5, 3)
    await shelf.serve()
    assert seen + shown(await client.hear()) == shelf.every()


@pytest.mark.parametrize("looking_s", [60.0, 0.0])
async def test_a_browse_with_a_selector_passes_over_what_it_does_not_want(
    monkeypatch: pytest.MonkeyPatch, looking_s: float
) -> None:
    """Also if a selector takes so long that each message is looked at by itself."""
    monkeypatch.setattr(browse_link, "LOOKING_S", looking_s)
    stack = LinkStack(2)
    client = await stack.connect()
    fields = browser_attach()
    fields[5].value.append({Symbol("s"): Described(Symbol("apache.org:selector-filter:string"), "n > 0")})
    await client.attach(fields)
    shelf = Shelf(stack, [150, 4])
    wanted = [*shelf.numbers[0][10:150:40], shelf.numbers[1][3]]
    shelf.messages = {number: stored_with({"n": 1}) for number in wanted}
    client.flow(0, 0, 3)
    await shelf.serve()
    assert shown(await client.hear()) == wanted[:3]
    assert {peek.count for _, peek in shelf.peeks} == {browse_link.SELECTED_FROM}
    assert (len(shelf.peeks) > 90) == (looking_s == 0), "one peek for each message"
    client.flow(0, 3, 7, drain=True)
    await shelf.serve()
    frames = await client.hear()
    assert shown(frames) == wanted[3:]
    assert [frame.field(6) for frame in frames if frame.code == raw.FLOW] == [0], "the drain is answered"
    shelf.numbers[1] += [shelf.numbers[1][-1] + 1]
    assert await client.heard(raw.TRANSFER) == []


async def test_a_large_queue_is_read_in_pages_of_bounded_size_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(browse_link, "PAGE_MESSAGES_MAX", 7)
    stack, client, shelf = await browsing([50, 41])
    client.flow(0, 0, 1_000)
    await turn()
    assert sum(part.has(Peek) for part in stack.parts) == 1
    await shelf.serve()
    assert shown(await client.hear()) == shelf.every()
    assert all(peek.count <= 7 for _, peek in shelf.peeks)


async def test_a_page_has_a_bound_in_bytes() -> None:
    _, client, shelf = await browsing([40], credit=40, size=30_000)
    seen = shown(await client.hear())
    await shelf.serve()
    while more := shown(await client.hear()):
        seen += more
        await shelf.serve()
    assert seen == shelf.every()
    assert len(shelf.peeks) >= 4 and all(
        peek.bytes_max == browse_link.PAGE_BYTES_MAX for _, peek in shelf.peeks
    )


async def test_credit_that_was_taken_back_while_a_page_was_read_is_not_exceeded_and_nothing_is_left_out() -> (
    None
):
    _, client, shelf = await browsing([5])
    client.flow(0, 0, 5)
    await turn()
    client.flow(0, 0, 2)
    await shelf.serve()
    seen = shown(await client.hear())
    assert len(seen) == 2
    client.flow(0, 2, 10)
    await shelf.serve()
    assert seen + shown(await client.hear()) == shelf.every()


async def test_a_delivery_counts_as_unsettled_until_it_is_settled_or_its_link_ends() -> None:
    stack, client, shelf = await browsing([4], credit=4)
    await shelf.serve()
    memory = stack.services.memory
    assert memory.unsettled == len(shown(await client.hear())) == 4
    for _ in range(2):  # for the second time, nothing is left to settle
        client.dispose(0, 1, raw.outcome(Outcome.ACCEPTED), settled=True)
        await client.hear()
        assert memory.unsettled == 2
    client.detach(0)
    await client.hear()
    assert memory.unsettled == 0


async def test_a_client_that_does_not_read_is_shown_no_more_and_its_pages_are_not_kept() -> None:
    stack, client, shelf = await browsing([40], size=20_000, output_buffer_bytes_max=65_536)
    client.connection.pause_writing()
    client.flow(0, 0, 1_000)
    await shelf.serve()
    assert not shelf.peeks, "not even read"
    client.connection.resume_writing()
    await turn()
    client.connection.pause_writing()  # while the page is under way
    await shelf.serve()
    assert len(shelf.peeks) == 1 and shown(await client.hear()) == []
    client.connection.resume_writing()
    seen: list[int] = []
    for _ in range(30):
        await shelf.serve()
        seen += shown(await client.hear())
    assert seen == shelf.every() and stack.parts[0].has(Watch)


async def test_one_connection_reads_one_page_at_a_time_and_the_broker_few() -> None:
    stack = LinkStack(1)
    clients = [await stack.connect() for _ in range(PAGES_AT_ONCE + 3)]
    for client in clients:
        for handle in range(3):
            await client.attach(browser_attach(handle))
            client.flow(handle, 0, 10)
    await turn()
    (part,) = stack.parts
    assert len([each for each in part.posted if isinstance(each[0], Peek)]) == PAGES_AT_ONCE
    await Shelf(stack, [4]).serve()
    for client in clients:
        assert len(shown(await client.hear())) == 12, "everybody has its turn"


async def test_browsers_of_a_partition_that_hangs_keep_nobody_from_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(browse_link, "LATE_S", 0.005)
    stack = LinkStack(2)
    crowd = [await stack.connect() for _ in range(PAGES_AT_ONCE + 1)]
    for client in crowd:
        await client.attach(browser_attach())
        client.flow(0, 0, 10)
    await turn()
    shelf = Shelf(stack, [1, 2])
    await until(lambda: stack.queue.router.late == {0})
    hanging, stack.parts[0].has = stack.parts[0].has, lambda kind: False  # type: ignore[method-assign]
    seen: dict[Client, list[int]] = {client: [] for client in crowd}
    async with asyncio.timeout(20):
        while not all(len(each) == 2 for each in seen.values()):
            await shelf.serve()
            for client in crowd:
                seen[client] += shown(await client.hear())
    await until(lambda: stack.services.pages.late.locked())
    assert not stack.services.pages.prompt.locked(), "they wait for the first partition elsewhere"
    stack.parts[0].has = hanging  # type: ignore[method-assign]
    async with asyncio.timeout(20):
        while not all(len(each) == 3 for each in seen.values()):
            await shelf.serve()
            for client in crowd:
                seen[client] += shown(await client.hear())
    assert all(sorted(each) == shelf.every() for each in seen.values())


# --- settlement ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [Outcome.ACCEPTED, Outcome.REJECTED, Outcome.RELEASED, Outcome.MODIFIED])
async def test_an_outcome_is_answered_with_the_same_one_and_changes_nothing(outcome: Outcome) -> None:
    stack, client, _ = await browsing([3], credit=3)
    await client.hear()
    for part in stack.parts:
        part.posted.clear()
    client.dispose(0, 2, raw.outcome(outcome))
    found = await client.heard(raw.DISPOSITION)
    assert found and all(frame.field(3) is True and frame.field(4).descriptor == outcome for frame in found)
    assert {
        number for frame in found for number in range(frame.field(1), (frame.field(2) or frame.field(1)) + 1)
    } == {0, 1, 2}
    assert not any(part.posted for part in stack.parts)
    client.dispose(0, 2, raw.outcome(outcome))
    assert await client.hear() == [], "told twice"


async def test_an_outcome_of_a_transaction_is_refused_and_fails_the_transaction() -> None:
    _, client, _ = await browsing([1], credit=1)
    await client.hear()
    coordinator = await Coordinator.attach(client)
    txn_id = await coordinator.declare()
    client.dispose(0, 0, Described(ULong(0x34), [txn_id, raw.outcome(Outcome.ACCEPTED)]))
    (answer,) = await client.heard(raw.DISPOSITION)
    assert (
        answer.field(4).descriptor == Outcome.REJECTED
        and answer.field(4).value[0].value[0] == "amqp:not-implemented"
    )
    assert condition_of(await coordinator.discharge(txn_id))[0] == "amqp:transaction:rollback"


async def test_deliveries_that_are_not_settled_are_bounded_and_the_browse_goes_on_when_they_are() -> None:
    _, client, shelf = await browsing([9], credit=9, unsettled_per_link_max=4)
    seen = shown(await client.hear())
    assert len(seen) == 4
    client.dispose(0, 3, raw.outcome(Outcome.ACCEPTED), settled=True)
    await shelf.serve()
    seen += shown(await client.hear())
    assert seen == shelf.every()[:8]


async def test_far_above_the_memory_mark_fewer_may_be_unsettled_until_memory_has_recovered() -> None:
    stack, client, shelf = await browsing([300])
    stack.resident = stack.memory.mark * 111 // 100
    stack.memory.look()
    client.flow(0, 0, 250)
    await turn()
    await shelf.serve()
    seen = shown(await client.hear())
    assert len(seen) == 100
    client.dispose(0, 9, raw.outcome(Outcome.ACCEPTED), settled=True)
    await shelf.serve()
    seen += shown(await client.hear())
    assert len(seen) == 110
    client.flow(0, 110, 140, drain=True)
    await turn()
    assert await drained(client) is not None
    client.flow(0, 250, 20)
    await turn()
    assert not shown(await client.hear())
    stack.resident = stack.memory.mark // 2
    stack.memory.look()
    await until(lambda: stack.parts[0].has(Peek))
    await shelf.serve()
    seen += shown(await client.hear())
    assert seen == shelf.every()[:130]


# --- the last message, and later ones -----------------------------------------------------------------------


async def test_a_drain_is_answered_when_all_was_shown() -> None:
    _, client, shelf = await browsing([2, 0, 2])
    client.flow(0, 0, 10, drain=True)
    await turn()
    assert await drained(client) is None, "not before"
    await shelf.serve()
    frames = await client.hear()
    assert shown(frames) == shelf.every()
    flow = frames[-1]
    assert (flow.code, flow.field(5), flow.field(6), flow.field(8)) == (raw.FLOW, 10, 0, True)
    client.flow(0, 10, 5, drain=True)
    await shelf.serve()
    assert await drained(client) is not None and len(shelf.peeks) == 3, (
        "nothing has come since: nobody is asked again"
    )


async def test_a_drain_of_an_empty_queue_is_answered() -> None:
    _, client, shelf = await browsing([0, 0])
    client.flow(0, 0, 1, drain=True)
    await shelf.serve()
    assert await drained(client) is not None


async def test_at_its_end_a_browse_waits_without_polling_and_shows_what_arrives() -> None:
    _, client, shelf = await browsing([2, 1], credit=100)
    await client.hear()
    assert shelf.watched() == {0: 3, 1: 1 << PARTITION_SHIFT | 2}
    asked = len(shelf.peeks)
    client.flow(0, 3, 97)  # pyamqp repeats its flows unchanged
    await shelf.serve()
    assert len(shelf.peeks) == asked
    await shelf.arrive(1, 2)
    assert shown(await client.hear()) == shelf.numbers[1][1:] and len(shelf.peeks) == asked + 1
    assert shelf.watched() == {0: 3, 1: 1 << PARTITION_SHIFT | 4}


async def test_what_arrives_while_there_is_no_credit_is_shown_with_the_next() -> None:
    _, client, shelf = await browsing([1], credit=2)
    await client.hear()
    client.flow(0, 1, 0)
    await shelf.arrive(0, 3)
    assert await client.heard(raw.TRANSFER) == []
    client.flow(0, 1, 10, drain=True)
    await shelf.serve()
    assert shown(await client.hear()) == shelf.numbers[0][1:]


async def test_a_partition_that_always_has_more_does_not_keep_the_others_from_being_shown() -> None:
    _, client, shelf = await browsing([1, 1], credit=1)
    client.flow(0, 1, 1)
    await turn()
    shelf.numbers[0].append(2)
    await shelf.serve()
    client.flow(0, 2, 1)
    await shelf.serve()
    assert len(shown(await client.hear())) == 3 and {number for number, _ in shelf.peeks} == {0, 1}


# --- partitions that are down -------------------------------------------------------------------------------


async def test_a_partition_that_is_down_does_not_stop_the_browse_and_is_shown_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(browse_link, "LOOK_AGAIN_S", 0.01)
    stack, client, shelf = await browsing([2, 2, 2])
    stack.parts[1].available = False
    client.flow(0, 0, 100, drain=True)
    await shelf.serve()
    frames = await client.hear()
    assert shown(frames) == shelf.numbers[0] + shelf.numbers[2]
    assert frames[-1].code == raw.FLOW and frames[-1].field(8), "the drain is answered"
    client.flow(0, 100, 100)
    stack.parts[1].available = True
    await until(lambda: stack.parts[1].has(Peek))
    await shelf.serve()
    assert shown(await client.hear()) == shelf.numbers[1]


async def test_a_partition_that_stays_down_is_looked_at_ever_more_rarely_and_shown_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(browse_link, "LOOK_AGAIN_S", 0.001)
    monkeypatch.setattr(browse_link, "LOOK_AGAIN_S_MAX", 0.03)
    stack, client, shelf = await browsing([2, 2])
    stack.parts[1].available, stack.parts[1].health = False, "recovering"
    client.flow(0, 0, 100)
    await shelf.serve()
    browse = browse_of(client)
    await until(lambda: browse._look_again_s == 0.03)
    stack.parts[1].available, stack.parts[1].health = True, "serving"
    await until(lambda: stack.parts[1].has(Peek))
    await shelf.serve()
    assert shown(await client.hear()) == shelf.numbers[0] + shelf.numbers[1]
    assert browse._look_again_timer is None


@pytest.mark.parametrize("state", sorted(ENDED))
async def test_a_partition_that_is_down_for_good_is_not_looked_at_again(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browse_link, "LOOK_AGAIN_S", 0.001)
    stack, client, shelf = await browsing([2, 2])
    stack.parts[1].available, stack.parts[1].health = False, state
    client.flow(0, 0, 100)
    await shelf.serve()
    browse = browse_of(client)
    await until(lambda: browse._look_again_timer is None)
    assert shown(await client.hear()) == shelf.numbers[0]


async def test_a_partition_that_goes_down_at_the_end_is_watched_again_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(browse_link, "LOOK_AGAIN_S", 0.01)
    stack, client, shelf = await browsing([1], credit=10)
    await client.hear()
    stack.parts[0].answer(Watch, lambda _: Unavailable(0))
    shelf.numbers[0].append(2)
    await until(lambda: stack.parts[0].has(Peek))
    await shelf.serve(0)  # still down
    await until(lambda: stack.parts[0].has(Peek))
    await shelf.serve()
    assert shown(await client.hear()) == [2] and shelf.watched() == {0: 3}


async def test_a_partition_that_does_not_answer_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browse_link, "LATE_S", 0.01)
    stack, client, shelf = await browsing([1, 2])
    client.flow(0, 0, 10, drain=True)
    await until(lambda: stack.parts[1].has(Peek))
    monkeypatch.setattr(browse_link, "PAGE_WITHIN_S", 0.01)
    stack.parts[1].answer(Peek, shelf._answer(1, ()))
    frames = await client.hear()
    while not frames[-1].field(8):
        frames += await client.hear()
    assert shown(frames) == shelf.numbers[1]


async def test_a_partition_that_is_late_is_shown_after_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browse_link, "LATE_S", 0.01)
    stack, client, shelf = await browsing([1, 2, 1])
    client.flow(0, 0, 10)
    await until(lambda: stack.parts[1].has(Peek))
    monkeypatch.setattr(browse_link, "LATE_S", 60)
    for number in (1, 2):
        await until(lambda: stack.parts[number].has(Peek))  # noqa: B023 (called at once)
        stack.parts[number].answer(Peek, shelf._answer(number, ()))
    assert shown(await client.hear()) == shelf.numbers[1] + shelf.numbers[2]
    await shelf.serve()
    assert shown(await client.hear()) == shelf.numbers[0]
    assert not stack.queue.router.late


async def test_on_a_slow_disk_where_every_page_is_late_all_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The single messages for which late partitions are asked come in time, pages a little later."""
    monkeypatch.setattr(browse_link, "LATE_S", 0)
    stack, client, shelf = await browsing([300, 2, 300])
    client.flow(0, 0, 1_000)
    pages: deque[tuple[int, Sink, Peeked]] = deque()
    for now in range(2_000):
        await asyncio.sleep(0)
        for part in stack.parts:
            while part.has(Peek):
                peek, sink = part.take(Peek)
                answer = shelf._answer(part.number, ())(peek)
                assert isinstance(answer, Peeked)
                if peek.count == 1:
                    sink(answer)
                else:
                    pages.append((now + 20, sink, answer))
        while pages and pages[0][0] <= now:
            _, sink, answer = pages.popleft()
            sink(answer)
    assert sorted(shown(await client.hear())) == shelf.every()


# --- attach and detach --------------------------------------------------------------------------------------


async def test_a_dead_letter_queue_is_browsed_under_its_path() -> None:
    stack = LinkStack(1)
    client = await stack.connect()
    await client.attach(browser_attach(address="queue/$DeadLetterQueue"))
    client.flow(0, 0, 10)
    await turn()
    (part,) = stack.parts
    assert part.take(Peek)[0].subqueue == "$deadletterqueue"


async def refused(client: Client, fields: list[Any]) -> str:
    attach, detach = await client.attach(fields)
    assert attach.field(5) is None and attach.field(6) is None and detach.field(1) is True
    return str(raw.condition_of(detach) or detach.field(2).value[0])


async def test_a_browse_needs_the_listen_claim() -> None:
    client = await LinkStack().connect(raw.sasl_anonymous())
    assert await refused(client, browser_attach()) == "amqp:unauthorized-access"


async def test_a_browse_is_refused_and_ended_where_receiving_is() -> None:
    stack, client, _ = await browsing([1], credit=1)
    await client.hear()
    await ends_when_receiving_is_disabled(stack, client)
    assert await refused(client, browser_attach(1)) == "com.microsoft:entity-disabled"


async def test_a_browse_of_a_queue_that_requires_sessions_is_refused() -> None:
    client = await LinkStack(4, QueueSettings(requires_session=True)).connect()
    assert await refused(client, browser_attach()) == "amqp:not-allowed"


async def test_a_browse_is_ended_when_its_queue_is_deleted() -> None:
    stack, client, _ = await browsing([1], credit=5)
    await client.hear()
    await stack.queue.end(
        Refused(Reason.ENTITY_NOT_FOUND, "The messaging entity 'queue' could not be found.")
    )
    (detach,) = await client.heard(raw.DETACH)
    assert detach.field(2).value[0] == "amqp:not-found" and not stack.queue.watchers


@pytest.mark.parametrize("how", ["detach", "hang up"])
async def test_a_client_that_leaves_in_the_middle_leaves_nothing_behind(how: str) -> None:
    stack, client, shelf = await browsing([5])
    client.flow(0, 0, 5)
    await turn()
    if how == "detach":
        client.detach(0)
    else:
        client.connection.connection_lost()
    await shelf.serve()
    await asyncio.sleep(0)
    assert not stack.queue.watchers and not stack.tasks
    assert stack.parts[0].has(Detach) and shelf.watched() == {}
    other = await stack.connect()
    await other.attach(browser_attach())
    other.flow(0, 0, 5)
    await shelf.serve()
    assert shown(await other.hear()) == shelf.every(), "its turn was given back"


async def test_what_nobody_foresaw_ends_the_connection_and_reaches_no_partition() -> None:
    stack, client, shelf = await browsing([1])
    shelf.message = b""
    client.flow(0, 0, 5)
    await turn()
    _, sink = stack.parts[0].take(Peek)
    sink(Peeked([1], [0], [0], [None], [b""], [None], [0], None))
    await turn()
    assert client.stream.aborted


async def test_the_handle_of_a_browse_counts_its_deliveries_for_the_whole_session() -> None:
    """Delivery-ids have no gap, whichever link a delivery goes over (AMQP contract 5.3)."""
    _, client, shelf = await browsing([2], credit=10)
    assert [frame.field(1) for frame in await client.heard(raw.TRANSFER)] == [UInt(0), UInt(1)]
    await client.attach(browser_attach(1))
    client.flow(1, 0, 10)
    await shelf.serve()
    assert [frame.field(1) for frame in await client.heard(raw.TRANSFER)] == [UInt(2), UInt(3)]
