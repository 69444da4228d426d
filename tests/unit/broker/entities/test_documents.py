"""broker/entities/documents.py: entities are written and read back unchanged."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from broker.entities.descriptions import (
    NAMESPACE,
    AuthorizationRule,
    EntityStatus,
    QueueDescription,
    QueueSettings,
    namespace_of,
    new_generation,
)
from broker.entities.documents import decode_description, encode_description

RULE = AuthorizationRule("app", "primary", "secondary", frozenset({"Manage", "Send", "Listen"}), 1, 2)
SETTINGS = replace(
    QueueSettings(),
    status=EntityStatus.SEND_DISABLED,
    authorization_rules=(RULE,),
    default_time_to_live_ms=5,
    user_metadata="ümlaut",
)


def test_a_description_survives_its_document() -> None:
    for of_file in (None, QueueSettings(), SETTINGS):
        description = QueueDescription("orders", "a" * 32, 16, SETTINGS, 1, 2, of_file)
        assert decode_description(encode_description(description)) == description


def test_a_document_from_before_the_file_was_remembered_is_read() -> None:
    description = QueueDescription("orders", "a" * 32, 16, SETTINGS, 1, 2)
    fields = json.loads(encode_description(description))
    del fields["file_settings"]
    assert decode_description(json.dumps(fields).encode()) == description


def test_a_document_names_its_namespace_and_one_from_before_belongs_to_the_only_one() -> None:
    description = QueueDescription("orders", new_generation("contoso"), 16, SETTINGS, 1, 2)
    fields = json.loads(encode_description(description))
    assert fields["namespace"] == namespace_of(description.generation) == "contoso"
    with pytest.raises(AssertionError, match="another namespace"):
        decode_description(json.dumps(fields | {"namespace": "fabrikam"}).encode())
    before = QueueDescription("orders", "a" * 32, 16, SETTINGS, 1, 2)
    fields = json.loads(encode_description(before))
    assert fields.pop("namespace") == NAMESPACE
    assert decode_description(json.dumps(fields).encode()) == before


def test_equal_settings_of_two_documents_are_one_object() -> None:
    first, second = (
        decode_description(encode_description(QueueDescription(name, "a" * 32, 16, SETTINGS, 1, 2, SETTINGS)))
        for name in ("orders", "invoices")
    )
    assert first.settings is second.settings is second.file_settings
    assert first.settings == SETTINGS
