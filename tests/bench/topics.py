"""`python -m tests.bench.topics`: messages to topics and from their subscriptions, beside other brokers.

Responsible for the order of a run: in each round, every broker takes the same load of each row, and the order
of brokers changes from round to round. Standard output carries one line of JSON for each value and nothing
else. Exits with status 1 if a value is below its floor.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tests.bench.load import comparison_output, footprint, report, topic_disk, traffic
from tests.bench.load.comparison import OURS, Comparison, Measure, Rule
from tests.bench.load.fan_outs import FAN_OUTS, FIFTY, SINGLE, THOUSAND, FanOut
from tests.bench.load.machine import StolenTime
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
    refuse_unknown_peers,
    values_by_peer,
)
from tests.bench.load.topic_brokers import PEERS, Partibus, Peer, TopicBroker, running_partibus
from tests.bench.load.traffic import Load

BEGIN, END = "<!-- topics: begin -->", "<!-- topics: end -->"
RULES = {
    **{
        (fan_out.name, measure): Rule("peers", 1.0, 1.5)
        for fan_out in FAN_OUTS
        if fan_out.beside_peers
        for measure in (Measure.IN, Measure.OUT)
    },
    (THOUSAND.name, Measure.IN): Rule("plain", 0.6, 0.8),
    (THOUSAND.name, Measure.CPU_IN): Rule("plain", 1.67, 1.25),
    (FIFTY.name, Measure.ON_DISK): Rule("1", 1.05, 1.03),
    (FIFTY.name, Measure.COPIES): Rule("1", 1.05, 1.0),
}
progress = Console(stderr=True, highlight=False)


@dataclass(slots=True, frozen=True)
class Scale:
    """Amount of work. `on_disk`: messages whose payload is looked for on the disk."""

    rounds: int
    messages: int
    warm_up: int
    on_disk: int


FULL = Scale(5, 50_000, 200_000, 1_600)
QUICK = Scale(1, 2_000, 1_000, 200)


def main(
    peer: Annotated[
        list[str] | None,
        typer.Option(help=f"{' or '.join(PEERS)}=amqp://user:password@host:port/any. Repeatable."),
    ] = None,
    peer_pid: PeerPid = None,
    peer_data: Annotated[
        list[str] | None, typer.Option(help="Its data folder, for its size: NAME=FOLDER. Repeatable.")
    ] = None,
    only: Only = None,
    rounds: Rounds = None,
    quick: Quick = False,
    folder: Folder = WORK,
    write_docs: Annotated[
        bool, typer.Option("--write-docs", help="Put the table into the documentation.")
    ] = False,
) -> None:
    """Compare brokers with topics."""
    refuse_partial_docs(write_docs, only, quick)
    names = chosen_rows(only, [fan_out.name for fan_out in FAN_OUTS])
    rows = [fan_out for fan_out in FAN_OUTS if fan_out.name in names]
    peers = peers_of(peer or (), peer_pid or (), peer_data or ())
    scale = QUICK if quick else FULL
    if rounds is not None:
        scale = replace(scale, rounds=rounds)
    make_folder(folder)
    gc.freeze()  # what is loaded by now is never garbage, so the collector need not walk it under load
    found = Comparison(RULES, SINGLE.name)
    with comparison_output.kept_if_failing(found, REPOSITORY, folder, progress):
        with running_partibus(folder, FAN_OUTS, footprint.PARTITIONS) as subject:
            measure_rounds(found, scale, rows, subject, peers)
        if FIFTY in rows:
            measure_disk(found, scale, folder)
    about = comparison_output.write(found, REPOSITORY, folder, progress)
    if write_docs:
        report.write_between_markers(report.DOCUMENT, found.markdown(about, "make bench-topics"), BEGIN, END)
    if found.missed() and not quick:
        raise typer.Exit(1)


def peers_of(urls: Sequence[str], pids: Sequence[str], folders: Sequence[str]) -> list[Peer]:
    """The peers that the options describe."""
    given, folder_of = peers_given(urls, pids), values_by_peer("--peer-data", folders)
    refuse_unknown_peers("--peer-data", folder_of, [peer.name for peer in given])
    peers = []
    for peer in given:
        if peer.name not in PEERS:
            raise typer.BadParameter(
                f"no peer {peer.name}; there are {', '.join(PEERS)}", param_hint="--peer"
            )
        data = folder_of.get(peer.name)
        peers.append(PEERS[peer.name](peer.name, peer.endpoint, peer.pid, Path(data) if data else None))
    return peers


def measure_rounds(
    found: Comparison, scale: Scale, rows: Sequence[FanOut], subject: Partibus, peers: Sequence[Peer]
) -> None:
    """All rounds of all rows."""
    brokers: list[TopicBroker] = [subject, *peers]
    for broker in brokers:
        progress.print(f"warming up {broker.name}")
        with comparison_output.part("warming up", broker.name):
            warm_up(broker, scale.warm_up if broker is not subject else scale.messages)
    stolen = StolenTime()
    for number in range(scale.rounds):
        for row in rows:
            for broker in brokers if number % 2 == 0 else brokers[::-1]:
                if broker is subject or row.beside_peers:
                    with comparison_output.part(row.name, broker.name):
                        measure(found, scale, row, broker)
                    progress.print(f"  {row.name:24} {broker.name}")
        progress.print(f"round {number + 1} of {scale.rounds} done, {stolen.percent():.0f} % CPU stolen")


def measure_disk(found: Comparison, scale: Scale, folder: Path) -> None:
    """What our broker has on the disk for the last row."""
    with comparison_output.part(FIFTY.name, OURS):
        on_disk = topic_disk.on_disk(folder, scale.on_disk)
    found.note(FIFTY.name, Measure.ON_DISK, OURS, on_disk.published)
    found.note(FIFTY.name, Measure.ON_DISK_COMPACTED, OURS, on_disk.compacted)
    found.note(FIFTY.name, Measure.COPIES, OURS, on_disk.copies)


def warm_up(broker: TopicBroker, count: int) -> None:
    """Send and receive small messages. Artemis needs many, because a virtual machine compiles what it uses
    often."""
    load = Load(SINGLE.messages(), SINGLE.body_bytes, SINGLE.window)
    with broker.topic(SINGLE) as topic:
        for _ in range(max(1, count // 50_000)):
            traffic.send(topic.publish, min(count, 50_000), load=load)
            traffic.receive_from(topic.subscriptions, min(count, 50_000), load=load)


def measure(found: Comparison, scale: Scale, row: FanOut, broker: TopicBroker) -> None:
    """One round of one row at one broker: publish all messages, then receive them from all subscriptions that
    got them."""
    count = max(100, int(scale.messages * row.share))
    load = Load(row.messages(), row.body_bytes, row.window)
    with broker.topic(row) as topic:
        disk_bytes, begun_s = broker.disk_bytes, broker.cpu_s
        found.note(row.name, Measure.IN, broker.name, traffic.send(topic.publish, count, load=load))
        sent_s = broker.cpu_s
        if row is FIFTY and broker.name != OURS and broker.data is not None:
            payload = count * row.body_bytes
            grown = (broker.disk_bytes - disk_bytes) / payload
            found.note(row.name, Measure.ON_DISK, broker.name, grown)
        rate = traffic.receive_from(topic.subscriptions, count, row.receive_window, load)
        found.note(row.name, Measure.OUT, broker.name, rate)
        if broker.pid is not None:
            delivered = count * len(topic.subscriptions)
            found.note(row.name, Measure.CPU_IN, broker.name, (sent_s - begun_s) / count * 1e6)
            found.note(row.name, Measure.CPU_OUT, broker.name, (broker.cpu_s - sent_s) / delivered * 1e6)


if __name__ == "__main__":
    typer.run(main)
