"""The benchmarks that compare brokers refuse wrong options before they measure anything."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from tests.bench import pairs, run, shapes, topics
from tests.bench.load import versions
from tests.bench.load.endpoint import Endpoint
from tests.bench.load.options import GivenPeer, chosen_rows, peers_given, values_by_peer

URL = "amqp://guest:guest@127.0.0.1:5672//queues/bench"
PID = os.getpid()
NO_PROCESS = 1 << 30
"""Beyond any limit of the kernel."""


def command(program: object, *arguments: str, **environment: str) -> Result:
    """Run the command line of a benchmark in this process."""
    app = typer.Typer()
    app.command()(program.main)  # type: ignore[attr-defined]
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "400", "NO_COLOR": "1", **environment})


def test_a_peer_has_an_endpoint_and_may_have_a_process() -> None:
    endpoint = Endpoint("127.0.0.1", 5672, "guest", "guest", "/queues/bench")
    assert peers_given([f"rabbitmq={URL}", f"other={URL}"], [f"other={PID}"]) == [
        GivenPeer("rabbitmq", endpoint, None),
        GivenPeer("other", endpoint, PID),
    ]
    assert peers_given(None, None) == []
    assert values_by_peer("--peer-data", ["rabbitmq=/data/a=b"]) == {"rabbitmq": "/data/a=b"}


@pytest.mark.parametrize(
    ("urls", "pids", "option", "says"),
    [
        ([URL], [], "--peer", f"write --peer NAME={URL}"),
        ([f"={URL}"], [], "--peer", f"write --peer NAME={URL}"),
        (["rabbitmq=127.0.0.1:5672"], [], "--peer", "not an amqp://"),
        ([f"partibus={URL}"], [], "--peer", "give the peer another name"),
        ([f"rabbitmq={URL}", f"rabbitmq={URL}"], [], "--peer", "rabbitmq is given twice"),
        ([], ["rabbitmq=123"], "--peer-pid", "no --peer is named rabbitmq"),
        ([f"rabbitmq={URL}"], ["artemis=123"], "--peer-pid", "no --peer is named artemis"),
        ([f"rabbitmq={URL}"], ["123"], "--peer-pid", "write --peer-pid NAME=123"),
        ([f"rabbitmq={URL}"], ["rabbitmq=abc"], "--peer-pid", "abc is no number: write rabbitmq=PID"),
        ([f"rabbitmq={URL}"], [f"rabbitmq={NO_PROCESS}"], "--peer-pid", "which does not run here"),
    ],
)
def test_a_wrong_peer_is_refused_with_what_to_do(
    urls: list[str], pids: list[str], option: str, says: str
) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        peers_given(urls, pids)
    assert says in refused.value.message
    assert refused.value.param_hint == option
    assert len(refused.value.message.splitlines()) == 1


def test_rows_whose_names_hold_commas_are_listed_in_quotes() -> None:
    with pytest.raises(typer.BadParameter) as refused:
        chosen_rows(["plian"], ["plain", "application, keyed"])
    assert refused.value.message == 'no row "plian"; there are "plain", "application, keyed"'
    assert chosen_rows(None, ["plain"]) == chosen_rows(["plain"], ["plain", "64 B"]) == ["plain"]


@pytest.mark.parametrize(
    ("program", "row"),
    [(run, "send"), (shapes, "plain"), (topics, "1 KiB to 1")],
    ids=["run", "shapes", "topics"],
)
def test_a_part_of_the_rows_does_not_replace_the_published_table(program: object, row: str) -> None:
    """With a folder that nobody can make, a program that did not refuse would end before it measures."""
    for part in (["--only", row], ["--quick"]):
        refused = command(program, "--write-docs", *part, PARTIBUS_BENCH_DIR=f"{os.devnull}/none")
        assert refused.exit_code == 2
        assert "leave out --only and --quick" in refused.stderr


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        (pairs, ["--before", "HEAD"]),
        (run, ["--peer-setup", "no-such-program"]),
        (shapes, []),
        (topics, []),
    ],
    ids=["pairs", "run", "shapes", "topics"],
)
@pytest.mark.parametrize("folder", [f"{os.devnull}/none", os.devnull, "/proc"])
def test_a_folder_in_which_nothing_can_be_made_is_refused_before_anything_is_prepared(
    monkeypatch: pytest.MonkeyPatch, program: object, arguments: list[str], folder: str
) -> None:
    monkeypatch.setattr(versions, "version_of", _never)
    refused = command(program, "--quick", *arguments, "--folder", folder)
    assert refused.exit_code == 2 and refused.stdout == ""
    assert "Invalid value for --folder" in refused.stderr
    assert f"no data can be kept in {folder}:" in refused.stderr


def _never(*_: object) -> None:
    raise AssertionError("the folder is made first")


def test_a_peer_that_does_not_run_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with socket.socket() as bound:  # bound, but not listening: nobody else can answer at this port
        bound.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{bound.getsockname()[1]}"
        peer = f"rabbitmq=amqp://guest:guest@{at}//queues/bench"
        refused = command(shapes, "--quick", "--peer", peer, PARTIBUS_BENCH_DIR=str(tmp_path / "folder"))
    assert refused.exit_code == 2 and refused.stdout == ""
    assert f"rabbitmq at {at} cannot be used" in refused.stderr
    assert "see that it runs and has /queues/bench" in refused.stderr
    assert (tmp_path / "folder").is_dir(), "the variable names the folder"
