"""The options that the programs which compare brokers have in common, and the rows that they choose."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

REPOSITORY = Path(__file__).resolve().parents[3]
WORK = REPOSITORY / "build" / "bench"
"""Where brokers keep their data, unless `--folder` says otherwise."""

PeerPid = Annotated[list[str] | None, typer.Option(help="Its process, for CPU time: NAME=PID. Repeatable.")]
Only = Annotated[list[str] | None, typer.Option(help="A row to measure. Repeatable.")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Medians are taken over the rounds.")]
Quick = Annotated[bool, typer.Option("--quick", help="Only shows that everything works.")]
Folder = Annotated[Path, typer.Option(help="Where the broker keeps its data: the disk under test.")]


def chosen_rows(only: Sequence[str] | None, names: Sequence[str]) -> Sequence[str]:
    """The rows that `--only` names, or all of them. Raises BadParameter for a name that no row has."""
    if unknown := set(only or ()) - set(names):
        raise typer.BadParameter(f"no row {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    return only or names
