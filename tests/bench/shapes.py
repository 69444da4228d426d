"""`python -m tests.bench.shapes`: how fast each shape of message goes through, beside other brokers.

Responsible for the order of a run: in each round, every broker takes the same load with each shape, and the
order of brokers changes from round to round. The rows of features follow in the same way, with a broker of
ours that has the entities which they need. Standard output carries one line of JSON for each value and
nothing else; if a row fails, for each value found until then. Exits with status 1 if a row fails or a value
is below its floor.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated

import typer
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from rich.console import Console

from tests.bench.load import comparison_output, feature_rows, footprint, report, traffic
from tests.bench.load.comparison import OURS, Comparison, Measure, Rule
from tests.bench.load.comparison_output import kept_if_failing, part
from tests.bench.load.endpoint import LoadError
from tests.bench.load.feature_rows import FeatureRow
from tests.bench.load.machine import StolenTime, cpu_s
from tests.bench.load.options import (
    REPOSITORY,
    WORK,
    Folder,
    Only,
    PeerPid,
    Quick,
    Rounds,
    chosen_rows,
    make_folder,
    peers_given,
    refuse_partial_docs,
)
from tests.bench.load.percentiles import percentile
from tests.bench.load.shapes import PLAIN, SHAPES, Shape, window_of
from tests.bench.load.topic_brokers import PEERS, TopicBroker
from tests.bench.load.traffic import Load, Target

CHART = REPOSITORY / "docs" / "benchmarks.svg"
BEGIN, END = "<!-- shapes: begin -->", "<!-- shapes: end -->"
OFFERED_AGAIN_WITHIN_S = 0.25
"""How long after a connection has closed a peer may offer what it had delivered there."""
LOOKS_MAX = 20
"""How often a queue may be found not to be empty after all."""
CONNECTIONS = 8
BATCH, DIFFERENT_BATCHES = 100, 100
"""Messages in a batch, and batches that are built before the first is sent. They are sent in turn."""
EIGHT, ONE, BATCHES = "8 connections", "one at a time", "batches of 100, official Python client"
SHAPE_OF = {shape.name: shape for shape in SHAPES}
RULES = {
    **{
        (row, measure): Rule("peers", 1.0, 1.5)
        for row in (*SHAPE_OF, EIGHT, BATCHES)
        for measure in (Measure.IN, Measure.OUT, Measure.IN_AND_OUT)
    },
    **{
        (shape.name, measure): Rule("plain", 1.5, 1.2)
        for shape in SHAPES
        if shape.body_bytes == PLAIN.body_bytes and shape is not PLAIN
        for measure in (Measure.CPU_IN, Measure.CPU_OUT)
    },
    (PLAIN.name, Measure.CPU_IN): Rule("1", 8, 5),
    (PLAIN.name, Measure.CPU_OUT): Rule("1", 8, 5),
    (PLAIN.name, Measure.P99): Rule("1", 10, 5),
    (PLAIN.name, Measure.P99_RECEIVING): Rule("1", 10, 5),
    (ONE, Measure.P50): Rule("peers", 1.2, 0.9),
}
SHARES = 0.5, 0.99, 0.999
"""Of p50, p99 and p99.9."""
progress = Console(stderr=True, highlight=False)


@dataclass(slots=True, frozen=True)
class Scale:
    """Amount of work."""

    rounds: int
    messages: int
    warm_up: int
    one_at_a_time: int
    paced_s: float
    batches: int


FULL = Scale(5, 50_000, 400_000, 1_000, 3.0, 1_000)
QUICK = Scale(1, 2_000, 1_000, 50, 0.5, 5)


@dataclass(slots=True, frozen=True)
class Broker:
    """A broker to load, and its process."""

    target: Target
    pid: int | None
    """None if unknown: then CPU time is not measured."""

    def cpu_s(self) -> float:
        return 0.0 if self.pid is None else cpu_s(self.pid)


def main(
    peer: Annotated[
        list[str] | None,
        typer.Option(help="Another broker: NAME=amqp://user:password@host:port/address. Repeatable."),
    ] = None,
    peer_pid: PeerPid = None,
    only: Only = None,
    rounds: Rounds = None,
    quick: Quick = False,
    folder: Folder = WORK,
    write_docs: Annotated[
        bool, typer.Option("--write-docs", help="Put table and chart into the documentation.")
    ] = False,
) -> None:
    """Compare brokers with the messages that applications send."""
    refuse_partial_docs(write_docs, only, quick)
    shapes = [*SHAPE_OF, EIGHT, ONE, BATCHES]
    names = chosen_rows(only, [*shapes, *(row.name for row in feature_rows.ROWS)])
    scale = QUICK if quick else FULL
    if rounds is not None:
        scale = replace(scale, rounds=rounds)
    features = [row for row in feature_rows.ROWS if row.name in names]
    peers = peers_of(peer, peer_pid)
    make_folder(folder)
    for each in peers:
        check_answers(each.target)
        if features and each.target.name not in PEERS:
            tell(f"{each.target.name} is left out of the rows of features: they know {' and '.join(PEERS)}")
    gc.freeze()  # what is loaded by now is never garbage, so the collector need not walk it under load
    found = Comparison(RULES, PLAIN.name)
    with kept_if_failing(found, REPOSITORY, folder, progress):
        for each in peers:
            warm_up(each.target, scale.warm_up)
        if rows := [name for name in names if name in shapes]:
            measure_shapes(found, scale, rows, peers, folder)
        if features:
            measure_features(found, scale, features, peers, folder)
    publish(found, folder, write_docs)
    if found.missed() and not quick:
        raise typer.Exit(1)


def peers_of(urls: Sequence[str] | None, pids: Sequence[str] | None) -> list[Broker]:
    """The peers that the options describe."""
    return [
        Broker(Target(peer.name, peer.endpoint, settles_first=True, confirms=False), peer.pid)
        for peer in peers_given(urls, pids)
    ]


def check_answers(target: Target) -> None:
    """Empty the queue of a peer. Raises BadParameter if that fails."""
    try:
        clear_away(target)
    except (OSError, LoadError) as error:
        at = target.endpoint
        unusable = f"{target.name} at {at.host}:{at.port} cannot be used ({error})"
        advice = f"see that it runs and has {at.address}"
        raise typer.BadParameter(f"{unusable}: {advice}", param_hint="--peer") from error


def tell(text: str) -> None:
    """One line for whoever runs this."""
    progress.print(text, soft_wrap=True, markup=False)


def measure_shapes(
    found: Comparison, scale: Scale, rows: Sequence[str], peers: Sequence[Broker], folder: Path
) -> None:
    """All rounds of the rows with a plain queue."""
    with footprint.fresh_broker(folder) as started:
        subject = Broker(replace(footprint.target_of(started.addresses), confirms=False), started.pid)
        warm_up(subject.target, scale.warm_up)
        brokers = [subject, *peers]
        stolen = StolenTime()
        for number in range(scale.rounds):
            for row in rows:
                for broker in brokers if number % 2 == 0 else brokers[::-1]:
                    with part(row, broker.target.name):
                        clear_away(broker.target)
                        measure(found, scale, row, broker, started.addresses.connection_string())
            tell_round(number, scale, stolen)


def measure_features(
    found: Comparison, scale: Scale, rows: Sequence[FeatureRow], peers: Sequence[Broker], folder: Path
) -> None:
    """All rounds of the rows of features, each at the brokers that have it. One more round before them does
    not count: what a virtual machine has compiled for plain messages is not all that it runs for these."""
    with feature_rows.running(folder) as subject:
        brokers: list[TopicBroker] = [subject, *topic_brokers_of(peers)]
        for row in rows:
            for broker in brokers:
                if row.is_at(broker):
                    progress.print(f"warming up {broker.name} with {row.name}")
                    with part(row.name, broker.name):
                        feature_rows.measured(row, broker, min(scale.messages, scale.warm_up), paced_s=0)
        stolen = StolenTime()
        for number in range(scale.rounds):
            for row in rows:
                for broker in brokers if number % 2 == 0 else brokers[::-1]:
                    if row.is_at(broker):
                        with part(row.name, broker.name):
                            measure_feature(found, scale, row, broker)
            tell_round(number, scale, stolen)


def topic_brokers_of(peers: Sequence[Broker]) -> list[TopicBroker]:
    """The peers whose topics and other features this benchmark knows."""
    return [
        PEERS[peer.target.name](peer.target.name, peer.target.endpoint, peer.pid)
        for peer in peers
        if peer.target.name in PEERS
    ]


def tell_round(number: int, scale: Scale, stolen: StolenTime) -> None:
    progress.print(f"round {number + 1} of {scale.rounds} done, {stolen.percent():.0f} % CPU stolen")


def warm_up(target: Target, count: int) -> None:
    """Send and receive plain messages: a virtual machine compiles what is used often."""
    progress.print(f"warming up {target.name}")
    with part("warming up", target.name):
        clear_away(target)
        for _ in range(max(1, count // 50_000)):
            traffic.send(target, min(count, 50_000))
            traffic.receive(target, min(count, 50_000))


def clear_away(target: Target) -> None:
    """Empty the queue. Messages of an earlier run may be in it, and RabbitMQ may offer those again whose
    settlement it had not handled when their receiver's connection closed. They would count for this row. It
    may do so a moment later, so a peer's queue is looked at again."""
    count, looks = traffic.drain(target), 0
    is_empty = target.name == OURS
    while not is_empty:
        time.sleep(OFFERED_AGAIN_WITHIN_S)
        more, looks = traffic.drain(target), looks + 1
        count, is_empty = count + more, not more
        if more and looks == LOOKS_MAX:
            raise LoadError(f"the queue at {target.name} is never empty")
    if count:
        progress.print(f"  {count} messages of earlier loads were left at {target.name}")


def measure_feature(found: Comparison, scale: Scale, row: FeatureRow, broker: TopicBroker) -> None:
    """One round of one row of a feature at one broker."""
    measured = feature_rows.measured(row, broker, scale.messages, scale.paced_s)
    for measure_of, value in measured.values.items():
        found.note(row.name, measure_of, broker.name, value)
    note_percentiles(found, row.name, broker.name, measured.took_ms)
    progress.print(f"  {row.name:24} {broker.name}")


def measure(found: Comparison, scale: Scale, row: str, broker: Broker, connection_string: str) -> None:
    """One round of one row at one broker."""
    if row == BATCHES:
        if broker.target.name == OURS:
            _measure_batches(found, scale, broker, connection_string)
    else:
        measure_in_and_out(found, scale, row, broker)
        if row in SHAPE_OF:
            _measure_latencies(found, scale, SHAPE_OF[row], broker)
    progress.print(f"  {row:24} {broker.target.name}")


def measure_in_and_out(found: Comparison, scale: Scale, row: str, broker: Broker) -> None:
    """Send the messages of a row and receive them, once. They are of one shape, over eight connections, or
    one at a time."""
    target, name = broker.target, broker.target.name
    if row == EIGHT:
        count, begun_s = scale.messages // CONNECTIONS * CONNECTIONS, broker.cpu_s()
        rate = traffic.send_and_receive(target, count, CONNECTIONS)
        found.note(row, Measure.IN_AND_OUT, name, rate)
        _note_cpu(found, row, broker, begun_s, count)
    elif row == ONE:
        traffic.sync_disks()
        begun_s = broker.cpu_s()
        took_ms = [us / 1000 for us in traffic.send_latencies_us(target, scale.one_at_a_time)]
        traffic.receive(target, scale.one_at_a_time)
        _note_cpu(found, row, broker, begun_s, scale.one_at_a_time)
        note_percentiles(found, row, name, took_ms)
    else:
        _measure_shape(found, scale, SHAPE_OF[row], broker)


def _measure_shape(found: Comparison, scale: Scale, shape: Shape, broker: Broker) -> None:
    target, name, count, load = broker.target, broker.target.name, _count(scale, shape), load_of(shape)
    begun_s = broker.cpu_s()
    found.note(shape.name, Measure.IN, name, traffic.send(target, count, load=load))
    sent_s = broker.cpu_s()
    found.note(shape.name, Measure.OUT, name, traffic.receive(target, count, load=load))
    received_s = broker.cpu_s()
    if broker.pid is not None:
        found.note(shape.name, Measure.CPU_IN, name, (sent_s - begun_s) / count * 1e6)
        found.note(shape.name, Measure.CPU_OUT, name, (received_s - sent_s) / count * 1e6)


def _count(scale: Scale, shape: Shape) -> int:
    return max(100, int(scale.messages * shape.share))


@cache
def load_of(shape: Shape) -> Load:
    """The messages of a shape, and how many may be under way."""
    return Load(shape.messages(), shape.body_bytes, window_of(shape, traffic.WINDOW))


def _measure_latencies(found: Comparison, scale: Scale, shape: Shape, broker: Broker) -> None:
    """What follows the messages that went in and out in this round: latencies at half of their rate, and
    what a sender and a receiver do at once."""
    target, name, count, load = broker.target, broker.target.name, _count(scale, shape), load_of(shape)
    rate = found.cells[shape.name, Measure.IN, name].rounds[-1]
    paced = max(20, int(rate / 2 * scale.paced_s))
    traffic.sync_disks()
    took_ms = [
        each * 1000 for each in traffic.paced_latencies_s(target, load, paced, rate / 2, receive=False)
    ]
    traffic.receive(target, paced, load=load)
    note_percentiles(found, shape.name, name, took_ms)
    # Half of the rate without a receiver can be nearly all that a broker can do beside one.
    rate = traffic.send_beside_receiver(target, count, load)
    found.note(shape.name, Measure.BESIDE_RECEIVER, name, rate)
    paced = max(20, int(rate / 2 * scale.paced_s))
    traffic.sync_disks()
    took_s = traffic.paced_latencies_s(target, load, paced, rate / 2, receive=True)
    found.note(shape.name, Measure.P99_RECEIVING, name, percentile(took_s, 0.99) * 1000)
    if name == OURS:
        traffic.send(target, count, load=load)
        confirmed = traffic.receive(replace(target, confirms=True), count, load=load)
        found.note(shape.name, Measure.OUT_CONFIRMED, name, confirmed)


def _note_cpu(found: Comparison, row: str, broker: Broker, begun_s: float, count: int) -> None:
    """The CPU time since then, for each of so many messages that went in and out."""
    if broker.pid is not None:
        used_us = (broker.cpu_s() - begun_s) / count * 1e6
        found.note(row, Measure.CPU_IN_AND_OUT, broker.target.name, used_us)


def note_percentiles(
    found: Comparison,
    row: str,
    broker: str,
    took_ms: Sequence[float],
    measures: tuple[Measure, Measure, Measure] = (Measure.P50, Measure.P99, Measure.P999),
) -> None:
    """Note p50, p99 and p99.9 of what one round took."""
    for measure_of, share in zip(measures, SHARES, strict=True):
        found.note(row, measure_of, broker, percentile(took_ms, share))


def _measure_batches(found: Comparison, scale: Scale, broker: Broker, connection_string: str) -> None:
    """Batches of 100 messages of 1 KiB, one after the other. Only ours: the client speaks to nothing but
    Service Bus."""
    body = bytes(PLAIN.body_bytes)
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_sender(footprint.QUEUE) as sender,
    ):
        sender.send_messages(ServiceBusMessage(body))
        batches, took_ms = [], []
        for _ in range(min(scale.batches, DIFFERENT_BATCHES)):
            batch = sender.create_message_batch()
            for _ in range(BATCH):
                batch.add_message(ServiceBusMessage(body))
            batches.append(batch)
        traffic.sync_disks()
        begun_cpu_s, began = broker.cpu_s(), time.perf_counter()
        for number in range(scale.batches):
            sent_s = time.perf_counter()
            sender.send_messages(batches[number % len(batches)])
            took_ms.append((time.perf_counter() - sent_s) * 1000)
        took_s = time.perf_counter() - began
        count = scale.batches * BATCH
        found.note(BATCHES, Measure.IN, OURS, count / took_s)
        found.note(BATCHES, Measure.CPU_IN, OURS, (broker.cpu_s() - begun_cpu_s) / count * 1e6)
        note_percentiles(
            found, BATCHES, OURS, took_ms, (Measure.BATCH_P50, Measure.BATCH_P99, Measure.BATCH_P999)
        )
    traffic.receive(broker.target, count + 1)


def publish(found: Comparison, folder: Path, write_docs: bool) -> None:
    """Write the results and, if requested, table and chart into the documentation."""
    about = comparison_output.write(found, REPOSITORY, folder, progress)
    found.write_chart(CHART if write_docs else folder / CHART.name)
    if write_docs:
        text = found.markdown(about, "make bench-shapes")
        report.write_between_markers(report.DOCUMENT, text, BEGIN, END)


if __name__ == "__main__":
    typer.run(main)
