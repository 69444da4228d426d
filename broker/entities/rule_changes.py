"""Changes of the rules of subscriptions, as values: what is added or removed, and what a topic is afterwards.
Pure.

A transaction collects them, and its partition notes them as JSON: a list of maps with the number of the
subscription and either `rule`, as in the topic's document, or `removed`, a name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from broker.base.errors import Reason, Refused, not_found_text
from broker.entities.descriptions import key_of
from broker.entities.rules import RuleDescription
from broker.entities.subscription_documents import decode_rule, encode_rule
from broker.entities.topics import TopicDescription, subscription_path


@dataclass(slots=True, frozen=True)
class RuleChange:
    """A rule that is added to a subscription or removed from it."""

    subscription: int
    """The subscription's number, which no other one ever has."""
    rule: RuleDescription | None = None
    """The new rule …"""
    removed: str = ""
    """… or the name of one that is removed."""


Rules = tuple[RuleDescription, ...]


def with_rule(rules: Rules, rule: RuleDescription, path: str) -> Rules:
    """The rules of a subscription and a new one. Raises Refused(ENTITY_EXISTS)."""
    if any(key_of(each.name) == key_of(rule.name) for each in rules):
        text = f"The messaging entity '{path}/Rules/{rule.name}' already exists."
        raise Refused(Reason.ENTITY_EXISTS, text)
    return (*rules, rule)


def without_rule(rules: Rules, name: str, path: str) -> Rules:
    """The rules of a subscription without one of them. Raises Refused(ENTITY_NOT_FOUND)."""
    old = existing_rule(rules, name, path)
    return tuple(each for each in rules if each is not old)


def existing_rule(rules: Rules, name: str, path: str) -> RuleDescription:
    """The rule of this name. Raises Refused(ENTITY_NOT_FOUND)."""
    for rule in rules:
        if key_of(rule.name) == key_of(name):
            return rule
    raise Refused(Reason.ENTITY_NOT_FOUND, not_found_text(f"{path}/Rules/{name}"))


def changed(
    topic: TopicDescription, changes: Iterable[RuleChange], now_ms: int, *, may_be_made: bool = False
) -> TopicDescription:
    """The topic with changed rules. Raises Refused if a change cannot be made. `may_be_made`: it may have
    some of the changes already, or have changed since; what cannot be made is left out."""
    for change in changes:
        subscription = topic.numbered(change.subscription)
        try:
            if subscription is None:
                raise Refused(Reason.ENTITY_NOT_FOUND, not_found_text(topic.name))
            path = subscription_path(topic.name, subscription.name)
            if change.rule is not None:
                rules = with_rule(subscription.rules, change.rule, path)
            else:
                rules = without_rule(subscription.rules, change.removed, path)
        except Refused:
            if not may_be_made:
                raise
        else:
            topic = topic.with_changed(subscription.with_rules(rules, now_ms))
    return topic


def encode_changes(changes: Sequence[RuleChange]) -> bytes:
    """Changes, as a partition notes them."""
    return json.dumps(
        [
            {"subscription": each.subscription, "rule": encode_rule(each.rule)}
            if each.rule is not None
            else {"subscription": each.subscription, "removed": each.removed}
            for each in changes
        ]
    ).encode()


def decode_changes(noted: bytes) -> list[RuleChange]:
    """The inverse of `encode_changes`."""
    return [
        RuleChange(
            each["subscription"],
            decode_rule(each["rule"]) if "rule" in each else None,
            each.get("removed", ""),
        )
        for each in json.loads(noted)
    ]
