"""The index finds the filters that may match, and only looks at those."""

from __future__ import annotations

import math
from typing import Any

from broker.rules.covers import Cover, Prefix, Present, Property, Within, equal_cover
from broker.rules.index import FilterIndex
from tests.support.rule_messages import view_of

REGION, CUSTOMER, LABEL = Property("region"), Property("customer"), Property("label", is_system=True)


def equals(property: Property, *values: str | int | bool) -> Cover:
    return equal_cover(property, *values)


def found(index: FilterIndex[str], *args: Any, **more: Any) -> list[str]:
    return sorted(index.candidates(view_of(*args, **more)))


def test_an_item_is_found_by_a_message_that_has_one_of_its_keys() -> None:
    index: FilterIndex[str] = FilterIndex()
    index.add("eu", [equals(REGION, "eu")])
    index.add("eu or us", [equals(REGION, "eu", "us")])
    index.add("label", [equals(LABEL, "eu")])
    index.add("present", [frozenset({Present(REGION)})])
    index.add("always", [])
    assert found(index) == ["always"]
    assert found(index, {"Region": "eu"}) == ["always", "eu", "eu or us", "present"]
    assert found(index, {"region": "us"}) == ["always", "eu or us", "present"]
    assert found(index, {"region": None}) == ["always", "present"]
    assert found(index, subject="eu") == ["always", "label"]


def test_booleans_are_not_found_as_numbers() -> None:
    index: FilterIndex[str] = FilterIndex()
    index.add("true", [equals(REGION, True)])
    index.add("one", [equals(REGION, 1)])
    assert found(index, {"region": True}) == ["true"]
    assert found(index, {"region": 1.0}) == ["one"]


def test_items_are_found_by_prefixes_and_ranges() -> None:
    index: FilterIndex[str] = FilterIndex()
    covers: dict[str, Cover] = {
        "e": frozenset({Prefix(REGION, "e")}),
        "eu": frozenset({Prefix(REGION, "eu")}),
        "us": frozenset({Prefix(REGION, "us")}),
        "from 5": frozenset({Within(CUSTOMER, 5, math.inf)}),
        "to 7": frozenset({Within(CUSTOMER, -math.inf, 7)}),
        "6 to 6": frozenset({Within(CUSTOMER, 6, 6)}),
    }
    for item, cover in covers.items():
        index.add(item, [cover])
    assert found(index, {"region": "europe"}) == ["e", "eu"]
    assert found(index, {"region": "u"}) == []
    assert found(index, {"customer": 5}) == ["from 5", "to 7"]
    assert found(index, {"customer": 6.0}) == ["6 to 6", "from 5", "to 7"]
    assert found(index, {"customer": 8}) == ["from 5"]
    assert found(index, {"customer": "6"}) == found(index, {"customer": True}) == []
    for item, cover in covers.items():
        index.remove(item, cover)
    assert index._application == {}


def test_an_item_without_keys_is_never_found() -> None:
    index: FilterIndex[str] = FilterIndex()
    index.add("never", [frozenset()])
    assert found(index, {"region": "eu"}) == []


def test_of_several_covers_the_one_with_the_fewest_items_is_taken() -> None:
    index: FilterIndex[int] = FilterIndex()
    covers = [
        index.add(customer, [equals(REGION, "eu"), equals(CUSTOMER, customer)]) for customer in range(100)
    ]
    assert covers[0] == equals(REGION, "eu")
    assert all(cover == equals(CUSTOMER, customer) for customer, cover in enumerate(covers[1:], 1))
    assert sorted(index.candidates(view_of({"region": "eu", "customer": 17}))) == [0, 17]


def test_what_is_removed_is_found_no_more_and_leaves_nothing_behind() -> None:
    index: FilterIndex[str] = FilterIndex()
    covers: dict[str, list[Cover]] = {
        "eu": [equals(REGION, "eu")],
        "also": [equals(REGION, "eu", "us")],
        "present": [frozenset({Present(LABEL)})],
        "always": [],
    }
    kept = {item: index.add(item, of) for item, of in covers.items()}
    for item, cover in kept.items():
        index.remove(item, cover)
        assert item not in found(index, {"region": "eu"}, subject="s")
    assert (index._application, index._system, index._uncovered) == ({}, {}, {})
