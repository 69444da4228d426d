"""The options that the programs which compare brokers have in common: what they accept, and the rows and
peers that they choose.

Every wrong option ends a program before it measures anything.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tests.bench.load.comparison import OURS
from tests.bench.load.endpoint import Endpoint
from tests.bench.load.machine import cpu_s

REPOSITORY = Path(__file__).resolve().parents[3]
WORK = REPOSITORY / "build" / "bench"
"""Where brokers keep their data, unless `--folder` says otherwise."""

PeerPid = Annotated[list[str] | None, typer.Option(help="Its process, for CPU time: NAME=PID. Repeatable.")]
Only = Annotated[list[str] | None, typer.Option(help="A row to measure. Repeatable.")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Medians are taken over the rounds.")]
Quick = Annotated[bool, typer.Option("--quick", help="Only shows that everything works.")]
Folder = Annotated[
    Path,
    typer.Option(envvar="PARTIBUS_BENCH_DIR", help="Where brokers keep their data: the disk under test."),
]


def make_folder(folder: Path) -> None:
    """Make the folder that `--folder` names, if there is none. Raises BadParameter if files cannot be written
    there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise typer.BadParameter(
            f"no data can be kept in {folder}: {error.strerror}", param_hint="--folder"
        ) from error


def chosen_rows(only: Sequence[str] | None, names: Sequence[str], option: str = "--only") -> Sequence[str]:
    """The rows that the option names, or all of them. Raises BadParameter for a name that no row has."""
    if unknown := set(only or ()) - set(names):
        raise typer.BadParameter(
            f"no row {_quoted(sorted(unknown))}; there are {_quoted(names)}", param_hint=option
        )
    return only or names


def refuse_partial_docs(write_docs: bool, only: Sequence[str] | None, quick: bool) -> None:
    """Raise BadParameter if a part of the rows, or rows that were hardly measured, would replace the
    documentation's table."""
    if write_docs and (only or quick):
        raise typer.BadParameter(
            "it replaces the whole table, so it needs a full run: leave out --only and --quick",
            param_hint="--write-docs",
        )


@dataclass(slots=True, frozen=True)
class GivenPeer:
    """A peer as `--peer` and `--peer-pid` describe it."""

    name: str
    endpoint: Endpoint
    pid: int | None
    """None if its process was not given."""


def peers_given(urls: Sequence[str] | None, pids: Sequence[str] | None) -> list[GivenPeer]:
    """The peers that the options name. Raises BadParameter for a wrong URL, a process that does not exist,
    and names that cannot be told apart."""
    url_of, pid_of = values_by_peer("--peer", urls), values_by_peer("--peer-pid", pids)
    if OURS in url_of:
        raise typer.BadParameter(
            f"{OURS} is the broker under test: give the peer another name", param_hint="--peer"
        )
    refuse_unknown_peers("--peer-pid", pid_of, url_of)
    pid_numbers = {name: _process(name, pid) for name, pid in pid_of.items()}
    return [GivenPeer(name, _endpoint(url), pid_numbers.get(name)) for name, url in url_of.items()]


def values_by_peer(option: str, values: Sequence[str] | None) -> Mapping[str, str]:
    """The values of a repeatable option `NAME=VALUE`. Raises BadParameter if one has another form, or a peer
    has two."""
    found: dict[str, str] = {}
    for each in values or ():
        name, _, value = each.partition("=")
        if not name or not value:
            raise typer.BadParameter(
                f"{each} names no peer: write {option} NAME={each.strip('=')}", param_hint=option
            )
        if name in found:
            raise typer.BadParameter(f"{name} is given twice", param_hint=option)
        found[name] = value
    return found


def refuse_unknown_peers(option: str, named: Collection[str], peers: Collection[str]) -> None:
    """Raise BadParameter if an option names a peer that `--peer` does not."""
    for name in named:
        if name not in peers:
            raise typer.BadParameter(f"no --peer is named {name}", param_hint=option)


def _endpoint(url: str) -> Endpoint:
    try:
        return Endpoint.parse(url)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--peer") from error


def _process(name: str, pid: str) -> int:
    """The number of a process whose CPU time can be read."""
    try:
        cpu_s(int(pid))
    except ValueError as error:
        message = f"{pid} is no number: write {name}=PID"
        raise typer.BadParameter(message, param_hint="--peer-pid") from error
    except OSError as error:
        message = f"{name} is said to be process {pid}, which does not run here"
        raise typer.BadParameter(message, param_hint="--peer-pid") from error
    return int(pid)


def _quoted(names: Sequence[str]) -> str:
    """Names may contain commas."""
    return ", ".join(f'"{name}"' for name in names)
