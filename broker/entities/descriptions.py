"""Entities as data: the kinds of entities, their descriptions and settings.

Durations are in milliseconds; None means without limit. This module does not know where settings come from
(`http/description_xml.py`, `settings/config_file.py`) or where they are kept (`documents.py`).
"""

from __future__ import annotations

import enum
import functools
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Protocol, Self

from broker.entities.roles import (
    KEEPS_DEAD_LETTERS,
    KEEPS_FAILED_TRANSFERS,
    PASSES_ON,
    SERVES_RECEIVERS,
    Role,
    SubqueueDescription,
    SubqueueTable,
)

PARTITIONS_DEFAULT = 16
NAMESPACE = "sbemulatorns"
"""The first namespace's name on disk, which never changes. Others have there the name that clients see.

The setting `namespace` only decides the name under which clients see the first one, and may change at any
start.
"""
MAIN, DEAD_LETTER, TRANSFER_DEAD_LETTER = "", "$deadletterqueue", "$transfer/$deadletterqueue"
"""Names of an entity's subqueues, as they follow the entity in an address (case folded)."""
TRANSFER = "$transfer"
"""The subqueue of messages that are on their way to another entity. It has no address."""

MESSAGE_OVERHEAD_BYTES = 256
"""The memory that a waiting message takes, whatever its size: its reference, and its entries in indexes.

It is added to an entity's size for each message, so that quotas bound memory. Measured: 264 bytes with 3.6
million messages in 16 partitions.
"""


class EntityStatus(enum.Enum):
    """The operations that an entity permits (HTTP contract 3.3)."""

    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"

    @property
    def can_send(self) -> bool:
        """Whether clients may send."""
        return self in (EntityStatus.ACTIVE, EntityStatus.RECEIVE_DISABLED)

    @property
    def can_receive(self) -> bool:
        """Whether clients may receive."""
        return self in (EntityStatus.ACTIVE, EntityStatus.SEND_DISABLED)


@dataclass(slots=True, frozen=True)
class AuthorizationRule:
    """A SAS key pair and the rights it gives: any of "Send", "Listen", "Manage"."""

    key_name: str
    primary_key: str
    secondary_key: str
    rights: frozenset[str]
    created_at_ms: int = 0
    modified_at_ms: int = 0


class DeliveryRules(Protocol):
    """How the messages of one subqueue are delivered."""

    @property
    def lock_duration_ms(self) -> int:
        """How long a message stays locked unless its lock is renewed."""

    @property
    def max_delivery_count(self) -> int:
        """After how many failed deliveries a message is dead-lettered."""

    @property
    def requires_session(self) -> bool:
        """Messages are received with their session, if the subqueue's role allows that."""

    @property
    def dead_lettering_on_expiration(self) -> bool:
        """Whether messages that expire are dead-lettered instead of removed."""


@dataclass(slots=True, frozen=True)
class EntitySettings:
    """The settings that every kind of entity has (HTTP contract 3.2). Defaults are the service's."""

    FIXED: ClassVar[tuple[str, ...]] = ("requires_duplicate_detection", "enable_partitioning")
    """Settings that cannot be changed after creation."""

    max_size_mb: int = 1024
    """MiB that each partition may hold. The entity may hold this much times the number of its partitions."""
    requires_duplicate_detection: bool = False
    duplicate_detection_window_ms: int = 600_000
    default_time_to_live_ms: int | None = None
    enable_batched_operations: bool = True
    status: EntityStatus = EntityStatus.ACTIVE
    user_metadata: str | None = None
    auto_delete_on_idle_ms: int | None = None
    enable_partitioning: bool = True
    enable_express: bool = False
    support_ordering: bool = True
    anonymous_accessible: bool = False
    max_message_size_kb: int = 1024
    authorization_rules: tuple[AuthorizationRule, ...] = ()

    @property
    def forwarding(self) -> tuple[str | None, str | None]:
        """The entities to which messages and dead letters are forwarded; None if they are not."""
        return None, None


@dataclass(slots=True, frozen=True)
class QueueSettings(EntitySettings):
    """A queue's settings (HTTP contract 3.2)."""

    FIXED: ClassVar[tuple[str, ...]] = ("requires_session", *EntitySettings.FIXED)

    lock_duration_ms: int = 60_000
    requires_session: bool = False
    dead_lettering_on_expiration: bool = False
    max_delivery_count: int = 10
    forward_to: str | None = None
    forward_dead_lettered_to: str | None = None

    @property
    def forwarding(self) -> tuple[str | None, str | None]:
        """The names of the entities to which messages, and dead letters, are forwarded; None for none."""
        return self.forward_to, self.forward_dead_lettered_to


@dataclass(slots=True, frozen=True)
class EntityDescription(ABC):
    """An entity's description, as the catalogue keeps it: what every kind has. Each kind is a subclass."""

    KIND: ClassVar[str]
    """What people call an entity of this kind."""

    name: str
    """As spelled at creation; compared without regard to case."""
    generation: str
    """New for each creation (`new_generation`). Everything stored for the entity carries it, and clients can
    tell by it that an entity of the same name is a new one."""
    partitions: int
    """The number of partitions, fixed at creation (1 unless partitioned)."""
    settings: EntitySettings
    created_at_ms: int = 0
    updated_at_ms: int = 0
    file_settings: EntitySettings | None = None
    """The settings from the configuration file as last applied. Only what has changed in the file since is
    applied again."""
    folders: int = 1
    """The number of data folders that its partitions are spread over: as many as there were when it was
    created."""
    idle_ms: int = 0
    """How long it had been idle when that was last noted (`broker/namespace/idle_deletion.py`)."""

    @property
    @abstractmethod
    def subqueues(self) -> SubqueueTable:
        """The entity's subqueues, by number. Number 0 gets the messages that clients send."""

    def may_forward(self) -> Iterable[int]:
        """The numbers of all subqueues whose messages may be forwarded."""
        return self.subqueues

    def forwarding_of(self, number: int) -> str | None:
        """The name of the entity to which the messages of a subqueue are forwarded; None if they are not."""
        return target_of(self.subqueues[number].role, self.settings.forwarding)

    def status_of(self, number: int) -> EntityStatus:
        """The status that says whether the messages of a subqueue may be received."""
        return self.settings.status

    @abstractmethod
    def delivery(self, subqueue: str) -> DeliveryRules:
        """How the messages of a subqueue are delivered, as far as its role leaves that open."""

    def path_of(self, subqueue: str) -> str:
        """The path of the entity, or of the part of it that a subqueue belongs to."""
        return self.name

    def updated(
        self, settings: EntitySettings, now_ms: int, file_settings: EntitySettings | None = None
    ) -> Self:
        """The same entity with new settings; `file_settings` is given if they come from the configuration
        file. An update counts as use."""
        return replace(
            self,
            settings=settings,
            updated_at_ms=now_ms,
            file_settings=file_settings or self.file_settings,
            idle_ms=0,
        )


def target_of(role: Role, forwarding: tuple[str | None, str | None]) -> str | None:
    """Where messages in this role are forwarded; `forwarding` has the targets of messages and of dead
    letters."""
    if role is SERVES_RECEIVERS:
        return forwarding[0]
    return forwarding[1] if role is KEEPS_DEAD_LETTERS else None


QUEUE_SUBQUEUES: Final = SubqueueTable(
    {
        0: SubqueueDescription(MAIN, SERVES_RECEIVERS, dead_letters_to=1, transfers_fail_to=2),
        1: SubqueueDescription(DEAD_LETTER, KEEPS_DEAD_LETTERS, transfers_fail_to=2),
        2: SubqueueDescription(TRANSFER_DEAD_LETTER, KEEPS_FAILED_TRANSFERS),
        3: SubqueueDescription(TRANSFER, PASSES_ON, transfers_fail_to=2),
    },
    end=4,
)


@dataclass(slots=True, frozen=True)
class QueueDescription(EntityDescription):
    """A queue's description."""

    KIND = "Queue"

    settings: QueueSettings = field(default_factory=QueueSettings)
    file_settings: QueueSettings | None = None

    @property
    def subqueues(self) -> SubqueueTable:
        return QUEUE_SUBQUEUES

    def delivery(self, subqueue: str) -> QueueSettings:
        """The same for all subqueues."""
        return self.settings


SHARED_MAX = 1_024


@functools.lru_cache(SHARED_MAX)
def shared(settings: EntitySettings) -> EntitySettings:
    """One object for all equal settings: most entities of a namespace have the same ones. The SHARED_MAX
    latest are known."""
    return settings


def subqueues_of(description: EntityDescription | None) -> SubqueueTable:
    """The subqueues of an entity. If its description is lost, those of a queue: most entities are queues."""
    return QUEUE_SUBQUEUES if description is None else description.subqueues


def new_generation(namespace: str = NAMESPACE) -> str:
    """Make an identifier that no entity has had before: the namespace, an underscore, 32 random hexadecimal
    digits.

    Log folders, headers of segments and extents, documents and the index of partitions carry it. A namespace
    contains no underscore, so the identifier gives the namespace (`namespace_of`).
    """
    return f"{namespace}_{uuid.uuid4().hex}"


def namespace_of(generation: str) -> str:
    """The namespace of an entity. Identifiers from earlier builds do not contain it, because there was only
    one."""
    return generation.rpartition("_")[0] or NAMESPACE


def key_of(name: str) -> str:
    """The key by which an entity is found: names are compared without regard to case (HTTP contract 3.1)."""
    return name.strip("/").casefold()
