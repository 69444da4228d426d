"""The benchmark of all shapes: its messages, its paced sender, and how it judges and draws values."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from azure.servicebus import ServiceBusClient
from typer.testing import CliRunner

from broker.message.stored import store
from tests.bench import shapes
from tests.bench.load import footprint, report, traffic
from tests.bench.load.client import LoadConnection, PacedSender, drive
from tests.bench.load.comparison import OURS, Comparison, Measure, Rule
from tests.bench.load.endpoint import Endpoint, LoadError
from tests.bench.load.figure import Verdict
from tests.bench.load.shapes import PLAIN, SHAPES, Shape, window_of
from tests.bench.load.traffic import Load, Target
from tests.support.bare_peers import endpoint_of, running_bare_peer
from tests.support.broker_process import Addresses

WITHIN_S = 10.0
RULES = {
    ("keyed", Measure.IN): Rule("peers", 1.0, 1.5),
    ("keyed", Measure.CPU_IN): Rule("plain", 1.5, 1.2),
    ("plain", Measure.P99): Rule("1", 10, 5),
}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_messages_of_a_shape_hold_what_it_promises(shape: Shape) -> None:
    pool = shape.messages()
    assert pool == shape.messages(), "each broker gets the same messages"
    stored = [store(message, lambda: "none") for message in pool]
    assert all(len(message) >= shape.body_bytes for message in pool)
    assert len({message.message_id() for message in stored}) == len(pool)
    assert all((message.partition_key is not None) == shape.keyed for message in stored)
    assert all((b"tenant" in message) == shape.application for message in pool)
    assert window_of(shape, 500) * shape.body_bytes <= 16 << 20


def test_a_paced_sender_keeps_its_rate_and_times_each_message() -> None:
    with running_bare_peer() as peer:
        target = Target("peer", endpoint_of(peer), settles_first=False, confirms=False)
        load = Load(PLAIN.messages(), PLAIN.body_bytes)
        took_s = traffic.paced_latencies_s(target, load, 100, 1_000.0, receive=True)
    assert len(took_s) == 100
    assert all(0 < each < 10 for each in took_s)


def test_a_paced_sender_begins_at_once_however_many_messages_it_will_send() -> None:
    with running_bare_peer() as peer, LoadConnection(endpoint_of(peer)) as connection:
        sender = PacedSender(connection, PLAIN.messages(), window=100, per_s=1_000.0)
        drive([connection], lambda: sender.is_ready, WITHIN_S)
        sender.begin(10**15)
        drive([connection], lambda: sender.accepted >= 20, WITHIN_S, write_every_s=0.001)
    assert len(sender.latencies_s) == sender.accepted and min(sender.latencies_s) > 0


def test_messages_go_in_and_out_at_once() -> None:
    with running_bare_peer() as peer:
        target = Target("peer", endpoint_of(peer), settles_first=False, confirms=False)
        assert traffic.send_beside_receiver(target, 200, Load(PLAIN.messages(), PLAIN.body_bytes)) > 0
    assert (peer.queue.completed, peer.queue.waiting) == (200, 0)


def comparison(**values: float) -> Comparison:
    """A comparison of the plain and the keyed shape with two peers."""
    found = Comparison(RULES, "plain")
    for broker, value in (("rabbitmq", 50.0), ("artemis", 100.0)):
        found.note("keyed", Measure.IN, broker, value)
    found.note("plain", Measure.CPU_IN, OURS, 10.0)
    for name, value in values.items():
        found.note("keyed" if name != "P99" else "plain", Measure[name], OURS, value)
    return found


@pytest.mark.parametrize(
    ("measure", "value", "ratio", "verdict"),
    [
        (Measure.IN, 99.0, 0.99, Verdict.MISSED),
        (Measure.IN, 100.0, 1.0, Verdict.FLOOR),
        (Measure.IN, 150.0, 1.5, Verdict.GOAL),
        (Measure.CPU_IN, 15.1, 1.51, Verdict.MISSED),
        (Measure.CPU_IN, 15.0, 1.5, Verdict.FLOOR),
        (Measure.CPU_IN, 12.0, 1.2, Verdict.GOAL),
        (Measure.P99, 10.1, 10.1, Verdict.MISSED),
        (Measure.P99, 5.0, 5.0, Verdict.GOAL),
        (Measure.P999, 5.0, None, Verdict.UNRATED),
    ],
)
def test_a_value_is_judged_by_its_rule(
    measure: Measure, value: float, ratio: float | None, verdict: Verdict
) -> None:
    found = comparison(**{measure.name: value})
    shape = "plain" if measure is Measure.P99 else "keyed"
    assert found.ratio(shape, measure) == (None if ratio is None else pytest.approx(ratio))
    assert found.verdict(shape, measure) is verdict
    assert found.missed() is (verdict is Verdict.MISSED)


def test_the_median_of_the_rounds_counts() -> None:
    found = Comparison(RULES, "plain")
    for value in (1.0, 100.0, 2.0):
        found.note("keyed", Measure.IN, OURS, value)
    assert found.value("keyed", Measure.IN) == 2.0
    assert found.verdict("keyed", Measure.IN) is Verdict.NOT_COMPARED


def test_table_and_chart_show_every_broker(tmp_path: Path) -> None:
    found = comparison(IN=120.0, CPU_IN=13.0)
    head, *rows = found.rows()
    assert head[2:5] == ("rabbitmq", "artemis", OURS)
    assert ("keyed", Measure.IN.value, "50.00", "100", "120", "1.20", "1 ×", "1.5 ×", "floor") in rows
    assert "| keyed | CPU in, µs |  |  | 13.00 | 1.30 |" in found.markdown(
        {"at": "now", "commit": "abc", "machine": {"cores": 2}}, "make bench-shapes"
    )
    found.write_chart(tmp_path / "chart.svg")
    drawn = (tmp_path / "chart.svg").read_text(encoding="utf-8")
    assert drawn.startswith("<?xml")
    assert all(broker in drawn for broker in found.brokers)


def test_a_broker_without_a_value_has_no_bar(tmp_path: Path) -> None:
    found = comparison(IN=120.0)
    found.note("sessions", Measure.IN, OURS, 7_777.0)
    found.write_chart(tmp_path / "chart.svg")
    drawn = (tmp_path / "chart.svg").read_text(encoding="utf-8")
    assert "<!-- 7,777 -->" in drawn and "<!-- 0 -->" not in drawn


@pytest.mark.parametrize("row", [shapes.EIGHT, shapes.ONE])
def test_rows_whose_messages_go_in_and_out_at_once_have_one_cpu_time(row: str) -> None:
    found = Comparison({}, "plain")
    with running_bare_peer() as peer:
        target = Target("peer", endpoint_of(peer), settles_first=False, confirms=False)
        for pid in (None, os.getpid()):
            shapes.measure(found, shapes.QUICK, row, shapes.Broker(target, pid), "")
    cell = found.cells[row, Measure.CPU_IN_AND_OUT, "peer"]
    assert len(cell.rounds) == 1 and cell.value >= 0, "not measured without the process"


@pytest.mark.parametrize(
    ("row", "expected"), [("plain", 2), (shapes.ONE, 1), (shapes.EIGHT, 0)], ids=["plain", "one", "eight"]
)
def test_everything_is_synced_before_each_measurement_of_latencies(
    monkeypatch: pytest.MonkeyPatch, row: str, expected: int
) -> None:
    steps: list[str] = []
    monkeypatch.setattr(os, "sync", lambda: steps.append("sync"))
    for name in ("send_latencies_us", "paced_latencies_s", "receive"):
        monkeypatch.setattr(traffic, name, _noting(steps, name, getattr(traffic, name)))
    with running_bare_peer() as peer:
        target = Target("peer", endpoint_of(peer), settles_first=False, confirms=False)
        shapes.measure(Comparison({}, "plain"), shapes.QUICK, row, shapes.Broker(target, os.getpid()), "")
    before = [first for first, second in pairwise(steps) if "latencies" in second]
    assert before == ["sync"] * expected


def _noting(steps: list[str], name: str, function: Callable[..., object]) -> Callable[..., object]:
    def noted(*arguments: object, **more: object) -> object:
        steps.append(name)
        return function(*arguments, **more)

    return noted


class BatchSender:
    """Stands for the official client and its sender: counts messages."""

    def __init__(self) -> None:
        self.sent = 0
        self.sent_before_sync: int | None = None
        """How many messages were sent before everything was synced; None until then."""

    def __enter__(self) -> BatchSender:
        return self

    def __exit__(self, *about: object) -> None:
        pass

    def get_queue_sender(self, name: str) -> BatchSender:
        return self

    def create_message_batch(self) -> list[object]:
        return Batch()

    def send_messages(self, messages: object) -> None:
        self.sent += len(messages) if isinstance(messages, list) else 1

    def sync(self) -> None:
        self.sent_before_sync = self.sent


class Batch(list[object]):
    def add_message(self, message: object) -> None:
        self.append(message)


def test_each_batch_is_timed_and_batches_are_sent_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    sender, received = BatchSender(), []
    monkeypatch.setattr(ServiceBusClient, "from_connection_string", lambda _: sender)
    monkeypatch.setattr(traffic, "receive", lambda _, count: received.append(count))
    monkeypatch.setattr(os, "sync", sender.sync)
    monkeypatch.setattr(shapes, "DIFFERENT_BATCHES", 2)
    found = Comparison({}, "plain")
    target = Target(OURS, Endpoint.parse("amqp://h/q"), settles_first=False)
    shapes.measure(found, shapes.QUICK, shapes.BATCHES, shapes.Broker(target, os.getpid()), "")
    count = shapes.QUICK.batches * shapes.BATCH + 1
    assert (sender.sent_before_sync, sender.sent, received) == (1, count, [count])
    took_ms = [found.value(shapes.BATCHES, measure) for measure in (Measure.BATCH_P50, Measure.BATCH_P999)]
    assert None not in took_ms
    assert found.value(shapes.BATCHES, Measure.P50) is None, "that is the time of a message"


def test_a_row_that_fails_keeps_the_values_of_the_rows_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @contextmanager
    def started(folder: Path) -> Iterator[object]:
        yield SimpleNamespace(addresses=Addresses(1, 2, 3), pid=os.getpid())

    def measure(
        found: Comparison, scale: shapes.Scale, row: str, broker: shapes.Broker, connection_string: str
    ) -> None:
        if (row, broker.target.name) == ("64 B", "other"):
            raise LoadError("the broker closed the socket")
        found.note(row, Measure.IN, broker.target.name, 100.0)

    published: list[object] = []
    monkeypatch.setattr(footprint, "fresh_broker", started)
    monkeypatch.setattr(shapes, "clear_away", lambda target: None)
    monkeypatch.setattr(shapes, "warm_up", lambda target, count: None)
    monkeypatch.setattr(shapes, "measure", measure)
    monkeypatch.setattr(report, "write_between_markers", lambda *about: published.append(about))
    app = typer.Typer()
    app.command()(shapes.main)
    only = [argument for row in ("plain", "64 B", "scheduled") for argument in ("--only", row)]
    ended = CliRunner().invoke(
        app, ["--quick", "--folder", str(tmp_path), "--peer", "other=amqp://127.0.0.1:1/any", *only]
    )
    assert ended.exit_code == 1
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [(each["shape"], each["broker"]) for each in found] == [
        ("plain", OURS), ("plain", "other"), ("64 B", OURS)
    ]  # fmt: skip
    told = ended.stderr.splitlines()
    assert told[0] == "other is left out of the rows of features: they know rabbitmq and artemis"
    assert told[-1] == "64 B at other failed: LoadError: the broker closed the socket"
    assert published == []
