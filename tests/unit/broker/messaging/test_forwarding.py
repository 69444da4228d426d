"""Forwarding between entities with real partitions: what begins, what ends, and what waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from itertools import pairwise

import pytest
from structlog.testing import capture_logs

from broker.base.errors import Refused
from broker.entities.descriptions import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER, EntityStatus, QueueSettings
from broker.message.changes import encode_changes, has_reason
from broker.message.forwarded import trail_of
from broker.messaging import forward_outlet
from broker.messaging.asking import answer_of
from broker.namespace.entity import ask
from broker.namespace.router import PartitionHandle
from broker.operations.interface import Answer
from broker.operations.receiving import Locked, LockExactly
from broker.operations.settling import DeadLetter, Settled
from broker.operations.transfers import HandOver
from broker.partition import publishing
from tests.support.forwarding_world import World, held_now, is_troubled, world
from tests.support.topics import copying
from tests.support.waiting import until

PLAIN = QueueSettings()


def to(target: str, **settings: object) -> QueueSettings:
    return QueueSettings(forward_to=target, **settings)  # type: ignore[arg-type]


async def dead_letter(here: World, name: str, *numbers: int, partition: int = 0) -> None:
    """Dead-letter messages, as a client would."""
    handle = here.entities[name].router.handles[partition]
    locked = await ask(handle, LockExactly(MAIN, numbers))
    assert isinstance(locked, Locked)
    changed = encode_changes({"DeadLetterReason": "mine"})
    assert await ask(handle, DeadLetter(locked.tokens, changed)) == Settled(None)


async def reasons(here: World, name: str, subqueue: str, *wanted: str) -> int:
    """How many messages of a subqueue have one of these dead-letter reasons."""
    pages = await here.held(name, subqueue)
    return sum(
        any(has_reason(changed, reason) for reason in wanted) for page in pages for changed in page.changed
    )


@pytest.mark.parametrize(("source", "target"), [(1, 1), (1, 3), (3, 1), (3, 3)])
async def test_messages_go_on_to_the_target_with_their_own_numbers_there(source: int, target: int) -> None:
    async with world(a=(source, to("B")), b=(target, PLAIN)) as here:
        numbers = {await here.send("a", "x", partition=number): number for number in range(source)}
        await here.send("a", "k", key="key")
        texts = await here.until_at("b", source + 1)
        assert sorted(texts) == ["k", *["x"] * source]
        await here.until_empty("a")
        originals = [
            trail_of(stored, number).original
            for page in await here.held("b")
            for stored, number in zip(page.messages, page.sequence_numbers, strict=True)
        ]
        assert set(originals) >= numbers.keys()
        meters = here.entities["a"].meter, here.entities["b"].meter
        assert meters[0].forwarded_messages == meters[1].incoming_messages == source + 1
        keyed = (await here.held("b"))[here.entities["b"].router.number_of("key")]
        assert any(stored.endswith(b"<k>") for stored in keyed.messages)


async def test_one_partition_keeps_the_order() -> None:
    async with world(a=(1, to("b")), b=(1, PLAIN)) as here:
        texts = [f"{number:04}" for number in range(1_000)]
        for start in range(0, 1_000, 100):
            await here.send("a", *texts[start : start + 100])
        assert await here.until_at("b", 1_000) == texts
        await here.until_empty("a")


async def test_the_backlog_follows_when_forwarding_is_set_later_and_stops_when_it_is_unset() -> None:
    async with world(a=(2, PLAIN), b=(2, PLAIN), c=(2, PLAIN)) as here:
        for number in range(2):
            await here.send("a", f"{number}", partition=number)
        assert not here.forwarding._forwarded
        await here.update("a", to("b"))
        assert sorted(await here.until_at("b", 2)) == ["0", "1"]
        await here.update("a", to("c"))
        await here.send("a", "2")
        assert await here.until_at("c", 1) == ["2"]
        await here.update("a", PLAIN)
        await here.send("a", "3")
        await until(lambda: not here.forwarding._ending)
        assert (await here.texts("a"), held_now(here.entities["b"])) == (["3"], 2)


@pytest.mark.parametrize("crashes", [False, True], ids=["stopped", "crashed"])
async def test_forwarding_goes_on_after_a_restart_without_a_touch(crashes: bool) -> None:
    async with world(a=(2, to("b")), b=(2, replace(PLAIN, status=EntityStatus.RECEIVE_DISABLED))) as here:
        await here.update("a", PLAIN)
        await here.send("a", "x", partition=1)
        await here.update("a", to("b", status=EntityStatus.RECEIVE_DISABLED))
        here.descriptions["a"] = replace(here.descriptions["a"], settings=to("b"))
        await (here.crash() if crashes else here.stop())
        here.start()
        if crashes:
            await here.wake_all()
        assert await here.until_at("b", 1) == ["x"]
        await here.until_empty("a")
        assert ("a", 0) not in here.partitions, "what holds nothing is not opened"


async def test_a_source_that_may_not_be_received_from_forwards_nothing() -> None:
    paused = to("b", status=EntityStatus.RECEIVE_DISABLED)
    async with world(a=(1, paused), b=(1, PLAIN)) as here:
        await here.send("a", "x")
        assert not here.forwarding._forwarded and await here.texts("a") == ["x"]
        await here.update("a", to("b"))
        assert await here.until_at("b", 1) == ["x"]


async def test_a_chain_has_four_hops_and_the_fifth_makes_a_dead_letter() -> None:
    names = "abcdefg"
    chain = {name: (1, to(after)) for name, after in pairwise(names)}
    async with world(**chain, g=(1, PLAIN)) as here:
        await here.send("c", "near")
        assert await here.until_at("g", 1) == ["near"]
        await here.send("a", "far")
        assert await here.until_at("e", 1, DEAD_LETTER) == ["far"]
        assert await reasons(here, "e", DEAD_LETTER, "MaxTransferHopCountExceeded") == 1
        assert held_now(here.entities["g"]) == 1


async def test_a_circle_ends_in_a_dead_letter() -> None:
    async with world(a=(1, to("b")), b=(1, to("a"))) as here:
        await here.send("a", "x")
        assert await here.until_at("a", 1, DEAD_LETTER) == ["x"]


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (None, "MessagingEntityNotFoundException"),
        (replace(PLAIN, status=EntityStatus.DISABLED), "MessagingEntityDisabledException"),
        (replace(PLAIN, status=EntityStatus.SEND_DISABLED), "MessagingEntityDisabledException"),
    ],
    ids=["deleted", "disabled", "send disabled"],
)
async def test_a_target_that_takes_nothing_makes_dead_letters(
    target: QueueSettings | None, reason: str
) -> None:
    async with world(a=(2, to("b")), b=(1, PLAIN)) as here:
        await here.send("a", "before")
        await here.until_at("b", 1)
        await (here.delete("b") if target is None else here.update("b", target))
        await here.send("a", "x", partition=1)
        assert await here.until_at("a", 1, DEAD_LETTER) == ["x"]
        assert await reasons(here, "a", DEAD_LETTER, reason) == 1


async def test_what_does_not_fit_into_the_target_becomes_a_dead_letter_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world(a=(1, PLAIN), b=(1, QueueSettings(max_size_mb=1))) as here:
        texts = [f"{number}" + "x" * 90_000 for number in range(16)]
        for text in texts:
            await here.send("a", text)
        loads: list[int] = []

        def noted(handle: PartitionHandle, operation: HandOver) -> Awaitable[Answer | Refused]:
            loads.append(len(operation.messages))
            return answer_of(handle, operation)

        monkeypatch.setattr(forward_outlet, "answer_of", noted)
        await here.update("a", to("b"))
        await here.until_empty("a")
        assert loads == [16]
        there, dead = await here.texts("b"), await here.texts("a", DEAD_LETTER)
        assert 5 < len(there) < 16 and sorted(there + dead) == sorted(texts)
        assert await reasons(here, "a", DEAD_LETTER, "QuotaExceededException") == len(dead)


async def test_many_dead_letters_are_few_log_lines() -> None:
    texts = [f"{number}" for number in range(600)]
    with capture_logs() as lines:
        async with world(a=(2, to("gone"))) as here:
            for number in range(2):
                await here.send("a", *texts, partition=number)
            await here.until_at("a", 1200, DEAD_LETTER)
            await here.stop()
    told = [line for line in lines if line["event"] == "forward.dead_lettered"]
    # Symptom: a line for each load, of 256 messages at most, of each partition.
    assert len(told) == 2 and sum(line["messages"] for line in told) == 1200
    named = {(line["entity"], line["subqueue"], line["target"], line["log_level"]) for line in told}
    assert named == {("a", "", "gone", "warning")}


async def test_a_message_without_a_session_becomes_a_dead_letter() -> None:
    async with world(a=(1, to("b")), b=(1, QueueSettings(requires_session=True))) as here:
        await here.send("a", "x")
        assert await here.until_at("a", 1, DEAD_LETTER) == ["x"]
        assert await reasons(here, "a", DEAD_LETTER, "Session id is null.") == 1


async def test_dead_letters_are_forwarded_with_their_reason_and_where_they_come_from() -> None:
    settings = QueueSettings(forward_dead_lettered_to="b")
    async with world(a=(2, settings), b=(1, PLAIN)) as here:
        await dead_letter(here, "a", await here.send("a", "x", partition=1), partition=1)
        await here.send("a", "stays")
        assert await here.until_at("b", 1) == ["x"]
        await here.until_empty("a", DEAD_LETTER)
        ((stored,),) = [page.messages for page in await here.held("b")]
        assert b"DeadLetterReason" in stored and b"mine" in stored
        assert trail_of(stored, 0).dead_letter_source == "a" and trail_of(stored, 0).hops == 1
        assert await here.texts("a") == ["stays"]


async def test_a_dead_letter_waits_for_a_target_that_takes_nothing_and_fails_for_reasons_of_its_own() -> None:
    settings = QueueSettings(forward_dead_lettered_to="b")
    async with world(a=(1, settings), b=(1, replace(PLAIN, status=EntityStatus.DISABLED))) as here:
        await dead_letter(here, "a", await here.send("a", "x"))
        await until(lambda: is_troubled(next(iter(_lanes(here)))))
        assert held_now(here.entities["a"], DEAD_LETTER) == 1
        await here.update("b", QueueSettings())
        assert await here.until_at("b", 1) == ["x"]
    async with world(a=(1, settings), b=(1, QueueSettings(requires_session=True))) as here:
        await dead_letter(here, "a", await here.send("a", "x"))
        assert await here.until_at("a", 1, TRANSFER_DEAD_LETTER) == ["x"]
        assert await reasons(here, "a", TRANSFER_DEAD_LETTER, "Session id is null.") == 1


async def test_expired_messages_and_failed_forwards_follow_the_dead_letters() -> None:
    first = QueueSettings(forward_to="gone", forward_dead_lettered_to="b")
    async with world(a=(1, first), b=(1, PLAIN)) as here:
        await here.send("a", "x")
        assert await here.until_at("b", 1) == ["x"]
        await here.until_empty("a", DEAD_LETTER)


async def test_an_idle_source_is_left_alone() -> None:
    async with world(a=(4, to("b")), b=(4, PLAIN)) as here:
        await asyncio.sleep(0)
        assert not here.partitions and not here.tasks
        await here.send("a", "x", partition=2)
        await here.until_at("b", 1)
        await here.until_empty("a")
        await until(lambda: not any("forward" in task.get_name() for task in here.tasks))
        assert {number for name, number in here.partitions if name == "a"} == {2}


def _lanes(here: World) -> list:  # type: ignore[type-arg]
    return [lane for route in here.forwarding._forwarded.values() for lane in route._lanes.values()]


@pytest.mark.parametrize("crashes", [False, True], ids=["", "after a crash"])
@pytest.mark.parametrize("is_refused_later", [False, True], ids=["the limit of rules", "the limit of a send"])
async def test_no_message_loses_copies_because_of_those_that_are_forwarded_with_it(
    monkeypatch: pytest.MonkeyPatch, is_refused_later: bool, crashes: bool
) -> None:
    """A load has messages of many senders; the copies of two of them fit into a commit."""
    for name in ("COMMIT_BYTES_MAX", "SHARED_BYTES_MAX"):
        monkeypatch.setattr(publishing, name, 100_000)
    if is_refused_later:
        monkeypatch.setattr(publishing, "COPIES_OF_SEND_BYTES_MAX", 100_000)
    texts = [f"{number}".ljust(10_000, "x") for number in range(12)]
    async with world(a=(1, PLAIN)) as here:
        await here.send("a", *texts[:8], key="key")
        await here.send("a", *texts[8:])
        await here.crash()
        here.descriptions["t"] = copying("t", "s0", "s1", "s2", "s3", partitions=2)
        here.start()
        await here.update("a", to("t"))
        if crashes:
            await until(lambda: held_now(here.entities["t"], "subscriptions/s0") >= 2)
            await here.crash()
            here.start()
        await here.wake_all()
        await here.until_at("t", 12, "subscriptions/s3")
        await here.until_empty("a")
        assert held_now(here.entities["a"], DEAD_LETTER) == 0
        for number in range(4):
            held = await here.texts("t", f"subscriptions/s{number}")
            # Symptom: 12, 8, 4 and 2 messages; or all of them were dead letters of "a".
            assert len(held) == 12 and [each for each in held if each in texts[:8]] == texts[:8]
        assert max(len(f) for disk in here.disks.values() for f in disk.frames.values()) < 140_000
