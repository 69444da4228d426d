"""The command `partibus repair`: what can be saved of a damaged data folder, and saving it when asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.table import Table

from broker.base.plurals import counted
from broker.cli.check import AsJson, DataDir, data_folders, fail, output, shown
from broker.maintenance.check import NoDataFolder
from broker.maintenance.giving_up import GivenUp, GivingUp, LostPartition
from broker.maintenance.locking import InUse
from broker.maintenance.repair import DAMAGED_DIRECTORY, Plan, Rebuilding, Repair
from broker.partition.doubts import SESSION_STATE, Older
from broker.partition.salvage import Range
from broker.settings.logs import configure_logging
from broker.settings.settings import WrongSettings, refuse_blank
from storage.check import Progress
from storage.errors import StorageError
from storage.folder_identity import FILE_NAME
from storage.storage_version import FILE_NAME as VERSION_FILE
from storage.survey import Severity

REPAIR_EPILOG = """
Stop the broker first: it holds the folder's lock, and the command refuses to work beside it.

Without `--yes` nothing is changed: the command says what it would do, and which sequence numbers are gone.

With `--yes`:

* A damaged log is rebuilt from everything in it that can be read. Settlements that cannot be read are
  lost: such messages come again. What else may be older is listed, such as the states of sessions.
* A damaged file whose copy is intact is moved, and the broker makes a new one. So is a file `version` that
  holds no number. A file in `catalogue/` that belongs to no queue is moved as well.
* A damaged or missing file `folder` of one of several data folders is written again if it is certain which
  folder it is.
* Nothing is deleted: what is replaced moves to the folder `damaged`, with a report. Remove that folder
  once you do not need it any more.

A rebuilt log needs room for its messages beside the old one.

With `--give-up FOLDER`, the command does one thing only: an empty folder takes the place of a data folder
that is lost for good. It says which partitions have lost messages, and how many as far as that is known. Name
the folders that are left and the empty one with `--data-dir`. Messages in the lost folder cannot come back
after that, because the broker then refuses it: restore it from a backup instead if you can.

Exit codes: 0 nothing was damaged, or all of it was repaired; 1 something is damaged and was not repaired;
2 the command could not work.

Examples:

* `partibus repair --data-dir /var/lib/partibus`
* `partibus repair --data-dir /var/lib/partibus --yes`
* `partibus repair --data-dir /disk1/bus --data-dir /disk3/bus --give-up /disk2/bus`
* `partibus repair --json | jq '.logs[] | {queue, partition, gone}'`
"""

GiveUp = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER",
        show_default=False,
        help="Give up this data folder, which is lost for good: an empty folder that you name with "
        "--data-dir takes its place.",
    ),
]
Yes = Annotated[
    bool,
    typer.Option("--yes", help="Carry it out. Without this option the command only says what it would do."),
]


def repair(
    context: typer.Context,
    data_dir: DataDir = None,
    give_up: GiveUp = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Say what can be saved of a damaged data folder and which messages are gone; with --yes, repair it.

    The broker must be stopped. Damaged files are moved, never deleted.
    """
    configure_logging("console", "warning")
    if give_up is not None:
        _give_up(context, data_dir, give_up, yes=yes, as_json=as_json)
    plans: list[Plan] = []
    try:
        work = Repair(data_folders(context, data_dir))
        with shown(Progress(), hidden=as_json) as progress:
            work.open()
            try:
                plans.append(work.plan(progress))
                if yes:
                    work.carry_out(plans[0])
                    if plans[0].finished:  # what was cut short is finished: now the rest
                        plans.append(work.plan(progress))
                        work.carry_out(plans[1])
            finally:
                work.close()
    except (NoDataFolder, WrongSettings, InUse, StorageError, OSError) as error:
        fail(error)
    if as_json:
        finished = [name for plan in plans for name in plan.finished]
        typer.echo(json.dumps(plans[-1].as_json() | {"finished": finished}, indent=1))
    else:
        for plan in plans:
            _print(plan)
    is_well = all(plan.is_empty or (plan.done and plan.is_complete) for plan in plans)
    raise typer.Exit(0 if is_well else 1)


def _give_up(
    context: typer.Context, data_dir: list[str] | None, lost: str, *, yes: bool, as_json: bool
) -> NoReturn:
    try:
        refuse_blank("--give-up", lost)
        work = GivingUp(data_folders(context, data_dir), Path(lost))
        work.open()
        try:
            plan = work.plan()
            if yes:
                work.carry_out(plan)
        finally:
            work.close()
    except (WrongSettings, InUse, StorageError, OSError) as error:
        fail(error)
    if as_json:
        typer.echo(json.dumps(plan.as_json(), indent=1))
    else:
        _print_given_up(plan)
    raise typer.Exit(0 if plan.done else 1)


def _print_given_up(plan: GivenUp) -> None:
    console = output()
    if plan.partitions:
        table = Table("Queue", "Partition", "Messages lost")
        for each in plan.partitions:
            table.add_row(each.queue, str(each.partition), lost_text(each))
        console.print(table)
    verb = "is" if plan.done else "would be"
    console.print(
        f"Data folder {plan.number} ({plan.lost}) {verb} given up, and {plan.place} {verb} in its place. "
        f"Known to be lost: {counted(plan.messages, 'message')}."
        + (f" Not known: those in {counted(plan.uncertain, 'partition')}." if plan.uncertain else "")
    )
    if not plan.done:
        console.print("Nothing was changed. Run the command again with --yes to carry this out.")


def lost_text(lost: LostPartition) -> str:
    """How many messages a partition has lost, as people read it."""
    if lost.messages is not None:
        return str(lost.messages)
    return "not known" if lost.last_known is None else f"not known; {lost.last_known} when last counted"


def _print(plan: Plan) -> None:
    console = output()
    for each in plan.report.findings:
        if each.severity is Severity.NOTE and Path(each.path).name == VERSION_FILE:
            console.print(f"{each.path}: {each.why}.")
    if plan.is_empty:
        missing = (
            "What is missing has a copy, and the broker makes it again. "
            if plan.report.damaged
            else "Nothing is damaged. "
        )
        console.print(f"{', '.join(map(str, plan.report.roots))}: {missing}There is nothing to repair.")
        return
    for name in plan.finished:
        console.print(
            f"{name}: an earlier repair was cut short "
            f"{'and is finished now' if plan.done else 'and would be finished first'}."
        )
    if plan.logs:
        table = Table(
            "Queue", "Partition", "Kept", "Sequence numbers gone", "Settlements", "Damage", show_lines=True
        )
        for log in plan.logs:
            table.add_row(log.queue, str(log.partition), *outcome_texts(log), "\n".join(log.why))
        console.print(table)
    for log in plan.logs:
        if log.older is not None:
            for text in older_texts(log.older):
                console.print(f"{log.queue}, partition {log.partition}: {text}", markup=False)
    moved = "moved to" if plan.done else "would be moved to"
    for log in plan.logs:
        if log.moved_to:
            console.print(
                f"{log.queue}, partition {log.partition}: rebuilt. The old log and the report are in "
                f"{log.moved_to}"
            )
    for each in plan.moved:
        is_alone = Path(each.path).name == VERSION_FILE or each.path in plan.report.strays
        which = "It" if is_alone else "The other copy serves; this one"
        console.print(f"{each.path}: {each.why}. {which} {moved} {DAMAGED_DIRECTORY}/")
    for paths, _ in plan.merged:
        done = "was put together" if plan.done else "would be put together"
        console.print(
            f"{paths[0]}: the document {done} from the good parts of its two files, which {moved} "
            f"{DAMAGED_DIRECTORY}/"
        )
    for folder in plan.identities:
        done = "was written again" if plan.done else "would be written again"
        console.print(
            f"{folder.path}: this is data folder {folder.number} of the broker. Its file {FILE_NAME} {done}. "
            f"A damaged one {moved} {DAMAGED_DIRECTORY}/."
        )
    for each in plan.hopeless:
        console.print(
            f"{each.path}: {each.why}. This command cannot repair it; docs/operations.md says what you "
            "can do."
        )
    if not plan.can_help:
        console.print("Nothing was changed: there is nothing here that this command can repair.")
    elif not plan.done:
        console.print("Nothing was changed. Run the command again with --yes to carry this out.")


def outcome_texts(log: Rebuilding) -> tuple[str, str, str]:
    """Three columns: messages kept, sequence numbers gone, and settlements lost."""
    if log.refused:
        return "", f"not repaired: {log.refused}", ""
    if log.commits_gone == 0:
        settlements = "all kept"
    else:
        commits = (
            "an unknown number of commits"
            if log.commits_gone is None
            else counted(log.commits_gone, "commit")
        )
        settlements = f"those in {commits} are lost, if there were any: receivers get such messages again"
    return counted(log.kept, "message"), "\n".join(map(range_text, log.gone)) or "none", settlements


def older_texts(older: Older) -> list[str]:
    """What the lost commits may have changed, as people read it."""
    texts: list[str] = []
    if older.messages:
        which = "" if older.before is None else f" with sequence numbers below {older.before}"
        texts.append(
            f"{counted(older.messages, 'message')}{which} may have been settled, deferred, scheduled or "
            "delivered in lost commits; that is forgotten."
        )
    for kind, (singular, plural) in _ENTRIES.items():
        names = [
            f"{each.subqueue}/{each.name}" if each.subqueue else each.name
            for each in older.entries
            if each.kind == kind
        ]
        if names:
            shown = ", ".join(names[:NAMES_SHOWN]) + (
                ", … (the report lists all)" if len(names) > NAMES_SHOWN else ""
            )
            what = singular if len(names) == 1 else plural.format(len(names))
            texts.append(f"{what} may be older than clients were told, or gone: {shown}")
    texts.append(
        "Sessions without messages, cursors and sinks that only lost commits have mentioned are gone, and "
        "their names are not known."
    )
    texts += [f"{_KINDS.get(kind, kind)} may be incomplete or out of date." for kind in older.kinds]
    return texts


NAMES_SHOWN = 20
"""The most names of one kind that people are shown."""
_ENTRIES = {
    SESSION_STATE: ("the state of one session", "the states of {} sessions"),
    "cursor": ("one cursor", "{} cursors"),
    "sink": ("the last batch of one sink", "the last batches of {} sinks"),
}
_KINDS = {
    "delayed": "The delays of abandoned messages",
    "message-ids": "The message-ids that detect duplicates",
    "origins": "What says which forwarded messages have arrived",
    "rule-changes": "What says which rules transactions have changed",
}


def range_text(gone: Range) -> str:
    """A range of sequence numbers, as people read it."""
    first, last = gone
    if last is None:
        return "all" if first is None else f"from {first} on (how many is not known, perhaps none)"
    if first is None:
        return f"up to {last} (how many is not known)"
    return str(first) if first == last else f"{first} to {last} ({counted(last - first + 1, 'message')})"
