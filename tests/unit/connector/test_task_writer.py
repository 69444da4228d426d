"""What a task of the sink sends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import proton
import pyarrow as pa
import pytest

from pyspark_partibus.client.operations import Facts, Node, Sent
from pyspark_partibus.errors import BadRow, OptionError
from pyspark_partibus.identity import Identity
from pyspark_partibus.ids import partition_of_key
from pyspark_partibus.options import sink_options
from pyspark_partibus.task_writer import TaskWriter, Written

HOUR_MS = 3_600_000


class FakeTarget:
    """Keeps what is sent, and drops what has an id that it knows."""

    def __init__(self, *, window_ms: int | None = HOUR_MS, last: int | None = None) -> None:
        self.window_ms, self.last = window_ms, last
        self.requests: list[Sequence[bytes]] = []
        self.bodies: dict[str, bytes] = {}
        self.closed = 0

    def __enter__(self) -> FakeTarget:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed += 1

    def facts(self) -> Facts:
        return Facts("gen", 4, self.window_ms)

    def last_batch(self, sink: str) -> int | None:
        return self.last

    def send(self, messages: Sequence[bytes]) -> Sent:
        self.requests.append(messages)
        duplicates = 0
        for encoded in messages:
            message = proton.Message()
            message.decode(encoded)
            duplicates += str(message.id) in self.bodies
            self.bodies.setdefault(str(message.id), bytes(cast(Any, message.body)))
        return Sent(len(messages) - duplicates, duplicates)


def ids_partition(encoded: bytes) -> int:
    """The partition of a message's key, of four."""
    message = proton.Message()
    message.decode(encoded)
    annotations = cast(dict[Any, Any], message.annotations)
    return partition_of_key(annotations["x-opt-partition-key"], 4)


def write(
    target: FakeTarget,
    rows: dict[str, list[Any]],
    strategy: str = "content",
    *,
    batch: int = 5,
    task: int = 0,
    sink: str = "sink",
    is_stream: bool = True,
    **given: str,
) -> Written:
    options = sink_options({"endpoint": "amqp://host", "entity": "orders", "tuneWorkerGc": "false", **given})
    identity = Identity(sink, batch, strategy, (sink, batch, task), sink, repeats_only_the_latest=is_stream)
    writer = TaskWriter(options, identity, (), lambda address: cast(Node, target))
    return writer.write(iter([pa.RecordBatch.from_pydict(rows)]))


def test_few_rows_are_sent_in_one_request_and_many_in_requests_for_one_partition_each() -> None:
    target = FakeTarget()
    written = write(
        target, {"body": [f"b{n}" for n in range(100)], "partition_key": [f"k{n % 9}" for n in range(100)]}
    )
    assert sorted(target.bodies.values()) == sorted(f"b{n}".encode() for n in range(100))
    assert (written.rows, written.duplicates, written.targets, written.sink) == (100, 0, ("orders",), "sink")
    assert len(target.requests) == 1
    keys = [ids_partition(encoded) for encoded in target.requests[0]]
    assert keys == sorted(keys)
    assert len(set(keys)) > 1


def test_requests_are_bounded_in_messages_and_bytes() -> None:
    target = FakeTarget()
    rows = {"body": ["x" * 600] * 10, "partition_key": ["k"] * 10}
    write(target, rows, sendMessages="3")
    assert [len(each) for each in target.requests] == [3, 3, 3, 1]
    target = FakeTarget()
    write(target, rows, sendBytes="1500")
    assert [len(each) for each in target.requests] == [2, 2, 2, 2, 2]
    target = FakeTarget()
    write(target, {"body": ["x" * 5000] * 2, "partition_key": ["k"] * 2}, sendBytes="1500")
    assert [len(each) for each in target.requests] == [1, 1]


def test_a_task_that_is_run_again_in_another_order_sends_nothing_new() -> None:
    target = FakeTarget()
    bodies = [f"b{n % 30}" for n in range(90)]
    write(target, {"body": bodies})
    again = write(target, {"body": bodies[::-1]})
    assert (again.rows, again.duplicates, len(target.bodies)) == (90, 90, 90)


def test_equal_rows_of_other_batches_and_tasks_are_other_messages() -> None:
    target = FakeTarget()
    for batch, task in ((5, 0), (5, 1), (6, 0)):
        write(target, {"body": ["same"]}, batch=batch, task=task)
    assert len(target.bodies) == 3


def test_a_batch_that_was_committed_before_is_skipped() -> None:
    target = FakeTarget(last=5)
    written = write(target, {"body": ["a", "b"]})
    assert (written.rows, written.skipped, target.requests) == (0, 2, [])
    assert write(FakeTarget(last=4), {"body": ["a"]}).rows == 1


def test_a_stream_whose_checkpoint_is_older_than_its_target_does_not_skip_its_rows() -> None:
    target = FakeTarget(last=7)
    with pytest.raises(OptionError, match="'checkpointLocation': is older than 'orders', which has batch 7"):
        write(target, {"body": ["a"]})
    assert target.requests == []
    assert write(target, {"body": ["a"]}, is_stream=False).skipped == 1, "an earlier version of a write"


def test_a_target_that_lacks_batches_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    write(FakeTarget(last=4), {"body": ["a"]})
    assert "lost" not in caplog.text
    assert write(FakeTarget(last=2), {"body": ["a"]}).rows == 1
    assert "'orders' has batch 2 of this query and none of the batches up to 4" in caplog.text


def test_ids_may_come_from_a_column_from_the_source_or_from_nowhere() -> None:
    target = FakeTarget()
    write(target, {"body": ["a"], "message_id": ["mine"]}, "column")
    assert target.bodies == {"mine": b"a"}
    source: dict[str, list[Any]] = {"body": ["a", "a"], "partition": [1, 2], "sequence_number": [7, 7]}
    for _ in range(2):
        write(target, source, "source", task=_)
    assert len(target.bodies) == 3
    with pytest.raises(BadRow, match="one is null"):
        write(target, source | {"partition": [None, 2]}, "source")
    for _ in range(2):
        write(target, {"body": ["a"]}, "none")
    assert len(target.bodies) == 5


def test_queries_that_copy_two_entities_to_one_target_lose_no_row() -> None:
    target = FakeTarget()
    rows: dict[str, list[Any]] = {"body": ["a"], "partition": [1], "sequence_number": [7]}
    assert [write(target, rows, "source", sink=each).duplicates for each in ("one", "two", "one")] == [
        0,
        0,
        1,
    ]


def test_rows_may_name_their_targets() -> None:
    targets = {"a": FakeTarget(), "b": FakeTarget()}
    options = sink_options({"endpoint": "amqp://host", "tuneWorkerGc": "false"})
    identity = Identity("sink", 1, "content", (), "sink")
    writer = TaskWriter(options, identity, (), lambda address: cast(Node, targets[address]))
    rows = pa.RecordBatch.from_pydict({"body": ["1", "2", "3"], "entity": ["a", "/b", "a"]})
    assert writer.write(iter([rows])).targets == ("a", "b")
    assert [sorted(each.bodies.values()) for each in targets.values()] == [[b"1", b"3"], [b"2"]]
    with pytest.raises(BadRow, match="names no target"):
        writer.write(
            iter(
                [
                    pa.RecordBatch.from_arrays(
                        [pa.array(["1"]), pa.array([None], pa.string())], ["body", "entity"]
                    )
                ]
            )
        )


def test_a_task_closes_the_links_to_its_targets_also_if_it_fails() -> None:
    target = FakeTarget()
    write(target, {"body": ["a"]})
    assert target.closed == 1
    with pytest.raises(BadRow):
        write(target, {"body": ["a", None]})
    assert target.closed == 2
    unfit = FakeTarget(window_ms=None)
    with pytest.raises(OptionError):
        write(unfit, {"body": ["a"]}, requireExactlyOnce="true")
    assert unfit.closed == 1


def test_no_rows_are_written_to_the_option_s_target() -> None:
    target = FakeTarget()
    assert write(target, {"body": []}).targets == ("orders",)
    assert target.requests == []


def test_exactly_once_is_refused_where_duplicates_are_not_detected(caplog: pytest.LogCaptureFixture) -> None:
    target = FakeTarget(window_ms=None)
    with pytest.raises(OptionError, match="option 'requireExactlyOnce': cannot be kept, because 'orders'"):
        write(target, {"body": ["a"]}, requireExactlyOnce="true")
    assert target.requests == []
    write(target, {"body": ["a"]})
    write(FakeTarget(window_ms=20_000), {"body": ["a"]}, requireExactlyOnce="true")
    assert "the last 20 s only" in caplog.text


def test_a_task_without_rows_looks_at_its_target_all_the_same() -> None:
    with pytest.raises(OptionError, match="does not detect duplicates"):
        write(FakeTarget(window_ms=None), {"body": []}, requireExactlyOnce="true")
    assert write(FakeTarget(), {"body": []}).targets == ("orders",)
