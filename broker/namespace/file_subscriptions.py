"""The subscriptions that the configuration file asks for, applied to a topic's description. Pure.

The same holds as for entities (`apply_file.py`): what is missing is created, and the settings or the rules of
a subscription are replaced only if they have changed in the file since they were last applied. Subscriptions
that the file does not name stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from broker.entities.topics import SubscriptionDescription, TopicDescription
from broker.settings.config_file import SubscriptionSpec, TopicSpec


def with_subscriptions(topic: TopicDescription, spec: TopicSpec, now_ms: int) -> TopicDescription:
    """The topic with the file's subscriptions; the same object if nothing is to be changed."""
    found: list[SubscriptionDescription] = []
    last = topic.last_subscription
    for each in spec.subscriptions:
        existing = topic.subscription(each.name)
        if existing is None:
            last += 1
            new = SubscriptionDescription.new(
                each.name, last, each.settings, each.rules, now_ms, from_file=True
            )
            found.append(new)
        elif (changed := _applied(existing, each, now_ms)) is not existing:
            found.append(changed)
    return topic.with_all(found) if found else topic


def fixed_differences(topic: TopicDescription, spec: TopicSpec) -> Iterable[tuple[str, str]]:
    """The subscriptions that differ from the file in what is fixed at creation, each with a sentence."""
    for each in spec.subscriptions:
        existing = topic.subscription(each.name)
        if existing and existing.settings.requires_session != each.settings.requires_session:
            has, asked = existing.settings.requires_session, each.settings.requires_session
            yield (
                existing.name,
                f"RequiresSession is {str(asked).lower()} in the file and {str(has).lower()} since the "
                "subscription's creation: it cannot be changed.",
            )


def _applied(
    existing: SubscriptionDescription, spec: SubscriptionSpec, now_ms: int
) -> SubscriptionDescription:
    changed = existing
    if existing.file_settings != spec.settings:
        settings = replace(spec.settings, requires_session=existing.settings.requires_session)
        changed = replace(
            changed, settings=settings, file_settings=spec.settings, updated_at_ms=now_ms, idle_ms=0
        )
    if existing.file_rules != spec.rules:
        changed = replace(changed, file_rules=spec.rules).with_rules(spec.rules, now_ms)
    return changed
