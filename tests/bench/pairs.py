"""`python -m tests.bench.pairs`: one version of the broker against another, in alternating pairs.

Responsible for the order of a run: both brokers run all the time; in each pair, one after the other takes the
same load of each row, and which goes first changes from pair to pair. Whatever else the machine does affects
both runs of a pair alike, and so hardly affects their ratio. The load is as fast as it goes, or at a pace.
Standard output carries only JSON, one line for each row and measure; if a row fails, for those that were
found until then.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Annotated

import typer
from rich.console import Console

from tests.bench import shapes
from tests.bench.load import comparison_output, footprint, traffic, versions
from tests.bench.load.comparison import Measure
from tests.bench.load.machine import StolenTime
from tests.bench.load.options import REPOSITORY, WORK, Folder, Quick, chosen_rows, make_folder
from tests.bench.load.pair_ratios import AFTER, BEFORE, Pairs
from tests.bench.load.shapes import PLAIN
from tests.bench.shapes import EIGHT, ONE, SHAPE_OF, Broker, Scale

ROWS = (*SHAPE_OF, EIGHT, ONE)
LONE_SHARE = 0.02
"""The number of messages that are sent one at a time, as a share of that of the others."""
FULL = Scale(8, 20_000, 30_000, int(20_000 * LONE_SHARE), paced_s=0, batches=0)
QUICK = Scale(2, 500, 500, int(500 * LONE_SHARE), paced_s=0, batches=0)
PACED_S = 4.0
VERSION = "TREE[@PYTHON] or REVISION[@PYTHON]"
progress = Console(stderr=True, highlight=False)


@dataclass(slots=True, frozen=True)
class Pace:
    """A sender that does not send as fast as it can."""

    per_s: float
    """Messages a second."""
    seconds: float
    beside_receiver: bool
    """Whether another connection receives and completes the messages meanwhile."""


def main(
    before: Annotated[
        str,
        typer.Option(metavar=VERSION, help="A folder with the broker, or a git revision; and its Python."),
    ],
    after: Annotated[str, typer.Option(metavar=VERSION, help="What it is compared with.")] = str(REPOSITORY),
    shape: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(map(repr, ROWS))}. Repeatable.")
    ] = None,
    pairs: Annotated[int | None, typer.Option(min=1, help=f"{FULL.rounds} unless given.")] = None,
    messages: Annotated[
        int | None, typer.Option(min=100, help=f"In and out in each run: {FULL.messages:,} unless given.")
    ] = None,
    per_second: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Send at this pace, plain messages unless a shape is given, and measure the latencies.",
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.1, help=f"How long each run sends at that pace: {PACED_S:g} unless given."),
    ] = None,
    beside_receiver: Annotated[
        bool,
        typer.Option("--beside-receiver", help="Receive and complete the messages while they are sent."),
    ] = False,
    quick: Quick = False,
    folder: Folder = WORK,
) -> None:
    """Compare two versions of the broker, in pairs of runs whose order alternates."""
    rows = chosen_rows(shape or ([PLAIN.name] if per_second else None), ROWS, "--shape")
    pace = pace_of(per_second, seconds, beside_receiver, rows)
    if pace and messages:
        raise typer.BadParameter(
            "the pace and --seconds give the number of messages", param_hint="--messages"
        )
    scale = scale_of(pairs, messages, quick)
    make_folder(folder)
    described = {}
    for name, option, text in ((BEFORE, "--before", before), (AFTER, "--after", after)):
        progress.print(f"preparing {name}: {text}", soft_wrap=True, markup=False)
        described[name] = versions.version_of(option, text)
    gc.freeze()  # what is loaded by now is never garbage, so the collector need not walk it under load
    found = Pairs({}, PLAIN.name, versions={name: each.as_json() for name, each in described.items()})
    with ExitStack() as stack:
        brokers = []
        for name, version in described.items():
            started = version.started(stack, folder)
            target = replace(footprint.target_of(started.addresses), name=name, confirms=False)
            brokers.append(Broker(target, started.pid))
        with comparison_output.kept_if_failing(found, REPOSITORY, folder, progress):
            measure_pairs(found, scale, rows, brokers, pace)
    comparison_output.write(found, REPOSITORY, folder, progress)


def scale_of(pairs: int | None, messages: int | None, quick: bool) -> Scale:
    """The amount of work: each pair is a round."""
    scale = QUICK if quick else FULL
    count = messages or scale.messages
    return replace(scale, rounds=pairs or scale.rounds, messages=count, one_at_a_time=int(count * LONE_SHARE))


def pace_of(
    per_second: float | None, seconds: float | None, beside_receiver: bool, rows: Sequence[str]
) -> Pace | None:
    """The pace that the options describe; None for the highest rate. Raises BadParameter for options and rows
    that do not go with it."""
    if per_second is None:
        for option, is_given in (("--seconds", seconds is not None), ("--beside-receiver", beside_receiver)):
            if is_given:
                raise typer.BadParameter("it needs a pace: --per-second", param_hint=option)
        return None
    for row in rows:
        if row not in SHAPE_OF:
            raise typer.BadParameter(f"{row!r} is not sent at a pace", param_hint="--per-second")
    return Pace(per_second, seconds or PACED_S, beside_receiver)


def measure_pairs(
    found: Pairs, scale: Scale, rows: Sequence[str], brokers: Sequence[Broker], pace: Pace | None = None
) -> None:
    """All pairs of all rows."""
    for broker in brokers:
        shapes.warm_up(broker.target, scale.warm_up)
    stolen = StolenTime()
    for number in range(scale.rounds):
        for row in rows:
            for broker in brokers if number % 2 == 0 else brokers[::-1]:
                with comparison_output.part(row, broker.target.name):
                    if pace is None:
                        shapes.measure_in_and_out(found, scale, row, broker)
                    else:
                        measure_paced(found, pace, row, broker)
            progress.print(f"  {row}: {found.latest(row)}", soft_wrap=True, markup=False)
        progress.print(f"pair {number + 1} of {scale.rounds} done, {stolen.percent():.0f} % CPU stolen")


def measure_paced(found: Pairs, pace: Pace, row: str, broker: Broker) -> None:
    """Send messages of a shape at a pace, once, and receive them meanwhile or afterwards. CPU time is that of
    the paced part."""
    load = shapes.load_of(SHAPE_OF[row])
    traffic.sync_disks()
    count, begun_s = max(1, int(pace.per_s * pace.seconds)), broker.cpu_s()
    took_s = traffic.paced_latencies_s(broker.target, load, count, pace.per_s, receive=pace.beside_receiver)
    used_us = (broker.cpu_s() - begun_s) / count * 1e6
    if not pace.beside_receiver:
        traffic.receive(broker.target, count, load=load)
    cpu = Measure.CPU_IN_AND_OUT if pace.beside_receiver else Measure.CPU_IN
    found.note(row, cpu, broker.target.name, used_us)
    shapes.note_percentiles(found, row, broker.target.name, [each * 1000 for each in took_s])


if __name__ == "__main__":
    typer.run(main)
