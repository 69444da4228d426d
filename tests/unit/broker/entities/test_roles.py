"""broker/entities/roles.py: what the roles of a queue's subqueues decide."""

from __future__ import annotations

from broker.entities.descriptions import DEAD_LETTER, MAIN, QUEUE_SUBQUEUES, TRANSFER, TRANSFER_DEAD_LETTER
from broker.entities.roles import CountedAs
from broker.entities.topics import SubscriptionSettings, TopicDescription

TOPIC = TopicDescription("events", "a" * 32, 4).with_new("one", SubscriptionSettings(), (), 5)


def test_only_the_main_subqueue_of_a_queue_expires_messages_counts_deliveries_and_has_sessions() -> None:
    roles = {each.name: each.role for each in QUEUE_SUBQUEUES.values()}
    assert {name for name, role in roles.items() if role.enforces_time_to_live} == {MAIN}
    assert {name for name, role in roles.items() if role.counts_deliveries} == {MAIN}
    assert {name for name, role in roles.items() if role.has_sessions} == {MAIN}


def test_the_dead_letters_of_a_queue_go_to_its_dead_letter_queue_and_stay_there() -> None:
    main, *others = QUEUE_SUBQUEUES.values()
    assert main.dead_letters_to is not None and QUEUE_SUBQUEUES[main.dead_letters_to].name == DEAD_LETTER
    assert [each.dead_letters_to for each in others] == [None] * len(others)


def test_each_subqueue_of_a_queue_has_a_figure_of_its_own() -> None:
    assert {each.name: each.role.counted_as for each in QUEUE_SUBQUEUES.values()} == {
        MAIN: CountedAs.ACTIVE,
        DEAD_LETTER: CountedAs.DEAD_LETTER,
        TRANSFER: CountedAs.TRANSFER,
        TRANSFER_DEAD_LETTER: CountedAs.TRANSFER_DEAD_LETTER,
    }


def test_clients_send_to_the_main_subqueue_and_re_drive_what_cannot_be_received_or_forwarded() -> None:
    for subqueues in (QUEUE_SUBQUEUES, TOPIC.subqueues):
        names = [each.name for each in subqueues.values()]
        assert [name for name in names if subqueues.takes_sends(name)] == [MAIN]
        redriven = {name for name in names if (role := subqueues.role_of(name)) and role.keeps_dead_letters}
        assert redriven == {name for name in names if name.endswith("$deadletterqueue")}
        assert subqueues.role_of("other") is None and not subqueues.takes_sends("other")
