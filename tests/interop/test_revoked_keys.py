"""The official administration client changes a queue's keys while official messaging clients are
connected.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusAuthorizationError
from azure.servicebus.management import AccessRights, AuthorizationRule, ServiceBusAdministrationClient

from tests.support.azure_client import admin_of, azure_client
from tests.support.broker_process import BrokerProcess
from tests.support.sas import sas_token

KEY, OTHER_KEY = "cXVldWUga2V5IG51bWJlciBvbmU=", "cXVldWUga2V5IG51bWJlciB0d28="


def rule(key: str) -> AuthorizationRule:
    return AuthorizationRule(
        key_name="app",
        primary_key=key,
        secondary_key=f"2{key}",
        rights=[AccessRights.SEND, AccessRights.LISTEN],
    )


def rotate(admin: ServiceBusAdministrationClient, name: str) -> None:
    properties = admin.get_queue(name)
    properties.authorization_rules = [rule(OTHER_KEY)]
    admin.update_queue(properties)


def remove(admin: ServiceBusAdministrationClient, name: str) -> None:
    properties = admin.get_queue(name)
    properties.authorization_rules = []
    admin.update_queue(properties)


def create_again(admin: ServiceBusAdministrationClient, name: str) -> None:
    admin.delete_queue(name)
    admin.create_queue(name)


@pytest.mark.parametrize("revoke", [rotate, remove, create_again])
def test_a_live_client_can_neither_send_nor_attach_once_its_key_is_revoked(
    broker: BrokerProcess, revoke: Callable[[ServiceBusAdministrationClient, str], None]
) -> None:
    name = f"revoked-{uuid.uuid4().hex}"
    with admin_of(broker) as admin:
        admin.create_queue(name, authorization_rules=[rule(KEY)])
        connection_string = broker.addresses.connection_string(key_name="app", key=KEY)
        # The client notices the detach on its next send, and learns the reason when it attaches again.
        patient: dict[str, Any] = {"retry_total": 2, "retry_backoff_factor": 0.05}
        with (
            azure_client(connection_string, **patient) as client,
            client.get_queue_sender(name) as sender,
        ):
            sender.send_messages(ServiceBusMessage("while the key is in force"))
            revoke(admin, name)
            with pytest.raises((ServiceBusAuthorizationError, ServiceBusAuthenticationError)):
                sender.send_messages(ServiceBusMessage("afterwards"))
            with (
                pytest.raises((ServiceBusAuthorizationError, ServiceBusAuthenticationError)),
                client.get_queue_sender(name) as another,
            ):
                another.send_messages(ServiceBusMessage("over a new connection"))
        assert admin.get_queue_runtime_properties(name).active_message_count == (
            0 if revoke is create_again else 1
        )
        admin.delete_queue(name)


def test_a_ready_made_token_that_lives_for_eight_thousand_years_works(broker: BrokerProcess) -> None:
    name = f"long-lived-{uuid.uuid4().hex}"
    with admin_of(broker) as admin:
        admin.create_queue(name)
        port = broker.addresses.amqp_port
        token = sas_token(f"sb://127.0.0.1:{port}/{name}", expires_at_s=253_402_200_000)
        connection_string = (
            f"Endpoint=sb://127.0.0.1:{port};SharedAccessSignature={token};UseDevelopmentEmulator=true;"
        )
        with (
            azure_client(connection_string) as client,
            client.get_queue_sender(name) as sender,
        ):
            sender.send_messages(ServiceBusMessage("hello"))
        assert admin.get_queue_runtime_properties(name).active_message_count == 1
        admin.delete_queue(name)
