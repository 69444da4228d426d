"""Who writes a batch, and how its rows get their ids."""

from __future__ import annotations

from uuid import UUID

import pytest

from pyspark_partibus.errors import OptionError
from pyspark_partibus.identity import BATCH_PROPERTY, QUERY_PROPERTY, choose_strategy, of_batch, of_stream
from pyspark_partibus.options import SinkOptions, sink_options

TASK = {BATCH_PROPERTY: "7", QUERY_PROPERTY: "query"}


def options(**given: str) -> SinkOptions:
    return sink_options({"endpoint": "amqp://host", "entity": "orders", **given})


@pytest.mark.parametrize(
    ("given", "columns", "strategy"),
    [
        ({}, ["body"], "content"),
        ({}, ["body", "message_id"], "column"),
        ({"idStrategy": "content-global"}, ["body"], "content-global"),
        ({"idStrategy": "none"}, ["body"], "none"),
        (
            {"idStrategy": "source", "unknownColumns": "ignore"},
            ["body", "message_id", "partition", "sequence_number"],
            "source",
        ),
    ],
)
def test_how_rows_get_their_ids(given: dict[str, str], columns: list[str], strategy: str) -> None:
    assert choose_strategy(options(**given), columns) == strategy


@pytest.mark.parametrize(
    ("given", "columns", "problem"),
    [
        ({"idStrategy": "column"}, ["body"], "no column 'message_id'"),
        ({"idStrategy": "content"}, ["body", "message_id"], "whose ids would be lost"),
        ({"idStrategy": "source"}, ["body", "partition"], "needs the columns"),
        ({"idStrategy": "none", "requireExactlyOnce": "true"}, ["body"], "requireExactlyOnce"),
    ],
)
def test_a_strategy_that_cannot_work_is_refused(
    given: dict[str, str], columns: list[str], problem: str
) -> None:
    with pytest.raises(OptionError, match=problem):
        choose_strategy(options(**given), columns)


def test_a_stream_writes_in_the_name_of_its_query_or_of_an_option() -> None:
    identity = of_stream(options(), "content", 3, TASK)
    assert (identity.sink, identity.batch, identity.scope) == ("query", 7, ("query", 7, 3))
    named = of_stream(options(sinkId="mine"), "content-global", 3, TASK)
    assert (named.sink, named.scope) == ("mine/query", ("mine/query", 7))
    assert of_stream(options(sinkId="mine"), "content", 3, {BATCH_PROPERTY: "7"}).sink == "mine"
    assert (identity.writer, named.writer) == ("query", "mine")


def test_batches_of_another_checkpoint_are_other_batches() -> None:
    names = {of_stream(options(sinkId="mine"), "content", 3, TASK | {QUERY_PROPERTY: q}).sink for q in "ab"}
    assert names == {"mine/a", "mine/b"}
    longest = of_stream(options(sinkId="x" * 90), "content", 3, TASK | {QUERY_PROPERTY: str(UUID(int=0))})
    assert len(str(longest.sink).encode()) <= 128


@pytest.mark.parametrize(
    ("properties", "advice"),
    [({BATCH_PROPERTY: "7"}, "a name of its own"), ({QUERY_PROPERTY: "q"}, "foreachBatch")],
)
def test_a_spark_that_does_not_name_the_query_or_batch_is_an_error(
    properties: dict[str, str | None], advice: str
) -> None:
    with pytest.raises(OptionError, match=f"option 'sinkId'.*{advice}"):
        of_stream(options(), "content", 3, properties)


def test_a_batch_query_is_in_the_ledger_only_if_it_has_a_name() -> None:
    unnamed = of_batch(options(), "content", 3, "job")
    assert (unnamed.sink, unnamed.scope, unnamed.writer) == (None, ("job", 0, 3), "job")
    named = of_batch(options(writeId="day-1"), "content", 3, "job")
    assert (named.sink, named.scope) == ("write:day-1", ("write:day-1", 0, 3))
    assert named.writer == "write:day-1"


def test_writes_of_one_name_are_told_apart_by_their_version() -> None:
    third = of_batch(options(writeId="daily", writeVersion="3"), "content", 1, "job")
    assert (third.sink, third.batch, third.scope) == ("write:daily", 3, ("write:daily", 3, 1))
