"""broker/entities/topics.py: subscriptions come and go, and the numbers of subqueues say whose they are."""

from __future__ import annotations

import dataclasses

from broker.entities.descriptions import DEAD_LETTER, MAIN, QUEUE_SUBQUEUES
from broker.entities.roles import DISTRIBUTES, SERVES_RECEIVERS
from broker.entities.rules import RuleDescription
from broker.entities.topics import (
    PLACES,
    SubscriptionDescription,
    SubscriptionSettings,
    TopicDescription,
    TopicSettings,
)

EMPTY = TopicDescription("events", "a" * 32, 4, TopicSettings(), 1, 1)
DEFAULT = (RuleDescription("$Default"),)


def test_a_subscription_has_the_subqueues_of_a_queue_at_numbers_of_its_own() -> None:
    topic = EMPTY.with_new("One", SubscriptionSettings(), DEFAULT, 5)
    places = QUEUE_SUBQUEUES
    assert topic.subqueues[0].role is DISTRIBUTES
    for number, subqueue in topic.subqueues.items():
        of_queue = places[number % PLACES]
        if number >= PLACES:
            assert subqueue.role is of_queue.role
            assert subqueue.name == "/".join(filter(None, ("subscriptions/one", of_queue.name)))
            assert subqueue.dead_letters_to == (
                of_queue.dead_letters_to and PLACES + of_queue.dead_letters_to
            )
        elif number > 0:
            assert (subqueue.name, subqueue.role) == (of_queue.name, of_queue.role)
    assert [number for number, each in topic.subqueues.items() if each.role is SERVES_RECEIVERS] == [PLACES]


def test_a_subqueue_of_a_subscription_has_the_path_of_the_subscription_as_it_is_spelled() -> None:
    topic = EMPTY.with_new("One", SubscriptionSettings(), DEFAULT, 5)
    paths = [topic.path_of(name) for name in (MAIN, "subscriptions/one", f"subscriptions/one/{DEAD_LETTER}")]
    assert paths == ["events", "events/Subscriptions/One", "events/Subscriptions/One"]


def test_a_number_is_never_given_again() -> None:
    topic = EMPTY
    for name in ("one", "two"):
        topic = topic.with_new(name, SubscriptionSettings(), DEFAULT, 5)
    two = topic.subscription("TWO")
    assert two is not None
    topic = topic.without(two.number)
    assert topic.subscription("two") is None
    again = topic.with_new("two", SubscriptionSettings(), DEFAULT, 6).subscription("two")
    assert again is not None and again.number == two.number + 1


def test_a_changed_subscription_keeps_its_place_and_gives_no_number_back() -> None:
    topic = EMPTY.with_new("one", SubscriptionSettings(), DEFAULT, 5).with_new(
        "two", SubscriptionSettings(), DEFAULT, 5
    )
    one = topic.subscriptions[0]
    three = SubscriptionDescription.new("three", 3, SubscriptionSettings(), DEFAULT, 6)
    changed = dataclasses.replace(one, settings=SubscriptionSettings(lock_duration_ms=300_000))
    both = topic.with_all([three, changed])
    assert [each.name for each in both.subscriptions] == ["one", "two", "three"]
    assert (both.subscriptions[0], both.last_subscription) == (changed, 3)
    assert topic.with_all([changed]).last_subscription == 2


def test_each_subscription_delivers_in_its_own_way() -> None:
    slow = SubscriptionSettings(lock_duration_ms=300_000)
    topic = EMPTY.with_new("fast", SubscriptionSettings(), DEFAULT, 5).with_new("slow", slow, DEFAULT, 5)
    for name in ("subscriptions/slow", f"subscriptions/slow/{DEAD_LETTER}"):
        assert topic.delivery(name) == slow
    assert topic.delivery("subscriptions/fast") == topic.delivery(MAIN) == SubscriptionSettings()
    changed = topic.subscription("slow")
    assert changed is not None
    topic = topic.with_changed(dataclasses.replace(changed, settings=SubscriptionSettings()))
    assert topic.delivery("subscriptions/slow") == SubscriptionSettings()
    assert [each.name for each in topic.subscriptions] == ["fast", "slow"]


def test_a_change_makes_nothing_anew_for_the_other_subscriptions() -> None:
    """Symptom: each change of a topic with 1,000 subscriptions described all their subqueues anew and hashed
    all their settings, for 15 to 20 ms in one turn of the event loop on a busy machine."""
    before = EMPTY.with_new("one", SubscriptionSettings(), DEFAULT, 0)
    after = before.with_new("two", SubscriptionSettings(), DEFAULT, 0)
    assert all(after.subqueues[number] is before.subqueues[number] for number in before.subqueues)
    one = after.subscriptions[0]
    assert hash(one) == hash(dataclasses.replace(one)) and one == dataclasses.replace(one)
    assert one._hash is not None and dataclasses.replace(one, name="other")._hash is None
    assert {one: 1}.get(dataclasses.replace(one, idle_ms=5)) is None


def test_only_subscriptions_with_a_target_may_forward() -> None:
    topic = EMPTY.with_new("one", SubscriptionSettings(), DEFAULT, 0)
    topic = topic.with_new("two", SubscriptionSettings(forward_dead_lettered_to="dead"), DEFAULT, 0)
    two = topic.subscriptions[1]
    assert {two.subqueue(0), two.subqueue(1)} <= {*topic.may_forward()} <= {*dict(two.subqueues())}
    found = {number: topic.forwarding_of(number) for number in topic.subqueues}
    assert {number for number, target in found.items() if target is not None} <= {*topic.may_forward()}
