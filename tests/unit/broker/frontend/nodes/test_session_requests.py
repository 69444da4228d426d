"""Requests about message sessions: carried out for the link of the connection that holds the session."""

from __future__ import annotations

import asyncio
import uuid
from functools import partial
from typing import Any

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import QueueSettings
from broker.frontend.nodes.request_node import Request
from broker.frontend.nodes.session_requests import (
    EVER_MS,
    LIST_WITHIN_S,
    MOMENT_S,
    SESSIONS_MAX,
    SKIPPED_MAX,
)
from broker.identifiers import NO_CLIENT, PARTITION_SHIFT, ClientId
from broker.messaging.page_places import PAGES_AT_ONCE
from broker.messaging.peeking import PAGE_WITHIN_S
from broker.operations.browsing import Peek, Peeked
from broker.operations.general import Failed, Updated
from broker.operations.interface import Answer, Operation
from broker.operations.receiving import ReceiveDeferred
from broker.operations.sessions import (
    AcceptSession,
    GetSessionState,
    ListSessions,
    RenewSession,
    SessionAccepted,
    SessionList,
    SessionRenewed,
    SetSessionState,
)
from broker.operations.settling import Complete
from protocol.codec import Array, Described, Symbol, TypeCode, ULong
from tests.support import raw_amqp as raw
from tests.support.link_stack import turn, until
from tests.support.management_bench import Bench, down, status
from tests.support.management_bench import bench as bench_of

FILTER = "com.microsoft:session-filter"


async def bench(partitions: int = 1) -> Bench:
    return await bench_of(partitions, settings=QueueSettings(requires_session=True))


async def hold(work: Bench, session_id: str) -> ClientId:
    """Let a link of the same connection hold a session; returns its client."""
    fields = raw.receiver_attach(7, "queue")
    fields[5] = Described(ULong(raw.SOURCE), ["queue", *[None] * 6, {Symbol(FILTER): session_id}])
    work.client.say(raw.frame(raw.ATTACH, fields))
    await until(lambda: any(part.has(AcceptSession) for part in work.stack.parts))
    part = work.stack.part_of(AcceptSession)
    client = next(client for operation, client, _ in part.posted if isinstance(operation, AcceptSession))
    id = session_id.encode()
    part.answer(AcceptSession, lambda each: SessionAccepted(part.number, "", id, b"t" * 16, 0, each.cookie))
    await work.client.hear()
    return client


async def test_a_renewal_is_for_the_link_that_holds_the_session() -> None:
    work = await bench()
    client = await hold(work, "a")
    until_ms = work.stack.clock.monotonic_ms() + 5_000
    asked: list[RenewSession] = []

    def renew(number: int, operation: RenewSession) -> SessionRenewed:
        asked.append(operation)
        return SessionRenewed(until_ms, operation.cookie)

    response = await work.ask("renew-session-lock", {"session-id": "a"}, {RenewSession: renew})
    assert response.body == {"expiration": work.stack.clock.now_ms() + 5_000}
    body = {"session-id": "a", "duration": 600_000}
    response = await work.ask("partibus:renew-lock", body, {RenewSession: renew})
    assert response.body == {"expiration": work.stack.clock.now_ms() + 5_000}
    wanted = [(b"a", client, None), (b"a", client, 600_000)]
    assert [(each.session_id, each.holder, each.duration_ms) for each in asked] == wanted


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("renew-session-lock", {}),
        ("receive-by-sequence-number", {"sequence-numbers": [1], "receiver-settle-mode": 1}),
    ],
)
async def test_a_session_that_no_link_of_the_connection_holds_is_lost(
    operation: str, body: dict[str, Any]
) -> None:
    work = await bench()
    await hold(work, "a")
    response = await work.ask(operation, {**body, "session-id": "b"})
    assert status(response) == (410, "com.microsoft:session-lock-lost")
    assert not any(part.has(RenewSession) or part.has(ReceiveDeferred) for part in work.stack.parts)


@pytest.mark.parametrize("body", [{}, {"session-id": 7}], ids=str)
async def test_a_renewal_needs_a_session(body: dict[str, Any]) -> None:
    work = await bench()
    assert status(await work.ask("renew-session-lock", body)) == (400, "com.microsoft:argument-error")


@pytest.mark.parametrize(
    ("request_name", "body", "operation"),
    [
        ("renew-session-lock", {}, RenewSession),
        ("set-session-state", {"session-state": b"x"}, SetSessionState),
        ("get-session-state", {}, GetSessionState),
        ("receive-by-sequence-number", {"sequence-numbers": [1], "receiver-settle-mode": 1}, ReceiveDeferred),
        (
            "update-disposition",
            {"lock-tokens": Array(TypeCode.UUID, [uuid.UUID(int=0)]), "disposition-status": "completed"},
            Complete,
        ),
    ],
)
@pytest.mark.parametrize("is_known", [False, True])
async def test_the_lock_of_a_session_is_lost_while_its_partition_is_down(
    request_name: str, body: dict[str, Any], operation: type, is_known: bool
) -> None:
    """Symptom of a request for deferred messages: it was answered with server-busy, and the client tried
    again in vain. `is_known`: whether the router knows that the partition is down."""
    work = await bench()
    await hold(work, "a")
    (part,) = work.stack.parts
    part.available = not is_known
    response = await work.ask(request_name, {"session-id": "a", **body}, {operation: down})
    assert status(response) == (410, "com.microsoft:session-lock-lost")
    text = str(response.properties["statusDescription"]).lower()
    assert "accept the session again" in text and "try again" not in text
    assert (work.metric("user_errors"), work.metric("server_errors")) == (0, 1)


async def test_peek_asks_the_partition_of_the_session_alone_and_needs_no_lock() -> None:
    work = await bench(4)
    number = work.stack.queue.router.number_of("a")
    asked: list[tuple[int, Peek]] = []

    def peek(partition: int, operation: Peek) -> Peeked:
        asked.append((partition, operation))
        return Peeked([], [], [], [], [], [], [], operation.cookie)

    body = {"from-sequence-number": 1, "message-count": 5, "session-id": "a"}
    assert status(await work.ask("peek-message", body, {Peek: peek}))[0] == 204
    ((partition, operation),) = asked
    assert (partition, operation.session_id, operation.count) == (number, b"a", 5)
    beyond = {"from-sequence-number": (number + 1) << PARTITION_SHIFT, "message-count": 5}
    assert status(await work.ask("peek-message", {**beyond, "session-id": "a"}))[0] == 204


async def test_a_request_for_deferred_messages_may_name_the_link_instead_of_the_session() -> None:
    work = await bench()
    client = await hold(work, "a")
    (name,) = (link.name for link in work.client.connection.engine.links() if link.context is not None)
    body, (part,) = {"sequence-numbers": [1], "receiver-settle-mode": 1}, work.stack.parts
    for link_name, named in ((name, (b"a", client)), ("another", (None, NO_CLIENT))):
        properties = {
            "operation": "com.microsoft:receive-by-sequence-number",
            "associated-link-name": link_name,
        }
        asking = asyncio.ensure_future(work.node.respond(Request(None, None, properties, body)))
        await until(lambda: part.has(ReceiveDeferred))
        asked = part.answer(
            ReceiveDeferred, lambda each: Failed(Reason.MESSAGE_NOT_FOUND, "none", each.cookie)
        )
        assert isinstance(asked, ReceiveDeferred) and (asked.session_id, asked.holder) == named
        assert status(await asking)[0] == 404


@pytest.mark.parametrize(("sent", "stored"), [(b"x", b"x"), (b"null", b"null"), (b"", None), (None, None)])
async def test_null_and_empty_bytes_clear_the_state_of_a_session(
    sent: bytes | None, stored: bytes | None
) -> None:
    work = await bench()
    await hold(work, "a")
    asked: list[SetSessionState] = []

    def store(number: int, operation: SetSessionState) -> Updated:
        asked.append(operation)
        return Updated(operation.cookie)

    body = {"session-id": "a", "session-state": sent}
    assert status(await work.ask("set-session-state", body, {SetSessionState: store})) == (200, None)
    assert [each.state for each in asked] == [stored]


async def test_a_deferred_message_of_another_partition_is_not_in_the_session() -> None:
    work = await bench(4)
    other = (work.stack.queue.router.number_of("a") + 1) % 4 << PARTITION_SHIFT | 1
    response = await work.ask(
        "receive-by-sequence-number",
        {"sequence-numbers": [other], "receiver-settle-mode": 1, "session-id": "a"},
    )
    assert status(response) == (404, "com.microsoft:message-not-found")


@pytest.mark.parametrize(
    ("operation", "body", "wanted"),
    [
        ("set-session-state", {"session-id": "a"}, (400, "com.microsoft:argument-error")),
        (
            "set-session-state",
            {"session-id": "a", "session-state": "x"},
            (400, "com.microsoft:argument-error"),
        ),
        (
            "set-session-state",
            {"session-id": "a", "session-state": bytes(2 << 20)},
            (403, "amqp:resource-limit-exceeded"),
        ),
        (
            "partibus:renew-lock",
            {"session-id": "a", "duration": 3_600_001},
            (400, "com.microsoft:argument-error"),
        ),
        (
            "partibus:renew-lock",
            {"session-id": "b", "duration": 1},
            (410, "com.microsoft:session-lock-lost"),
        ),
        ("get-session-state", {"session-id": "b"}, (410, "com.microsoft:session-lock-lost")),
        (
            "get-message-sessions",
            {"last-updated-time": EVER_MS, "skip": 0, "top": 0},
            (400, "com.microsoft:argument-error"),
        ),
        (
            "get-message-sessions",
            {"last-updated-time": EVER_MS, "skip": -1, "top": 1},
            (400, "com.microsoft:argument-error"),
        ),
        (
            "get-message-sessions",
            {"last-updated-time": EVER_MS, "skip": SKIPPED_MAX + 1, "top": 1},
            (400, "com.microsoft:argument-error"),
        ),
    ],
    ids=str,
)
async def test_what_a_session_request_lacks_is_named_before_a_partition_hears_of_it(
    operation: str, body: dict[str, Any], wanted: tuple[int, str]
) -> None:
    work = await bench()
    await hold(work, "a")
    assert status(await work.ask(operation, body)) == wanted
    assert not any(part.posted for part in work.stack.parts)


async def test_few_pages_of_sessions_are_built_at_a_time() -> None:
    work = await bench()
    assert work.node.is_page(Request(None, None, {"operation": "com.microsoft:get-message-sessions"}, {}))
    pages = work.stack.services.pages.prompt
    for _ in range(PAGES_AT_ONCE):
        await pages.acquire()
    body = {"last-updated-time": EVER_MS, "skip": SKIPPED_MAX, "top": SESSIONS_MAX}
    asking = asyncio.ensure_future(
        work.ask(
            "get-message-sessions", body, {ListSessions: lambda _, each: SessionList([], 0, each.cookie)}
        )
    )
    await turn()
    assert not any(part.posted for part in work.stack.parts)
    pages.release()
    assert status(await asking)[0] == 204


@pytest.mark.parametrize(
    ("operation", "kind", "body"),
    [
        ("peek-message", Peek, {"from-sequence-number": 1, "message-count": 5, "session-id": "a"}),
        ("get-message-sessions", ListSessions, {"last-updated-time": EVER_MS, "skip": 0, "top": 5}),
    ],
)
async def test_requests_to_a_partition_that_hangs_keep_nobody_from_another_one(
    operation: str, kind: type[Operation], body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.messaging.page_places.LATE_S", 0.005)
    work = await bench()
    request = Request(None, None, {"operation": f"com.microsoft:{operation}"}, body)
    crowd = [asyncio.ensure_future(work.node.respond(request)) for _ in range(2 * PAGES_AT_ONCE)]
    places, (part,) = work.stack.services.pages, work.stack.parts
    await until(lambda: places.late.locked() and not places.prompt.locked())
    assert work.stack.queue.router.late == {0} and not any(each.done() for each in crowd)

    def answer(asked: Peek | ListSessions) -> Answer:
        if isinstance(asked, ListSessions):
            return SessionList([], 0, asked.cookie)
        return Peeked([], [], [], [], [], [], [], asked.cookie)

    async with asyncio.timeout(20):
        while not all(each.done() for each in crowd):
            while part.has(kind):
                part.answer(kind, answer)
            await turn()
    assert {status(each.result())[0] for each in crowd} == {204}


async def test_a_page_of_sessions_goes_on_where_the_one_before_ended_over_all_partitions() -> None:
    work = await bench(4)
    sessions = {0: ["a", "b", "c"], 1: [], 2: ["d", "e"], 3: ["f"]}
    asked: list[tuple[int, int | None]] = []

    def sessions_of(number: int, operation: ListSessions) -> SessionList:
        asked.append((number, operation.changed_after_ms))
        own = sessions[number]
        page = own[operation.skip : operation.skip + operation.count]
        skipped = min(operation.skip, len(own))
        return SessionList([each.encode() for each in page], skipped, operation.cookie)

    async def page(skip: int, at_ms: int = EVER_MS) -> Any:
        body = {"last-updated-time": at_ms, "skip": skip, "top": 2}
        return await work.ask("get-message-sessions", body, {ListSessions: sessions_of})

    found = [(await page(skip)).body for skip in (0, 2, 4)]
    assert [each["sessions-ids"].values for each in found] == [["a", "b"], ["c", "d"], ["e", "f"]]
    assert [each["skip"] for each in found] == [2, 4, 6]
    assert status(await page(6))[0] == 204 and {each for _, each in asked} == {None}
    await page(0, 5)
    assert asked[-1] == (0, 5)


async def test_a_list_of_sessions_waits_for_all_partitions_that_hang_together() -> None:
    work = await bench(16)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    body = {"last-updated-time": EVER_MS, "skip": 0, "top": 100}
    request = Request(None, None, {"operation": "com.microsoft:get-message-sessions"}, body)
    listing = asyncio.ensure_future(work.node.respond(request))
    for part in work.stack.parts[1::2]:  # the others never answer
        await until(partial(part.has, ListSessions))
        asked, sink = part.take(ListSessions)
        sink(SessionList([b"%d" % part.number], 0, asked.cookie))
    response = await listing
    assert response.body["sessions-ids"].values == [str(number) for number in range(1, 16, 2)]
    assert loop.time() - began_s < LIST_WITHIN_S + 16 * MOMENT_S < 15, "clients allow 15 s"


async def test_a_peek_at_a_session_waits_no_longer_than_any_page() -> None:
    work = await bench()
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    body = {"from-sequence-number": 1, "message-count": 5, "session-id": "a"}
    response = await work.node.respond(Request(None, None, {"operation": "com.microsoft:peek-message"}, body))
    assert status(response) == (503, "com.microsoft:server-busy")
    assert loop.time() - began_s < PAGE_WITHIN_S + 1


async def test_sessions_of_partitions_that_are_down_are_left_out_of_the_list() -> None:
    work = await bench(4)

    def sessions_of(number: int, operation: ListSessions) -> SessionList | Failed:
        if number % 2 == 0:
            return down(number, operation)
        found = [] if operation.skip else [b"%d" % number]
        return SessionList(found, int(operation.skip > 0), operation.cookie)

    body = {"last-updated-time": EVER_MS, "skip": 0, "top": 10}
    response = await work.ask("get-message-sessions", body, {ListSessions: sessions_of})
    assert response.body["sessions-ids"].values == ["1", "3"]
    assert work.stack.queue.router.unseen == {0, 2}, "logged once per outage"
    body["skip"] = 2
    response = await work.ask("get-message-sessions", body, {ListSessions: sessions_of})
    assert status(response) == (503, "com.microsoft:server-busy")
    assert "not available: 0, 2" in response.properties["statusDescription"]
