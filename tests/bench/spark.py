"""`python -m tests.bench.spark`: how fast Spark reads, writes and streams, beside Kafka with Spark's own
connector.

Responsible for the order of a run: each rival in turn, all figures, and the medians of the rounds. Standard
output carries one line of JSON for each figure of each rival and nothing else. Exits with status 1 if a
figure of Partibus is below its floor.
"""

from __future__ import annotations

import datetime
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pyspark
import typer
from rich.console import Console

from tests.bench.load import kafka_broker, report, spark_measures
from tests.bench.load.figure import Figure, Result, Verdict
from tests.bench.load.machine import StolenTime, commit, describe_machine
from tests.bench.load.spark_measures import SPARK_FIGURES
from tests.bench.load.spark_rivals import ENTITIES, PARTITIONS, Kafka, Rival, running_partibus
from tests.support import spark_session

REPOSITORY = Path(__file__).resolve().parents[2]
WORK = REPOSITORY / "build" / "bench-spark"
BEGIN, END = "<!-- spark: begin -->", "<!-- spark: end -->"
OURS = "partibus"
RIVALS = (OURS, "kafka")
progress = Console(stderr=True, highlight=False)


@dataclass(slots=True, frozen=True)
class Scale:
    """Amount of work."""

    messages: int
    paced_s: float


FULL, QUICK = Scale(200_000, 20.0), Scale(5_000, 2.0)


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; the value is their median.")] = 1,
    only: Annotated[str, typer.Option(help="The rivals, with commas between.")] = ",".join(RIVALS),
    quick: Annotated[bool, typer.Option(help="Little work, to see whether everything runs.")] = False,
    write_docs: Annotated[bool, typer.Option(help="Put the table into docs/benchmarks.md.")] = False,
) -> None:
    """Measure the connector, and Spark's own connector for Kafka."""
    names = only.split(",")
    if unknown := set(names) - set(RIVALS):
        raise typer.BadParameter(f"unknown: {', '.join(sorted(unknown))}", param_hint="--only")
    scale = QUICK if quick else FULL
    at = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    results: dict[str, dict[str, Result]] = {name: {} for name in names}
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            progress.print(f"{name}, round {number + 1} of {rounds}")
            measure(name, scale, results[name])
    run: dict[str, object] = {
        "at": at,
        "commit": commit(REPOSITORY),
        "machine": {**describe_machine(WORK), "spark": pyspark.__version__},
    }
    for name, found in results.items():
        for result in found.values():
            print(json.dumps({"rival": name, **result.as_json(run)}))
    if write_docs:
        report.write_between_markers(report.DOCUMENT, table(results, run), BEGIN, END)
    verdicts = [result.verdict for result in results.get(OURS, {}).values()]
    sys.exit(not quick and Verdict.MISSED in verdicts)


def measure(name: str, scale: Scale, results: dict[str, Result]) -> None:
    """One round of one rival."""
    stolen = StolenTime()
    with rival(name) as subject, spark_session.local_spark(WORK / "spark") as spark:
        spark_measures.warm_up(spark, subject, WORK)
        steps: tuple[Callable[[], dict[Figure, float]], ...] = (
            lambda: spark_measures.batches(spark, subject, scale.messages),
            lambda: spark_measures.stream(spark, subject, WORK),
            lambda: spark_measures.latency(spark, subject, WORK, scale.paced_s),
            lambda: spark_measures.recovery(spark, subject, WORK),
        )
        for step in steps:
            stolen.percent()
            for figure, value in step().items():
                settings = {"messages": scale.messages, "partitions": PARTITIONS}
                result = results.setdefault(figure.name, Result(figure, settings))
                result.rounds.append(value)
                result.stolen_percent.append(stolen.percent())
                progress.print(f"  {figure.name:26} {value:12,.2f} {figure.unit}")


@contextmanager
def rival(name: str) -> Iterator[Rival]:
    """A broker on an empty folder, and the settings with which Spark finds it."""
    shutil.rmtree(WORK, ignore_errors=True)
    if name == OURS:
        with running_partibus(WORK / "broker") as partibus:
            yield partibus
        return
    spark_session.SETTINGS["spark.jars"] = kafka_broker.jars_of_spark()
    with kafka_broker.running_kafka(WORK / "broker", PARTITIONS) as broker:
        broker.create(ENTITIES)
        yield Kafka(broker)
    del spark_session.SETTINGS["spark.jars"]


def table(results: dict[str, dict[str, Result]], run: dict[str, object]) -> str:
    """The results as Markdown, one column for each rival."""
    lines = [
        "| " + " | ".join(("figure", *results, "floor", "goal")) + " |",
        "| --- " * (len(results) + 3) + "|",
    ]
    for figure in SPARK_FIGURES:
        cells = [f"{figure.name}, {figure.unit}"]
        cells += [_value(found.get(figure.name)) for found in results.values()]
        cells += ["" if bound is None else f"{bound:,.0f}" for bound in (figure.floor, figure.goal)]
        lines.append("| " + " | ".join(cells) + " |")
    machine = run["machine"]
    assert isinstance(machine, dict)
    about = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in machine.items())
    return "\n".join([*lines, "", f"`make bench-spark`, {run['at']}, commit {run['commit']}; {about}.", ""])


def _value(result: Result | None) -> str:
    return "" if result is None else f"{result.value:,.0f}" if result.value >= 100 else f"{result.value:,.1f}"


if __name__ == "__main__":
    typer.run(main)
