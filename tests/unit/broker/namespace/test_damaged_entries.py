"""broker/namespace/damaged_entries.py: what is known of entries that cannot be read."""

from __future__ import annotations

from pathlib import Path

from broker.base.errors import Reason
from broker.entities.descriptions import QueueDescription
from broker.entities.documents import encode_description
from broker.namespace.damaged_entries import DamagedEntries
from storage.catalogue_recovery import Damaged

CONTENT = encode_description(QueueDescription("Orders", "a" * 32, 4))
FILES = [Path("one"), Path("two")]


def test_a_name_that_both_files_have_is_out_of_service() -> None:
    entries = DamagedEntries()
    entries.note(Damaged("a" * 32, FILES, [CONTENT, CONTENT[:-20]]), "why", ())
    for name in ("ORDERS", "orders/Subscriptions/one"):
        why = entries.why_missing(name)
        assert why is not None and why.reason is Reason.PARTITION_UNAVAILABLE
    assert entries.why_missing("others") is None and not entries.may_have("others")
    assert entries.names() == ["orders"] and "a" * 32 in entries
    assert entries.take("Orders") == "a" * 32 and entries.names() == []


def test_an_entry_without_a_certain_name_may_be_any_entity() -> None:
    entries = DamagedEntries()
    entries.note(Damaged("a" * 32, FILES, [b"", CONTENT]), "why", ())
    assert entries.may_have("others") and entries.why_missing("others") is not None
    assert "a" * 32 in entries and "b" * 32 not in entries
    assert "the description of one entity cannot be read" in str(entries.why_missing("others"))
    entries.note(Damaged("c" * 32, FILES, [b""]), "why", ())
    assert "the descriptions of 2 entities cannot be read" in str(entries.why_missing("others"))


def test_a_live_entity_keeps_its_name() -> None:
    entries = DamagedEntries()
    entries.note(Damaged("a" * 32, FILES, [CONTENT, CONTENT]), "why", {"orders"})
    assert entries.take("orders") is None and entries.names() == []


def test_a_whole_file_under_another_name_says_for_certain_which_entity_it_is() -> None:
    """Symptom: no entity could be created any more, whatever its name."""
    entries = DamagedEntries()
    entries.note(Damaged("a" * 32, FILES[:1], [CONTENT], is_misnamed=True), "why", ())
    assert entries.may_have("Orders") and not entries.may_have("other")
    assert entries.names() == ["orders"]
