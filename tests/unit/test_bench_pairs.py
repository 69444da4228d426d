"""Two versions in alternating pairs: the order of the runs, the ratios, and the options."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.bench import pairs, shapes
from tests.bench.load.comparison import Measure
from tests.bench.load.endpoint import Endpoint
from tests.bench.load.options import REPOSITORY
from tests.bench.load.pair_ratios import AFTER, BEFORE, Pairs, quartiles
from tests.bench.load.traffic import Target
from tests.bench.shapes import EIGHT, ONE, Broker, Scale
from tests.support.bare_peers import endpoint_of, running_bare_peer


def found_of(measure: Measure, before: list[float], after: list[float]) -> Pairs:
    """The pairs of one measure of plain messages."""
    found = Pairs({}, "plain", versions={BEFORE: {"commit": "a"}, AFTER: {"commit": "b"}})
    for name, values in ((BEFORE, before), (AFTER, after)):
        for value in values:
            found.note("plain", measure, name, value)
    return found


def brokers_at(endpoint: Endpoint) -> list[Broker]:
    targets = (Target(name, endpoint, settles_first=False, confirms=False) for name in (BEFORE, AFTER))
    return [Broker(target, os.getpid()) for target in targets]


def test_the_median_of_the_ratios_counts_not_the_ratio_of_the_medians() -> None:
    found = found_of(Measure.CPU_IN, [10.0, 20.0, 100.0], [5.0, 30.0, 90.0])
    assert found.ratios("plain", Measure.CPU_IN) == [0.5, 1.5, 0.9]
    assert found.rows() == [
        ("shape", "measure", "before", "after", "ratio", "quartiles"),
        ("plain", "CPU in, µs", "20.00", "30.00", "0.90", "0.50 to 1.50"),
    ]
    assert found.latest("plain") == "CPU in 0.90 ×"
    assert found.as_json({"at": "now"}) == [
        {
            "shape": "plain",
            "measure": "CPU in, µs",
            "before": {"commit": "a", "value": 20.0, "rounds": [10.0, 20.0, 100.0]},
            "after": {"commit": "b", "value": 30.0, "rounds": [5.0, 30.0, 90.0]},
            "ratio": 0.9,
            "quartiles": [0.5, 1.5],
            "ratios": [0.5, 1.5, 0.9],
            "at": "now",
        }
    ]


def test_quartiles_leave_out_as_many_values_below_as_above() -> None:
    assert quartiles([float(number) for number in (8, 2, 3, 4, 5, 6, 7, 1)]) == (3.0, 6.0)
    assert quartiles([7.0]) == (7.0, 7.0)


def test_half_a_pair_has_no_ratio() -> None:
    found = found_of(Measure.IN, [10.0], [20.0, 50.0])
    assert found.ratios("plain", Measure.IN) == [2.0]
    assert found_of(Measure.IN, [10.0], []).rows()[1:] == []
    assert found_of(Measure.IN, [], [10.0]).as_json({}) == []


def test_a_pair_whose_load_was_too_short_for_cpu_time_has_no_ratio() -> None:
    found = found_of(Measure.CPU_IN, [0.0, 20.0], [10.0, 10.0])
    assert found.ratios("plain", Measure.CPU_IN) == [0.5] and found.latest("plain") == "CPU in 0.50 ×"
    found = found_of(Measure.CPU_IN, [20.0, 0.0], [10.0, 10.0])
    assert found.ratios("plain", Measure.CPU_IN) == [0.5] and found.latest("plain") == ""
    found = found_of(Measure.CPU_IN, [0.0], [10.0])
    assert found.rows()[1][-2:] == ("", "") and found.latest("plain") == ""
    assert (found.as_json({})[0]["ratio"], found.as_json({})[0]["quartiles"]) == (None, None)


def test_which_version_goes_first_changes_from_pair_to_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    order = []

    def note_order(found: Pairs, scale: Scale, row: str, broker: Broker) -> None:
        order.append((row, broker.target.name))

    monkeypatch.setattr(shapes, "warm_up", lambda target, count: order.append((target.name, count)))
    monkeypatch.setattr(shapes, "measure_in_and_out", note_order)
    scale = pairs.scale_of(2, None, quick=True)
    pairs.measure_pairs(Pairs({}, "plain"), scale, ["plain", EIGHT], brokers_at(Endpoint.parse("amqp://h/q")))
    assert order == [
        (BEFORE, 500), (AFTER, 500),
        ("plain", BEFORE), ("plain", AFTER), (EIGHT, BEFORE), (EIGHT, AFTER),
        ("plain", AFTER), ("plain", BEFORE), (EIGHT, AFTER), (EIGHT, BEFORE),
    ]  # fmt: skip


def test_each_row_has_its_measures() -> None:
    found = Pairs({}, "plain")
    with running_bare_peer() as peer:
        pairs.measure_pairs(found, pairs.QUICK, ["keyed", EIGHT, ONE], brokers_at(endpoint_of(peer)))
    assert {row: [measure for shape, measure in found.measured if shape == row] for row in pairs.ROWS} == {
        **{row: [] for row in pairs.ROWS},
        "keyed": [Measure.IN, Measure.OUT, Measure.CPU_IN, Measure.CPU_OUT],
        EIGHT: [Measure.IN_AND_OUT, Measure.CPU_IN_AND_OUT],
        ONE: [Measure.CPU_IN_AND_OUT, Measure.P50, Measure.P99, Measure.P999],
    }
    assert len(found.ratios("keyed", Measure.IN)) == pairs.QUICK.rounds


@pytest.mark.parametrize(
    ("beside_receiver", "cpu"), [(False, Measure.CPU_IN), (True, Measure.CPU_IN_AND_OUT)]
)
def test_at_a_pace_latencies_are_measured(beside_receiver: bool, cpu: Measure) -> None:
    found, pace = Pairs({}, "plain"), pairs.Pace(1_000, 0.2, beside_receiver)
    began = time.perf_counter()
    with running_bare_peer() as peer:
        pairs.measure_pairs(found, pairs.QUICK, ["keyed"], brokers_at(endpoint_of(peer)), pace)
    assert time.perf_counter() - began >= pairs.QUICK.rounds * 2 * pace.seconds * 0.99
    assert [measure for _, measure in found.measured] == [cpu, Measure.P50, Measure.P99, Measure.P999]
    assert len(found.rounds("keyed", Measure.P99, AFTER)) == pairs.QUICK.rounds


def test_pairs_and_messages_may_be_chosen() -> None:
    assert pairs.scale_of(None, None, quick=False) == pairs.FULL
    assert pairs.scale_of(None, None, quick=True) == pairs.QUICK
    chosen = pairs.scale_of(3, 1_000, quick=False)
    assert (chosen.rounds, chosen.messages, chosen.one_at_a_time) == (3, 1_000, 20)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "Missing option '--before'"),
        (["--before", "no-such-branch"], "no-such-branch is neither"),
        (["--before", str(REPOSITORY), "--after", "no-such-branch"], "Invalid value for --after"),
        (["--before", str(REPOSITORY), "--shape", "plian"], 'no row "plian"; there are "plain"'),
        (["--before", str(REPOSITORY), "--pairs", "0"], "Invalid value for '--pairs'"),
        (["--before", str(REPOSITORY), "--messages", "99"], "Invalid value for '--messages'"),
        (["--before", str(REPOSITORY), "--seconds", "1"], "it needs a pace: --per-second"),
        (["--before", str(REPOSITORY), "--beside-receiver"], "it needs a pace: --per-second"),
        (["--before", str(REPOSITORY), "--per-second", "0"], "Invalid value for '--per-second'"),
        (
            ["--before", str(REPOSITORY), "--per-second", "9", "--messages", "100"],
            "the pace and --seconds give",
        ),
        (
            ["--before", str(REPOSITORY), "--per-second", "9", "--shape", ONE],
            "'one at a time' is not sent at a pace",
        ),
    ],
)
def test_wrong_options_are_refused_before_anything_is_measured(
    tmp_path: Path, arguments: list[str], says: str
) -> None:
    app = typer.Typer()
    app.command()(pairs.main)
    folder = tmp_path / "folder"
    environment = {"COLUMNS": "400", "NO_COLOR": "1", "PARTIBUS_BENCH_DIR": str(folder)}
    refused = CliRunner().invoke(app, arguments, env=environment)
    assert refused.exit_code == 2 and refused.stdout == ""
    assert says in refused.stderr
    assert not list(folder.glob("*"))
