"""A whole connection over a wire in memory: SASL, idle time-outs, claims, request links, the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.access.sas import Claim
from broker.frontend.nodes import request_node
from broker.operations.browsing import Peek, Peeked
from protocol.codec import Described, Symbol, Timestamp, UInt, ULong
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import APPLICATION, PROPERTIES, VALUE, section, sections
from tests.support.link_stack import Client, LinkStack, turn, until
from tests.support.sas import sas_token


def request(
    operation: str, body: Any, message_id: Any = "id-1", reply_to: str | None = None, **properties: Any
) -> bytes:
    return (
        section(PROPERTIES, [message_id, None, None, None, reply_to])
        + section(APPLICATION, {"operation": operation, **properties})
        + section(VALUE, body)
    )


def put_token(token: str, name: str = "sb://test/queue", **given: Any) -> bytes:
    return request("put-token", token, type="jwt", name=name, **given)


async def responders(
    client: Client, address: str = "$cbs", targets: tuple[str | None, ...] = ("here",)
) -> None:
    """Attach a request link with handle 0, and a response link with credit for each target."""
    await client.sender(0, address)
    for handle, target in enumerate(targets, 1):
        fields = raw.receiver_attach(handle, address, f"name-{handle}")
        fields[6] = Described(ULong(raw.TARGET), [target])
        await client.attach(fields)
        client.flow(handle, 0, 50)


async def responses(client: Client, count: int = 1) -> list[tuple[int, dict[int, Any]]]:
    """Wait for this many responses: (handle on which each came, its sections)."""
    found: list[tuple[int, dict[int, Any]]] = []
    for _ in range(50):
        found += [(frame.field(0), sections(frame.payload)) for frame in await client.heard(raw.TRANSFER)]
        if len(found) >= count:
            break
    return found


# --- SASL, open, close --------------------------------------------------------------------------------------


async def test_a_wrong_password_ends_the_connection() -> None:
    stack = LinkStack()
    client = Client(stack)
    client.connection.data_received(raw.sasl_plain("RootManageSharedAccessKey", "wrong"))
    assert client.stream.ended and not client.connection.claims


async def test_an_attach_without_credentials_is_refused_with_the_remedy() -> None:
    stack = LinkStack()
    client = await stack.connect(raw.sasl_anonymous())
    client.say(raw.frame(raw.ATTACH, raw.sender_attach(0, "queue")))
    (detach,) = await client.heard(raw.DETACH)
    condition, description = detach.field(2).value[:2]
    assert condition == "amqp:unauthorized-access"
    assert (
        "'Send' claim(s) are required" in description
        and "'$cbs'" in description
        and "SASL PLAIN" in description
    )


async def test_an_attach_beyond_the_rights_of_a_token_does_not_ask_for_credentials() -> None:
    stack = LinkStack()
    client = await stack.connect(raw.sasl_anonymous())
    client.connection.put_claim(
        "sb://test/queue", Claim("queue", frozenset({"Listen"}), None, "listener", "queue")
    )
    client.say(raw.frame(raw.ATTACH, raw.sender_attach(0, "queue")))
    (detach,) = await client.heard(raw.DETACH)
    assert (
        "'Send' claim(s) are required" in detach.field(2).value[1] and "$cbs" not in detach.field(2).value[1]
    )


async def test_the_sasl_outcome_is_written_apart_from_what_follows() -> None:
    stack = LinkStack()
    client = Client(stack)
    writes: list[bytes] = []
    client.stream.write = lambda data: writes.append(bytes(data))  # type: ignore[method-assign]
    client.say(raw.sasl_plain(), raw.AMQP_HEADER, raw.frame(raw.OPEN, raw.open_fields()))
    await turn()
    assert writes[-1].startswith(raw.AMQP_HEADER) and len(writes) >= 2, (
        "rhea stalls on an outcome that comes with the open"
    )


async def test_the_clients_own_idle_timeout_is_kept_although_its_open_came_after_its_header() -> None:
    stack = LinkStack()
    client = Client(stack)
    await client.log_in()
    client.say(raw.AMQP_HEADER)
    await turn()
    client.stream.written.clear()
    fields = raw.open_fields()
    fields[4] = UInt(1_000)
    client.say(raw.frame(raw.OPEN, fields))
    await client.hear()
    await until(lambda: client.stream.written)
    assert [frame.code for frame in await client.hear()] == [None], "an empty frame"


@pytest.mark.parametrize("idle_timeout_ms", [1, 999])
async def test_an_idle_timeout_that_is_too_short_is_refused(idle_timeout_ms: int) -> None:
    stack = LinkStack()
    client = Client(stack)
    await client.log_in()
    fields = raw.open_fields()
    fields[4] = UInt(idle_timeout_ms)
    client.say(raw.AMQP_HEADER, raw.frame(raw.OPEN, fields))
    opened, closed = await client.hear()
    assert opened.code == raw.OPEN and raw.condition_of(closed) == "amqp:not-allowed"
    assert f"{idle_timeout_ms} ms" in closed.field(0).value[1] and client.stream.ended


async def test_a_client_that_never_opens_is_cut_off() -> None:
    stack = LinkStack(connection_open_timeout_ms=100)
    client = Client(stack)
    await until(lambda: client.stream.aborted)


async def test_a_connection_over_the_limit_is_closed_with_a_reason() -> None:
    stack = LinkStack(connections_max=1)
    await stack.connect()
    second = Client(stack)
    await second.log_in()
    second.say(raw.AMQP_HEADER, raw.frame(raw.OPEN, raw.open_fields()))
    (close,) = await second.heard(raw.CLOSE)
    assert close.field(0).value[0] == "amqp:resource-limit-exceeded" and second.stream.ended


async def test_the_broker_says_that_it_stops() -> None:
    client = await LinkStack().connect()
    client.connection.shut_down()
    (close,) = await client.heard(raw.CLOSE)
    assert close.field(0).value[0] == "amqp:connection:forced" and len(close.field(0).value) == 3


async def test_a_connection_that_is_lost_is_forgotten_with_all_its_links() -> None:
    stack = LinkStack()
    client = await stack.connect()
    await responders(client)
    await client.receiver(5, credit=3)
    await client.sender(6)
    client.connection.connection_lost()
    client.connection.connection_lost()
    assert not stack.services.connections and not stack.queue.watchers
    await stack.services.wait_until_alone()
    client.say(raw.raw_frame(b""))


async def test_more_links_than_allowed_are_refused_and_room_comes_back() -> None:
    stack = LinkStack(links_per_connection_max=2)
    client = await stack.connect()
    await client.sender(0)
    await client.sender(1)
    _, detach = await client.attach(raw.sender_attach(2, "queue"))
    assert detach.field(2).value[0] == "amqp:resource-limit-exceeded"
    client.detach(2)
    client.detach(1)
    await turn()
    client.stream.written.clear()
    await client.sender(1)


async def test_a_bug_in_serving_one_connection_ends_that_one_alone() -> None:
    stack = LinkStack()
    one, other = await stack.connect(), await stack.connect()
    one.connection.services = None  # type: ignore[assignment]
    one.say(raw.frame(raw.ATTACH, raw.sender_attach(0, "queue")))
    assert one.stream.aborted and not other.stream.aborted
    await other.sender(0)


# --- claims -------------------------------------------------------------------------------------------------


async def test_a_token_opens_what_it_is_for_and_its_end_closes_the_link() -> None:
    stack = LinkStack()
    client = await stack.connect(raw.sasl_anonymous())
    await responders(client)
    client.transfer(
        0, 0, put_token(sas_token("sb://test/queue", expires_at_s=stack.clock.now_ms() // 1000 + 2))
    )
    ((_, answer),) = await responses(client)
    assert answer[APPLICATION]["status-code"] == 202 and answer[PROPERTIES][5] == "id-1"
    await client.sender(7)
    stack.clock.advance(5_000)
    client.connection.tokens.expire()
    (detach,) = await client.heard(raw.DETACH)
    assert (
        detach.field(2).value[0] == "amqp:unauthorized-access" and "ExpiredToken" in detach.field(2).value[1]
    )
    assert [link.name for link in client.connection.engine.links() if not link.gone] == [
        "sender-0",
        "name-1",
    ], "$cbs stays"


@pytest.mark.parametrize(
    ("step_ms", "ends"), [(3_600_000, True), (-3_600_000, False)], ids=["forward", "back"]
)
async def test_a_token_ends_by_the_wall_clock_also_when_that_was_set(step_ms: int, ends: bool) -> None:
    stack = LinkStack()
    client = await stack.connect(raw.sasl_anonymous())
    await responders(client)
    client.transfer(
        0, 0, put_token(sas_token("sb://test/queue", expires_at_s=stack.clock.now_ms() // 1000 + 60))
    )
    await responses(client)
    await client.sender(7)
    stack.clock.step(step_ms)
    client.connection.clock_was_set()
    assert bool(client.connection.claims) is not ends
    if ends:
        (detach,) = await client.heard(raw.DETACH)
        assert "ExpiredToken" in detach.field(2).value[1]
    else:
        timer = client.connection.tokens._expiry_timer
        assert timer is not None and timer.when() - asyncio.get_running_loop().time() > 3_600


SOON_S = 10
TOKENS: dict[str, tuple[list[tuple[str, str, int]], list[str]]] = {
    "python: one for the queue, also for its management": (
        [("sb://test/queue", "sb://test/queue", SOON_S)],
        [],
    ),
    "js: the management node has its own": (
        [
            ("sb://test/queue", "sb://test/queue", SOON_S),
            ("sb://test/queue/$management", "sb://test/queue/$management", 600),
        ],
        ["queue/$management"],
    ),
    "js: only that of the node has ended": (
        [
            ("sb://test/queue", "sb://test/queue", 600),
            ("sb://test/queue/$management", "sb://test/queue/$management", SOON_S),
        ],
        ["queue", "queue/$management"],
    ),
    ".net: tokens of the namespace, put by entity": (
        [("amqps://test/", "sb://test/queue", SOON_S), ("amqps://test/", "sb://test/other", 600)],
        [],
    ),
    ".net: the other one has ended": (
        [("amqps://test/", "sb://test/queue", 600), ("amqps://test/", "sb://test/other", SOON_S)],
        ["queue", "queue/$management"],
    ),
    "one for the namespace beside it": (
        [("sb://test/queue", "sb://test/queue", SOON_S), ("sb://test/", "sb://test/", 600)],
        ["queue", "queue/$management"],
    ),
    "put for another entity only": (
        [("sb://test/", "sb://test/other", 600), ("sb://test/", "sb://test/third", SOON_S)],
        ["queue", "queue/$management"],
    ),
    "renewed": (
        [("sb://test/queue", "sb://test/queue", SOON_S), ("sb://test/queue", "sb://test/queue", 600)],
        ["queue", "queue/$management"],
    ),
}


@pytest.mark.parametrize(("tokens", "left"), TOKENS.values(), ids=TOKENS)
async def test_the_end_of_a_claim_ends_the_links_of_what_it_was_put_for_and_no_others(
    tokens: list[tuple[str, str, int]], left: list[str]
) -> None:
    stack = LinkStack()
    client = await stack.connect(raw.sasl_anonymous())
    await responders(client)
    for number, (resource, name, lasts_s) in enumerate(tokens):
        token = sas_token(resource, expires_at_s=stack.clock.now_ms() // 1000 + lasts_s)
        client.transfer(0, number, put_token(token, name))
        ((_, answer),) = await responses(client)
        assert answer[APPLICATION]["status-code"] == 202
    await client.sender(5, "queue")
    await client.receiver(6, address="queue")
    await client.sender(7, "queue/$management")
    await client.receiver(8, address="queue/$management")
    stack.clock.advance(1_000 * SOON_S)
    client.connection.tokens.expire()
    errors = [frame.field(2).value for frame in await client.heard(raw.DETACH)]
    assert all(
        condition == "amqp:unauthorized-access" and "ExpiredToken" in text for condition, text, _ in errors
    )
    names = {"queue": ["sender-5", "receiver-6"], "queue/$management": ["sender-7", "receiver-8"]}
    stay = ["sender-0", "name-1", *(name for path in left for name in names[path])]
    assert [link.name for link in client.connection.engine.links() if not link.gone] == stay, "$cbs stays"
    assert len(errors) == 6 - len(stay)


async def test_a_connection_that_shows_no_right_in_good_time_is_closed_with_a_reason() -> None:
    stack = LinkStack(unclaimed_timeout_ms=50)
    client, with_key = await stack.connect(raw.sasl_anonymous()), await stack.connect()
    await responders(client)
    client.transfer(0, 0, put_token("no token"))
    await until(lambda: client.stream.closed)
    (close,) = await client.heard(raw.CLOSE)
    assert close.field(0).value[0] == "amqp:unauthorized-access" and "$cbs" in close.field(0).value[1]
    assert not with_key.stream.ended


async def test_a_connection_whose_last_token_has_expired_is_closed_unless_another_comes() -> None:
    stack = LinkStack(unclaimed_timeout_ms=100)
    renewed, left = await stack.connect(raw.sasl_anonymous()), await stack.connect(raw.sasl_anonymous())
    for client in (renewed, left):
        await responders(client)
        client.transfer(
            0, 0, put_token(sas_token("sb://test/queue", expires_at_s=stack.clock.now_ms() // 1000 + 2))
        )
        await responses(client)
    stack.clock.advance(5_000)
    for client in (renewed, left):
        client.connection.tokens.expire()
    renewed.transfer(
        0, 1, put_token(sas_token("sb://test/queue", expires_at_s=stack.clock.now_ms() // 1000 + 60))
    )
    await until(lambda: left.stream.ended)
    assert not renewed.stream.ended and renewed.connection.claims


async def test_without_a_time_limit_a_connection_without_rights_stays() -> None:
    client = await LinkStack(unclaimed_timeout_ms=0).connect(raw.sasl_anonymous())
    assert client.connection.tokens._unclaimed_timer is None


@pytest.mark.parametrize("expiration", ["1", "0", "soon", Timestamp(1), None], ids=repr)
async def test_rule_37_the_expiration_of_a_request_may_be_text_and_never_counts(expiration: Any) -> None:
    stack = LinkStack()
    client = await stack.connect(raw.sasl_anonymous())
    await responders(client)
    ends_at_s = stack.clock.now_ms() // 1000 + 60
    client.transfer(
        0, 0, put_token(sas_token("sb://test/queue", expires_at_s=ends_at_s), expiration=expiration)
    )
    ((_, answer),) = await responses(client)
    assert answer[APPLICATION]["status-code"] == 202
    assert [claim.expires_at_ms for claim in client.connection.claims.values()] == [1000 * ends_at_s]


@pytest.mark.parametrize("token", ["SharedAccessSignature sr=x&sig=y&se=1&skn=z", "no token", ""])
async def test_a_bad_token_is_answered_with_dashed_keys_and_opens_nothing(token: str) -> None:
    client = await LinkStack().connect(raw.sasl_anonymous())
    await responders(client)
    client.transfer(0, 0, put_token(token))
    ((_, answer),) = await responses(client)
    assert answer[APPLICATION]["status-code"] in (400, 401) and isinstance(
        answer[APPLICATION]["error-condition"], Symbol
    )
    assert not client.connection.claims


# --- request and response links (AMQP contract 0.4.4) -------------------------------------------------------


@pytest.mark.parametrize(
    ("reply_to", "handle"),
    [("there", 2), ("name-1", 1), ("name-2", 2), (None, 2), ("unknown", 2)],
    ids=lambda value: str(value),
)
async def test_rule_4_a_response_goes_by_target_address_else_by_link_name_else_to_the_latest_link(
    reply_to: str | None, handle: int
) -> None:
    client = await LinkStack().connect()
    await responders(client, targets=("here", "there"))
    client.transfer(0, 0, put_token("junk", reply_to=reply_to))
    ((found, _),) = await responses(client)
    assert found == handle


async def test_rule_4_a_response_link_without_a_target_address_is_found() -> None:
    client = await LinkStack().connect()
    await responders(client, targets=(None,))
    client.transfer(0, 0, put_token("junk"))
    assert len(await responses(client)) == 1


async def test_one_reply_to_on_several_connections_brings_each_its_own_responses() -> None:
    """Java uses the same reply-to addresses on all its connections."""
    stack = LinkStack()
    clients = [await stack.connect() for _ in range(3)]
    for client in clients:
        await responders(client, targets=("cbs-reply", "other"))
    for number, client in enumerate(clients):
        client.transfer(0, 0, put_token("junk", message_id=ULong(number), reply_to="cbs-reply"))
    for number, client in enumerate(clients):
        assert [(handle, answer[PROPERTIES][5]) for handle, answer in await responses(client)] == [
            (1, number)
        ]
        assert await client.heard(raw.TRANSFER) == []


async def test_a_request_is_accepted_and_one_that_came_settled_is_only_answered() -> None:
    client = await LinkStack().connect()
    await responders(client)
    for settled in (False, True):
        client.transfer(0, int(settled), put_token("junk"), settled=settled)
        frames = []
        for _ in range(10):
            frames += await client.hear()
        codes = [frame.code for frame in frames]
        assert codes.count(raw.TRANSFER) == 1 and codes.count(raw.DISPOSITION) == (0 if settled else 1)


async def test_responses_wait_for_credit_and_come_in_order() -> None:
    client = await LinkStack().connect()
    await client.sender(0, "$cbs")
    await client.attach(raw.receiver_attach(1, "$cbs"))
    for number in range(3):
        client.transfer(0, number, put_token("junk", message_id=f"id-{number}"))
    await turn()
    await client.hear()
    client.flow(1, 0, 2)
    assert [each[PROPERTIES][5] for _, each in await responses(client, 2)] == ["id-0", "id-1"]
    client.flow(1, 2, 1)
    assert [each[PROPERTIES][5] for _, each in await responses(client)] == ["id-2"]


async def test_too_many_responses_that_nobody_fetches_close_their_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_node, "RESPONSES_WAITING_MAX", 3)
    client = await LinkStack().connect()
    await client.sender(0, "$cbs")
    await client.attach(raw.receiver_attach(1, "$cbs"))
    for number in range(6):
        client.transfer(0, number, put_token("junk"))
    detaches = []
    for _ in range(10):
        detaches += await client.heard(raw.DETACH)
    assert [str(frame.field(2).value[0]) for frame in detaches] == ["amqp:resource-limit-exceeded"]
    client.detach(1)
    client.detach(0)
    await turn()
    assert client.connection.engine.links() == []


async def test_a_client_that_sends_requests_and_does_not_read_is_kept_a_bounded_number_of_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_node, "RESPONSES_WAITING_BYTES_MAX", 1_000)
    client = await LinkStack().connect()
    await responders(client)
    client.connection.pause_writing()
    for number in range(50):
        client.transfer(0, number, put_token("junk"))
        await turn()
    frames = await client.hear()
    assert raw.TRANSFER not in [frame.code for frame in frames]
    assert [str(frame.field(2).value[0]) for frame in frames if frame.code == raw.DETACH] == [
        "amqp:resource-limit-exceeded"
    ]


async def test_responses_that_found_no_room_are_sent_when_the_client_reads_again() -> None:
    client = await LinkStack().connect()
    await responders(client)
    client.connection.pause_writing()
    client.transfer(0, 0, put_token("junk"))
    for _ in range(5):
        assert raw.TRANSFER not in [frame.code for frame in await client.hear()]
    client.connection.resume_writing()
    assert len(await responses(client)) == 1


async def test_more_requests_at_a_time_than_allowed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_node, "REQUESTS_UNDER_WAY_MAX", 2)
    client = await LinkStack().connect()
    await responders(client)
    client.say(
        *(raw.frame(raw.TRANSFER, raw.transfer_fields(0, number), put_token("junk")) for number in range(5))
    )
    frames = []
    for _ in range(10):
        frames += await client.hear()
    refused = [
        frame
        for frame in frames
        if frame.code == raw.DISPOSITION and frame.field(4).descriptor == raw.REJECTED
    ]
    assert {str(frame.field(4).value[0].value[0]) for frame in refused} == {"com.microsoft:server-busy"}
    assert len([frame for frame in frames if frame.code == raw.TRANSFER]) == 2
    client.transfer(0, 5, put_token("junk"))
    assert len(await responses(client)) == 1


async def test_a_malformed_request_is_rejected_and_its_credit_comes_back() -> None:
    client = await LinkStack().connect()
    await responders(client)
    for number in range(3 * request_node.REQUEST_CREDIT):
        client.transfer(0, number, b"\xff", settled=number % 2 == 0)
    frames = await client.hear()
    assert all(frame.field(4).descriptor == raw.REJECTED for frame in frames if frame.code == raw.DISPOSITION)
    flow = [frame for frame in frames if frame.code == raw.FLOW][-1]
    assert flow.field(5) + flow.field(6) == 4 * request_node.REQUEST_CREDIT


async def test_a_pair_that_comes_and_goes_leaves_no_node_behind() -> None:
    client = await LinkStack().connect()
    for _ in range(5):
        await responders(client)
        client.detach(0)
        client.detach(1)
        await turn()
        client.stream.written.clear()
    assert client.connection._attaching.nodes == {}


# --- $management --------------------------------------------------------------------------------------------


async def test_rule_3_management_answers_with_camel_case_keys_and_a_symbol_for_the_condition() -> None:
    client = await LinkStack().connect()
    await responders(client, "queue/$management")
    bodies = [
        ("com.microsoft:nonsense", {}),
        ("com.microsoft:renew-lock", None),
        ("com.microsoft:peek-message", {"message-count": "x"}),
    ]
    for number, (operation, body) in enumerate(bodies):
        client.transfer(0, number, request(operation, body, message_id=ULong(number)))
    for number, (_, answer) in enumerate(await responses(client, 3)):
        properties = answer[APPLICATION]
        assert (
            properties["statusCode"] in (400, 501)
            and properties["statusDescription"]
            and isinstance(properties["errorCondition"], Symbol)
        )
        assert answer[PROPERTIES][5] == number


async def test_management_follows_a_queue_that_was_deleted_and_created_again() -> None:
    stack = LinkStack(1)
    client = await stack.connect()
    await responders(client, "queue/$management")
    peek = request("com.microsoft:peek-message", {"from-sequence-number": 1, "message-count": 1})
    del stack.namespace.queues["queue"]
    client.transfer(0, 0, peek)
    ((_, answer),) = await responses(client)
    assert (
        answer[APPLICATION]["statusCode"] == 404
        and "could not be found" in answer[APPLICATION]["statusDescription"]
    )
    again = stack.add_queue("queue", 1)
    client.transfer(0, 1, peek)
    await until(lambda: stack.parts[0].has(Peek))
    stack.parts[0].answer(Peek, lambda operation: Peeked([], [], [], [], [], [], [], operation.cookie))
    ((_, answer),) = await responses(client)
    assert answer[APPLICATION]["statusCode"] == 204 and again.accessed_at_ms is not None


# --- large responses ----------------------------------------------------------------------------------------


async def test_peeks_are_served_one_at_a_time_while_other_requests_do_not_wait() -> None:
    stack = LinkStack(1)
    client = await stack.connect()
    await client.sender(0, "queue/$management")
    await client.attach(raw.receiver_attach(1, "queue/$management"))
    asked = answered = 0
    part = stack.parts[0]

    def answer_peeks() -> None:
        nonlocal asked
        assert sum(isinstance(entry[0], Peek) for entry in part.posted) <= 1, "one at a time"
        if part.has(Peek):
            asked += 1
            part.answer(Peek, lambda operation: Peeked([], [], [], [], [], [], [], operation.cookie))

    for number in range(20):
        client.transfer(
            0,
            number,
            request(
                "com.microsoft:peek-message",
                {"from-sequence-number": 0, "message-count": 1},
                f"peek-{number}",
            ),
        )
    for _ in range(50):
        await turn()
        answer_peeks()
    assert asked == 1, "without credit one response waits, and the others are not made"
    assert stack.services.inflight.bytes == 0 and stack.services.pace.cost == 0, (
        "what waits for its client holds up nobody"
    )
    client.transfer(0, 20, request("com.microsoft:renew-lock", {}, "renewal"))
    await turn()
    client.flow(1, 0, 100)
    found: list[Any] = []
    for _ in range(200):
        found += [sections(frame.payload)[PROPERTIES][5] for frame in await client.heard(raw.TRANSFER)]
        answer_peeks()
    answered = len(found)
    assert answered == 21 and found.index("renewal") <= 1, found
    assert stack.services.inflight.bytes == 0 and stack.services.queued_bytes == 0


async def test_peeks_that_wait_for_credit_end_with_the_connection() -> None:
    stack = LinkStack(1)
    client = await stack.connect()
    await client.sender(0, "queue/$management")
    await client.attach(raw.receiver_attach(1, "queue/$management"))
    for number in range(5):
        client.transfer(
            0, number, request("com.microsoft:peek-message", {"from-sequence-number": 0, "message-count": 1})
        )
    for _ in range(20):
        await turn()
        if stack.parts[0].has(Peek):
            stack.parts[0].answer(
                Peek, lambda operation: Peeked([], [], [], [], [], [], [], operation.cookie)
            )
    client.connection.connection_lost()
    await until(lambda: not stack.tasks)
    await turn()
    assert stack.services.inflight.bytes == stack.services.queued_bytes == stack.services.pace.cost == 0


async def test_responses_that_a_client_never_settles_are_settled_for_it_beyond_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_node, "UNSETTLED_BYTES_MAX", 1_000)
    client = await LinkStack().connect()
    await responders(client)
    frames = []
    for number in range(30):
        client.transfer(0, number, put_token("junk"), settled=True)
        frames += await client.hear()
    for _ in range(5):
        frames += await client.hear()
    assert len([frame for frame in frames if frame.code == raw.TRANSFER]) == 30
    assert [
        frame
        for frame in frames
        if frame.code == raw.DISPOSITION and frame.field(0) is raw.SENDER and frame.field(3)
    ]
