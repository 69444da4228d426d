"""Writes a comparison: one line of JSON for each value to standard output, and the table to the terminal."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.load.comparison import Comparison
from tests.bench.load.machine import commit, describe_machine


def write(found: Comparison, repository: Path, folder: Path, terminal: Console) -> dict[str, object]:
    """`folder` is where the broker had its data. Gives the time, commit and machine of the run."""
    about: dict[str, object] = {
        "commit": commit(repository),
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(folder),
    }
    for line in found.as_json(about):
        sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
    sys.stdout.flush()
    head, *rows = found.rows()
    table = Table(*head)
    for row in rows:
        table.add_row(*row)
    terminal.print(table)
    return about
