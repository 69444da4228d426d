"""Results for readers: the table on the terminal, and the one in the documentation between its two
markers.

`python -m tests.bench.load.report` judges the documentation's table again, after a floor or goal has changed.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.table import Table

from tests.bench.load.figure import Figure, Reference, Result
from tests.bench.load.figures import FIGURES

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "benchmarks.md"
DOCUMENT_WIDTH = 140

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
COLUMNS = ("figure", "value", "held against", "ratio", "floor", "goal", "stands", "stolen")


def terminal_table(results: Sequence[Result]) -> Table:
    """The results as a rich table."""
    table = Table(*COLUMNS)
    for result in results:
        table.add_row(*_row(result))
    return table


def markdown(results: Sequence[Result], run: Mapping[str, object], command: str) -> str:
    """The results as a Markdown table, with the command, the commit and the machine below it."""
    return markdown_table(COLUMNS, map(_row, results), run, command)


def markdown_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], run: Mapping[str, object], command: str
) -> str:
    """A Markdown table, with the command, the commit and the machine below it."""
    machine = run["machine"]
    assert isinstance(machine, dict)
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    about = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in machine.items())
    origin = textwrap.wrap(
        f"`{command}`, {run['at']}, commit {run['commit']}; {about}.", DOCUMENT_WIDTH, break_on_hyphens=False
    )
    return "\n".join([*lines, "", *origin, ""])


def write_between_markers(path: Path, text: str, begins: str = BEGIN, ends: str = END) -> None:
    """Put text between two markers of a file. Raises ValueError if they are missing."""
    content = path.read_text(encoding="utf-8")
    before, begin, rest = content.partition(begins)
    _, end, after = rest.partition(ends)
    if not begin or not end:
        raise ValueError(f"{path} has no lines {begins} and {ends}")
    path.write_text(f"{before}{begins}\n{text}{ends}{after}", encoding="utf-8")


def judged_again(table: str) -> str:
    """A table of `markdown` with the floors, goals and verdicts of today. Values and ratios stay."""
    lines = table.splitlines()
    for number, line in enumerate(lines):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        figure = FIGURES.get(cells[0]) if line.startswith("|") else None
        if figure is not None:
            row = dict(zip(COLUMNS, cells, strict=False))
            value = float(row["value"].split()[0].replace(",", ""))
            row["floor"], row["goal"] = _bounds(figure)
            row["stands"] = figure.judge(value, float(row["ratio"]) if row["ratio"] else None).value
            lines[number] = "| " + " | ".join(row.values()) + " |"
    return "\n".join(lines) + "\n"


def between_markers(path: Path, begins: str = BEGIN, ends: str = END) -> str:
    """The text between two markers of a file."""
    return path.read_text(encoding="utf-8").partition(f"{begins}\n")[2].partition(ends)[0]


def _bounds(figure: Figure) -> tuple[str, str]:
    """Floor and goal as the table shows them."""
    times = " ×" if figure.reference else f" {figure.unit}"
    floor, goal = ("" if bound is None else f"{bound:g}{times}" for bound in (figure.floor, figure.goal))
    return floor, goal


def _row(result: Result) -> tuple[str, ...]:
    figure = result.figure
    names = {Reference.PEER: "peer", Reference.DISK: "disk", None: ""}
    against = names[figure.reference]
    if result.reference is not None:
        against = f"{against or 'peer'} {_number(result.reference)}"
    return (
        figure.name,
        f"{_number(result.value)} {figure.unit}",
        against,
        f"{result.ratio:.2f}" if result.ratio is not None else "",
        *_bounds(figure),
        result.verdict.value,
        f"{statistics.median(result.stolen_percent):.0f} %",
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


if __name__ == "__main__":
    write_between_markers(DOCUMENT, judged_again(between_markers(DOCUMENT)))
