"""Descriptions of entities: what identifies them, and what a status permits."""

from __future__ import annotations

import pytest

from broker.entities.descriptions import (
    NAMESPACE,
    EntityStatus,
    QueueDescription,
    QueueSettings,
    key_of,
    namespace_of,
    new_generation,
)
from broker.entities.kinds import describe


def test_an_entity_is_found_whatever_the_case_and_the_slashes_around_its_name() -> None:
    assert key_of("/Orders/NEW/") == key_of("orders/new") == "orders/new"
    assert key_of("Straße") == key_of("STRASSE")


def test_each_creation_has_an_identifier_of_its_own_that_gives_the_namespace() -> None:
    first, second = new_generation(), new_generation("other")
    assert len({first, second, new_generation()}) == 3
    assert (namespace_of(first), namespace_of(second)) == (NAMESPACE, "other")
    assert namespace_of("0123456789abcdef" * 2) == NAMESPACE, "from a build before namespaces had names"


def test_a_new_queue_begins_with_its_times_and_the_settings_of_its_file() -> None:
    settings = QueueSettings(max_delivery_count=3)
    made = describe("Orders", settings, partitions=4, now_ms=7, file_settings=settings, folders=2)
    assert isinstance(made, QueueDescription)
    assert made == QueueDescription("Orders", made.generation, 4, settings, 7, 7, settings, 2)


def test_an_update_keeps_what_is_fixed_and_the_files_settings_unless_it_brings_new_ones() -> None:
    of_file = QueueSettings(max_delivery_count=3)
    made = describe("orders", of_file, partitions=4, now_ms=7, file_settings=of_file, folders=2)
    assert isinstance(made, QueueDescription)
    updated = made.updated(QueueSettings(max_delivery_count=5), 9)
    assert (updated.settings.max_delivery_count, updated.file_settings) == (5, of_file)
    assert (updated.created_at_ms, updated.updated_at_ms) == (7, 9)
    assert (updated.generation, updated.partitions, updated.folders) == (made.generation, 4, 2)
    newer = QueueSettings(max_delivery_count=6)
    assert made.updated(newer, 9, newer).file_settings is newer


@pytest.mark.parametrize(
    ("status", "sends", "receives"),
    [
        (EntityStatus.ACTIVE, True, True),
        (EntityStatus.DISABLED, False, False),
        (EntityStatus.SEND_DISABLED, False, True),
        (EntityStatus.RECEIVE_DISABLED, True, False),
    ],
)
def test_a_status_permits_what_its_name_says(status: EntityStatus, sends: bool, receives: bool) -> None:
    assert (status.can_send, status.can_receive) == (sends, receives)
