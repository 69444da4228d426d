"""What the paths of the runtime REST API ask for (HTTP contract 4.1)."""

from __future__ import annotations

import pytest

from broker.access.addresses import Address
from broker.http.broker_properties import token_text
from broker.http.message_paths import Action, MessagePath, message_methods, read_message_path
from broker.http.refusals import HttpRefusal

TOKEN = bytes(range(16))
GUID = token_text(TOKEN)
ORDERS = Address("orders")


@pytest.mark.parametrize(
    ("method", "path", "found"),
    [
        ("POST", "/orders/messages", MessagePath(Action.SEND, ORDERS)),
        ("POST", "/orders/Messages/", MessagePath(Action.SEND, ORDERS)),
        ("POST", "/a%2Fb/messages", MessagePath(Action.SEND, Address("a/b"))),
        ("POST", "/orders/messages/head", MessagePath(Action.PEEK_LOCK, ORDERS)),
        ("DELETE", "/orders/messages/HEAD", MessagePath(Action.RECEIVE_AND_DELETE, ORDERS)),
        (
            "POST",
            "/orders/$DeadLetterQueue/messages/head",
            MessagePath(Action.PEEK_LOCK, Address("orders", "$deadletterqueue")),
        ),
        (
            "DELETE",
            "/t/Subscriptions/S/$deadletterqueue/messages/head",
            MessagePath(Action.RECEIVE_AND_DELETE, Address("t", "subscriptions/s/$deadletterqueue")),
        ),
        ("DELETE", f"/orders/messages/5/{GUID}", MessagePath(Action.COMPLETE, ORDERS, TOKEN)),
        ("PUT", f"/orders/messages/a%2Fb/{GUID}", MessagePath(Action.UNLOCK, ORDERS, TOKEN)),
        ("POST", f"/orders/messages/5/{GUID.upper()}", MessagePath(Action.RENEW, ORDERS, TOKEN)),
        ("GET", "/orders/messages", None),
        ("PUT", "/orders/messages", None),
        ("PUT", "/orders/messages/head", None),
        ("GET", f"/orders/messages/5/{GUID}", None),
        ("DELETE", "/orders/messages/5/notoken", None),
        ("DELETE", "/orders", None),
        ("POST", "/messages", None),
        ("POST", "/messages/head", None),
        ("POST", "/", None),
    ],
)
def test_method_and_path_say_what_is_asked_for(method: str, path: str, found: MessagePath | None) -> None:
    assert read_message_path(method, path) == found


@pytest.mark.parametrize(
    "path", ["/$cbs/messages", "/orders/$management/messages", "/a//b/messages", "/%ff/messages"]
)
def test_what_is_no_address_is_refused(path: str) -> None:
    with pytest.raises(HttpRefusal) as refusal:
        read_message_path("POST", path)
    assert refusal.value.status == 400


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/orders/messages", ("orders", "POST")),
        ("/a%2Fb/Messages/HEAD", ("a/b", "POST, DELETE")),
        (f"/orders/messages/5/{GUID}", ("orders", "DELETE, PUT, POST")),
        ("/orders/$deadletterqueue/messages/head", ("orders", "POST, DELETE")),
        ("/orders/messages/5", ("", "")),
        ("/orders", ("", "")),
        ("/messages", ("", "")),
        ("/a//b/messages", ("", "")),
    ],
)
def test_a_path_about_messages_has_other_methods(path: str, found: tuple[str, str]) -> None:
    assert message_methods(path) == found
