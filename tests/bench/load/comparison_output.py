"""Writes a comparison: one line of JSON for each value to standard output, and the table to the terminal. If
a run fails, this holds for the values found until then.
"""

from __future__ import annotations

import datetime
import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from proton import ProtonException
from rich.console import Console
from rich.table import Table

from tests.bench.load.comparison import Comparison
from tests.bench.load.endpoint import LoadError
from tests.bench.load.machine import commit, describe_machine

EXPLAINED = (LoadError, OSError, ProtonException, KeyboardInterrupt)
"""Failures that one line explains. All others show their traceback as well."""


class PartFailed(Exception):
    """What is measured of one broker failed: its cause."""


@contextmanager
def part(name: str, broker: str) -> Iterator[None]:
    """Name the row and the broker in whatever fails inside."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        raise PartFailed(f"{name} at {broker} failed: {_in_one_line(error)}") from error


@contextmanager
def kept_if_failing(found: Comparison, repository: Path, folder: Path, terminal: Console) -> Iterator[None]:
    """If the run inside fails or is interrupted, write the values found so far, say in one line what failed,
    and exit with status 1."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        failure = _failed_part(error) or error
        if not isinstance(failure.__cause__ or failure, EXPLAINED):
            traceback.print_exception(error)
        write(found, repository, folder, terminal)
        terminal.print(_in_one_line(failure), soft_wrap=True, markup=False)
        raise typer.Exit(1) from error


def _failed_part(error: BaseException | None) -> PartFailed | None:
    """The part whose failure led to this one: a broker that hangs may also fail to stop afterwards."""
    while error is not None and not isinstance(error, PartFailed):
        error = error.__context__
    return error


def _in_one_line(error: BaseException) -> str:
    if isinstance(error, PartFailed):
        return str(error)
    first, *_ = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


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
