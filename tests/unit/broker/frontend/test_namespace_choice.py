"""The names that a client gives must agree on the namespace."""

from __future__ import annotations

import pytest

from broker.base.errors import Reason, Refused
from broker.frontend.namespace_choice import NamespaceChoice, check_connections
from broker.namespace.namespaces import Namespaces
from tests.unit.broker.namespace.test_namespaces import served

FIRST, ORDERS, BILLS = served("first"), served("orders"), served("bills")


@pytest.fixture
def choice() -> NamespaceChoice:
    return NamespaceChoice(Namespaces(FIRST, ORDERS, BILLS))


def test_who_names_none_in_particular_comes_to_the_first(choice: NamespaceChoice) -> None:
    assert choice.name("") and choice.name("localhost:5671") and choice.candidates() == [FIRST, ORDERS, BILLS]
    choice.open("127.0.0.1")
    assert choice.served is FIRST and FIRST.connections == 1
    choice.close()
    choice.close()
    assert FIRST.connections == 0


def test_names_that_mean_the_same_agree_and_others_do_not_count(choice: NamespaceChoice) -> None:
    for host in ("proxy", "orders.localhost", "localhost", "orders"):
        assert choice.name(host)
    assert choice.candidates() == [ORDERS]
    choice.open("localhost")
    assert choice.served is ORDERS
    choice.close()


@pytest.mark.parametrize("host", ["bills", "first"])
def test_another_name_is_refused(choice: NamespaceChoice, host: str) -> None:
    assert choice.name("orders") and not choice.name(host)
    with pytest.raises(
        Refused, match=f"'{host}', but this connection is to the namespace 'orders'"
    ) as caught:
        choice.open(host)
    assert caught.value.reason is Reason.NOT_ALLOWED and ORDERS.connections == 0


def test_the_first_namespace_can_be_named_too(choice: NamespaceChoice) -> None:
    assert choice.name("first") and choice.is_made and not choice.name("orders")


def test_connections_are_bounded() -> None:
    check_connections(5, 5)
    with pytest.raises(Refused, match="there are 5 connections, the maximum is 5"):
        check_connections(6, 5)
