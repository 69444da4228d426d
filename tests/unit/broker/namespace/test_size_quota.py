"""The quota of a whole entity: when it refuses, and how often it counts."""

from __future__ import annotations

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import MESSAGE_OVERHEAD_BYTES
from broker.namespace.size_quota import SizeQuota

SIZE = 100 + MESSAGE_OVERHEAD_BYTES
"""What a message of 100 bytes takes."""
MESSAGE = bytes(100)


class Counted:
    """What an entity holds."""

    def __init__(self) -> None:
        self.size = self.times = 0

    def __call__(self) -> int:
        self.times += 1
        return self.size


def test_without_a_limit_nothing_is_counted() -> None:
    held = Counted()
    SizeQuota("Queue", 0, held).admit("orders", [MESSAGE] * 1_000)
    assert held.times == 0


def test_messages_are_refused_once_they_would_exceed_the_limit() -> None:
    held = Counted()
    quota = SizeQuota("Topic", 10 * SIZE, held)
    for _ in range(5):
        quota.admit("orders", [MESSAGE] * 2)
        held.size += 2 * SIZE
    with pytest.raises(Refused) as why:
        quota.admit("orders", [MESSAGE])
    assert why.value.reason is Reason.QUOTA_EXCEEDED
    assert f"for Topic: 'orders'. Size of entity in bytes: {10 * SIZE}," in why.value.description
    assert f"Max entity size in bytes: {10 * SIZE}" in why.value.description
    held.size -= SIZE
    quota.admit("orders", [MESSAGE])


def test_what_the_entity_holds_from_before_counts() -> None:
    held = Counted()
    held.size = 10 * SIZE
    with pytest.raises(Refused):
        SizeQuota("Queue", 10 * SIZE, held).admit("orders", [MESSAGE])


def test_what_stores_more_than_is_sent_is_counted_each_time() -> None:
    held = Counted()
    quota = SizeQuota("Topic", 100 * SIZE, held, multiplies=True)
    for _ in range(10):
        quota.admit("orders", [MESSAGE])
        held.size += 10 * SIZE
    with pytest.raises(Refused):  # Symptom: ten times as much was taken.
        quota.admit("orders", [MESSAGE])


def test_the_entity_is_counted_only_near_the_limit() -> None:
    held = Counted()
    quota = SizeQuota("Queue", 100 * SIZE, held)
    for _ in range(1_000):  # received at once
        quota.admit("orders", [MESSAGE])
    assert held.times == 10
