"""Apply the entities of the configuration file to the namespace at startup.

A missing entity is created. An existing one is updated only if its entry in the file has changed since it
was last applied, so a change made through the administration API survives until the file's entry changes.
The same holds for each subscription of a topic, and for its rules. Settings that are fixed at creation are
left alone, and every start logs a warning (`config.not_applied`) for as long as the file and the entity
differ.

An entity or a subscription can only forward to an entity that exists. A file that names another target is
wrong, unless that was already the target: it may have been deleted since, and the broker must start all the
same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import EntityDescription, EntitySettings, key_of
from broker.entities.subscription_validation import check_limits
from broker.entities.topics import TopicDescription, subscription_path
from broker.namespace.file_subscriptions import fixed_differences, with_subscriptions
from broker.namespace.namespace import Namespace
from broker.namespace.subscriptions import check_session_actions
from broker.rules.matching import check_expressions
from broker.settings.config_file import EntitySpec, NamespaceFile, TopicSpec, WrongConfigFile

FORWARDING_FIELDS = ("ForwardTo", "ForwardDeadLetteredMessagesTo")
"""The file's names of the two targets in `EntitySettings.forwarding`."""

log = structlog.get_logger("config")


class _Forwards(Protocol):
    """The settings of what can forward messages."""

    @property
    def forwarding(self) -> tuple[str | None, str | None]: ...


@dataclass(slots=True, frozen=True)
class _Source:
    """A queue or a subscription of the file, which may forward messages."""

    path: str
    """Its own, as an address."""
    place: str
    """Where it is in the file."""
    settings: _Forwards
    earlier: Sequence[_Forwards]
    """The settings that it has, and those that it had from the file."""


def _sources(file: NamespaceFile, namespace: Namespace) -> Iterable[_Source]:
    for index, queue in enumerate(file.queues):
        existing = namespace.describe(queue.name)
        earlier = [existing.settings, existing.file_settings or existing.settings] if existing else []
        yield _Source(queue.name, f"Queues[{index}]", queue.settings, earlier)
    for index, topic in enumerate(file.topics):
        live = namespace.describe(topic.name)
        for number, each in enumerate(topic.subscriptions):
            has = live.subscription(each.name) if isinstance(live, TopicDescription) else None
            yield _Source(
                subscription_path(topic.name, each.name),
                f"Topics[{index}].Subscriptions[{number}]",
                each.settings,
                [has.settings, has.file_settings or has.settings] if has else [],
            )


def check_targets(file: NamespaceFile, namespace: Namespace) -> None:
    """Check that everything in the file forwards to entities that are in the file or in the namespace. Raises
    WrongConfigFile; only warns of what was already to forward to its missing target."""
    in_file = {key_of(spec.name) for spec in (*file.queues, *file.topics)}
    wrong: list[str] = []
    for source in _sources(file, namespace):
        for index, field in enumerate(FORWARDING_FIELDS):
            target = source.settings.forwarding[index]
            if target is None or key_of(target) in in_file or namespace.find(target) is not None:
                continue
            why = namespace.missing(target)
            known = {key_of(each.forwarding[index] or "") for each in source.earlier}
            if why.reason is not Reason.ENTITY_NOT_FOUND or key_of(target) in known:
                log.warning(
                    "config.target_missing",
                    namespace=namespace.name,
                    entity=source.path,
                    field=field,
                    target=target,
                    reason=why.description,
                )
                continue
            wrong.append(
                f"{file.path}: {file.place}.{source.place}.Properties.{field}: '{source.path}' "
                f"cannot forward to '{target}': no queue or topic of this name is in the file or in the data "
                "folder."
            )
    if wrong:
        raise WrongConfigFile("\n".join(wrong))


def check_rules(file: NamespaceFile) -> None:
    """Check that the rules in the file can be carried out. Raises WrongConfigFile with the position in the
    expression."""
    wrong = []
    for index, topic in enumerate(file.topics):
        is_partitioned = topic.settings.enable_partitioning and topic.partitions != 1
        for number, subscription in enumerate(topic.subscriptions):
            for place, rule in enumerate(subscription.rules):
                try:
                    check_expressions(rule)
                    check_session_actions([rule], subscription.settings, is_partitioned=is_partitioned)
                except Refused as why:
                    where = f"Topics[{index}].Subscriptions[{number}].Rules[{place}]"
                    wrong.append(f"{file.path}: {file.place}.{where}: {why.description}")
    if wrong:
        raise WrongConfigFile("\n".join(wrong))


async def apply_file(entities: Iterable[EntitySpec], namespace: Namespace) -> None:
    """Create and update entities as the file asks. Raises Refused if one cannot be created, except when a
    data folder is missing: then the others are live, and the next start creates this one."""
    for spec in entities:
        await _apply(spec, namespace)
        if isinstance(spec, TopicSpec):
            await _apply_subscriptions(spec, namespace)


async def _apply(spec: EntitySpec, namespace: Namespace) -> None:
    existing = namespace.describe(spec.name)
    if existing is None and namespace.may_be_damaged(spec.name):
        _not_applied(namespace, spec.name, namespace.missing(spec.name).description, is_error=True)
        return
    if existing is None:
        try:
            await namespace.create_entity(
                spec.name, spec.settings, spec.partitions, file_settings=spec.settings
            )
        except Refused as why:
            is_begun = key_of(spec.name) in namespace.unconfirmed
            if is_begun or why.reason is not Reason.PARTITION_UNAVAILABLE:
                text = f"The entity '{spec.name}' of the configuration file could not be created."
                raise Refused(why.reason, f"{text} {why.description}") from why
            _not_applied(namespace, spec.name, why.description, is_error=True)
        return
    if type(existing.settings) is not type(spec.settings):
        reason = "An entity of another kind has this name."
        _not_applied(namespace, spec.name, reason)
        return
    for reason in _fixed_differences(existing, spec):
        _not_applied(namespace, spec.name, reason)
    if existing.file_settings == spec.settings:
        return
    try:
        await namespace.update_entity(spec.name, _changeable(existing, spec), file_settings=spec.settings)
    except Refused as why:
        _not_applied(namespace, spec.name, why.description)


async def _apply_subscriptions(spec: TopicSpec, namespace: Namespace) -> None:
    """Create and update the subscriptions of a topic that has been applied, all in one change."""
    topic = namespace.describe(spec.name)
    if not isinstance(topic, TopicDescription):
        return  # it was reported
    for name, reason in fixed_differences(topic, spec):
        _not_applied(namespace, subscription_path(topic.name, name), reason)
    if with_subscriptions(topic, spec, 0) is topic:
        return

    def change(before: EntityDescription, now_ms: int) -> EntityDescription:
        assert isinstance(before, TopicDescription)
        after = with_subscriptions(before, spec, now_ms)
        check_limits(before, after, namespace.subscriptions.limits)
        return after

    try:
        await namespace.change_entity(topic.name, change)
    except Refused as why:
        _not_applied(namespace, spec.name, f"Its subscriptions: {why.description}", is_error=True)


def _not_applied(namespace: Namespace, entity: str, reason: str, *, is_error: bool = False) -> None:
    """Report what the file asks for and is not done."""
    report = log.error if is_error else log.warning
    report("config.not_applied", namespace=namespace.name, entity=entity, reason=reason)


def _fixed_differences(existing: EntityDescription, spec: EntitySpec) -> Iterable[str]:
    """Yield one sentence for each setting that differs from the file but is fixed at creation."""
    has, asked = existing.settings, spec.settings
    for field, in_entity, in_file in (
        ("Partitioned", has.enable_partitioning, asked.enable_partitioning),
        ("PartitionCount", existing.partitions, spec.partitions or existing.partitions),
        *(
            ("".join(map(str.capitalize, field.split("_"))), getattr(has, field), getattr(asked, field))
            for field in has.FIXED
            if field != "enable_partitioning"
        ),
    ):
        if in_entity != in_file:
            yield (
                f"{field} is {_text(in_file)} in the file and {_text(in_entity)} since the entity's "
                "creation: it cannot be changed."
            )


def _text(value: bool | int) -> str:
    return str(value).lower()


def _changeable(existing: EntityDescription, spec: EntitySpec) -> EntitySettings:
    """The file's settings, with the fixed ones taken from the existing entity."""
    has = existing.settings
    return replace(spec.settings, **{field: getattr(has, field) for field in has.FIXED})
