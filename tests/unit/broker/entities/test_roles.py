"""broker/entities/roles.py: what the roles of a queue's subqueues decide."""

from __future__ import annotations

from broker.entities.descriptions import DEAD_LETTER, MAIN, QUEUE_PLACES, TRANSFER, TRANSFER_DEAD_LETTER
from broker.entities.roles import CountedAs


def test_only_the_main_subqueue_of_a_queue_expires_messages_counts_deliveries_and_has_sessions() -> None:
    roles = {place.name: place.role for place in QUEUE_PLACES}
    assert {name for name, role in roles.items() if role.enforces_time_to_live} == {MAIN}
    assert {name for name, role in roles.items() if role.counts_deliveries} == {MAIN}
    assert {name for name, role in roles.items() if role.has_sessions} == {MAIN}


def test_the_dead_letters_of_a_queue_go_to_its_dead_letter_queue_and_stay_there() -> None:
    main, *others = QUEUE_PLACES
    assert main.dead_letters_to is not None and QUEUE_PLACES[main.dead_letters_to].name == DEAD_LETTER
    assert [place.dead_letters_to for place in others] == [None] * len(others)


def test_each_subqueue_of_a_queue_has_a_figure_of_its_own() -> None:
    assert {place.name: place.role.counted_as for place in QUEUE_PLACES} == {
        MAIN: CountedAs.ACTIVE,
        DEAD_LETTER: CountedAs.DEAD_LETTER,
        TRANSFER: CountedAs.TRANSFER,
        TRANSFER_DEAD_LETTER: CountedAs.TRANSFER_DEAD_LETTER,
    }
