"""The configuration file: the emulator's `config.json`, read and checked (HTTP contract 5.4).

The emulator's files are accepted unchanged: with `//` comments, trailing commas and a byte-order mark, and
with its field names and its defaults (which differ from the service's: ten deliveries there, three here).
Ranges are those of `entities/validation.py`, which are wider than the emulator's. Our additions go beside
its fields, spelled as in the administration API.

The result is plain data (`ConfigFile`). Settings that this version does not carry out are kept and listed in
`warnings`. A wrong file raises `WrongConfigFile`, which names file, field and reason. This module creates no
entities.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_pascal

from broker.base.durations import parse_duration
from broker.base.errors import Refused
from broker.entities.descriptions import AuthorizationRule, EntityStatus, QueueSettings, key_of
from broker.entities.validation import WrongProperty, check_entity_name, check_queue, without_effect
from broker.settings.settings import PARTITIONS_MAX, Right, Settings


class WrongConfigFile(ValueError):
    """The file cannot be used. The text has one line per problem, with file, field path and reason."""


@dataclass(slots=True, frozen=True)
class QueueSpec:
    """A queue that the file asks for. `partitions` is None if the file leaves the number to the broker's
    default."""

    name: str
    settings: QueueSettings
    partitions: int | None


@dataclass(slots=True, frozen=True)
class ConfigFile:
    """The content of a configuration file."""

    path: Path
    namespace: str
    queues: tuple[QueueSpec, ...]
    topics: tuple[Topic, ...]
    """Checked and kept; this version does not create them."""
    authorization_rules: tuple[AuthorizationRule, ...]
    """SAS policies of the namespace, in addition to those in the settings."""
    warnings: tuple[str, ...]
    """Settings in the file without effect in this version: one sentence each, naming the entity."""


# --- the file's own shape -----------------------------------------------------------------------------------


def _duration(value: object) -> int | None:
    if not isinstance(value, str):
        raise ValueError("a duration is text in ISO 8601, such as PT1M")
    return parse_duration(value)


def _entity_name(value: str) -> str:
    try:
        check_entity_name(value)
    except Refused as refused:
        raise ValueError(refused.description) from refused
    return value


def _child_name(value: str) -> str:
    # The emulator's schema does not accept `$Default`, but its users write it, and the service has a rule of
    # that name.
    if not re.fullmatch(r"[A-Za-z0-9$](?:[A-Za-z0-9._~-]{0,48}[A-Za-z0-9])?", value):
        raise ValueError(f"'{value}' is not a name: 1 to 50 letters, digits, periods, hyphens or underscores")
    return value


def _limited(value: int | None) -> int:
    if value is None:
        raise ValueError("cannot be without limit")
    return value


Duration = Annotated[int | None, BeforeValidator(_duration)]
"""Milliseconds; None is "without limit"."""
Limited = Annotated[int, BeforeValidator(_limited), BeforeValidator(_duration)]
"""Milliseconds."""
EntityName = Annotated[str, AfterValidator(_entity_name)]
ChildName = Annotated[str, AfterValidator(_child_name)]
Target = Annotated[str | None, BeforeValidator(lambda value: value or None)]
"""The entity to forward to; empty means none."""


def _one(namespaces: tuple[Namespace, ...]) -> tuple[Namespace, ...]:
    if len(namespaces) != 1:
        raise ValueError(f"there are {len(namespaces)} namespaces; exactly one is possible")
    return namespaces


def _some(rights: tuple[Right, ...]) -> tuple[Right, ...]:
    if not rights:
        raise ValueError("at least one of Manage, Send and Listen is needed")
    return rights


_HOUR_MS, _MINUTE_MS = 3_600_000, 60_000


class _Part(BaseModel):
    """A part of the file. As in the emulator, numbers and booleans must have their JSON type: a quoted number
    is a mistake."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_pascal, validate_by_alias=True, validate_by_name=False
    )


class SasPolicy(_Part):
    """An `AuthorizationRules` entry (our addition)."""

    key_name: str = Field(min_length=1, max_length=256)
    primary_key: str = Field(min_length=1)
    secondary_key: str = ""
    rights: Annotated[tuple[Right, ...], AfterValidator(_some)]

    def as_rule(self) -> AuthorizationRule:
        return AuthorizationRule(self.key_name, self.primary_key, self.secondary_key, frozenset(self.rights))


class QueueProperties(_Part):
    """`Queues[].Properties`: the emulator's eight, then our additions."""

    dead_lettering_on_message_expiration: StrictBool = False
    default_message_time_to_live: Duration = _HOUR_MS
    duplicate_detection_history_time_window: Limited = 20_000
    forward_dead_lettered_messages_to: Target = None
    forward_to: Target = None
    lock_duration: Limited = _MINUTE_MS
    max_delivery_count: StrictInt = 3
    requires_duplicate_detection: StrictBool = False
    requires_session: StrictBool = False

    enable_partitioning: StrictBool | None = None
    """The service's name for `partitioned`."""
    partitioned: StrictBool | None = None
    partition_count: StrictInt | None = Field(None, ge=1, le=PARTITIONS_MAX)
    max_size_in_megabytes: StrictInt = 1024
    max_message_size_in_kilobytes: StrictInt | None = None
    auto_delete_on_idle: Duration = None
    enable_batched_operations: StrictBool = True
    enable_express: StrictBool = False
    status: EntityStatus = EntityStatus.ACTIVE
    user_metadata: str | None = None
    authorization_rules: tuple[SasPolicy, ...] = ()

    @model_validator(mode="after")
    def _partitioning_fits(self) -> QueueProperties:
        _partitioning(self)
        return self


def _partitioning(properties: QueueProperties | TopicProperties) -> bool | None:
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


class Queue(_Part):
    name: EntityName
    properties: QueueProperties = QueueProperties()


class CorrelationFilter(_Part):
    content_type: str | None = None
    correlation_id: str | None = None
    label: str | None = None
    message_id: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    session_id: str | None = None
    to: str | None = None
    properties: dict[str, str | int | float | bool] | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _says_something(self) -> CorrelationFilter:
        if not self.model_fields_set:
            raise ValueError("a correlation filter needs at least one property")
        return self


class SqlText(_Part):
    sql_expression: str = Field(min_length=1, max_length=1024)


class RuleProperties(_Part):
    filter_type: Literal["Correlation", "Sql"]
    correlation_filter: CorrelationFilter | None = None
    sql_filter: SqlText | None = None
    action: SqlText | None = None

    @model_validator(mode="after")
    def _has_its_filter(self) -> RuleProperties:
        if self.filter_type == "Correlation" and self.correlation_filter is None:
            raise ValueError("FilterType is Correlation, but there is no CorrelationFilter")
        if self.filter_type == "Sql" and self.sql_filter is None:
            raise ValueError("FilterType is Sql, but there is no SqlFilter")
        return self


class Rule(_Part):
    name: ChildName
    properties: RuleProperties


class SubscriptionProperties(_Part):
    dead_lettering_on_message_expiration: StrictBool = False
    default_message_time_to_live: Duration = _HOUR_MS
    forward_dead_lettered_messages_to: Target = None
    forward_to: Target = None
    lock_duration: Limited = _MINUTE_MS
    max_delivery_count: StrictInt = Field(3, ge=1)
    requires_session: StrictBool = False


class Subscription(_Part):
    name: ChildName
    properties: SubscriptionProperties = SubscriptionProperties()
    rules: tuple[Rule, ...] = ()


class TopicProperties(_Part):
    default_message_time_to_live: Duration = _HOUR_MS
    duplicate_detection_history_time_window: Limited = 20_000
    requires_duplicate_detection: StrictBool = False
    enable_partitioning: StrictBool | None = None
    """The service's name for `partitioned`."""
    partitioned: StrictBool | None = None
    partition_count: StrictInt | None = Field(None, ge=1, le=PARTITIONS_MAX)

    @model_validator(mode="after")
    def _partitioning_fits(self) -> TopicProperties:
        _partitioning(self)
        return self


class Topic(_Part):
    name: EntityName
    properties: TopicProperties = TopicProperties()
    subscriptions: tuple[Subscription, ...] = ()


class Namespace(_Part):
    name: str = Field(min_length=1, max_length=50)
    queues: tuple[Queue, ...] = ()
    topics: tuple[Topic, ...] = ()
    authorization_rules: tuple[SasPolicy, ...] = ()


class Logging(_Part):
    type: Literal["File", "Console", "File,Console", "Console,File"] = "Console"


class UserConfig(_Part):
    namespaces: Annotated[tuple[Namespace, ...], AfterValidator(_one)]
    logging: Logging = Logging()


class _File(_Part):
    user_config: UserConfig


# --- reading ------------------------------------------------------------------------------------------------


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
        content = json.loads(without_comments(text), object_pairs_hook=_no_duplicates)
    except RecursionError as error:
        raise WrongConfigFile(f"{path}: lists and objects stand too deep in one another") from error
    except json.JSONDecodeError as error:
        raise WrongConfigFile(
            f"{path}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}"
        ) from error
    except ValueError as error:
        raise WrongConfigFile(f"{path}: {error}") from error
    try:
        user_config = _File.model_validate(content).user_config
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


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    content = dict(pairs)
    if len(content) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(
            f"the field {next(name for name in names if names.count(name) > 1)} stands twice in the "
            "same object"
        )
    return content


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


def _as_config(path: Path, user_config: UserConfig, defaults: Settings) -> ConfigFile:
    namespace = user_config.namespaces[0]
    where = "UserConfig.Namespaces[0]"
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
    queues = []
    for index, queue in enumerate(namespace.queues):
        try:
            queues.append(_as_spec(queue, defaults))
        except WrongProperty as wrong:
            raise WrongConfigFile(
                f"{path}: {where}.Queues[{index}].Properties.{wrong.element}: {wrong.description}"
            ) from wrong
    return ConfigFile(
        path=path,
        namespace=namespace.name,
        queues=tuple(queues),
        topics=namespace.topics,
        authorization_rules=tuple(policy.as_rule() for policy in namespace.authorization_rules),
        warnings=tuple(_warnings(user_config, queues)),
    )


def _as_spec(queue: Queue, defaults: Settings) -> QueueSpec:
    file = queue.properties
    partitioned = _partitioning(file)
    settings = QueueSettings(
        lock_duration_ms=file.lock_duration,
        max_size_mb=file.max_size_in_megabytes,
        requires_duplicate_detection=file.requires_duplicate_detection,
        duplicate_detection_window_ms=file.duplicate_detection_history_time_window,
        requires_session=file.requires_session,
        default_time_to_live_ms=file.default_message_time_to_live,
        dead_lettering_on_expiration=file.dead_lettering_on_message_expiration,
        max_delivery_count=file.max_delivery_count,
        enable_batched_operations=file.enable_batched_operations,
        status=file.status,
        forward_to=file.forward_to,
        forward_dead_lettered_to=file.forward_dead_lettered_messages_to,
        user_metadata=file.user_metadata,
        auto_delete_on_idle_ms=file.auto_delete_on_idle,
        enable_partitioning=defaults.partitioned_by_default if partitioned is None else partitioned,
        enable_express=file.enable_express,
        max_message_size_kb=size_kb
        if (size_kb := file.max_message_size_in_kilobytes) is not None
        else defaults.message_kb_max,
        authorization_rules=tuple(policy.as_rule() for policy in file.authorization_rules),
    )
    return QueueSpec(
        queue.name,
        check_queue(queue.name, settings, defaults.auto_delete_on_idle_ms_min),
        file.partition_count,
    )


def _warnings(user_config: UserConfig, specs: Iterable[QueueSpec]) -> Iterable[str]:
    if "File" in user_config.logging.type:
        yield (
            f"Logging.Type is {user_config.logging.type}: the broker writes no log files, its log goes to "
            "stderr"
        )
    namespace = user_config.namespaces[0]
    if namespace.topics:
        names = ", ".join(topic.name for topic in namespace.topics)
        yield f"topics come in a later version; not created: {names}"
    for queue in namespace.queues:
        if queue.properties.forward_to is not None and queue.properties.auto_delete_on_idle is not None:
            yield (
                f"queue {queue.name}: AutoDeleteOnIdle is dropped, because forwarding counts as use and the "
                "queue has ForwardTo"
            )
    for spec in specs:
        if inactive := without_effect(spec.settings):
            yield f"queue {spec.name}: kept, without effect in this version: {', '.join(inactive)}"
