import base64
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from azure.servicebus._pyamqp.utils import generate_sas_token

from broker.access import sas
from broker.access.sas import EXPIRY_S_MAX, VERIFIED_CHARACTERS_MAX, VERIFIED_MAX, Authorizer, Claim
from broker.base.errors import Reason, Refused
from broker.entities.descriptions import AuthorizationRule
from tests.support.sas import sas_token

NOW_MS = 1_700_000_000_000
LATER = str(NOW_MS // 1000 + 600)
PRIMARY, SECONDARY, QUEUE_KEY = "SAS_KEY_VALUE", "c2Vjb25kYXJ5+/=", "cXVldWU="

ROOT = AuthorizationRule(
    "RootManageSharedAccessKey", PRIMARY, SECONDARY, frozenset({"Manage", "Send", "Listen"})
)
SENDER = AuthorizationRule("Sender", QUEUE_KEY, "", frozenset({"Send"}))
WORKER = AuthorizationRule("Worker", QUEUE_KEY, "", frozenset({"Send", "Listen"}))
SAME_NAME = AuthorizationRule("RootManageSharedAccessKey", QUEUE_KEY, "", frozenset({"Listen"}))


def rules_of(path: str) -> Sequence[AuthorizationRule]:
    return {"orders": [SENDER, SAME_NAME], "topic": [SENDER]}.get(path.casefold(), [])


AUTHORIZER = Authorizer([ROOT], rules_of)


def signature(key: str, encoded_resource: str, expiry: str = LATER) -> str:
    return base64.b64encode(
        hmac.new(key.encode(), f"{encoded_resource}\n{expiry}".encode(), hashlib.sha256).digest()
    ).decode()


def token(
    encoded_resource: str,
    *,
    key: str = PRIMARY,
    name: str = ROOT.key_name,
    expiry: str = LATER,
    order: str = "sr sig se skn",
) -> str:
    parts = {
        "sr": encoded_resource,
        "sig": quote_plus(signature(key, encoded_resource, expiry)),
        "se": expiry,
        "skn": name,
    }
    return "SharedAccessSignature " + "&".join(f"{part}={parts[part]}" for part in order.split())


def verify(text: str, **options: Any) -> Claim:
    return AUTHORIZER.verify_token(text, NOW_MS, **options)


def refusal(text: str) -> Refused:
    with pytest.raises(Refused) as refused:
        verify(text)
    assert refused.value.reason is Reason.UNAUTHORIZED
    assert not any(key in refused.value.description for key in (PRIMARY, SECONDARY, QUEUE_KEY))
    return refused.value


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (token(quote_plus("sb://localhost:5672/Orders")), "orders"),  # Python
        (token(quote("sb://localhost/orders", safe="")), "orders"),  # JavaScript
        (token(quote_plus("amqps://localhost/Orders").lower()), "orders"),  # Go: lowercased once encoded
        (token(quote_plus("localhost").lower()), ""),  # Go, from its helper: the bare host
        (token(quote_plus("amqps://localhost/")), ""),  # .NET: the namespace
        (token(quote_plus("https://localhost:5300")), ""),  # Python's administration client
        (
            token(
                quote("https://localhost:5300/orders?api-version=2021-05&enrich=false", safe="").lower(),
                order="sig se skn sr",
            ),
            "orders",
        ),  # JavaScript's administration client
        (
            token(quote_plus("http://localhost:15304:80/orders")),
            "orders",
        ),  # Python libraries of the REST era: a doubled port
        (token("http://localhost/topic/subscriptions/s/"), "topic/subscriptions/s"),  # not encoded at all
        (token(quote_plus("sb://localhost/dir/q 2")), "dir/q 2"),
    ],
)
def test_the_tokens_of_all_clients_are_understood(text: str, path: str) -> None:
    claim = verify(text)
    assert (claim.path, claim.key_name, claim.expires_at_ms) == (path, ROOT.key_name, int(LATER) * 1000)


def test_a_token_made_by_the_official_python_client_is_verified() -> None:
    made = generate_sas_token("sb://localhost:5672/orders", ROOT.key_name, PRIMARY, int(LATER))  # type: ignore[no-untyped-call]
    assert verify(made).path == "orders"


@pytest.mark.parametrize("order", ["sr sig se skn", "skn se sig sr", "se sr skn sig"])
def test_the_order_of_the_parts_does_not_matter(order: str) -> None:
    assert verify(token("sb%3a%2f%2fhost%2forders", order=order)).path == "orders"


def test_either_key_will_do() -> None:
    assert verify(token("host", key=SECONDARY)).rights == ROOT.rights


def test_rules_are_those_of_the_entity_its_parents_or_the_namespace() -> None:
    assert verify(token("sb://h/orders", key=QUEUE_KEY, name="Sender")).rights == {"Send"}
    assert (
        verify(token("sb://h/topic/Subscriptions/s", key=QUEUE_KEY, name="Sender")).path
        == "topic/subscriptions/s"
    )
    assert verify(token("sb://h/orders", key=QUEUE_KEY)).rights == {"Listen"}, (
        "two rules of one name: the key tells which"
    )
    assert verify(token("sb://h/orders")).rights == ROOT.rights
    refusal(token("sb://h/other", key=QUEUE_KEY, name="Sender"))
    refusal(token("sb://h/", key=QUEUE_KEY, name="Sender"))
    refusal(token("sb://h/orders2", key=QUEUE_KEY, name="Sender"))


@pytest.mark.parametrize(
    "text",
    [
        token("host", key="wrong"),
        token("host", name="Unknown"),
        token("host", key=""),
        token("sb%3A%2F%2Fhost%2Forders").replace("%3A", "%3a"),
        token("host").replace("se=1", "se=2"),
        token("host", order="sig se skn"),
        token("host", order="sr se skn"),
        token("host", order="sr sig skn"),
        token("host", order="sr sig se"),
        token("host", expiry="soon"),
        token("host", expiry="-5"),
        token("host", expiry="²"),
        token("sb://h/" + "a/" * 100),
        token("host") + "x" * 9000,
        "SharedAccessSignature ",
        "SharedAccessSignature sr=\udcff&sig=a&se=1&skn=a",
        "",
    ],
)
def test_what_does_not_verify_is_refused_and_tells_no_key(text: str) -> None:
    refusal(text)


def test_an_empty_secondary_key_opens_nothing() -> None:
    refusal(token("sb://h/orders", key="", name="Sender"))


def test_an_expired_token_is_refused_once_its_grace_is_over() -> None:
    expired = token("host", expiry=str(NOW_MS // 1000 - 59))
    assert "ExpiredToken" in refusal(expired).description
    assert verify(expired, grace_ms=60_000).expires_at_ms == NOW_MS - 59_000
    refusal(token("host", expiry=str(NOW_MS // 1000)))


@pytest.mark.parametrize(
    "expiry",
    ["253402300799", "253402300800", "9999999999999", "9" * 15, "9" * 16, "9" * 5_000, "0" * 50 + "9" * 30],
)
def test_a_token_for_longer_than_a_timestamp_can_hold_lasts_until_the_end_of_the_year_9999(
    expiry: str,
) -> None:
    claim = verify(token("host", expiry=expiry))
    assert claim.expires_at_ms == EXPIRY_S_MAX * 1000 and claim.lasts(NOW_MS)
    assert datetime.fromtimestamp(claim.expires_at_ms // 1000, UTC).year == 9999


@pytest.mark.parametrize(
    ("rules", "rights"),
    [
        ([WORKER], {"Send", "Listen"}),
        ([AuthorizationRule("Worker", "another", QUEUE_KEY, WORKER.rights)], {"Send", "Listen"}),
        (
            [AuthorizationRule("Worker", QUEUE_KEY, "", frozenset({"Send", "Listen", "Manage"}))],
            {"Send", "Listen"},
        ),
        ([AuthorizationRule("Worker", QUEUE_KEY, "", frozenset({"Listen"}))], {"Listen"}),
        ([AuthorizationRule("Worker", "another", "", WORKER.rights)], set()),
        ([AuthorizationRule("Renamed", QUEUE_KEY, "", WORKER.rights)], set()),
        ([], set()),
    ],
    ids=["as it was", "now secondary", "more rights", "fewer rights", "another key", "another name", "gone"],
)
def test_a_claim_is_in_force_while_its_key_is_with_what_its_rule_still_permits(
    rules: list[AuthorizationRule], rights: set[str]
) -> None:
    before = Authorizer([ROOT], lambda path: [WORKER] if path == "orders" else [])
    claim = before.verify_token(token("sb://h/orders", key=QUEUE_KEY, name="Worker"), NOW_MS)
    left = Authorizer([ROOT], lambda path: rules if path == "orders" else []).in_force(claim)
    assert left == (replace(claim, rights=frozenset(rights)) if rights else None)


def test_a_claim_of_the_namespace_is_in_force_whatever_an_entity_of_its_name_says() -> None:
    for claim in (verify(token("sb://h/orders")), AUTHORIZER.verify_key(ROOT.key_name, SECONDARY)):
        assert Authorizer([ROOT], lambda path: []).in_force(claim) is claim
        assert Authorizer([], lambda path: [ROOT]).in_force(claim) is None


def test_a_claim_shows_no_key() -> None:
    assert PRIMARY not in repr(verify(token("sb://h/orders")))


@pytest.mark.parametrize(
    "text", ["eyJhbGciOiJSUzI1NiJ9.eyJhdWQiOiJ4In0.c2ln", "Bearer eyJhbGciOiJSUzI1NiJ9.e30.c2ln"]
)
def test_json_web_tokens_are_refused_and_told_what_is_supported(text: str) -> None:
    assert "Only SAS tokens are supported" in refusal(text).description


def test_the_scheme_is_known_in_any_case() -> None:
    assert verify(token("host").replace("SharedAccessSignature", "sharedaccesssignature")).path == ""


@pytest.mark.parametrize(
    ("claimed", "path", "covered"),
    [
        ("", "orders", True),
        ("", "", True),
        ("orders", "Orders", True),
        ("orders", "/orders/", True),
        ("orders", "orders/$management", True),
        ("orders", "orders/$Transfer/$DeadLetterQueue", True),
        ("topic", "Topic/Subscriptions/s", True),
        ("orders", "orders2", False),
        ("orders", "", False),
        ("orders/sub", "orders", False),
    ],
)
def test_a_claim_covers_its_path_and_what_lies_below(claimed: str, path: str, covered: bool) -> None:
    claim = Claim(claimed, frozenset({"Listen"}), None, "rule")
    assert claim.covers_path(path) is covered
    assert claim.covers(path, "Listen") is covered
    assert not claim.covers(path, "Send")


def test_manage_includes_listen_and_send() -> None:
    claim = Claim("", frozenset({"Manage"}), None, "rule")
    assert all(claim.covers("orders", right) for right in ("Manage", "Listen", "Send"))
    assert not Claim("", frozenset({"Send", "Listen"}), None, "rule").covers("orders", "Manage")


def test_a_key_name_and_either_key_are_a_claim_on_the_namespace() -> None:
    for key in (PRIMARY, SECONDARY):
        assert AUTHORIZER.verify_key(ROOT.key_name, key) == Claim(
            "", ROOT.rights, None, ROOT.key_name, key=key
        )


@pytest.mark.parametrize(
    ("name", "key"), [(ROOT.key_name, "wrong"), (ROOT.key_name, ""), ("Sender", QUEUE_KEY), ("", "")]
)
def test_a_wrong_key_or_a_name_that_the_namespace_lacks_is_refused(name: str, key: str) -> None:
    with pytest.raises(Refused) as refused:
        AUTHORIZER.verify_key(name, key)
    assert refused.value.reason is Reason.UNAUTHORIZED


def test_a_token_is_for_the_namespace_that_its_resource_names() -> None:
    authorizer = Authorizer([ROOT], rules_of, lambda host: host == "orders.example.com")
    for resource in (
        "sb://orders.example.com/q",
        "amqps://Orders.Example.com:5671/q",
        "orders.example.com/q",
    ):
        authorizer.check_audience(resource)
        token = sas_token(resource, key_name=ROOT.key_name, key=ROOT.primary_key)
        assert authorizer.verify_token(token, 0).path == "q"
    for resource in ("sb://bills.example.com/q", "sb://localhost/q", "q", ""):
        token = sas_token(resource or "/", key_name=ROOT.key_name, key=ROOT.primary_key)
        with pytest.raises(Refused, match="InvalidAudience") as caught:
            authorizer.verify_token(token, 0)
        assert caught.value.reason is Reason.UNAUTHORIZED


def test_a_token_that_comes_again_is_not_computed_again_but_checked_against_rules_and_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules = {"orders": [WORKER]}
    authorizer = Authorizer([ROOT], lambda path: rules.get(path, []))
    of_queue, of_root = token("sb://h/orders", key=QUEUE_KEY, name="Worker"), token("sb://h/orders")
    assert authorizer.verify_token(of_queue, NOW_MS).rights == {"Send", "Listen"}
    first = authorizer.verify_token(of_root, NOW_MS)
    computed: list[str] = []

    def compute(key: str, signed: bytes, before: Any = sas._signature) -> Any:
        computed.append(key)
        return before(key, signed)

    monkeypatch.setattr(sas, "_signature", compute)
    assert authorizer.verify_token(of_root, NOW_MS) == first and not computed
    until_ms = int(LATER) * 1_000
    assert authorizer.verify_token(of_root, until_ms - 1) == first
    for grace_ms, now_ms in ((0, until_ms), (5, until_ms + 5)):
        with pytest.raises(Refused, match="ExpiredToken"):
            authorizer.verify_token(of_root, now_ms, grace_ms)
    assert authorizer.verify_token(of_root, until_ms + 4, 5) == first and not computed

    rules["orders"] = [replace(WORKER, rights=frozenset({"Send"}))]
    assert authorizer.verify_token(of_queue, NOW_MS).rights == {"Send"} and not computed
    rules["orders"] = [replace(WORKER, primary_key="other", secondary_key=QUEUE_KEY)]
    assert authorizer.verify_token(of_queue, NOW_MS).key == QUEUE_KEY and computed == ["other"]
    rules["orders"] = [replace(WORKER, primary_key="other")]
    with pytest.raises(Refused, match="InvalidSignature"):
        authorizer.verify_token(of_queue, NOW_MS)
    rules["orders"] = []
    with pytest.raises(Refused, match="InvalidSignature"):
        authorizer.verify_token(of_queue, NOW_MS)
    rules["orders"] = [replace(WORKER, key_name=ROOT.key_name, primary_key=PRIMARY)]
    assert authorizer.verify_token(of_root, NOW_MS).owner == "orders", "the nearest rule counts"
    authorizer.namespace_rules, rules["orders"] = [replace(ROOT, primary_key="new")], []
    with pytest.raises(Refused, match="InvalidSignature"):
        authorizer.verify_token(of_root, NOW_MS)
    authorizer.is_own_host = lambda host: False
    with pytest.raises(Refused, match="InvalidAudience"):
        authorizer.verify_token(of_root, NOW_MS)


def test_few_tokens_are_kept_and_only_short_ones_that_were_verified() -> None:
    authorizer = Authorizer([ROOT], rules_of)
    for number in range(2 * VERIFIED_MAX + 3):
        authorizer.verify_token(token(f"sb://h/{number}"), NOW_MS)
    assert len(authorizer._verified) == 3
    authorizer.verify_token(token("sb://h/" + "a" * VERIFIED_CHARACTERS_MAX), NOW_MS)
    for wrong in (token("sb://h/", key="other"), token("sb://h/", expiry="1")):
        with pytest.raises(Refused):
            authorizer.verify_token(wrong, NOW_MS)
    assert len(authorizer._verified) == 3
    assert PRIMARY not in repr(authorizer.verify_token(token("sb://h/"), NOW_MS))
