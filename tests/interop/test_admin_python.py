"""The Python administration client, unchanged, over TLS with the generated certificate authority, against the
running broker.
"""

from __future__ import annotations

import datetime
import uuid
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import (
    AccessRights,
    ApiVersion,
    AuthorizationRule,
    ServiceBusAdministrationClient,
)

from tests.support.azure_client import admin_of, azure_client
from tests.support.broker_process import BrokerProcess


@pytest.fixture
def name() -> str:
    return f"admin-py-{uuid.uuid4().hex}"


def test_a_queue_is_created_with_the_services_defaults_and_partitioned(
    admin: ServiceBusAdministrationClient, name: str
) -> None:
    created = admin.create_queue(name)
    assert (created.name, created.max_delivery_count, created.lock_duration) == (
        name,
        10,
        datetime.timedelta(minutes=1),
    )
    assert (created.requires_session, created.requires_duplicate_detection, created.enable_partitioning) == (
        False,
        False,
        True,
    )
    assert (created.status, created.availability_status, created.authorization_rules) == (
        "Active",
        "Available",
        None,
    )
    found = admin.get_queue(name)
    assert dict(found) == dict(created)


def test_a_queue_is_missing_also_where_others_lie_below_its_name(
    admin: ServiceBusAdministrationClient, name: str
) -> None:
    admin.create_queue(f"{name}/below")
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue(name)
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue_runtime_properties(name)


def test_every_property_comes_back_as_it_was_set(admin: ServiceBusAdministrationClient, name: str) -> None:
    given: dict[str, Any] = {
        "lock_duration": datetime.timedelta(seconds=13),
        "max_size_in_megabytes": 3072,
        "duplicate_detection_history_time_window": datetime.timedelta(minutes=12),
        "default_message_time_to_live": datetime.timedelta(hours=11),
        "dead_lettering_on_message_expiration": True,
        "max_delivery_count": 14,
        "enable_batched_operations": False,
        "enable_partitioning": False,
        "user_metadata": "<kept> & shown",
        "max_message_size_in_kilobytes": 2048,
    }
    queue = admin.create_queue(name, **given)
    assert {element: getattr(queue, element) for element in given} == given


def test_a_queue_with_sessions_is_made_and_stays_one(
    admin: ServiceBusAdministrationClient, name: str
) -> None:
    created = admin.create_queue(name, requires_session=True)
    assert created.requires_session and admin.get_queue(name).requires_session
    created.requires_session = False
    with pytest.raises(HttpResponseError, match="cannot be changed"):
        admin.update_queue(created)


@pytest.mark.parametrize(
    "given",
    [
        {"enable_express": True},
    ],
    ids=lambda given: next(iter(given)),
)
def test_what_has_no_effect_is_refused_in_a_sentence(
    admin: ServiceBusAdministrationClient, name: str, given: dict[str, Any]
) -> None:
    admin.create_queue(name)
    with pytest.raises(HttpResponseError, match="is not supported by this version of the broker") as caught:
        admin.create_queue(f"{name}.more", **given)
    assert caught.value.status_code == 501
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue(f"{name}.more")


def test_authorization_rules_come_back_as_they_were_set(
    admin: ServiceBusAdministrationClient, name: str
) -> None:
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        key_name="app",
        primary_key="first",
        secondary_key="second",
        rights=[AccessRights.SEND, AccessRights.LISTEN],
    )
    (found,) = admin.create_queue(name, authorization_rules=[rule]).authorization_rules or []
    assert (found.key_name, found.primary_key, found.secondary_key) == ("app", "first", "second")
    assert sorted(
        str(right.value if isinstance(right, AccessRights) else right) for right in found.rights or []
    ) == ["Listen", "Send"]


def test_a_queue_is_updated_with_the_whole_description_sent_back(
    admin: ServiceBusAdministrationClient, name: str
) -> None:
    queue = admin.create_queue(name, user_metadata="before")
    queue.max_delivery_count = 5
    queue.default_message_time_to_live = datetime.timedelta(minutes=7)
    admin.update_queue(queue)
    found = admin.get_queue(name)
    assert (found.max_delivery_count, found.default_message_time_to_live, found.user_metadata) == (
        5,
        datetime.timedelta(minutes=7),
        "before",
    )
    admin.update_queue(found, max_delivery_count=6)
    assert admin.get_queue(name).max_delivery_count == 6


def test_what_is_fixed_is_refused_with_the_services_words(
    admin: ServiceBusAdministrationClient, name: str
) -> None:
    queue = admin.create_queue(name)
    with pytest.raises(HttpResponseError, match="Partitioning cannot be changed") as caught:
        admin.update_queue(queue, enable_partitioning=False)
    assert caught.value.status_code == 400


def test_a_queue_that_exists_is_a_conflict_and_one_that_does_not_is_not_found(
    admin: ServiceBusAdministrationClient, name: str
) -> None:
    before = admin.create_queue(name)
    with pytest.raises(ResourceExistsError):
        admin.create_queue(name.upper())
    admin.delete_queue(name)
    for ask in (admin.get_queue, admin.get_queue_runtime_properties, admin.delete_queue):
        with pytest.raises(ResourceNotFoundError):
            ask(name)
    with pytest.raises(ResourceNotFoundError):
        admin.update_queue(before)


def test_wrong_values_are_refused_with_the_reason(admin: ServiceBusAdministrationClient, name: str) -> None:
    with pytest.raises(
        HttpResponseError, match="The supplied lock time exceeds the allowed maximum of '5' minutes"
    ):
        admin.create_queue(name, lock_duration=datetime.timedelta(minutes=6))
    with pytest.raises(HttpResponseError, match="auto forwarding destination entity does not exist"):
        admin.create_queue(name, forward_to="no-such-queue")
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue(name)


def test_lists_reach_every_queue_over_several_pages(admin: ServiceBusAdministrationClient, name: str) -> None:
    wanted = {f"{name}-{number:03}" for number in range(103)}
    for each in wanted:
        admin.create_queue(each, enable_partitioning=False)
    assert wanted <= {queue.name for queue in admin.list_queues()}
    assert wanted <= {queue.name for queue in admin.list_queues_runtime_properties()}
    for each in wanted:
        admin.delete_queue(each)
    assert not wanted & {queue.name for queue in admin.list_queues()}


def test_runtime_properties_count_what_is_in_the_queue(
    admin: ServiceBusAdministrationClient, name: str, broker: BrokerProcess
) -> None:
    admin.create_queue(name)
    with azure_client(broker.addresses.connection_string()) as client:
        with client.get_queue_sender(name) as sender:
            sender.send_messages([ServiceBusMessage(f"m{number}") for number in range(10)])
            for number in range(5):
                sender.send_messages(ServiceBusMessage(f"n{number}"))
        with client.get_queue_receiver(name, max_wait_time=5) as receiver:
            (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=5)
            receiver.dead_letter_message(message, reason="test", error_description="counted")
    runtime = admin.get_queue_runtime_properties(name)
    assert (runtime.active_message_count, runtime.dead_letter_message_count, runtime.total_message_count) == (
        14,
        1,
        15,
    )
    assert runtime.size_in_bytes is not None and runtime.size_in_bytes > 0
    assert (
        runtime.scheduled_message_count
        == runtime.transfer_message_count
        == runtime.transfer_dead_letter_message_count
        == 0
    )
    assert runtime.created_at_utc is not None and runtime.accessed_at_utc is not None
    assert runtime.accessed_at_utc >= runtime.created_at_utc


def test_a_queue_created_at_run_time_is_still_there_after_a_kill(tmp_path: Path, name: str) -> None:
    with BrokerProcess(tmp_path, []) as own, admin_of(own) as client:
        before = client.create_queue(name, user_metadata="durable")
        own.restart()
        assert dict(client.get_queue(name)) == dict(before)


def test_a_wrong_key_is_refused(broker: BrokerProcess, name: str) -> None:
    with admin_of(broker, key="wrong") as client, pytest.raises(ClientAuthenticationError):
        client.create_queue(name)


@pytest.mark.parametrize("version", list(ApiVersion))
def test_every_api_version_of_the_client_works(broker: BrokerProcess, name: str, version: ApiVersion) -> None:
    with admin_of(broker, api_version=version) as client:
        client.create_queue(name)
        assert client.get_queue(name).name == name
        client.delete_queue(name)


def test_the_namespace_introduces_itself(admin: ServiceBusAdministrationClient) -> None:
    properties = admin.get_namespace_properties()
    assert (properties.name, properties.messaging_sku) == ("sbemulatorns", "Premium")
