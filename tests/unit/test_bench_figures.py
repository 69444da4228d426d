"""docs/benchmarks.md says what the benchmark measures and judges by."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.bench.load.figure import Figure, Result
from tests.bench.load.figures import FIGURES
from tests.bench.load.report import DOCUMENT, judged_again, markdown

OUT_OF_DATE = "`python -m tests.bench.load.report` brings the table up to date: "


def rows(text: str) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Each row of each table: the names in its first cell, and its cells by the column's name."""
    columns: list[str] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            columns = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not columns:
            columns = cells
        elif not set(line) <= set("|- "):
            yield [name.strip("` ") for name in cells[0].split(",")], dict(zip(columns, cells, strict=True))


def number(cell: str) -> float | None:
    """The number in a cell such as `1,500 ms` or `1.75 ×`; None if it is empty."""
    return float(cell.split()[0].replace(",", "")) if cell else None


def judged() -> Iterator[tuple[Figure, dict[str, str]]]:
    """The rows that give the floor of one figure."""
    for names, cells in rows(DOCUMENT.read_text(encoding="utf-8")):
        for name in names if cells.keys() >= {"figure", "floor"} else ():
            if name in FIGURES:
                yield FIGURES[name], cells


def test_floors_and_goals_are_those_that_the_benchmark_judges_by() -> None:
    found = list(judged())
    assert len(found) > 10
    for figure, cells in found:
        assert number(cells["floor"]) == figure.floor, f"{OUT_OF_DATE}the floor of {figure.name}"
        assert number(cells["goal"]) == figure.goal, f"{OUT_OF_DATE}the goal of {figure.name}"


def test_a_table_is_judged_again_by_the_floors_of_today() -> None:
    send, hold = FIGURES["send"], FIGURES["many_hold"]
    results = [
        Result(send, {}, [30_000.0], [20_000.0], [1.0]),
        Result(hold, {}, [17.3], [], [1.0]),
    ]
    about = {"machine": {"cores": 2}, "at": "today", "commit": "1234"}
    table = markdown(results, about, "make bench")
    assert judged_again(table) == table
    assert "| 10 ms | 5 ms | below the floor | 1 % |" in table
    older = table.replace("| 10 ms | 5 ms | below the floor |", "| 20 ms | 10 ms | floor |")
    assert older != table and judged_again(older) == table


@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_is_explained(name: str) -> None:
    explained = {
        name
        for names, cells in rows(DOCUMENT.read_text(encoding="utf-8"))
        if cells.keys() >= {"meaning", "expected"}
        for name in names
    }
    assert name in explained or any(
        each.endswith("…") and re.match(re.escape(each[:-1]), name) for each in explained
    )


def test_what_is_asked_about_ten_thousand_entities_is_answered_in_200_ms_and_no_slice_takes_10_ms() -> None:
    """The bounds that the design sets."""
    for name in ("scrape", "health", "list", "first_scrape", "first_list", "used_list"):
        assert FIGURES[f"many_{name}"].floor == 200
    assert FIGURES["many_hold"].floor == 10 and FIGURES["many_counters"].floor == 4
