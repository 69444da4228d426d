"""The official Python client for tests that open and close many senders and receivers.

Its connections have no thread or task that keeps them alive: each close of a sender or receiver would wait
for it, up to a second. Nothing else is changed. `test_azure_servicebus.py` has clients with all defaults.
"""

from __future__ import annotations

import copy
from typing import Any

from azure.servicebus import ServiceBusClient
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.aio import ServiceBusClient as AioServiceBusClient
from azure.servicebus.aio._transport._pyamqp_transport_async import PyamqpTransportAsync
from azure.servicebus.management import ApiVersion, ServiceBusAdministrationClient

from tests.support.broker_process import KEY, KEY_NAME, BrokerProcess
from tests.support.broker_thread import BrokerThread


class _Transport(PyamqpTransport):
    @staticmethod
    def create_mgmt_client(config: Any, **options: Any) -> Any:
        return PyamqpTransport.create_mgmt_client(_not_kept_alive(config), **options)

    @staticmethod
    def create_send_client(config: Any, **options: Any) -> Any:
        return PyamqpTransport.create_send_client(_not_kept_alive(config), **options)

    @staticmethod
    def create_receive_client(receiver: Any, **options: Any) -> Any:
        return PyamqpTransport.create_receive_client(receiver, **{**options, "keep_alive_interval": 0})


class _AioTransport(PyamqpTransportAsync):
    @staticmethod
    def create_mgmt_client_async(config: Any, **options: Any) -> Any:
        return PyamqpTransportAsync.create_mgmt_client_async(_not_kept_alive(config), **options)

    @staticmethod
    def create_send_client_async(config: Any, **options: Any) -> Any:
        return PyamqpTransportAsync.create_send_client_async(_not_kept_alive(config), **options)

    @staticmethod
    def create_receive_client_async(receiver: Any, **options: Any) -> Any:
        options["keep_alive_interval"] = 0
        return PyamqpTransportAsync.create_receive_client_async(receiver, **options)


def azure_client(connection_string: str, **options: Any) -> ServiceBusClient:
    client = ServiceBusClient.from_connection_string(connection_string, **options)
    assert client._amqp_transport is PyamqpTransport
    client._amqp_transport = _Transport
    return client


def aio_client(connection_string: str, **options: Any) -> AioServiceBusClient:
    client = AioServiceBusClient.from_connection_string(connection_string, **options)
    assert client._amqp_transport is PyamqpTransportAsync
    client._amqp_transport = _AioTransport
    return client


def _not_kept_alive(config: Any) -> Any:
    changed = copy.copy(config)
    changed.keep_alive = 0
    return changed


def admin_of(
    broker: BrokerProcess | BrokerThread, key: str = KEY, api_version: str | ApiVersion | None = None
) -> ServiceBusAdministrationClient:
    """The administration client, which tries nothing twice. `api_version` is the client's own if None."""
    more = {"api_version": api_version} if api_version else {}
    return ServiceBusAdministrationClient.from_connection_string(
        f"Endpoint=sb://localhost:{broker.addresses.http_port};SharedAccessKeyName={KEY_NAME};"
        f"SharedAccessKey={key}",
        connection_verify=str(broker.data_dir / "tls" / "ca.pem"),
        retry_total=0,
        **more,
    )
