"""Host names tell the namespaces of a broker apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from broker.access.sas import Authorizer
from broker.namespace.namespace import Namespace
from broker.namespace.namespaces import Namespaces, ServedNamespace
from broker.settings.settings import load_settings


def served(name: str, *host_names: str) -> ServedNamespace:
    namespace = cast(Namespace, SimpleNamespace(name=name))
    return ServedNamespace(namespace, Authorizer([], lambda path: []), load_settings(), host_names)


FIRST, ORDERS, BILLS = (
    served("sbemulatorns"),
    served("Orders", "bus.example.com"),
    served("bills", "orders.eu"),
)
ALL = Namespaces(FIRST, ORDERS, BILLS)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("orders", ORDERS),
        ("ORDERS.servicebus.windows.net", ORDERS),
        ("orders.localhost:5671", ORDERS),
        ("orders.", ORDERS),
        ("orders:", ORDERS),  # a port may be empty (RFC 3986 3.2.3)
        ("bus.example.com", ORDERS),
        ("Bus.Example.Com:443", ORDERS),
        ("bills", BILLS),
        ("orders.eu", BILLS),  # a host name of its own comes before a first label
        ("sbemulatorns.servicebus.windows.net", FIRST),
        ("localhost", None),
        ("example.com", None),
        ("127.0.0.1:5672", None),
        ("[::1]:5672", None),
        ("my-orders", None),
        ("", None),
    ],
)
def test_a_name_means_the_namespace_that_lists_it_or_has_its_first_label(
    host: str, expected: ServedNamespace | None
) -> None:
    assert ALL.named(host) is expected
    assert ALL.of_host(host) is (expected or FIRST)


def test_the_host_of_another_namespace_is_elsewhere_and_one_that_means_none_is_not() -> None:
    for host in ("bills", "orders.eu:5671"):
        assert (ALL.elsewhere(host, ORDERS), ALL.elsewhere(host, BILLS)) == ("bills", None)
    for host in ("localhost", ""):
        assert ALL.elsewhere(host, ORDERS) is None


def test_the_first_namespace_comes_first() -> None:
    assert list(ALL) == [FIRST, ORDERS, BILLS] and ALL.first is FIRST
