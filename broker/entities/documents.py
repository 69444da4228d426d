"""Entities as the catalogue keeps them: one JSON document each, readable by people. Pure.

    {"version": 1, "kind": "queue", "namespace": …, "name": …, "generation": …, "partitions": …,
     "settings": {…}, "created_at_ms": …, "updated_at_ms": …,
     "file_settings": null, or {…} as the configuration file gave them when they were last applied,
     "folders": the number of data folders over which its partitions are spread; 1 where it is missing,
     "idle_ms": for how long it has been idle, as last noted; 0 where it is missing}

A topic has "kind": "topic" and two more fields, "subscriptions" (`subscription_documents.py`) and
"last_subscription", so creating a subscription or a rule is one atomic change of this document. A third one,
"rule_changes_made", is there if it is not empty.

Older documents lack fields that were added later, such as `namespace`, `file_settings` and some of the
settings; such fields get their defaults. The namespace is that of the generation.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from broker.entities.descriptions import (
    AuthorizationRule,
    EntityDescription,
    EntitySettings,
    EntityStatus,
    namespace_of,
    shared,
)
from broker.entities.kinds import KINDS
from broker.entities.subscription_documents import decode_subscription, subscription_text
from broker.entities.topics import TopicDescription

CATALOGUE_VERSION = 1

_NAME_LINE = re.compile(rb'^ "name": ("(?:[^"\\]|\\.)*"),?\r?$', re.MULTILINE)
"""The entity's own name; the names of its rules are indented more deeply."""


def encode_description(description: EntityDescription) -> bytes:
    """Encode a description as its catalogue document."""
    (kind,) = (kind for kind, (of, _) in KINDS.items() if of is type(description))
    fields = {
        field.name: getattr(description, field.name)
        for field in dataclasses.fields(description)
        if field.init
    }
    for each in ("settings", "file_settings"):
        if fields[each] is not None:
            fields[each] = _encode_settings(fields[each])
    if isinstance(description, TopicDescription):
        fields["subscriptions"] = []  # put in below
        if not description.rule_changes_made:
            del fields["rule_changes_made"]
    document = {
        "version": CATALOGUE_VERSION,
        "kind": kind,
        "namespace": namespace_of(description.generation),
        **fields,
    }
    text = json.dumps(document, indent=1)
    if isinstance(description, TopicDescription) and description.subscriptions:
        # A topic may have thousands, of which a change concerns one: the others are not encoded again.
        encoded = ",\n  ".join(map(subscription_text, description.subscriptions))
        text = text.replace('"subscriptions": []', f'"subscriptions": [\n  {encoded}\n ]', 1)
    return text.encode()


def decode_description(content: bytes) -> EntityDescription:
    """Decode a catalogue document; the inverse of `encode_description`."""
    fields: dict[str, Any] = json.loads(content)
    kind = fields.pop("kind")
    assert fields.pop("version") == CATALOGUE_VERSION and kind in KINDS, (
        "a catalogue document of another version"
    )
    describe, settings_of = KINDS[kind]
    namespace = namespace_of(fields["generation"])
    assert fields.pop("namespace", namespace) == namespace, "the generation is another namespace's"
    of_file = fields.pop("file_settings", None)
    settings = _decode_settings(settings_of, fields.pop("settings"))
    if describe is TopicDescription:
        fields["subscriptions"] = tuple(map(decode_subscription, fields["subscriptions"]))
        fields["rule_changes_made"] = tuple(fields.get("rule_changes_made", ()))
    return describe(
        **fields,
        settings=settings,
        file_settings=None if of_file is None else _decode_settings(settings_of, of_file),
    )


def salvage_name(remains: bytes) -> str | None:
    """The entity's name from a damaged document, if it is legible. The name may be damaged too, so use it
    only in messages to people."""
    found = _NAME_LINE.search(remains)
    if found is None:
        return None
    try:
        name: str = json.loads(found[1])
    except ValueError:
        return None
    return name


def _encode_settings(settings: EntitySettings) -> dict[str, Any]:
    fields = dataclasses.asdict(settings)
    fields["status"] = settings.status.value
    for rule in fields["authorization_rules"]:
        rule["rights"] = sorted(rule["rights"])
    return fields


def _decode_settings(settings_of: type[EntitySettings], fields: dict[str, Any]) -> EntitySettings:
    rules = tuple(
        AuthorizationRule(**(rule | {"rights": frozenset(rule["rights"])}))
        for rule in fields.pop("authorization_rules")
    )
    status = EntityStatus(fields.pop("status"))
    return shared(settings_of(**fields, authorization_rules=rules, status=status))
