"""broker/operations/transfers.py: sources of messages differ where numbers could meet."""

from __future__ import annotations

from broker.operations.transfers import parts_of_source, source_of


def test_each_subqueue_of_each_partition_of_each_generation_is_a_source_of_its_own() -> None:
    sources = [
        source_of(*each) for each in (("a", 1, 0), ("a", 10, 0), ("a", 1, 1), ("b", 1, 0), ("a1", 0, 0))
    ]
    assert len(set(sources)) == len(sources)


def test_the_parts_of_a_source_are_those_it_was_made_of() -> None:
    assert parts_of_source(source_of("ns_0/1", 12, 3)) == ("ns_0/1", 12, 3)
