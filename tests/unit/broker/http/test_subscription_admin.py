"""broker/http/subscription_admin.py: subscriptions and rules over HTTP: status codes, rights and pages."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from broker.http.atom import INSTANCE
from broker.operations.message_states import SubqueueCounts
from tests.support.http_entries import UPDATE, queue_body, value
from tests.support.http_stack import HttpStack, StillPartition
from tests.support.sas import sas_token
from tests.unit.broker.http.test_admin import next_of, titles

ONE = "/Events/subscriptions/One"


def body(kind: str, inner: str = "") -> bytes:
    return queue_body(inner, f"{kind}Description")


@pytest.fixture
async def topic(stack: HttpStack) -> HttpStack:
    assert (await stack.ask("PUT", "/Events", body("Topic")))[0] == 201
    assert (await stack.ask("PUT", ONE, body("Subscription")))[0] == 201
    return stack


async def test_a_subscription_has_an_entry_that_every_client_reads(topic: HttpStack) -> None:
    status, text, headers = await topic.ask("GET", "/events/SUBSCRIPTIONS/one")
    assert status == 200 and headers["Content-Type"] == "application/atom+xml;type=entry;charset=utf-8"
    assert f"http://127.0.0.1:{topic.port}/Events/Subscriptions/One?" in text
    assert '<title type="text">One</title>' in text
    assert (await topic.ask("PUT", ONE.upper(), body("Subscription")))[0] == 409
    status, text, _ = await topic.ask(
        "PUT", ONE, body("Subscription", "<MaxDeliveryCount>3</MaxDeliveryCount>"), headers=UPDATE
    )
    assert (status, value(text, "MaxDeliveryCount")) == (200, "3")
    assert value((await topic.ask("GET", "/Events"))[1], "SubscriptionCount") == "1"
    assert (await topic.ask("DELETE", ONE))[0] == 200
    assert (await topic.ask("DELETE", ONE))[0] == 404


async def test_answers_about_one_subscription_and_the_topic_count_no_others(
    topic: HttpStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Symptom: to create a subscription counted all subscriptions in all partitions, in one turn of the event
    loop: 65 ms with 1,000 subscriptions and 16 partitions. So did each request for one of them."""
    events = topic.queue("events")
    for number in range(3):
        events.partition(number)
    asked: set[str | None] = set()

    def counts(partition: StillPartition, only: str | None = None) -> dict[str, SubqueueCounts]:
        asked.add(only)
        return {"subscriptions/one": SubqueueCounts(active=5)}

    monkeypatch.setattr(StillPartition, "counts", counts)
    monkeypatch.setattr(StillPartition, "size", lambda _: 70)
    status, text, _ = await topic.ask("GET", ONE)
    assert (status, value(text, "MessageCount")) == (200, "15")
    assert "subscriptions/one" in asked and None not in asked
    asked.clear()
    assert (await topic.ask("PUT", "/Events/subscriptions/new", body("Subscription")))[0] == 201
    assert value((await topic.ask("GET", "/Events"))[1], "SizeInBytes") == "210"
    assert value((await topic.ask("GET", "/$Resources/topics"))[1], "SizeInBytes") == "210"
    assert asked and not asked & {None, "subscriptions/one"}


async def test_what_is_missing_below_a_topic_is_404(topic: HttpStack) -> None:
    await topic.ask("PUT", "/orders", queue_body())
    for path in (
        "/none/Subscriptions/",
        "/orders/Subscriptions/",
        "/none/subscriptions/s",
        "/Events/subscriptions/two",
        "/Events/subscriptions/two/rules",
        f"{ONE}/rules/none",
        f"{ONE}/more",
        f"{ONE}/rules/r/more",
    ):
        assert (await topic.ask("GET", path))[0] == 404, path
    for path, kind in (("/none/subscriptions/s", "Subscription"), (f"{ONE}/rules/none", "Rule")):
        assert (await topic.ask("PUT", path, body(kind), headers=UPDATE))[0] == 404
        assert (await topic.ask("DELETE", path))[0] == 404


async def test_a_rule_is_created_replaced_and_deleted(topic: HttpStack) -> None:
    path = f"{ONE}/Rules/Red"
    status, text, _ = await topic.ask("PUT", path, body("Rule"))
    assert status == 201 and f"http://127.0.0.1:{topic.port}/Events/Subscriptions/One/Rules/Red?" in text
    assert (await topic.ask("PUT", path.lower(), body("Rule")))[0] == 409
    created = value(text, "CreatedAt")
    status, text, _ = await topic.ask("PUT", path.lower(), body("Rule", "<Name>x</Name>"), headers=UPDATE)
    assert (status, value(text, "Name"), value(text, "CreatedAt")) == (200, "Red", created)
    assert titles((await topic.ask("GET", f"{ONE}/Rules/"))[1]) == ["$Default", "Red"]
    assert (await topic.ask("DELETE", f"{ONE}/rules/%24Default"))[0] == 200
    assert titles((await topic.ask("GET", f"{ONE}/rules"))[1]) == ["Red"]


async def test_lists_have_pages(topic: HttpStack) -> None:
    for name in ("a", "b"):
        await topic.ask("PUT", f"/Events/subscriptions/{name}", body("Subscription"))
        await topic.ask("PUT", f"{ONE}/rules/{name}", body("Rule"))
    for path, names in (
        ("/Events/Subscriptions/", ["a", "b", "One"]),
        (f"{ONE}/Rules/", ["$Default", "a", "b"]),
    ):
        text = (await topic.ask("GET", f"{path}?$top=2"))[1]
        assert titles(text) == names[:2]
        following = next_of(text)
        assert following is not None and following.startswith(f"http://127.0.0.1:{topic.port}/Events/Subscr")
        text = (await topic.ask("GET", f"{path}?$skip=2&$top=2"))[1]
        assert titles(text) == names[2:] and next_of(text) is None


async def test_wrong_bodies_and_methods_change_nothing(topic: HttpStack) -> None:
    for path, content in (
        ("/Events/subscriptions/two", body("Queue")),
        ("/Events/subscriptions/two", body("Subscription", "<LockDuration>PT6M</LockDuration>")),
        ("/Events/subscriptions/a b", body("Subscription")),
        (f"{ONE}/rules/two", body("Subscription")),
        ("/two", body("Subscription")),
    ):
        status, text, _ = await topic.ask("PUT", path, content)
        assert (status, value(text, "Code")) == (400, "400"), path
    for path in ("/Events/subscriptions", ONE, f"{ONE}/rules", f"{ONE}/rules/two"):
        assert (await topic.ask("POST", path))[0] == 405
    assert (await topic.ask("PUT", ONE, body("Subscription", "<ForwardTo>none</ForwardTo>"), headers=UPDATE))[
        0
    ] == 400
    assert titles((await topic.ask("GET", "/Events/subscriptions"))[1]) == ["One"]
    assert titles((await topic.ask("GET", f"{ONE}/rules"))[1]) == ["$Default"]


async def test_rights_come_before_existence_and_rules_can_be_seen_by_listeners(topic: HttpStack) -> None:
    keys = "".join(
        f"<AuthorizationRule><Rights><AccessRights>{right}</AccessRights></Rights><KeyName>{right}</KeyName>"
        f"<PrimaryKey>key-{right}</PrimaryKey></AuthorizationRule>"
        for right in ("Listen", "Send")
    )
    rules = f"<AuthorizationRules>{keys}</AuthorizationRules>"
    assert (await topic.ask("PUT", "/Events", body("Topic", rules), headers=UPDATE))[0] == 200

    def token(right: str) -> str:
        return sas_token(f"http://127.0.0.1:{topic.port}/events", key_name=right, key=f"key-{right}")

    for right, status in (("Listen", 200), ("Send", 401)):
        for path in (f"{ONE}/rules", f"{ONE}/rules/%24Default"):
            assert (await topic.ask("GET", path, token=token(right)))[0] == status
        for path in (ONE, "/Events/subscriptions", "/Events/subscriptions/none"):
            assert (await topic.ask("GET", path, token=token(right)))[0] == 401
        assert (await topic.ask("DELETE", f"{ONE}/rules/none", token=token(right)))[0] == 401


@pytest.mark.parametrize(
    ("element", "inner"),
    [
        ("Filter", "<Filter><SqlExpression>a=1</SqlExpression></Filter>"),
        ("Filtr", '<Filtr i:type="SqlFilter"><SqlExpression>a=1</SqlExpression></Filtr>'),
        ("Lable", '<Filter i:type="CorrelationFilter"><To>x</To><Lable>red</Lable></Filter>'),
    ],
)
async def test_a_rule_is_never_made_wider_by_what_cannot_be_understood(
    topic: HttpStack, element: str, inner: str
) -> None:
    inner = inner.replace("i:type", f'xmlns:i="{INSTANCE}" i:type')
    status, text, _ = await topic.ask("PUT", f"{ONE}/rules/r", body("Rule", inner))
    assert status == 400 and f"'{element}'" in text
    first = f"<DefaultRuleDescription>{inner}</DefaultRuleDescription>"
    status, text, _ = await topic.ask("PUT", "/Events/subscriptions/two", body("Subscription", first))
    assert status == 400 and f"'{element}'" in text
    assert titles((await topic.ask("GET", f"{ONE}/rules"))[1]) == ["$Default"]
    assert titles((await topic.ask("GET", "/Events/subscriptions"))[1]) == ["One"]


async def test_an_update_says_that_it_leaves_the_rules_alone_only_where_it_would_change_them(
    topic: HttpStack,
) -> None:
    def described(expression: str) -> bytes:
        sql = f"<SqlExpression>{expression}</SqlExpression>"
        typed = f'<Filter xmlns:i="{INSTANCE}" i:type="SqlFilter">{sql}</Filter><Name>mine</Name>'
        return body("Subscription", f"<DefaultRuleDescription>{typed}</DefaultRuleDescription>")

    path = "/Events/subscriptions/two"
    assert (await topic.ask("PUT", path, described("a = 1")))[0] == 201
    with capture_logs() as lines:
        assert (await topic.ask("PUT", path, described("a = 1"), headers=UPDATE))[0] == 200
        assert "entity.elements_ignored" not in [line["event"] for line in lines]
        assert (await topic.ask("PUT", path, described("a = 2"), headers=UPDATE))[0] == 200
    ignored = [line for line in lines if line["event"] == "entity.elements_ignored"]
    assert [(line["entity"], line["elements"]) for line in ignored] == [
        ("Events/Subscriptions/two", ["DefaultRuleDescription"])
    ]
    assert "a = 1" in (await topic.ask("GET", f"{path}/rules/mine"))[1]
    first = "<DefaultRuleDescription/>"
    assert (await topic.ask("PUT", path, body("Subscription", first * 2), headers=UPDATE))[0] == 400


async def test_above_the_memory_mark_subscriptions_and_rules_are_only_deleted(
    topic: HttpStack,
) -> None:
    """Symptom: 1,000 rules of 1 KiB took a process with a mark of 160 MiB to 583 MiB."""
    rule = body("Rule", f'<Filter xmlns:i="{INSTANCE}" i:type="TrueFilter"/><Name>first</Name>')
    assert (await topic.ask("PUT", f"{ONE}/rules/first", rule))[0] == 201
    topic.resident[0] = 2 << 30
    status, text, _ = await topic.ask("PUT", f"{ONE}/rules/second", rule.replace(b"first", b"second"))
    assert status == 503 and "memory mark" in text
    assert (await topic.ask("PUT", f"{ONE}/rules/first", rule, headers=UPDATE))[0] == 503
    assert (await topic.ask("PUT", "/Events/subscriptions/two", body("Subscription")))[0] == 503
    settings = body("Subscription", "<MaxDeliveryCount>3</MaxDeliveryCount>")
    assert (await topic.ask("PUT", ONE, settings, headers=UPDATE))[0] == 200
    assert (await topic.ask("DELETE", f"{ONE}/rules/first"))[0] == 200
