"""The JSON that requests and answers of our own operations have (HTTP contract 4.7).

Requests are read strictly, because they delete messages: a name in another spelling is none, and `true` is no
number.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, StrictInt
from pydantic.alias_generators import to_camel

from broker.frontend.nodes.own_operations import MESSAGES_MAX
from broker.messaging.settlement import DELAY_MS_MAX

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_DIGITS = re.compile(r"[0-9]{1,19}")


def _check_whole(value: object) -> object:
    """Without this, `true` would be the number 1."""
    if type(value) is int or (isinstance(value, str) and _DIGITS.fullmatch(value)):
        return value
    raise ValueError("it must be a whole number, or its digits as text")


SequenceNumber = Annotated[int, Field(ge=0, lt=2**63, json_schema_extra={"format": "int64"})]
GivenNumber = Annotated[
    SequenceNumber,
    BeforeValidator(
        _check_whole,
        json_schema_input_type=SequenceNumber | Annotated[str, Field(pattern=f"^{_DIGITS.pattern}$")],
    ),
]
"""A sequence number in a request: also as text, for clients whose numbers have 53 bits."""
GivenNumbers = Annotated[list[GivenNumber], Field(min_length=1, max_length=MESSAGES_MAX)]


def _check_time(value: object) -> object:
    """Without this, numbers would be seconds since 1970."""
    if not isinstance(value, str) or not _DATE.match(value):
        raise ValueError("it must be a time in ISO 8601 with a zone, such as '2026-11-23T08:30:00Z'")
    return value


Time = Annotated[AwareDatetime, BeforeValidator(_check_time)]


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class Named(_Request):
    """Messages by their sequence numbers."""

    sequence_numbers: GivenNumbers


class DeleteAnswer(_Answer):
    """What became of the messages that were to be deleted."""

    deleted: list[SequenceNumber]
    locked: list[SequenceNumber]
    missing: list[SequenceNumber]


class _Selection(_Request):
    enqueued_before: Time | None = None
    message_count: StrictInt = Field(MESSAGES_MAX, ge=1, le=MESSAGES_MAX)
    from_sequence_number: GivenNumber = 0


class Purge(_Selection):
    """Which messages to delete; without any condition, all that are not locked."""

    states: list[Literal["active", "deferred", "scheduled"]] | None = Field(None, min_length=1)
    session_id: str | None = None


class Redrive(_Selection):
    """Which dead letters to send again: those with these sequence numbers, or those that match."""

    sequence_numbers: GivenNumbers | None = None
    dead_letter_reason: str | None = None


class ProgressAnswer(_Answer):
    """How far the operation has come. If there is a next sequence number, ask again from there."""

    message_count: int
    next_sequence_number: SequenceNumber | None = None
    unavailable_partitions: list[int] | None = None


class RedriveAnswer(ProgressAnswer):
    """How far a re-drive has come. If the dead letters were named, also which of them were sent again, and
    their new numbers."""

    redriven: list[SequenceNumber] | None = None
    sequence_numbers: list[SequenceNumber] | None = None
    missing: list[SequenceNumber] | None = None


class Abandon(_Request):
    """Locked messages to give back, and when to offer them again."""

    lock_tokens: list[UUID] = Field(min_length=1, max_length=MESSAGES_MAX)
    delay_milliseconds: StrictInt = Field(0, ge=0, le=DELAY_MS_MAX)
    properties: dict[str, Any] = Field(default_factory=dict)


class AbandonAnswer(_Answer):
    """Which messages were abandoned, and which locks had been lost."""

    abandoned: list[UUID]
    lost: list[UUID]


class Reschedule(Named):
    """Scheduled messages, and their new time."""

    scheduled_enqueue_time: Time


class RescheduleAnswer(_Answer):
    """Which scheduled messages have the new time."""

    rescheduled: list[SequenceNumber]
    missing: list[SequenceNumber]


class DeliverAnswer(_Answer):
    """Which scheduled messages were enqueued."""

    delivered: list[SequenceNumber]
    missing: list[SequenceNumber]


class Nothing(_Request):
    """An empty request."""


class CountAnswer(_Answer):
    """The messages by state, over all partitions. Locked messages also count as active."""

    active: int
    locked: int
    deferred: int
    scheduled: int
    size_in_bytes: int
