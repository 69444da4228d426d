"""`python -m tests.bench.run`: measures the figures to hold, beside a reference broker if there is one.

Responsible for the order of a run: rounds, broker and peer in turn within each, medians at the end. Standard
output carries one line of JSON per figure and nothing else; progress and the table go to standard error.
Exits with status 1 when a figure is below its floor.
"""

from __future__ import annotations

import datetime
import gc
import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tests.bench.load import (
    attack_http,
    attack_output,
    attacks,
    backlogs,
    checkpoint_cost,
    disk_space,
    fairness,
    features,
    figures,
    footprint,
    many_queues,
    memory_mark,
    neighbour,
    report,
    sessions,
    stalls,
    traffic,
    transactions,
)
from tests.bench.load.endpoint import Endpoint
from tests.bench.load.figure import Figure, Result, Verdict
from tests.bench.load.figures import FIGURES
from tests.bench.load.machine import StolenTime, commit, describe_machine
from tests.bench.load.options import (
    REPOSITORY,
    WORK,
    Folder,
    Quick,
    Rounds,
    make_folder,
    refuse_partial_docs,
)
from tests.bench.load.percentiles import percentile
from tests.bench.load.profiling import Profiler
from tests.bench.load.traffic import Target

CONNECTIONS = 8
progress = Console(stderr=True, highlight=False)


@dataclass(slots=True, frozen=True)
class Scale:
    """Amount of work for each figure."""

    rounds: int
    messages: int
    latency_messages: int
    waiting_messages: int
    idle_queues: int
    idle_observed_s: float
    idle_connections: int
    light_messages: int
    light_at_most_s: float
    silent_receivers: int
    silent_messages: int
    attack_s: float
    many_queues: int
    mark_mib: int
    sessions: int
    neighbour_pairs: int
    neighbour_s: float


FULL = Scale(
    3,
    100_000,
    1_000,
    1_000_000,
    100,
    20.0,
    5_000,
    1_000,
    10.0,
    110,
    16_000,
    5.0,
    10_000,
    512,
    10_000,
    10,
    3.0,
)
QUICK = Scale(1, 10_000, 200, 20_000, 10, 3.0, 200, 50, 1.0, 10, 500, 1.0, 500, 128, 200, 1, 0.5)
"""Only to check that everything runs. The runs are too short for meaningful figures, and the floors apply to
the full scale.
"""


@dataclass(slots=True)
class Run:
    """One run: what to measure, on what, and the results so far."""

    scale: Scale
    wanted: frozenset[str]
    folder: Path
    profiler: Profiler | None
    results: dict[str, Result] = field(default_factory=dict)
    stolen: StolenTime = field(default_factory=StolenTime)

    def wants(self, group: Sequence[Figure]) -> bool:
        return any(figure.name in self.wanted for figure in group)

    def rounds(self, what: str) -> Iterator[int]:
        """The numbers of the rounds. Each is announced as it begins."""
        for number in range(self.scale.rounds):
            progress.print(f"{what}, round {number + 1} of {self.scale.rounds}")
            yield number

    def note(
        self, figure: Figure, value: float, settings: dict[str, object], *, reference: bool = False
    ) -> None:
        """Record one round's value for a figure or for its reference."""
        if figure.name not in self.wanted:
            return
        stolen = self.stolen.percent()
        result = self.results.setdefault(figure.name, Result(figure, settings))
        (result.reference_rounds if reference else result.rounds).append(value)
        if not reference:
            result.stolen_percent.append(stolen)
        kind = "reference" if reference else "measured"
        progress.print(
            f"  {figure.name:26} {kind:9} {value:12,.2f} {figure.unit:10} [dim]{stolen:3.0f} % stolen[/dim]"
        )


def main(
    peer: Annotated[
        str | None,
        typer.Option(
            envvar="PARTIBUS_BENCH_PEER", help="The reference broker: amqp://user:password@host:port/address."
        ),
    ] = None,
    peer_setup: Annotated[
        str | None,
        typer.Option(
            envvar="PARTIBUS_BENCH_PEER_SETUP", help="Command that readies the peer, run once before."
        ),
    ] = None,
    broker: Annotated[
        str | None,
        typer.Option(
            envvar="PARTIBUS_BENCH_BROKER",
            help="A broker that runs already, for the traffic figures: amqp://….",
        ),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="A figure to measure (repeatable); all by default.")
    ] = None,
    rounds: Rounds = None,
    quick: Quick = False,
    folder: Folder = WORK,
    write_docs: Annotated[
        bool, typer.Option("--write-docs", help="Put the table into docs/benchmarks.md.")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Sample the broker with py-spy during the traffic figures.")
    ] = False,
) -> None:
    """Measure the figures to hold; print one line of JSON for each."""
    unknown = set(only or ()) - set(FIGURES)
    if unknown:
        raise typer.BadParameter(f"no figure {', '.join(sorted(unknown))}; there are {', '.join(FIGURES)}")
    refuse_partial_docs(write_docs, only, quick)
    make_folder(folder)
    if peer_setup:
        subprocess.run(shlex.split(peer_setup), check=True, stdout=sys.stderr)
    scale = QUICK if quick else FULL
    if rounds is not None:
        scale = replace(scale, rounds=rounds)
    gc.freeze()  # what is loaded by now is never garbage, so the collector need not walk it under load
    run = Run(scale, frozenset(only or FIGURES), folder, Profiler(folder) if profile else None)
    if run.wants(figures.TRAFFIC):
        measure_traffic(run, peer, broker)
    if broker is None:  # the others need their own broker: they fill it, kill it and read its memory
        for group, measure in (
            (figures.WAITING, measure_waiting),
            (figures.AT_MARK, measure_at_mark),
            (figures.IDLE, measure_idle),
            (figures.DISK_SPACE, measure_disk_space),
            (figures.CHECKPOINT_COST, measure_checkpoints),
            (figures.FEATURES, measure_features),
            (figures.REMEMBERED, measure_remembered),
            (figures.IN_SESSIONS, measure_sessions),
            (figures.CONNECTIONS, measure_connections),
            (figures.MANY, measure_many_queues),
            (figures.HALF_HEADERS, measure_half_headers),
            (figures.SINGLE, measure_single_partitions),
            (figures.FAIRNESS, measure_fairness),
            (figures.NEIGHBOURS, measure_neighbour),
            (figures.OUTPUT_ATTACK, measure_output_attack),
            (figures.ATTACKED, measure_attacks),
            (figures.STALLED, measure_stalls),
        ):
            if run.wants(group):
                measure(run)
    publish(run, write_docs)
    if any(result.verdict is Verdict.MISSED for result in run.results.values()) and not quick:
        raise typer.Exit(1)


def measure_traffic(run: Run, peer_url: str | None, broker_url: str | None) -> None:
    """Throughput and latency, alternating between broker and peer; which goes first changes every round."""
    with broker_target(run.folder, broker_url) as (subject, pid):
        targets = [subject]
        if peer_url is not None:
            targets.append(Target("peer", Endpoint.parse(peer_url), settles_first=True))
        for target in targets:
            progress.print(f"warming up {target.name}")
            traffic.send(target, run.scale.messages // 10)
            traffic.receive(target, run.scale.messages // 10)
        for number in run.rounds("traffic"):
            for target in targets if number % 2 == 0 else reversed(targets):
                _traffic_round(run, target, pid if target is subject else None, is_peer=target is not subject)
            if figures.SEND_LATENCY.name in run.wanted:
                traffic.sync_disks()
                disk_us = traffic.disk_latencies_us(run.folder, run.scale.latency_messages)
                run.note(figures.SEND_LATENCY, statistics.median(disk_us), {}, reference=True)


def _traffic_round(run: Run, target: Target, pid: int | None, is_peer: bool) -> None:
    scale = run.scale
    settings: dict[str, object] = {
        "messages": scale.messages,
        "body_bytes": traffic.BODY_BYTES,
        "window": traffic.WINDOW,
    }
    one: dict[str, object] = {**settings, "connections": 1, "partitions": footprint.PARTITIONS}
    eight: dict[str, object] = {**one, "connections": CONNECTIONS}

    def measured(figure: Figure, load: Callable[[], float], with_settings: dict[str, object]) -> None:
        with (
            run.profiler.around(figure.name, pid)
            if run.profiler is not None and pid is not None
            else nullcontext()
        ):
            value = load()
        run.note(figure, value, with_settings, reference=is_peer)

    if run.wants((figures.SEND, figures.RECEIVE)):
        measured(figures.SEND, lambda: traffic.send(target, scale.messages), one)
        measured(figures.RECEIVE, lambda: traffic.receive(target, scale.messages), one)
    if run.wants((figures.EIGHT_CONNECTIONS,)):
        measured(
            figures.EIGHT_CONNECTIONS,
            lambda: traffic.send_and_receive(target, scale.messages, CONNECTIONS),
            eight,
        )
    if run.wants((figures.TRANSACTIONS,)) and not is_peer:
        count = scale.messages // 5
        load = partial(transactions.committed_per_s, target, count, CONNECTIONS)
        measured(figures.TRANSACTIONS, load, {**eight, "messages": count, "window": transactions.MESSAGES})
        traffic.receive(target, count - count % transactions.MESSAGES)
    if run.wants((figures.SEND_LATENCY, figures.PEER_SEND_LATENCY)):
        traffic.sync_disks()
        latency_us = statistics.median(traffic.send_latencies_us(target, scale.latency_messages))
        traffic.receive(target, scale.latency_messages)
        settings = {**one, "messages": scale.latency_messages, "window": 1}
        run.note(figures.PEER_SEND_LATENCY if is_peer else figures.SEND_LATENCY, latency_us, settings)


def with_messages(count: int) -> dict[str, object]:
    """The settings of a figure about one queue and this many messages."""
    return {"messages": count, "body_bytes": traffic.BODY_BYTES, "partitions": footprint.PARTITIONS}


def measure_waiting(run: Run) -> None:
    """Memory and restart with messages waiting."""
    settings = with_messages(run.scale.waiting_messages)
    for _ in run.rounds(f"{run.scale.waiting_messages:,} messages waiting"):
        found = footprint.waiting(run.folder, run.scale.waiting_messages)
        run.note(figures.MEMORY_WAITING, found.memory_mib, settings)
        run.note(figures.MEMORY_WAITING_RESTARTED, found.memory_restarted_mib, settings)
        run.note(figures.RESTART_KILLED, found.restart_killed_s, settings)
        run.note(figures.RESTART_STOPPED, found.restart_stopped_s, settings)


def measure_at_mark(run: Run) -> None:
    """Memory of a broker that refuses sends while it is emptied."""
    scale = run.scale
    settings: dict[str, object] = {
        "mark_mib": scale.mark_mib,
        "body_bytes": memory_mark.BODY_BYTES,
        "partitions": footprint.PARTITIONS,
    }
    for _ in run.rounds("a broker at its memory mark"):
        found = memory_mark.at_mark(run.folder, scale.mark_mib, 40 * scale.waiting_messages)
        counts = {"sent": found.sent, "refused_while_draining": found.refused_while_draining}
        run.note(figures.MEMORY_AT_MARK, found.memory_percent, {**settings, **counts})


def measure_features(run: Run) -> None:
    """Duplicate detection and scheduled messages."""
    count = run.scale.messages // 2
    settings = with_messages(count)
    for _ in run.rounds("duplicates and schedules"):
        found = features.detected(run.folder, count)
        run.note(figures.DETECTED, found.new_per_s, settings)
        run.note(figures.DUPLICATES, found.duplicates_per_s, settings)
        timed = features.scheduled(run.folder, count)
        run.note(figures.SCHEDULED_SENT, timed.sent_per_s, settings)
        run.note(figures.SCHEDULED_RECEIVED, timed.received_per_s, settings)


def measure_remembered(run: Run) -> None:
    """Memory of message-ids. It hardly depends on the machine, so one round is enough."""
    count = run.scale.waiting_messages
    settings: dict[str, object] = {"message_ids": count, "partitions": footprint.PARTITIONS}
    progress.print(f"{count:,} message-ids")
    run.note(figures.DUPLICATES_MEMORY, features.remembered_mib(run.folder, count), settings)


def measure_sessions(run: Run) -> None:
    """Draining many sessions, and a tenth of them."""
    count = run.scale.sessions
    settings: dict[str, object] = {
        "sessions": count,
        "messages_each": sessions.MESSAGES,
        "body_bytes": sessions.BODY_BYTES,
        "connections": CONNECTIONS,
        "partitions": footprint.PARTITIONS,
    }
    for _ in run.rounds(f"{count:,} sessions"):
        few = sessions.drained(run.folder, count // 10, CONNECTIONS)
        many = sessions.drained(run.folder, count, CONNECTIONS)
        run.note(figures.SESSIONS, count * sessions.MESSAGES / many.took_s, settings)
        run.note(figures.SESSIONS_TIME, many.took_s / few.took_s, settings)
        run.note(figures.SESSIONS_MEMORY, many.grown_mib / few.grown_mib, settings)


def measure_idle(run: Run) -> None:
    """Memory and CPU time of an unused broker."""
    scale = run.scale
    settings: dict[str, object] = {
        "queues": scale.idle_queues,
        "partitions": footprint.PARTITIONS,
        "observed_s": scale.idle_observed_s,
    }
    for _ in run.rounds("idle"):
        found = footprint.idle(run.folder, scale.idle_queues, scale.idle_observed_s)
        run.note(figures.IDLE_MEMORY, found.memory_mib, settings)
        run.note(figures.IDLE_CPU, found.cpu_percent, settings)
        run.note(figures.IDLE_USED_MEMORY, found.used_memory_mib, settings)
        run.note(figures.IDLE_USED_CPU, found.used_cpu_percent, settings)


def measure_disk_space(run: Run) -> None:
    """Disk space that a queue uses after its traffic."""
    count = run.scale.waiting_messages
    settings = with_messages(count)
    for _ in run.rounds(f"{count:,} messages consumed"):
        found = disk_space.disk_space(run.folder, count)
        run.note(figures.DISK_DRAINED, found.drained_mib, settings)
        run.note(figures.DISK_DEFERRED, found.deferred_mib, {**settings, "deferred": disk_space.DEFERRED})


def measure_checkpoints(run: Run) -> None:
    """Bytes written to checkpoints while many messages wait. They do not depend on the machine, so one round
    is enough.
    """
    count = run.scale.waiting_messages
    settings: dict[str, object] = {
        "waiting": count,
        "body_bytes": checkpoint_cost.PASSING_BODY_BYTES,
        "partitions": 1,
    }
    progress.print(f"{count:,} messages waiting, checkpoints of one partition")
    run.note(figures.CHECKPOINTS, checkpoint_cost.checkpoint_mib(run.folder, count, 2), settings)


def measure_connections(run: Run) -> None:
    """Memory of a broker with idle connections."""
    settings: dict[str, object] = {"connections": run.scale.idle_connections}
    for _ in run.rounds(f"{run.scale.idle_connections:,} connections"):
        found = footprint.connections(run.folder, run.scale.idle_connections)
        run.note(figures.IDLE_CONNECTIONS, found.open_mib, settings)
        run.note(figures.IDLE_RECEIVERS, found.receiving_mib, settings)


def measure_many_queues(run: Run) -> None:
    """Cost of queries about all queues of a broker that has many."""
    count = run.scale.many_queues
    settings: dict[str, object] = {"queues": count, "partitions": footprint.PARTITIONS}
    for _ in run.rounds(f"{count:,} queues"):
        found = many_queues.many_queues(run.folder, count)
        run.note(figures.MANY_SCRAPE, found.scrape_ms, settings)
        run.note(figures.MANY_HEALTH, found.health_ms, settings)
        run.note(figures.MANY_LIST, found.list_ms, settings)
        run.note(figures.MANY_FIRST_SCRAPE, found.first_scrape_ms, settings)
        run.note(figures.MANY_FIRST_LIST, found.first_list_ms, settings)
        run.note(figures.MANY_USED_LIST, found.used_list_ms, settings)
        run.note(figures.MANY_START, found.start_ms, settings)
        run.note(figures.MANY_STALL, found.stall_ms, settings)
        run.note(figures.MANY_HOLD, found.hold_ms, settings)
        run.note(figures.MANY_MEMORY, found.memory_kib, settings)
    run.note(figures.MANY_COUNTERS, many_queues.counters_kib(500), settings)


def measure_single_partitions(run: Run) -> None:
    """A broker with many queues of one partition each."""
    count = run.scale.many_queues
    settings: dict[str, object] = {"queues": count, "partitions": 1}
    for _ in run.rounds(f"{count:,} queues of one partition"):
        found = many_queues.single_partitions(run.folder, count)
        run.note(figures.SINGLE_START, found.start_s, settings)
        run.note(figures.SINGLE_MEMORY, found.memory_mib, settings)
        run.note(figures.SINGLE_SCRAPE, found.scrape_ms, settings)
        run.note(figures.SINGLE_PAGE, found.page_ms, settings)


def measure_fairness(run: Run) -> None:
    """How long a light sender's messages take, alone and beside heavy senders."""
    scale = run.scale
    groups: tuple[tuple[int, Figure, Figure | None, Figure | None], ...] = (
        (0, figures.LIGHT_ALONE, None, None),
        (CONNECTIONS, figures.LIGHT_BESIDE_8, figures.LIGHT_KEYED_BESIDE_8, figures.HEAVY_8),
        (50, figures.LIGHT_BESIDE_50, figures.LIGHT_KEYED_BESIDE_50, figures.HEAVY_50),
    )
    for _ in run.rounds("a light sender"):
        for heavy, unkeyed, keyed, rate in groups:
            if not run.wants([figure for figure in (unkeyed, keyed, rate) if figure is not None]):
                continue
            settings: dict[str, object] = {
                "heavy_connections": heavy,
                "window": traffic.WINDOW,
                "body_bytes": traffic.BODY_BYTES,
                "partitions": footprint.PARTITIONS,
            }
            found = fairness.light_sender(run.folder, heavy, scale.light_messages, scale.light_at_most_s)
            for figure, took_ms in ((unkeyed, found.unkeyed_ms), (keyed, found.keyed_ms)):
                if figure is not None:
                    run.note(figure, percentile(took_ms, 0.99), {**settings, "messages": len(took_ms)})
            if rate is not None:
                run.note(rate, found.heavy_rate, settings)


def measure_neighbour(run: Run) -> None:
    """How much longer a light sender's messages take beside a throttled namespace."""
    scale = run.scale
    for _ in run.rounds("beside a throttled namespace"):
        found = neighbour.neighbour(run.folder, scale.neighbour_pairs, scale.neighbour_s)
        settings: dict[str, object] = {
            "pairs": scale.neighbour_pairs,
            "seconds_each": scale.neighbour_s,
            "credits_per_s": neighbour.CREDITS,
            "offered_per_s": neighbour.OFFERED_PER_S,
            "accepted": found.accepted,
            "refused": found.refused,
            "alone_ms": round(found.alone_ms, 3),
            "body_bytes": traffic.BODY_BYTES,
            "partitions": footprint.PARTITIONS,
        }
        run.note(figures.NEIGHBOUR, statistics.median(found.ratios), settings)


def measure_output_attack(run: Run) -> None:
    """What receivers that never read cost the broker and other clients."""
    scale = run.scale
    idle = min(scale.idle_connections, 500)
    settings: dict[str, object] = {
        "receivers": scale.silent_receivers,
        "idle_connections": idle,
        "messages": scale.silent_messages,
        "body_bytes": attack_output.BODY_BYTES,
        "partitions": footprint.PARTITIONS,
    }
    for _ in run.rounds("receivers that do not read"):
        found = attack_output.receivers_that_do_not_read(
            run.folder, scale.silent_receivers, idle, scale.silent_messages, 5.0
        )
        run.note(figures.OUTPUT_ATTACK_MEMORY, found.memory_mib, settings)
        run.note(figures.OUTPUT_ATTACK_ROUND_TRIP, found.round_trip_ms, settings)
        run.note(figures.OUTPUT_ATTACK_PEEK, found.peek_ms, settings)


def measure_half_headers(run: Run) -> None:
    """How long other clients wait while the HTTP port is full of connections with incomplete headers."""
    settings: dict[str, object] = {"connections": attack_http.CONNECTIONS, "attack_s": attack_http.ATTACK_S}
    for _ in run.rounds(f"{attack_http.CONNECTIONS:,} half headers"):
        found = attack_http.half_headers(run.folder)
        run.note(figures.HALF_HEADERS_HEALTH, found.health_ms, settings)
        run.note(figures.HALF_HEADERS_ADMINISTRATION, found.administration_ms, settings)
        run.note(figures.HALF_HEADERS_STALL, found.stall_ms, settings)
        run.note(figures.HALF_HEADERS_MEMORY, found.memory_mib, settings)


def measure_attacks(run: Run) -> None:
    """How much memory each attack takes on a fresh broker, and how long another client waits meanwhile."""
    settings: dict[str, object] = {"attack_s": run.scale.attack_s}
    for _ in run.rounds("attacks"):
        for name, (memory, stall) in figures.ATTACKS.items():
            if run.wants((memory, stall)):
                harm = attacks.suffer(run.folder, name, run.scale.attack_s)
                run.note(memory, harm.memory_mib, settings)
                run.note(stall, harm.stall_ms, settings)


def measure_stalls(run: Run) -> None:
    """How long an unrelated client waits while the broker works on one large entity. Only the plain queue is
    measured in each round, since a round with any of the others takes some minutes."""
    count = run.scale.waiting_messages
    settings: dict[str, object] = {"messages": count, "body_bytes": backlogs.BODY_BYTES, "partitions": 1}
    for number in run.rounds(f"work on {count:,} messages"):
        for kind, steps in figures.STALLS.items():
            if (number and kind != "plain") or not run.wants(list(chain(*steps.values()))):
                continue
            for step, wait in stalls.waits(run.folder, kind, count).items():
                p99, worst = steps[step]
                run.note(p99, wait.p99_ms, settings)
                run.note(worst, wait.worst_ms, settings)


@contextmanager
def broker_target(folder: Path, url: str | None) -> Iterator[tuple[Target, int | None]]:
    """The broker under test and its process id: started here, or the running broker at url, whose id is
    unknown.
    """
    if url is not None:
        yield Target("broker", Endpoint.parse(url), settles_first=True), None
        return
    with footprint.fresh_broker(folder) as started:
        yield footprint.target_of(started.addresses), started.pid


def publish(run: Run, write_docs: bool) -> None:
    """Write JSON lines to standard output, the table to standard error and, if requested, into the
    documentation.
    """
    about: dict[str, object] = {
        "commit": commit(REPOSITORY),
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(run.folder),
    }
    results = [run.results[name] for name in FIGURES if name in run.results and run.results[name].rounds]
    for result in results:
        sys.stdout.write(json.dumps(result.as_json(about), ensure_ascii=False) + "\n")
    sys.stdout.flush()
    progress.print(report.terminal_table(results))
    if write_docs:
        report.write_between_markers(report.DOCUMENT, report.markdown(results, about, "make bench"))


if __name__ == "__main__":
    typer.run(main)
