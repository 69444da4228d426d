"""What the catalogue holds at a start, divided by namespaces."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.base.errors import Refused
from broker.entities.descriptions import QueueDescription, new_generation
from broker.entities.documents import encode_description
from broker.namespace.stored_entities import StoredEntities
from storage.catalogue_recovery import Damaged


def document(name: str, generation: str) -> bytes:
    return encode_description(QueueDescription(name, generation, 4))


OLD, OWN, OTHER = "f" * 32, new_generation(), new_generation("orders")


def test_entities_and_damage_are_divided_by_namespace() -> None:
    wrong = new_generation("orders")
    old = Damaged("e" * 32, [Path("a")], [])
    torn = Damaged(new_generation("orders"), [Path("b")], [])
    documents = {
        OLD: document("old", OLD),
        OWN: document("Same", OWN),
        OTHER: document("same", OTHER),
        wrong: b"{",
    }
    stored = StoredEntities(documents, [old, torn], [], [])
    found, damaged = stored.of("sbemulatorns")
    assert {key: [each.generation for each in some] for key, some in found.items()} == {
        "old": [OLD],
        "same": [OWN],
    }
    assert [each for each, _ in damaged] == [old]
    found, damaged = stored.of("orders")
    assert [each.generation for each in found["same"]] == [OTHER] and list(found) == ["same"]
    assert [each.name for each, _ in damaged] == [wrong, torn.name]
    assert stored.namespaces == {"sbemulatorns", "orders"}


def test_only_what_is_known_to_be_deleted_is_cleared() -> None:
    stored = StoredEntities({OWN: document("q", OWN)}, [], ["gone", OWN], [OWN, "gone", "unknown"])
    assert stored.to_clear == {"gone"}
    assert stored.kept == {"unknown"}
    assert stored.known == {OWN}


def test_what_cannot_be_used_is_reported() -> None:
    stored = StoredEntities({OWN: document("q", OWN), OTHER: document("q", OTHER)}, [], [], [OWN, "unknown"])
    with capture_logs() as lines:
        stored.report(["sbemulatorns"])
    assert [(line["event"], line.get("generation") or line.get("namespace")) for line in lines] == [
        ("entity.logs_without_entry", "unknown"),
        ("namespace.not_served", "orders"),
    ]


def test_a_namespace_with_entities_of_its_own_cannot_become_the_first() -> None:
    stored = StoredEntities({OWN: document("q", OWN), OTHER: document("q", OTHER)}, [], [], [])
    stored.check_first("sbemulatorns", ["orders"])
    stored.check_first("renamed", ["orders"])
    with pytest.raises(Refused, match="it must not take the place of the first one"):
        stored.check_first("Orders", [])


def test_the_entities_of_the_first_namespace_are_not_given_to_another_by_an_entry_before_it() -> None:
    def stored(first_name: str | None, generation: str = OWN) -> StoredEntities:
        return StoredEntities({generation: document("q", generation)}, [], [], [], first_name)

    with pytest.raises(Refused, match=r"would become those of 'fresh'\. List 'Bills' first"):
        stored("Bills").check_first("fresh", ["orders", "bills"])
    stored("Bills").check_first("fresh", ["orders"])  # renamed
    stored("Bills").check_first("bills", ["orders"])
    stored("Bills", OTHER).check_first("fresh", ["bills"])  # it had no entities
    for unknown in (None, ""):
        stored(unknown).check_first("fresh", ["bills"])
