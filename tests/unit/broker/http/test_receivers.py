"""Receives over HTTP: waiting, what a connection holds ready, and who gets a message (HTTP contract 4.3)."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from broker.base.errors import Reason, Refused
from broker.http.messages import MessageRequests
from broker.http.receivers import RECEIVERS_MAX, HttpReceiver, Waiting
from broker.operations.receiving import Locked
from broker.throttle.throttle import throttled
from storage.disk import LocalDisk
from tests.support.broker_process import queue
from tests.support.broker_thread import BrokerThread
from tests.support.http_entries import UPDATE, queue_body
from tests.support.rest_client import RestAnswer, RestClient
from tests.support.sas import sas_token
from tests.support.waiting import until_seen

CLIENTS = 8
LONG_S = 30
"""Longer than any test may take."""


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(CLIENTS) as pool:
        yield pool


def waiters(broker: BrokerThread, name: str) -> int:
    """The requests that wait for messages of a queue."""
    watchers = tuple(broker.queue(name).watchers)
    return sum(1 for each in watchers if isinstance(each, HttpReceiver) and each.has_credit())


def waiting_on(
    broker: BrokerThread, threads: ThreadPoolExecutor, client: RestClient, name: str
) -> Future[RestAnswer]:
    """A request that waits for a message; returns once it does."""
    before = waiters(broker, name)
    future = threads.submit(client.receive, f"/{name}", timeout=LONG_S)
    until_seen(lambda: waiters(broker, name) > before or future.done())
    return future


def waiting_receiver(broker: BrokerThread, name: str) -> HttpReceiver:
    """The receiver of the one request that waits for messages of a queue, once it does."""
    until_seen(lambda: waiters(broker, name) == 1)
    (receiver,) = broker.queue(name).watchers
    assert isinstance(receiver, HttpReceiver)
    return receiver


def test_a_request_without_time_is_answered_at_once(rest: RestClient) -> None:
    began = time.monotonic()
    assert rest.receive("/plain").status == 204
    assert rest.receive("/plain", method="DELETE").status == 204
    assert time.monotonic() - began < LONG_S / 2


def test_a_request_is_told_when_its_time_is_up_that_nothing_came(rest: RestClient) -> None:
    began = time.monotonic()
    assert rest.receive("/plain", timeout=0.3).status == 204
    assert time.monotonic() - began >= 0.3


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_the_receiver_of_a_connection_that_has_ended_is_freed_at_once(
    broker: BrokerThread, rest: RestClient, threads: ThreadPoolExecutor, method: str
) -> None:
    """Python's collector looks at old objects very rarely."""
    gc.disable()
    try:
        with RestClient(broker.addresses.http_port) as client:
            future = threads.submit(client.receive, "/plain", method=method, timeout=LONG_S)
            receiver = weakref.ref(waiting_receiver(broker, "plain"))
            rest.send("/plain", b"arrived")
            answer = future.result(LONG_S)
            assert answer.body == b"arrived" and receiver() is not None
        if method == "POST":
            assert rest.ask("DELETE", answer.lock).status == 200
        until_seen(lambda: receiver() is None)
    finally:
        gc.enable()


@pytest.mark.parametrize("timeout", ["-1", "x", "nan", "86401"])
def test_a_wrong_timeout_is_refused(rest: RestClient, timeout: str) -> None:
    assert rest.ask("POST", f"/plain/messages/head?timeout={timeout}").status == 400


def test_a_waiting_request_gets_what_arrives(
    broker: BrokerThread, rest: RestClient, threads: ThreadPoolExecutor
) -> None:
    with RestClient(broker.addresses.http_port) as waiter:
        future = waiting_on(broker, threads, waiter, "plain")
        rest.send("/plain", b"arrived")
        answer = future.result(LONG_S)
        assert (answer.status, answer.body) == (201, b"arrived")
        assert waiter.ask("DELETE", answer.lock).status == 200
    assert broker.messages_of("plain") == 0


@pytest.mark.parametrize("keeps", [True, False])
def test_whichever_of_eight_clients_asks_gets_the_one_message(broker: BrokerThread, keeps: bool) -> None:
    """Each asks once for what is there now, gets it, and unlocks it for the next one."""
    with ExitStack() as stack:
        clients = [stack.enter_context(RestClient(broker.addresses.http_port)) for _ in range(CLIENTS)]
        name = f"/one-{keeps}"
        clients[0].create(
            name, "<MaxDeliveryCount>100</MaxDeliveryCount><EnablePartitioning>true</EnablePartitioning>"
        )
        clients[0].send(name, b"the one")
        for client in clients * 3:
            answer = client.receive(name)
            assert (answer.status, answer.body) == (201, b"the one")
            assert client.ask("PUT", answer.lock).status == 200
            if not keeps:
                client.close()
        assert clients[0].receive(name, method="DELETE").status == 200


def test_one_message_is_given_to_one_of_eight_waiting_clients(
    broker: BrokerThread, rest: RestClient, threads: ThreadPoolExecutor
) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(RestClient(broker.addresses.http_port)) for _ in range(CLIENTS)]
        futures = [waiting_on(broker, threads, client, "keyed") for client in clients]
        for number in range(CLIENTS):
            rest.send("/keyed", str(number))
        answers = [future.result(LONG_S) for future in futures]
        assert sorted(int(answer.body) for answer in answers) == [*range(CLIENTS)]
        for client, answer in zip(clients, answers, strict=True):
            assert client.ask("DELETE", answer.lock).status == 200


def test_what_a_connection_holds_ready_is_given_to_others_and_goes_back_at_its_end(
    broker: BrokerThread, rest: RestClient
) -> None:
    for number in range(4):
        rest.send("/keyed", str(number), BrokerProperties=f'{{"PartitionKey":"{number}"}}')
    with RestClient(broker.addresses.http_port) as first:
        one = first.receive("/keyed")
        assert one.status == 201
        found = {rest.receive("/keyed", method="DELETE").body for _ in range(3)}
        assert len(found) == 3, "it holds the others ready, and gives them back"
        assert first.ask("PUT", one.lock).status == 200
        assert first.receive("/keyed").status == 201
    assert rest.receive("/keyed").status == 204, "the only message is locked for a client"


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_what_a_connection_holds_ready_goes_back_at_once_when_it_ends(
    broker: BrokerThread, rest: RestClient, method: str
) -> None:
    """It was handed to nobody, so that its deliveries do not count. Receive-and-delete has removed none of
    it."""
    name = f"ready-{method}"
    rest.create(f"/{name}", "<EnablePartitioning>true</EnablePartitioning>")
    for number in range(4):
        rest.send(f"/{name}", str(number), BrokerProperties=f'{{"PartitionKey":"{number}"}}')
    entity = broker.queue(name)
    with RestClient(broker.addresses.http_port) as leaver:
        taken = leaver.receive(f"/{name}", method=method)
        until_seen(lambda: sum(entity.kept_ready.values()) == 3)
    until_seen(lambda: entity.meter.receive_cache_returns == 3)
    found = [rest.receive(f"/{name}", timeout=LONG_S) for _ in range(3)]
    assert [each.broker_properties["DeliveryCount"] for each in found] == [1, 1, 1]
    assert {taken.body, *(each.body for each in found)} == {b"0", b"1", b"2", b"3"}
    assert entity.meter.receive_cache_recalls == 0
    assert rest.receive(f"/{name}").status == 204, "the message that was handed over stays locked, or is gone"
    assert broker.messages_of(name) == (4 if method == "POST" else 3)


def test_a_message_that_is_found_as_its_client_leaves_goes_back_at_once(
    broker: BrokerThread, rest: RestClient, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the answer was written, although the request had the message."""
    rest.create("/leaving")
    receive = MessageRequests._receive

    async def noting(self: MessageRequests, request: web.Request, *others: Any, **given: Any) -> Any:
        assert request.transport is not None
        transports.append(request.transport)
        return await receive(self, request, *others, **given)

    transports: list[asyncio.Transport] = []
    monkeypatch.setattr(MessageRequests, "_receive", noting)
    leaver = RestClient(broker.addresses.http_port)
    future = waiting_on(broker, threads, leaver, "leaving")
    receiver = waiting_receiver(broker, "leaving")
    take = receiver.take

    def take_as_the_client_leaves(locked: Locked) -> None:
        take(locked)
        transports[0].abort()

    monkeypatch.setattr(receiver, "take", take_as_the_client_leaves)
    rest.send("/leaving", b"kept")
    assert future.exception(LONG_S) is not None
    again = rest.receive("/leaving", timeout=LONG_S)
    assert (again.body, again.broker_properties["DeliveryCount"]) == (b"kept", 1)


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_client_that_has_left_gets_nothing(
    broker: BrokerThread, rest: RestClient, threads: ThreadPoolExecutor, method: str
) -> None:
    name = f"left-{method}"
    rest.create(f"/{name}")
    leaver = RestClient(broker.addresses.http_port)
    future = threads.submit(leaver.receive, f"/{name}", method=method, timeout=LONG_S)
    until_seen(lambda: waiters(broker, name) == 1)
    leaver.shut()
    assert future.exception(LONG_S) is not None
    until_seen(lambda: waiters(broker, name) == 0)
    rest.send(f"/{name}", b"kept")
    assert rest.receive(f"/{name}", timeout=LONG_S).broker_properties["DeliveryCount"] == 1
    assert broker.messages_of(name) == 1


def test_a_message_that_is_being_removed_as_its_client_leaves_is_delivered_at_most_once(
    broker: BrokerThread, rest: RestClient, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Receive-and-delete loses it, as it loses what is on its way to a client that leaves."""
    rest.create("/lost")
    leaver = RestClient(broker.addresses.http_port)
    future = threads.submit(leaver.receive, "/lost", method="DELETE", timeout=LONG_S)
    receiver = waiting_receiver(broker, "lost")
    hand_over = receiver._receiver._hand_over

    def hand_over_as_the_client_leaves(self: object, locked: Locked) -> None:
        hand_over(locked)
        assert receiver._receiver.removes_now
        receiver.end(ConnectionResetError())

    monkeypatch.setattr(type(receiver._receiver), "_hand_over", hand_over_as_the_client_leaves)
    rest.send("/lost", b"gone")
    assert future.exception(LONG_S) is not None
    monkeypatch.undo()
    assert rest.receive("/lost").status == 204
    until_seen(lambda: broker.messages_of("lost") == 0)


def test_a_request_that_waits_ends_when_its_queue_is_disabled_or_deleted(
    broker: BrokerThread, rest: RestClient, threads: ThreadPoolExecutor
) -> None:
    rest.create("/ending")
    with RestClient(broker.addresses.http_port) as waiter:
        future = waiting_on(broker, threads, waiter, "ending")
        disabled = queue_body("<Status>ReceiveDisabled</Status>")
        assert rest.ask("PUT", "/ending", disabled, UPDATE).status == 200
        assert future.result(LONG_S).status == 403
        assert rest.ask("PUT", "/ending", queue_body("<Status>Active</Status>"), UPDATE).status == 200
        future = waiting_on(broker, threads, waiter, "ending")
        assert rest.ask("DELETE", "/ending").status == 200
        assert future.result(LONG_S).status == 410
        rest.create("/ending")
        rest.send("/ending", b"new")
        assert waiter.receive("/ending").body == b"new"


def test_a_request_whose_message_is_being_removed_waits_for_it(
    broker: BrokerThread, rest: RestClient, threads: ThreadPoolExecutor
) -> None:
    """Nothing refuses it any more: nobody else could be given the message."""
    rest.create("/removing")
    future = threads.submit(rest.receive, "/removing", method="DELETE", timeout=LONG_S)
    receiver = waiting_receiver(broker, "removing")
    removals = receiver._receiver._removals

    async def refuse_while_it_is_removed() -> None:
        removals.count += 1
        receiver.refuse(throttled())
        receiver.stop()
        removals.count -= 1

    asyncio.run_coroutine_threadsafe(refuse_while_it_is_removed(), broker.loop).result(LONG_S)
    with RestClient(broker.addresses.http_port) as sender:
        sender.send("/removing", b"removed")
    answer = future.result(LONG_S)
    assert (answer.status, answer.body) == (200, b"removed")


OWN_RULE = (
    '<AuthorizationRules><AuthorizationRule xmlns:i="http://www.w3.org/2001/XMLSchema-instance" '
    'i:type="SharedAccessAuthorizationRule"><ClaimType>SharedAccessKey</ClaimType>'
    "<ClaimValue>None</ClaimValue><Rights><AccessRights>{}</AccessRights></Rights><KeyName>app</KeyName>"
    "<PrimaryKey>{}</PrimaryKey></AuthorizationRule></AuthorizationRules>"
)


@pytest.mark.parametrize(("right", "key"), [("Listen", "new"), ("Send", "old")], ids=["key", "right"])
@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_request_that_waits_ends_when_its_client_loses_the_right(
    broker: BrokerThread, rest: RestClient, threads: ThreadPoolExecutor, method: str, right: str, key: str
) -> None:
    name = f"revoked-{method}-{right}"
    rest.create(f"/{name}", OWN_RULE.format("Listen", "old"))
    resource = f"http://127.0.0.1:{broker.addresses.http_port}/{name}"
    token = sas_token(resource, key_name="app", key="old")
    with RestClient(broker.addresses.http_port) as own, RestClient(broker.addresses.http_port) as other:
        path = f"/{name}/messages/head?timeout={LONG_S}"
        revoked = threads.submit(own.ask, method, path, token=token)
        until_seen(lambda: waiters(broker, name) == 1)
        waiting = waiting_on(broker, threads, other, name)
        changed = queue_body(OWN_RULE.format(right, key))
        assert rest.ask("PUT", f"/{name}", changed, UPDATE).status == 200
        assert revoked.result(LONG_S).status == 401
        rest.send(f"/{name}", b"kept")
        assert waiting.result(LONG_S).body == b"kept", "the other client's key is in force"


def test_a_client_without_rights_is_given_what_is_being_removed_and_nothing_after_that(
    broker: BrokerThread, rest: RestClient, threads: ThreadPoolExecutor
) -> None:
    rest.create("/losing", OWN_RULE.format("Listen", "old"))
    token = sas_token(f"http://127.0.0.1:{broker.addresses.http_port}/losing", key_name="app", key="old")
    path = f"/losing/messages/head?timeout={LONG_S}"
    future = threads.submit(rest.ask, "DELETE", path, token=token)
    receiver = waiting_receiver(broker, "losing")
    removals = receiver._receiver._removals

    async def begin_to_remove() -> None:
        removals.count += 1

    async def fail_to_remove() -> None:
        removals.count -= 1
        receiver.go_on()

    asyncio.run_coroutine_threadsafe(begin_to_remove(), broker.loop).result(LONG_S)
    with RestClient(broker.addresses.http_port) as admin:
        changed = queue_body(OWN_RULE.format("Listen", "new"))
        assert admin.ask("PUT", "/losing", changed, UPDATE).status == 200
        assert waiters(broker, "losing") == 1, "the message that is being removed must reach it"
        asyncio.run_coroutine_threadsafe(fail_to_remove(), broker.loop).result(LONG_S)
        assert future.result(LONG_S).status == 401
        admin.send("/losing", b"next")
    token = sas_token(f"http://127.0.0.1:{broker.addresses.http_port}/losing", key_name="app", key="new")
    found = rest.ask("DELETE", path, token=token)
    assert (found.status, found.body) == (200, b"next"), "with another key, the same connection receives"


def test_a_right_that_ends_during_the_drain_of_the_request_before_is_noticed(
    broker: BrokerThread, rest: RestClient
) -> None:
    rest.create("/behind")
    assert rest.receive("/behind").status == 204
    (receiver,) = broker.queue("behind").watchers
    assert isinstance(receiver, HttpReceiver)

    def lost() -> None:
        raise Refused(Reason.UNAUTHORIZED, "the key is gone")

    async def receive() -> None:
        receiver._drained.clear()
        waiting = asyncio.create_task(receiver.receive(LONG_S, lost))
        await asyncio.sleep(0)
        receiver._drained.set()
        await waiting

    with pytest.raises(Refused, match="the key is gone"):
        asyncio.run_coroutine_threadsafe(receive(), broker.loop).result(LONG_S)


def test_an_entity_has_a_limited_number_of_requests_that_receive(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    with (
        BrokerThread(tmp_path, [queue("one")], LocalDisk(), receivers_per_entity_max=1) as broker,
        RestClient(broker.addresses.http_port) as first,
        RestClient(broker.addresses.http_port) as second,
    ):
        future = waiting_on(broker, threads, first, "one")
        refused = second.receive("/one")
        assert (refused.status, b"'one' has 1 receivers; the maximum is 1" in refused.body) == (503, True)
        second.send("/one", b"x")
        assert future.result(LONG_S).status == 201
        assert second.receive("/one").status == 204, "a connection that only stays open is no receiver"


def test_many_queues_on_one_connection_hold_few_receivers(broker: BrokerThread, rest: RestClient) -> None:
    for number in range(20):
        rest.create(f"/many-{number}")
        rest.send(f"/many-{number}", b"x")
    for _ in range(2):
        for number in range(20):
            answer = rest.receive(f"/many-{number}")
            assert answer.status == 201
            assert rest.ask("PUT", answer.lock).status == 200
    assert sum(len(broker.queue(f"many-{number}").watchers) for number in range(20)) == RECEIVERS_MAX


def test_requests_that_wait_leave_connections_to_others() -> None:
    waiting = Waiting(connections_max=8, cache_messages=1, cache_bytes=1, bytes_max=1)
    for _ in range(6):
        waiting.begin()
    with pytest.raises(Refused, match="6 requests wait") as refused:
        waiting.begin()
    assert refused.value.reason is Reason.SERVER_BUSY
    waiting.end()
    waiting.begin()


def test_all_connections_together_hold_a_limited_number_of_bytes_ready() -> None:
    waiting = Waiting(connections_max=8, cache_messages=1, cache_bytes=100, bytes_max=150)
    first, second = waiting.cache(), waiting.cache()
    assert waiting.cache_bytes(first) == 100
    first.bytes = 100
    assert (waiting.cache_bytes(first), waiting.cache_bytes(second)) == (100, 50)
    waiting.forget(first)
    assert waiting.cache_bytes(second) == 100


def test_messages_wait_while_too_much_is_on_its_way_to_slow_readers(
    broker: BrokerThread, rest: RestClient, threads: ThreadPoolExecutor
) -> None:
    rest.create("/slow")
    assert rest.receive("/slow").status == 204
    (receiver,) = broker.queue("slow").watchers
    assert isinstance(receiver, HttpReceiver)

    def change(size: int) -> None:
        receiver.waiting.sent(-size)

    broker.loop.call_soon_threadsafe(change, 1 << 40)
    assert rest.receive("/slow").status == 503
    future = waiting_on(broker, threads, rest, "slow")
    with RestClient(broker.addresses.http_port) as sender:
        sender.send("/slow", b"x")
    assert not future.done()
    broker.loop.call_soon_threadsafe(change, -(1 << 40))
    assert future.result(LONG_S).status == 201


def test_requests_that_wait_do_not_hold_up_the_end_of_the_broker(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    with BrokerThread(tmp_path, [queue("last")], LocalDisk(), shutdown_timeout_ms=15_000) as broker:
        client = RestClient(broker.addresses.http_port)
        future = waiting_on(broker, threads, client, "last")
        began = time.monotonic()
    assert time.monotonic() - began < 15
    assert future.result(LONG_S).status == 503
    client.close()
