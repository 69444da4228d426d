"""The configuration file: the emulator's `config.json`, read and checked (HTTP contract 5.4).

The emulator's files are accepted unchanged: with `//` comments, trailing commas and a byte-order mark.
`config_shape.py` has the fields. Ranges are those of `entities/validation.py`, which are wider than the
emulator's.

The result is plain data (`ConfigFile`). Settings that this version does not carry out are kept and listed in
`warnings`. A wrong file raises `WrongConfigFile`, which names file, field and reason. This module creates no
entities.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from broker.base.strict_json import read_json
from broker.entities.descriptions import (
    NAMESPACE,
    AuthorizationRule,
    EntitySettings,
    QueueSettings,
    key_of,
)
from broker.entities.rules import (
    DEFAULT_RULE_NAME,
    CorrelationFilter,
    Filter,
    NamedValues,
    RuleDescription,
    RuleValue,
    SqlAction,
    SqlFilter,
    ValueType,
)
from broker.entities.subscription_validation import check_rules, check_subscription
from broker.entities.topics import SubscriptionSettings, TopicSettings
from broker.entities.validation import (
    WrongProperty,
    check_authorization_rules,
    check_settings,
    without_effect,
)
from broker.settings import config_shape as shape
from broker.settings.namespace_settings import WrongNamespaceSettings, namespace_settings
from broker.settings.settings import Settings


class WrongConfigFile(ValueError):
    """The file cannot be used. The text has one line per problem, with file, field path and reason."""


@dataclass(slots=True, frozen=True)
class EntitySpec:
    """An entity that the file asks for. `partitions` is None if the file leaves the number to the broker's
    default."""

    name: str
    settings: EntitySettings
    partitions: int | None


@dataclass(slots=True, frozen=True)
class SubscriptionSpec:
    """A subscription that the file asks for, with its rules."""

    name: str
    settings: SubscriptionSettings
    rules: tuple[RuleDescription, ...]


@dataclass(slots=True, frozen=True)
class QueueSpec(EntitySpec):
    """A queue that the file asks for."""

    settings: QueueSettings


@dataclass(slots=True, frozen=True)
class TopicSpec(EntitySpec):
    """A topic that the file asks for."""

    settings: TopicSettings
    subscriptions: tuple[SubscriptionSpec, ...] = ()


@dataclass(slots=True, frozen=True)
class NamespaceFile:
    """What a configuration file says about one namespace."""

    path: Path
    namespace: str
    queues: tuple[QueueSpec, ...]
    topics: tuple[TopicSpec, ...]
    authorization_rules: tuple[AuthorizationRule, ...]
    """SAS policies of the namespace, in addition to those in the settings."""
    settings: Settings
    """Its settings. Those of the first namespace are the broker's, as they were when the file was read."""
    place: str = "UserConfig.Namespaces[0]"
    """Where it is in the file."""
    host_names: tuple[str, ...] = ()
    """Names under which clients reach it, beside its own."""


@dataclass(slots=True, frozen=True)
class ConfigFile:
    """The content of a configuration file."""

    namespaces: tuple[NamespaceFile, ...]
    """The first one is the namespace of the broker's settings."""
    warnings: tuple[str, ...]
    """Settings in the file without effect in this version: one sentence each, naming the entity."""

    @property
    def first(self) -> NamespaceFile:
        """The namespace of clients that name none."""
        return self.namespaces[0]

    @property
    def others(self) -> tuple[NamespaceFile, ...]:
        """All namespaces but the first one."""
        return self.namespaces[1:]


def load_config_file(path: Path, defaults: Settings) -> ConfigFile:
    """Read and check the file. Raises WrongConfigFile.

    `defaults` gives what a queue leaves out: whether it is partitioned, and how large its messages may be.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise WrongConfigFile(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WrongConfigFile(f"{path}: cannot be read: {error}") from error
    try:
        content = read_json(without_comments(text))
    except RecursionError as error:
        raise WrongConfigFile(f"{path}: lists and objects stand too deep in one another") from error
    except json.JSONDecodeError as error:
        raise WrongConfigFile(
            f"{path}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}"
        ) from error
    except ValueError as error:
        raise WrongConfigFile(f"{path}: {error}") from error
    try:
        user_config = shape.File.model_validate(content).user_config
    except ValidationError as error:
        raise WrongConfigFile("\n".join(f"{path}: {line}" for line in _problems(error))) from error
    return _as_config(path, user_config, defaults)


_STRING_OR_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STRING_OR_TRAILING_COMMA = re.compile(r'"(?:[^"\\\n]|\\.)*"|,(?=\s*[\]}])')


def without_comments(text: str) -> str:
    """Blank out comments and trailing commas. Nothing moves, so line and column stay right in error
    messages."""

    def blank(match: re.Match[str]) -> str:
        found = match.group()
        return found if found.startswith('"') else re.sub(r"[^\n]", " ", found)

    return _STRING_OR_TRAILING_COMMA.sub(blank, _STRING_OR_COMMENT.sub(blank, text))


def _problems(error: ValidationError) -> Iterable[str]:
    for problem in error.errors(include_url=False):
        path = ""
        for part in problem["loc"]:
            path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
        reason = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            reason = "there is no such field"
        elif problem["type"] == "missing":
            reason = "is required"
        yield f"{path or 'the file'}: {reason}"


def check_namespaces(file: ConfigFile, name: str) -> None:
    """Check that names and host names tell the namespaces apart, if the first one is called `name`. Raises
    WrongConfigFile."""
    if not file.others:
        return
    if not shape.NAMESPACE_NAME.fullmatch(name):
        raise WrongConfigFile(
            f"PARTIBUS_NAMESPACE: '{name}' cannot be the name of one of several namespaces: it must begin "
            "with a letter, followed by letters, digits and hyphens"
        )
    taken: dict[str, str] = {}
    for number, each in enumerate(file.namespaces):
        own = name if number == 0 else each.namespace
        if number and own.casefold() == NAMESPACE:
            taken.setdefault(NAMESPACE, "the first namespace has it in the data folder")
        for host in dict.fromkeys(map(str.casefold, (own, *each.host_names))):
            if host in taken:
                raise WrongConfigFile(
                    f"{each.path}: {each.place}: the name '{host}' cannot be used: {taken[host]}"
                )
            taken[host] = f"it means the namespace '{own}' already"


def _as_config(path: Path, user_config: shape.UserConfig, defaults: Settings) -> ConfigFile:
    namespaces = []
    for number, namespace in enumerate(user_config.namespaces):
        where, settings = f"UserConfig.Namespaces[{number}]", defaults
        if number:
            try:
                settings = namespace_settings(namespace.name, namespace.settings, defaults)
            except WrongNamespaceSettings as wrong:
                lines = [f"{path}: {where}.{line}" for line in str(wrong).splitlines()]
                raise WrongConfigFile("\n".join(lines)) from wrong
        namespaces.append(_as_namespace(path, where, namespace, settings))
    return ConfigFile(tuple(namespaces), tuple(_warnings(user_config, namespaces)))


def _as_namespace(path: Path, where: str, namespace: shape.Namespace, defaults: Settings) -> NamespaceFile:
    names: dict[str, str] = {}
    for kind, entities in (
        ("Queues", [queue.name for queue in namespace.queues]),
        ("Topics", [topic.name for topic in namespace.topics]),
    ):
        for index, name in enumerate(entities):
            field = f"{where}.{kind}[{index}].Name"
            earlier = names.setdefault(key_of(name), field)
            if earlier != field:
                raise WrongConfigFile(
                    f"{path}: {field}: '{name}' is the name of {earlier.removesuffix('.Name')} too "
                    "(case does not count)"
                )
    rules = tuple(policy.as_rule() for policy in namespace.authorization_rules)
    with _at(f"{path}: {where}", "AuthorizationRules"):
        check_authorization_rules(rules)
    queues, topics = [], []
    for index, queue in enumerate(namespace.queues):
        with _at(f"{path}: {where}.Queues[{index}]"):
            queues.append(_queue_spec(queue, defaults))
    for index, topic in enumerate(namespace.topics):
        with _at(f"{path}: {where}.Topics[{index}]"):
            settings = _topic_settings(topic, defaults)
        subscriptions = _subscription_specs(
            topic, f"{path}: {where}.Topics[{index}].Subscriptions", defaults.auto_delete_on_idle_ms_min
        )
        topics.append(TopicSpec(topic.name, settings, topic.properties.partition_count, subscriptions))
    return NamespaceFile(
        path=path,
        namespace=namespace.name,
        queues=tuple(queues),
        topics=tuple(topics),
        authorization_rules=rules,
        settings=defaults,
        place=where,
        host_names=namespace.host_names,
    )


@contextmanager
def _at(where: str, field: str | None = None) -> Iterator[None]:
    """Say where in the file a wrong property is; `field` instead of the property's own name."""
    try:
        yield
    except WrongProperty as wrong:
        place = f"Properties.{wrong.element}" if field is None else field
        raise WrongConfigFile(f"{where}.{place}: {wrong.description}") from wrong


def _queue_spec(queue: shape.Queue, defaults: Settings) -> QueueSpec:
    file = queue.properties
    settings = QueueSettings(**_entity_fields(file, defaults), **_delivery_fields(file))
    checked = check_settings(queue.name, settings, defaults.auto_delete_on_idle_ms_min)
    assert isinstance(checked, QueueSettings)
    return QueueSpec(queue.name, checked, file.partition_count)


def _topic_settings(topic: shape.Topic, defaults: Settings) -> TopicSettings:
    settings = TopicSettings(**_entity_fields(topic.properties, defaults))
    checked = check_settings(topic.name, settings, defaults.auto_delete_on_idle_ms_min)
    assert isinstance(checked, TopicSettings)
    return checked


def _subscription_specs(topic: shape.Topic, where: str, idle_ms_min: int) -> tuple[SubscriptionSpec, ...]:
    specs: dict[str, SubscriptionSpec] = {}
    for index, subscription in enumerate(topic.subscriptions):
        name, file = subscription.name, subscription.properties
        settings = SubscriptionSettings(
            **_delivery_fields(file),
            **_common_fields(file),
            dead_lettering_on_filter_errors=file.dead_lettering_on_filter_evaluation_exceptions,
        )
        with _at(f"{where}[{index}]"):
            settings = check_subscription(topic.name, name, settings, idle_ms_min)
        rules = tuple(map(_rule, subscription.rules)) or (RuleDescription(DEFAULT_RULE_NAME),)
        with _at(f"{where}[{index}]", "Rules"):
            check_rules(rules)
        if key_of(name) in specs:
            raise WrongConfigFile(
                f"{where}[{index}].Name: '{name}' is the name of another subscription of this topic too "
                "(case does not count)"
            )
        specs[key_of(name)] = SubscriptionSpec(name, settings, rules)
    return tuple(specs.values())


def _common_fields(file: shape.CommonProperties) -> dict[str, Any]:
    return {
        "default_time_to_live_ms": file.default_message_time_to_live,
        "auto_delete_on_idle_ms": file.auto_delete_on_idle,
        "enable_batched_operations": file.enable_batched_operations,
        "status": file.status,
        "user_metadata": file.user_metadata,
    }


def _entity_fields(file: shape.EntityProperties, defaults: Settings) -> dict[str, Any]:
    partitioned, size_kb = shape.partitioning(file), file.max_message_size_in_kilobytes
    return _common_fields(file) | {
        "max_size_mb": file.max_size_in_megabytes,
        "requires_duplicate_detection": file.requires_duplicate_detection,
        "duplicate_detection_window_ms": file.duplicate_detection_history_time_window,
        "enable_partitioning": defaults.partitioned_by_default if partitioned is None else partitioned,
        "enable_express": file.enable_express,
        "max_message_size_kb": defaults.message_kb_max if size_kb is None else size_kb,
        "authorization_rules": tuple(policy.as_rule() for policy in file.authorization_rules),
    }


def _delivery_fields(file: shape.DeliveryProperties) -> dict[str, Any]:
    return {
        "lock_duration_ms": file.lock_duration,
        "requires_session": file.requires_session,
        "dead_lettering_on_expiration": file.dead_lettering_on_message_expiration,
        "max_delivery_count": file.max_delivery_count,
        "forward_to": file.forward_to,
        "forward_dead_lettered_to": file.forward_dead_lettered_messages_to,
    }


def _rule(rule: shape.Rule) -> RuleDescription:
    file = rule.properties
    action = None if file.action is None else SqlAction(file.action.sql_expression)
    return RuleDescription(rule.name, _filter(file), action)


def _filter(file: shape.RuleProperties) -> Filter:
    if file.sql_filter is not None and file.filter_type == "Sql":
        return SqlFilter(file.sql_filter.sql_expression)
    assert file.correlation_filter is not None, "the shape was checked"
    given = dict(file.correlation_filter)
    properties = given.pop("properties") or {}
    return CorrelationFilter(**given, properties=_values(properties))


def _values(properties: Mapping[str, str | bool | int | float]) -> NamedValues:
    types = {str: ValueType.STRING, bool: ValueType.BOOLEAN, int: ValueType.LONG, float: ValueType.DOUBLE}
    return tuple((name, RuleValue(types[type(value)], value)) for name, value in properties.items())


def _warnings(user_config: shape.UserConfig, namespaces: Iterable[NamespaceFile]) -> Iterable[str]:
    if "File" in user_config.logging.type:
        yield (
            f"Logging.Type is {user_config.logging.type}: the broker writes no log files, its log goes to "
            "stderr"
        )
    for queue in [queue for namespace in user_config.namespaces for queue in namespace.queues]:
        if queue.properties.forward_to is not None and queue.properties.auto_delete_on_idle is not None:
            yield (
                f"queue {queue.name}: AutoDeleteOnIdle is dropped, because forwarding counts as use and the "
                "queue has ForwardTo"
            )
    for spec in [spec for each in namespaces for spec in (*each.queues, *each.topics)]:
        if inactive := without_effect(spec.settings):
            yield f"{spec.name}: kept, without effect in this version: {', '.join(inactive)}"
