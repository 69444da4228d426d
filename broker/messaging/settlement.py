"""A client's decision about messages it has locked, and the operation that carries it out in a partition.

AMQP dispositions, `$management` and every other protocol come down to these five settlements (AMQP contract
6.1). Settlements that change only the state are shared constants, so the hot path creates none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from broker.base.errors import Reason, Refused
from broker.identifiers import LockToken
from broker.message.changes import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON, encode_changes
from broker.messaging.asking import ask_about, lock_lost
from broker.namespace.entity import Entity
from broker.namespace.meter import EntityMeter
from broker.operations.settling import Abandon, Complete, DeadLetter, Defer, Release, Settled

OWN_PREFIX = "partibus:"
"""Properties of a settlement that begin so are instructions to the broker, and none of the message's."""
DELAY = f"{OWN_PREFIX}delay"
"""The property of an abandon that delays the next delivery, in milliseconds (AMQP contract 7.5)."""
DELAY_MS_MAX = 7 * 24 * 3_600_000


class Kind(Enum):
    """The kinds of settlement."""

    COMPLETE, ABANDON, DEFER, DEAD_LETTER, RELEASE = range(5)


@dataclass(slots=True)
class Settlement:
    """One decision, for any number of messages."""

    kind: Kind
    changed: bytes | None = None
    """Application properties to set with it, an encoded AMQP map, or None."""
    delay_ms: int = 0
    """With an abandon: offer the messages again after this time."""

    @property
    def is_answered(self) -> bool:
        """Whether the partition answers once the settlement is durable. A release is never answered."""
        return self.kind is not Kind.RELEASE

    def operation(
        self, tokens: Sequence[LockToken], cookie: object = None, subqueue: str | None = None
    ) -> Complete | Abandon | Defer | DeadLetter | Release:
        """The operation to post to the partition of these tokens. `subqueue` is the one that the client has
        addressed if it has named the tokens itself; it has no right to the messages of others."""
        match self.kind:
            case Kind.COMPLETE:
                return Complete(tokens, cookie, subqueue)
            case Kind.ABANDON:
                return Abandon(tokens, self.changed, cookie, self.delay_ms, subqueue)
            case Kind.DEFER:
                return Defer(tokens, self.changed, cookie, subqueue)
            case Kind.DEAD_LETTER:
                return DeadLetter(tokens, self.changed, cookie, subqueue)
            case Kind.RELEASE:
                return Release(tokens)

    def count(self, meter: EntityMeter, messages: int) -> None:
        """Count settled messages. Partitions count dead-lettered messages themselves, because they also
        dead-letter messages on their own."""
        match self.kind:
            case Kind.COMPLETE:
                meter.completed_messages += messages
            case Kind.ABANDON:
                meter.abandoned_messages += messages
            case Kind.DEFER:
                meter.deferred_messages += messages
            case _:
                pass


COMPLETE = Settlement(Kind.COMPLETE)
RELEASE = Settlement(Kind.RELEASE)
_ABANDON, _DEFER, _DEAD_LETTER = map(Settlement, (Kind.ABANDON, Kind.DEFER, Kind.DEAD_LETTER))


def abandon(properties: Mapping[Any, Any]) -> Settlement:
    """Give messages back with a delivery counted. Raises Refused for properties that cannot be set.

    The property DELAY says how long to wait before the messages are offered again.
    """
    if not properties:
        return _ABANDON
    _check_own(properties, "an abandon", DELAY)
    if DELAY not in properties:
        return Settlement(Kind.ABANDON, encode_changes(properties))
    delay_ms = properties[DELAY]
    if isinstance(delay_ms, float) and delay_ms.is_integer():
        delay_ms = int(delay_ms)  # some clients encode every number so
    if not isinstance(delay_ms, int) or isinstance(delay_ms, bool) or not 0 <= delay_ms <= DELAY_MS_MAX:
        raise Refused(
            Reason.ARGUMENT,
            f"'{DELAY}' is {delay_ms!r:.80}; it must be from 0 to {DELAY_MS_MAX} milliseconds.",
        )
    rest = {name: value for name, value in properties.items() if name != DELAY}
    return Settlement(Kind.ABANDON, encode_changes(rest), int(delay_ms))


def defer(properties: Mapping[Any, Any]) -> Settlement:
    """Defer messages, to be received by sequence number. Raises Refused for properties that cannot be set."""
    _check_own(properties, "a defer")
    return Settlement(Kind.DEFER, encode_changes(properties)) if properties else _DEFER


def dead_letter(properties: Mapping[Any, Any], reason: Any = None, description: Any = None) -> Settlement:
    """Move messages to the dead-letter queue. Raises Refused for properties that cannot be set.

    `reason` and `description` replace properties of these names. A null leaves the property as it is (AMQP
    contract 6.1).
    """
    _check_own(properties, "a dead-lettering")
    given = {DEAD_LETTER_REASON: reason, DEAD_LETTER_DESCRIPTION: description}
    changed = {**properties, **{name: value for name, value in given.items() if value}}
    return Settlement(Kind.DEAD_LETTER, encode_changes(changed, drop_nulls=True)) if changed else _DEAD_LETTER


def _check_own(properties: Mapping[Any, Any], settlement: str, *known: str) -> None:
    """Refuse instructions to the broker that this settlement does not have, instead of setting them on the
    message."""
    for name in properties:
        if isinstance(name, str) and name.startswith(OWN_PREFIX) and name not in known:
            allowed = f"it has {', '.join(known)} alone" if known else "an abandon alone has such properties"
            raise Refused(
                Reason.ARGUMENT, f"'{name:.80}' is not a property of {settlement} to the broker; {allowed}."
            )


def not_settled(reason: Reason) -> Refused:
    """The refusal of a settlement that failed for a message, for the reason that its partition gave."""
    if reason is Reason.LOCK_LOST:
        return lock_lost()
    assert reason is Reason.NOT_ALLOWED, "partitions refuse a settlement for these reasons alone"
    return Refused(
        reason,
        "A message in a dead-letter queue cannot be dead-lettered again. It stays as it is, and locked.",
    )


async def settle(
    entity: Entity, subqueue: str, tokens: Sequence[LockToken], settlement: Settlement
) -> tuple[list[LockToken], list[Refused]]:
    """Settle messages of a subqueue by their lock tokens, in any partitions. Returns the tokens that were
    settled, durably, and the refusals of the others."""
    settled: list[LockToken] = []
    refusals: list[Refused] = []
    for places, answer in await ask_about(
        entity, tokens, lambda own: settlement.operation(own, subqueue=subqueue)
    ):
        if isinstance(answer, Refused):
            refusals.append(answer)
            continue
        assert isinstance(answer, Settled), f"{answer} is not an answer to a settlement"
        refusals += map(not_settled, answer.failures.values())
        settled += [tokens[place] for index, place in enumerate(places) if index not in answer.failures]
    settlement.count(entity.meter, len(settled))
    return settled, refusals
