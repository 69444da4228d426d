"""broker/http/kinds.py: the documents of each kind of entity, and where its entities are listed."""

from __future__ import annotations

from broker.entities.descriptions import QueueDescription, QueueSettings
from broker.http.atom import SERVICE_BUS, parse_entry
from broker.http.description_xml import EntityDefaults, unknown_elements
from broker.http.kinds import KINDS, listed_at, xml_of
from broker.namespace.runtime import EntityRuntime
from tests.unit.broker.http.test_queue_xml import NOW_MS, body

NOTHING = EntityRuntime(0, 0, 0, 0, 0, 0, 0, "Available", None)


def test_a_description_is_written_by_its_kind_and_read_by_its_element() -> None:
    queue = QueueDescription("orders", "0" * 32, 2, QueueSettings(max_delivery_count=3))
    element = xml_of(queue).write(queue, NOTHING, "localhost")
    assert element.tag == f"{{{SERVICE_BUS}}}QueueDescription"
    description = parse_entry(
        body(
            f'<QueueDescription xmlns="{SERVICE_BUS}"><MaxDeliveryCount>3</MaxDeliveryCount>'
            "<Colour>red</Colour></QueueDescription>"
        )
    )
    kind = KINDS[description.kind]
    read = kind.read(description, EntityDefaults(True, 1024), None, NOW_MS)
    assert isinstance(read, QueueSettings) and read.max_delivery_count == 3
    assert unknown_elements(description, kind.SETTINGS) == ["Colour"]


def test_each_kind_is_listed_at_a_path_of_its_own() -> None:
    kind = listed_at("$resources/queues")
    assert kind is not None and kind.KIND is QueueDescription
    assert listed_at("$resources/rules") is None and listed_at("queues") is None
