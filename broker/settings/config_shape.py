"""The shape of the configuration file: fields, their types and their defaults (HTTP contract 5.4).

The field names and the defaults are the emulator's (which differ from the service's: ten deliveries there,
three here). Our additions go beside them, spelled as in the administration API. Ranges are checked by
`config_file.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    model_validator,
)
from pydantic.alias_generators import to_pascal

from broker.base.durations import parse_duration
from broker.base.errors import Refused
from broker.entities.descriptions import AuthorizationRule, EntityStatus
from broker.entities.rules import EXPRESSION_CHARACTERS_MAX
from broker.entities.subscription_validation import check_rule_name, check_subscription_name
from broker.entities.validation import check_entity_name
from broker.settings.setting_types import HostName, Name, Rights, SecondKey
from broker.settings.settings import PARTITIONS_MAX


def _duration(value: object) -> int | None:
    if not isinstance(value, str):
        raise ValueError("a duration is text in ISO 8601, such as PT1M")
    return parse_duration(value)


def _checked(check: Callable[[str], None]) -> AfterValidator:
    """Check a name. What the check refuses is a problem of the file."""

    def checked(name: str) -> str:
        try:
            check(name)
        except Refused as refused:
            raise ValueError(refused.description) from refused
        return name

    return AfterValidator(checked)


def _some_text(text: str) -> str:
    if not text:
        raise ValueError("cannot be empty: leave it out, or match an empty text with a SqlFilter")
    return text


def _no_null(rules: object) -> object:
    if rules is None:
        raise ValueError("null is no list of rules: leave the field out, or write [], for the rule $Default")
    return rules


def _limited(value: int | None) -> int:
    if value is None:
        raise ValueError("cannot be without limit")
    return value


Duration = Annotated[int | None, BeforeValidator(_duration)]
"""Milliseconds; None is "without limit"."""
Limited = Annotated[int, BeforeValidator(_limited), BeforeValidator(_duration)]
"""Milliseconds."""
EntityName = Annotated[str, _checked(check_entity_name)]
SubscriptionName = Annotated[str, _checked(check_subscription_name)]
RuleName = Annotated[str, _checked(check_rule_name)]
Target = Annotated[str | None, BeforeValidator(lambda value: value or None)]
"""The entity to forward to; empty means none."""

MatchedText = Annotated[str, AfterValidator(_some_text)]
"""What a filter wants a property to be. The administration API takes an empty element for a missing one."""


NAMESPACES_MAX = 100
NAMESPACE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,49}")
"""A name that may be a label of a host name. That of an only namespace may be any text."""


def _told_apart(namespaces: tuple[Namespace, ...]) -> tuple[Namespace, ...]:
    if not 1 <= len(namespaces) <= NAMESPACES_MAX:
        raise ValueError(f"there are {len(namespaces)} namespaces; there must be 1 to {NAMESPACES_MAX}")
    if namespaces[0].settings:
        raise ValueError(
            "the first namespace has Settings, but its settings are the broker's own: give them as "
            "PARTIBUS_... variables"
        )
    for namespace in namespaces:
        if len(namespaces) > 1 and not NAMESPACE_NAME.fullmatch(namespace.name):
            raise ValueError(
                f"'{namespace.name}' cannot be the name of one of several namespaces: it must begin with a "
                "letter, followed by letters, digits and hyphens"
            )
    return namespaces


def _exact(name: str) -> str:
    """A host name as it is compared (`addresses.host_of`): in small letters, without the root's final dot."""
    if "*" in name:
        raise ValueError("a namespace has exact host names, without '*'")
    return name.casefold().rstrip(".")


_HOUR_MS, _MINUTE_MS = 3_600_000, 60_000


class _Part(BaseModel):
    """A part of the file. As in the emulator, numbers and booleans must have their JSON type: a quoted number
    is a mistake."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_pascal, validate_by_alias=True, validate_by_name=False
    )


class SasPolicy(_Part):
    """An `AuthorizationRules` entry (our addition)."""

    key_name: Name = Field(max_length=256)
    primary_key: Name
    secondary_key: SecondKey = ""
    rights: Rights

    def as_rule(self) -> AuthorizationRule:
        """The same as entities keep it."""
        return AuthorizationRule(self.key_name, self.primary_key, self.secondary_key, frozenset(self.rights))


class CommonProperties(_Part):
    """What queues, topics and subscriptions have: the emulator's one, then our additions."""

    default_message_time_to_live: Duration = _HOUR_MS

    auto_delete_on_idle: Duration = None
    enable_batched_operations: StrictBool = True
    status: EntityStatus = EntityStatus.ACTIVE
    user_metadata: str | None = None


class DeliveryProperties(CommonProperties):
    """What queues and subscriptions have, which clients receive from: the emulator's."""

    dead_lettering_on_message_expiration: StrictBool = False
    forward_dead_lettered_messages_to: Target = None
    forward_to: Target = None
    lock_duration: Limited = _MINUTE_MS
    max_delivery_count: StrictInt = 3
    requires_session: StrictBool = False


class EntityProperties(CommonProperties):
    """What queues and topics have: the emulator's two, then our additions."""

    duplicate_detection_history_time_window: Limited = 20_000
    requires_duplicate_detection: StrictBool = False

    enable_partitioning: StrictBool | None = None
    """The service's name for `partitioned`."""
    partitioned: StrictBool | None = None
    partition_count: StrictInt | None = Field(None, ge=1, le=PARTITIONS_MAX)
    max_size_in_megabytes: StrictInt = 1024
    max_message_size_in_kilobytes: StrictInt | None = None
    enable_express: StrictBool = False
    authorization_rules: tuple[SasPolicy, ...] = ()

    @model_validator(mode="after")
    def _partitioning_fits(self) -> Self:
        partitioning(self)
        return self


def partitioning(properties: EntityProperties) -> bool | None:
    """Whether the entity is partitioned, by either name or by its partition count; None if the file does not
    say. Raises ValueError."""
    ours, services = properties.partitioned, properties.enable_partitioning
    if ours is not None and services is not None and ours is not services:
        raise ValueError(
            f"Partitioned is {str(ours).lower()}, but EnablePartitioning, its other name, is "
            f"{str(services).lower()}"
        )
    said = services if ours is None else ours
    count = properties.partition_count
    if said is False and (count or 1) > 1:
        raise ValueError(
            f"PartitionCount is {count}, but "
            f"{'Partitioned' if ours is False else 'EnablePartitioning'} is false"
        )
    return count > 1 if said is None and count else said


class QueueProperties(EntityProperties, DeliveryProperties):
    """`Queues[].Properties`."""


class Queue(_Part):
    """An entry of `Queues`."""

    name: EntityName
    properties: QueueProperties = QueueProperties()


class CorrelationFilter(_Part):
    """`CorrelationFilter` of a rule: at least one field."""

    content_type: MatchedText | None = None
    correlation_id: MatchedText | None = None
    label: MatchedText | None = None
    message_id: MatchedText | None = None
    reply_to: MatchedText | None = None
    reply_to_session_id: MatchedText | None = None
    session_id: MatchedText | None = None
    to: MatchedText | None = None
    properties: dict[str, str | int | float | bool] | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _says_something(self) -> CorrelationFilter:
        if not self.model_fields_set:
            raise ValueError("a correlation filter needs at least one property")
        return self


class SqlText(_Part):
    """`SqlFilter` or `Action` of a rule."""

    sql_expression: str = Field(min_length=1, max_length=EXPRESSION_CHARACTERS_MAX)


class RuleProperties(_Part):
    """`Rules[].Properties`. There is one filter, that of `FilterType`."""

    filter_type: Literal["Correlation", "Sql"]
    correlation_filter: CorrelationFilter | None = None
    sql_filter: SqlText | None = None
    action: SqlText | None = None

    @model_validator(mode="after")
    def _has_its_filter(self) -> RuleProperties:
        filters = {"Correlation": self.correlation_filter, "Sql": self.sql_filter}
        if filters.pop(self.filter_type) is None:
            raise ValueError(f"FilterType is {self.filter_type}, but there is no {self.filter_type}Filter")
        for other, filter in filters.items():
            if filter is not None:
                raise ValueError(
                    f"FilterType is {self.filter_type}, so the rule cannot have a {other}Filter beside the "
                    f"{self.filter_type}Filter"
                )
        return self


class Rule(_Part):
    """An entry of `Rules`."""

    name: RuleName
    properties: RuleProperties


class SubscriptionProperties(DeliveryProperties):
    """`Subscriptions[].Properties`."""

    dead_lettering_on_filter_evaluation_exceptions: StrictBool = True


class Subscription(_Part):
    """An entry of `Subscriptions`. Without rules, it gets the default rule."""

    name: SubscriptionName
    properties: SubscriptionProperties = SubscriptionProperties()
    rules: Annotated[tuple[Rule, ...], BeforeValidator(_no_null)] = ()


class Topic(_Part):
    """An entry of `Topics`."""

    name: EntityName
    properties: EntityProperties = EntityProperties()
    subscriptions: tuple[Subscription, ...] = ()


class Namespace(_Part):
    """An entry of `Namespaces`."""

    name: str = Field(min_length=1, max_length=50)
    queues: tuple[Queue, ...] = ()
    topics: tuple[Topic, ...] = ()
    authorization_rules: tuple[SasPolicy, ...] = ()
    host_names: tuple[Annotated[HostName, AfterValidator(_exact)], ...] = ()
    """Under which clients reach it (our addition)."""
    settings: dict[str, Any] = Field(default_factory=dict, repr=False)
    """Those of a namespace beside the first one (our addition; `namespace_settings.py`)."""


class Logging(_Part):
    """`Logging`. The broker logs to stderr whatever it says."""

    type: Literal["File", "Console", "File,Console", "Console,File"] = "Console"


class UserConfig(_Part):
    """`UserConfig`: everything in the file."""

    namespaces: Annotated[tuple[Namespace, ...], AfterValidator(_told_apart)]
    logging: Logging = Logging()


class File(_Part):
    """The file."""

    user_config: UserConfig
