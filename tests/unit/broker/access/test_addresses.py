import pytest

from broker.access.addresses import (
    NODE_CBS,
    NODE_MANAGEMENT,
    Address,
    BadAddress,
    address_host,
    audience_host,
    audience_path,
    host_of,
    parse_address,
)
from broker.entities.descriptions import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("orders", Address("orders")),
        ("/orders", Address("orders")),
        ("Orders/", Address("Orders")),
        ("amqps://localhost:5672/orders", Address("orders")),
        ("sb://ns.example/dir/orders", Address("dir/orders")),
        ("/dir%2Forders%201", Address("dir/orders 1")),
        ("orders/$DeadLetterQueue", Address("orders", DEAD_LETTER)),
        ("orders/$deadletterqueue", Address("orders", DEAD_LETTER)),
        ("/orders/%24DeadLetterQueue", Address("orders", DEAD_LETTER)),
        ("orders/$Transfer/$DeadLetterQueue", Address("orders", TRANSFER_DEAD_LETTER)),
        ("orders/$management", Address("orders", MAIN, NODE_MANAGEMENT)),
        (
            "amqps://h/orders/$Transfer/$deadLetterQueue/$Management",
            Address("orders", TRANSFER_DEAD_LETTER, NODE_MANAGEMENT),
        ),
        ("$cbs", Address("", MAIN, NODE_CBS)),
        ("amqps://localhost/$CBS", Address("", MAIN, NODE_CBS)),
        ("topic/subscriptions/sub", Address("topic", "subscriptions/sub")),
        (
            "dir/topic/SUBSCRIPTIONS/sub/$DeadLetterQueue/$management",
            Address("dir/topic", f"subscriptions/sub/{DEAD_LETTER}", NODE_MANAGEMENT),
        ),
    ],
)
def test_every_spelling_of_an_address_is_understood(text: str, address: Address) -> None:
    assert parse_address(text) == address


def test_only_what_follows_an_entity_is_a_subscription() -> None:
    assert parse_address("dir/Topic/subscriptions/Sub") == Address("dir/Topic", "subscriptions/sub")
    assert parse_address("subscriptions/orders") == Address("subscriptions/orders")


@pytest.mark.parametrize(
    "text",
    [
        "", "/", "amqps://localhost", "amqps://localhost/", "$management", "$DeadLetterQueue",
        "orders/$unknown", "a//b", "$cbs/x",
        "orders/$cbs", "orders/$management/$DeadLetterQueue", "orders/$Transfer", "or?ders", "or#ders",
        "a@b", "a*", "a\\b", "a\nb",
        "%00", "%ff", "x" * 261, "a/../b", "a/./b", "../a", "a/%2e%2E/b", "..",
    ],
)  # fmt: skip
def test_what_can_be_no_entity_is_a_bad_address(text: str) -> None:
    with pytest.raises(BadAddress):
        parse_address(text)


@pytest.mark.parametrize(
    ("audience", "path"),
    [
        ("sb://localhost:5672/Orders", "orders"),
        ("amqps://host/topic/Subscriptions/S/$DeadLetterQueue/", "topic/subscriptions/s/$deadletterqueue"),
        ("https://host/orders?api-version=1", "orders"),
        ("https://host?x=/orders", ""),
        ("sb://host", ""),
        ("host", ""),
        ("host/orders", "orders"),
        ("", ""),
    ],
)
def test_an_audience_is_the_path_behind_its_authority(audience: str, path: str) -> None:
    assert audience_path(audience) == path


@pytest.mark.parametrize(
    ("authority", "host"),
    [
        ("Orders.Example.com", "orders.example.com"),
        ("orders:5671", "orders"),
        ("orders:", "orders"),
        ("orders.", "orders"),
        ("user@orders:80", "orders"),
        ("[::1]:5671", "::1"),
        ("::1", "::1"),
        ("orders:http", "orders:http"),
        ("", ""),
    ],
)
def test_the_host_of_an_authority_is_compared_without_its_port_and_case(authority: str, host: str) -> None:
    assert host_of(authority) == host


def test_addresses_and_audiences_say_their_host() -> None:
    assert audience_host("sb://Orders:5671/q?x") == audience_host("orders/q") == "orders"
    assert address_host("amqps://orders:5671/q/$management") == "orders"
    assert address_host("orders/q") == address_host("q") == "", "without a scheme, it is a path"
