"""The command `partibus check`: what is damaged or missing in a data folder, for people or for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar
from rich.table import Table

from broker.base.plurals import counted
from broker.maintenance.check import NoDataFolder, Report, check_folders
from broker.settings.setting_types import variable_of
from broker.settings.settings import WrongSettings, load_settings, refuse_blank, unknown_variables
from storage.check import Progress
from storage.folder_identity import WrongFolders
from storage.survey import Severity

CHECK_EPILOG = """
What the findings mean:

* `unusable`: a queue or partition cannot be served, or some of its messages cannot be read.
  `partibus repair` says what can be saved.
* `unread`: a data folder of the broker was not named, so nothing in it was checked. Name it with
  `--data-dir` as well.
* `spare`: one of two copies is damaged or missing. The other serves; the broker or `partibus repair`
  replaces it.
* `note`: no damage, such as an unfinished commit left by a crash, which the next start removes, or a file in
  the catalogue that belongs to no queue, which `partibus repair` moves aside.

Exit codes: 0 nothing is damaged, 1 something is damaged, missing or unread, 2 the folder could not be
checked.

Examples:

* `partibus check --data-dir /var/lib/partibus`
* `partibus check --json | jq '.findings[] | select(.severity == "unusable")'`
"""

DataDir = Annotated[
    list[str] | None,  # no paths: those of an empty name and of the current folder are the same
    typer.Option(
        envvar=variable_of("data_dir"),
        show_default="data",
        metavar="PATH",
        help="The broker's data folder. Repeat the option if there are several.",
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object instead of a table, and no progress.")
]


def check(context: typer.Context, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Read every frame of a data folder and report what is damaged or missing, by partition, file and offset.

    It changes nothing, takes no lock, and may run beside the broker.
    """
    try:
        with shown(Progress(), hidden=as_json) as progress:
            report = check_folders(data_folders(context, data_dir), progress)
    except (NoDataFolder, WrongSettings, WrongFolders, OSError) as error:
        fail(error)
    if as_json:
        typer.echo(json.dumps(report.as_json(), indent=1))
    else:
        _print(report)
    raise typer.Exit(1 if report.damaged else 0)


def named_folders(context: typer.Context, given: list[str] | None) -> list[str] | None:
    """The data folders that the command line names. Those in variables are left to the settings. Raises
    WrongSettings if an option names none, or seems to name several."""
    source = context.get_parameter_source("data_dir")
    if not given or source is None or source.name != "COMMANDLINE":
        return None
    for folder in given:
        refuse_blank("--data-dir", folder)
        if os.pathsep in folder and not Path(folder).exists():
            raise WrongSettings(
                f"--data-dir {folder}: there is no such folder. Give the option once for each folder; only "
                f"the variable {variable_of('data_dir')} takes several, separated by '{os.pathsep}'."
            )
    return given


def data_folders(context: typer.Context, given: list[str] | None) -> tuple[Path, ...]:
    """The folders that `partibus serve` would use with the same options and variables. Raises
    WrongSettings."""
    for name in unknown_variables():
        typer.echo(f"partibus: {name}: no setting has this name; `partibus settings` lists them", err=True)
    named = named_folders(context, given)
    return (load_settings(data_dir=named) if named else load_settings()).data_dirs


def fail(error: Exception) -> NoReturn:
    """End with exit code 2: nothing could be done."""
    typer.echo(f"partibus: {error}", err=True)
    raise typer.Exit(2)


@contextmanager
def shown(progress: Progress, *, hidden: bool) -> Iterator[Progress]:
    """Show on the terminal how far a check is; nothing is shown if standard error is not a terminal."""
    console = Console(stderr=True)
    bar = ProgressBar(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("partitions"),
        TextColumn("{task.fields[read]}"), TimeElapsedColumn(),
        console=console, transient=True, disable=hidden or not console.is_terminal,
    )  # fmt: skip
    task = bar.add_task("Checking", total=None, read="")

    def report() -> None:
        bar.update(
            task,
            completed=progress.logs_read,
            total=progress.logs or None,
            read=size_text(progress.bytes_read),
        )

    progress.report = report
    with bar:
        yield progress


def size_text(size: int) -> str:
    """A number of bytes, as people read it."""
    if size < 1 << 20:
        return f"{size / 1024:.1f} KiB"
    return f"{size / (1 << 20):.1f} MiB" if size < 1 << 30 else f"{size / (1 << 30):.2f} GiB"


def output() -> Console:
    """Standard output. In a file or pipe nothing is wrapped, so that a search for a file's name finds it in
    one piece."""
    return Console(width=None if sys.stdout.isatty() else 400, highlight=False)


def _print(report: Report) -> None:
    console = output()
    progress = report.progress
    read = (
        f"{counted(progress.logs_read, 'partition')} ({size_text(progress.bytes_read)}) and "
        f"{counted(progress.files, 'catalogue file')}"
    )
    console.print(f"{', '.join(map(str, report.roots))}: read {read}.")
    if not report.findings:
        console.print("Nothing is damaged, and nothing is missing.")
        return
    table = Table("Severity", "Queue", "Partition", "File", "Offset", "Bytes", "What", show_lines=False)
    for each in sorted(report.findings, key=lambda each: list(Severity).index(each.severity)):
        table.add_row(
            each.severity.value,
            "" if each.entity is None else report.name_of(each.entity),
            "" if each.partition is None else str(each.partition),
            report.shorten(each.path),
            str(each.offset),
            str(each.size) if each.size else "",
            each.why,
        )
    console.print(table)
    for text in advice(report):
        console.print(text, markup=False)


def advice(report: Report) -> list[str]:
    """What to do about the findings, in this order."""
    unread = report.absent | report.not_named
    texts = []
    if report.not_named:
        texts.append("Name all data folders of the broker with --data-dir, and check again.")
    if report.absent:
        texts.append(
            "See that the named folders that could not be read are there, for example that their disks are "
            "mounted, and check again."
        )
    if report.is_unknown_version:  # the finding says what to do, and a repair would be refused
        return texts
    if any(each.severity is Severity.UNUSABLE and each.path not in unread for each in report.findings):
        texts.append(
            "Stop the broker and run `partibus repair`: it says what can be saved and what is gone, and "
            "changes nothing without --yes."
        )
    elif report.strays:
        texts.append(
            "Files in the catalogue that belong to no queue do no harm. To have them moved aside, stop the "
            "broker and run `partibus repair --yes`."
        )
    return texts
