"""How plain AMQP clients log in when no SASL mechanism is configured, and what a refusal tells them to do."""

from __future__ import annotations

import time

import pytest
from proton import ConnectionException, Delivery, Message
from proton.utils import BlockingConnection, LinkDetached

from tests.interop.proton_client import WAIT_S
from tests.interop.scenarios import LOGINS
from tests.support.broker_process import KEY, KEY_NAME, BrokerProcess

(QUEUE,) = LOGINS


def test_proton_with_a_user_and_a_password_logs_in_with_plain(broker: BrokerProcess) -> None:
    """Proton picks the mechanism: if the broker offered EXTERNAL, it would use that first and then have no
    rights.
    """
    url = broker.addresses.amqp_url
    connection = BlockingConnection(
        url, timeout=WAIT_S, user=KEY_NAME, password=KEY, allow_insecure_mechs=True
    )
    try:
        delivery = connection.create_sender(QUEUE).send(Message(body="x"))
        assert delivery.remote_state == Delivery.ACCEPTED
        assert connection.conn is not None and connection.conn.transport is not None
        assert connection.conn.transport.sasl().mech == "PLAIN"
    finally:
        connection.close()


def test_proton_without_a_user_is_told_how_to_show_credentials(broker: BrokerProcess) -> None:
    """An anonymous login succeeds, and its attach is refused with the remedy."""
    connection = BlockingConnection(broker.addresses.amqp_url, timeout=WAIT_S)
    try:
        with pytest.raises(
            LinkDetached, match=r"unauthorized-access.*put a token to '\$cbs', or log in with SASL PLAIN"
        ):
            connection.create_sender(QUEUE)
    finally:
        connection.close()


def test_a_wrong_password_is_an_authentication_failure_which_the_log_explains(broker: BrokerProcess) -> None:
    """The SASL outcome tells the client; the log contains the key's name, but not the password."""
    before = refused_logins(broker)
    url = broker.addresses.amqp_url
    with pytest.raises(ConnectionException, match="Authentication failed"):
        BlockingConnection(
            url, timeout=WAIT_S, user=KEY_NAME, password="a wrong one", allow_insecure_mechs=True
        )
    deadline = time.monotonic() + WAIT_S
    while not (new := refused_logins(broker)[len(before) :]) and time.monotonic() < deadline:
        time.sleep(0.01)
    (line,) = new
    assert "SASL PLAIN" in line and "the password is wrong" in line and "a wrong one" not in line


def refused_logins(broker: BrokerProcess) -> list[str]:
    """Log lines that refuse a login with the key. Other tests of the same broker may have added some."""
    return [
        line for line in broker.log.splitlines() if "connection.refused" in line and f"'{KEY_NAME}'" in line
    ]
