"""The state of sessions in a partition, and listing sessions."""

from __future__ import annotations

from typing import Any

from broker.base.errors import Reason
from broker.entities.descriptions import MAIN, QueueSettings
from broker.identifiers import ClientId
from broker.operations.general import Detach, Failed, Updated
from broker.operations.interface import Answer
from broker.operations.sending import Send, Sent
from broker.operations.sessions import (
    AcceptSession,
    GetSessionState,
    ListSessions,
    SessionAccepted,
    SessionList,
    SessionState,
    SetSessionState,
)
from broker.partition.cycle_bounds import Bounds
from broker.partition.task_limits import TaskLimits
from tests.support.partition_harness import Harness, one

STATES_MAX = 10


def harness_of(**settings: Any) -> Harness:
    return Harness(QueueSettings(requires_session=True, **settings))


async def hold(harness: Harness, client: int, session: str) -> None:
    one(await harness.do(client, AcceptSession(MAIN, session.encode())), SessionAccepted)


async def put(
    harness: Harness, holder: int, session: str, state: bytes | None, states_max: int = STATES_MAX
) -> Answer:
    operation = SetSessionState(MAIN, session.encode(), ClientId(holder), state, states_max)
    (answer,) = await harness.do(500, operation, Detach())
    return answer


async def fetch(harness: Harness, holder: int, session: str) -> bytes | None:
    operation = GetSessionState(MAIN, session.encode(), ClientId(holder))
    return one(await harness.do(500, operation, Detach()), SessionState).state


async def listed(harness: Harness, skip: int = 0, count: int = 100, after_ms: int | None = None) -> Any:
    found = one(await harness.do(501, ListSessions(MAIN, skip, count, after_ms)), SessionList)
    return [each.decode() for each in found.session_ids], found.skipped


async def test_a_state_outlives_restarts_with_and_without_a_checkpoint() -> None:
    harness = harness_of()
    await hold(harness, 1, "a")
    assert await fetch(harness, 1, "a") is None
    assert isinstance(await put(harness, 1, "a", b"one"), Updated)
    assert isinstance(await put(harness, 1, "a", b"two"), Updated)
    for clean in (False, True):
        await harness.restart(clean=clean)
        await hold(harness, 1, "a")
        assert await fetch(harness, 1, "a") == b"two"
    assert isinstance(await put(harness, 1, "a", None), Updated)
    assert isinstance(await put(harness, 1, "a", None), Updated), "there is nothing to clear"
    await harness.restart()
    await hold(harness, 1, "a")
    assert await fetch(harness, 1, "a") is None and await listed(harness) == ([], 0)


async def test_only_the_holder_of_a_session_reads_and_changes_its_state() -> None:
    harness = harness_of()
    await hold(harness, 1, "a")
    await put(harness, 1, "a", b"one")
    for holder, session in ((2, "a"), (1, "b")):
        answer = await put(harness, holder, session, b"two")
        assert isinstance(answer, Failed) and answer.reason is Reason.SESSION_LOCK_LOST
        (got,) = await harness.do(500, GetSessionState(MAIN, session.encode(), ClientId(holder)), Detach())
        assert isinstance(got, Failed) and got.reason is Reason.SESSION_LOCK_LOST
    assert await fetch(harness, 1, "a") == b"one"


async def test_states_are_limited_in_number_and_count_towards_the_size_of_the_queue() -> None:
    harness = harness_of(max_size_mb=1)
    for client in (1, 2, 3):
        await hold(harness, client, str(client))
    await put(harness, 1, "1", b"x", 2)
    await put(harness, 2, "2", b"x", 2)
    answer = await put(harness, 3, "3", b"x", 2)
    assert isinstance(answer, Failed) and answer.reason is Reason.QUOTA_EXCEEDED
    assert isinstance(await put(harness, 1, "1", b"xx", 2), Updated), "it has one already"
    answer = await put(harness, 1, "1", bytes(1 << 20))
    assert isinstance(answer, Failed) and answer.reason is Reason.QUOTA_EXCEEDED
    assert isinstance(await put(harness, 1, "1", bytes(1 << 19)), Updated)
    columns: dict[str, list[int | bytes | None]] = {"session_id": [b"1"]}
    (refused,) = await harness.do(9, Send([bytes(1 << 19)], None, None, columns))
    assert isinstance(refused, Failed) and refused.reason is Reason.QUOTA_EXCEEDED
    assert isinstance(await put(harness, 1, "1", None), Updated)
    one(await harness.do(9, Send([bytes(1 << 19)], None, None, columns)), Sent)


async def test_a_long_list_takes_several_cycles_and_shows_each_session_once() -> None:
    harness = Harness(QueueSettings(requires_session=True), limits=TaskLimits(bounds=Bounds(looks_max=4)))
    names = [f"{number:02}" for number in range(20)]
    columns: dict[str, list[int | bytes | None]] = {"session_id": [name.encode() for name in names]}
    await harness.do(9, Send([b"m"] * 20, None, None, columns))
    for client, name in enumerate(("00", "x", "y"), 1):
        await hold(harness, client, name)
        await put(harness, client, name, b"state")
    harness.post(501, ListSessions(MAIN, 3, 100))
    harness.post(9, Send([b"m"], None, None, {"session_id": [b"new"]}))
    steps = 0
    while not harness.received[501]:
        await harness.task.step()
        steps += 1
        assert harness.received[501] or not harness.received[9], "it comes later"
    found = one(harness.take(501), SessionList)
    assert steps == 22 // 4 + 1
    assert (sorted(each.decode() for each in found.session_ids), found.skipped) == ([*names[3:], "x", "y"], 3)
    await harness.until_quiet()
    one(harness.take(9), Sent)
    assert await listed(harness, 24) == ([], 23) and await listed(harness, 20, 1) == (["x"], 20)


async def test_while_memory_is_scarce_a_state_grows_little_and_shrinks_as_ever() -> None:
    harness = harness_of()
    for client in (1, 2):
        await hold(harness, client, str(client))
    await put(harness, 1, "1", bytes(5_000))
    harness.budget.set_scarce(True)
    for holder, size in ((1, 5_001), (2, 1_025)):
        answer = await put(harness, holder, str(holder), bytes(size))
        assert isinstance(answer, Failed) and answer.reason is Reason.SERVER_BUSY
        assert "memory" in answer.description
    for holder, state in ((1, bytes(5_000)), (1, bytes(4_000)), (1, None), (2, bytes(1_024))):
        assert isinstance(await put(harness, holder, str(holder), state), Updated)
    harness.budget.set_scarce(False)
    assert isinstance(await put(harness, 2, "2", bytes(5_000)), Updated)


async def test_on_a_full_disk_a_state_grows_little_and_shrinks_as_ever() -> None:
    harness = harness_of()
    for client in (1, 2):
        await hold(harness, client, str(client))
    await put(harness, 1, "1", bytes(5_000))
    harness.log.full, harness.log.growth_left = True, 1_500
    for holder, size in ((1, 6_025), (2, 1_025)):
        answer = await put(harness, holder, str(holder), bytes(size))
        assert isinstance(answer, Failed) and answer.reason is Reason.DISK_FULL
    for holder, state in ((1, bytes(6_024)), (1, bytes(6_000)), (1, None)):
        assert isinstance(await put(harness, holder, str(holder), state), Updated)
    assert isinstance(await put(harness, 2, "2", bytes(1)), Failed), "there is room for little in all"
    harness.log.full = False
    assert isinstance(await put(harness, 2, "2", bytes(5_000)), Updated)


async def test_sessions_with_messages_or_a_state_are_listed_page_by_page() -> None:
    harness = harness_of()
    columns: dict[str, list[int | bytes | None]] = {"session_id": [b"a", b"b", b"a", b"c"]}
    await harness.do(9, Send([b"m"] * 4, None, None, columns))
    await hold(harness, 1, "d")
    await hold(harness, 2, "empty")
    await hold(harness, 3, "b")
    assert await listed(harness) == (["a", "b", "c"], 0)
    await put(harness, 1, "d", b"x")
    before_ms = harness.clock.now_ms()
    await harness.advance(1_000)
    await put(harness, 3, "b", b"x")
    assert await listed(harness) == (["a", "b", "c", "d"], 0)
    assert await listed(harness, 1, 2) == (["b", "c"], 1)
    assert await listed(harness, 3, 2) == (["d"], 3)
    assert await listed(harness, 7, 2) == ([], 4), "it says how many there are"
    assert await listed(harness, after_ms=before_ms) == (["b"], 0)
    assert await listed(harness, after_ms=before_ms - 1) == (["d", "b"], 0)
