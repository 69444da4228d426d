"""broker/http/description_xml.py: plain values of descriptions, and forwarding targets."""

from __future__ import annotations

import pytest

from broker.entities.descriptions import EntityStatus
from broker.entities.validation import WrongProperty
from broker.http.atom import SERVICE_BUS, parse_entry
from broker.http.description_xml import Values, check_not_of_the_file, unknown_elements
from tests.unit.broker.http.test_queue_xml import body


def values(inner: str) -> Values:
    return Values(parse_entry(body(f'<QueueDescription xmlns="{SERVICE_BUS}">{inner}</QueueDescription>')))


def test_an_empty_element_counts_as_missing() -> None:
    empty = values("<A/><Status/>")
    assert empty.text("A") is None and empty.boolean("A", True) and empty.integer("A", 7) == 7
    assert empty.duration("A") is None and empty.limited("A", 5) == 5
    assert empty.status() is EntityStatus.ACTIVE


@pytest.mark.parametrize(
    "read",
    [
        lambda values: values.boolean("A", True),
        lambda values: values.integer("A", 1),
        lambda values: values.duration("A"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(read: object) -> None:
    assert callable(read)
    with pytest.raises(WrongProperty) as caught:
        read(values("<A>maybe</A>"))
    assert caught.value.element == "A"


def test_fields_of_the_configuration_file_are_refused() -> None:
    with pytest.raises(WrongProperty):
        check_not_of_the_file(values("<PartitionCount>4</PartitionCount>"))


def test_unknown_elements_are_those_that_no_kind_has() -> None:
    description = parse_entry(
        body(f'<QueueDescription xmlns="{SERVICE_BUS}"><A/><B/><SizeInBytes/></QueueDescription>')
    )
    assert unknown_elements(description, {"A"}) == ["B"]
