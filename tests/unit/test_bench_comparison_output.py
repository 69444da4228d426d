"""What is left of a comparison when a row fails."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import typer
from rich.console import Console

from tests.bench.load.comparison import OURS, Comparison, Measure
from tests.bench.load.comparison_output import kept_if_failing, part
from tests.bench.load.endpoint import LoadError


def failed_after_one_value(folder: Path, *errors: BaseException) -> list[str]:
    """What the terminal shows of a run with one value. Its next part ends with the first of these errors, and
    the run itself with the second one, if there are two."""
    found, terminal = Comparison({}, "plain"), Console(file=io.StringIO(), width=80)
    with pytest.raises(typer.Exit) as ended, kept_if_failing(found, folder, folder, terminal):
        found.note("plain", Measure.IN, OURS, 7_777.0)
        try:
            with part("application, keyed", "rabbitmq"):
                raise errors[0]
        finally:
            if errors[1:]:
                raise errors[1]
    assert ended.value.exit_code == 1
    assert isinstance(terminal.file, io.StringIO)
    return terminal.file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (LoadError("not done after 900 s"), "LoadError: not done after 900 s"),
        (
            FileNotFoundError(2, "No such file", "/proc/17"),
            "FileNotFoundError: [Errno 2] No such file: '/proc/17'",
        ),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_values_found_before_a_row_fails_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: BaseException, told: str
) -> None:
    *table, line = failed_after_one_value(tmp_path, error)
    assert line == f"application, keyed at rabbitmq failed: {told}"
    assert any("7,777" in row for row in table)
    written = capsys.readouterr()
    (value,) = map(json.loads, written.out.splitlines())
    assert (value["shape"], value["broker"], value["value"]) == ("plain", OURS, 7_777)
    assert written.err == ""


def test_a_failure_that_one_line_does_not_explain_shows_where_it_came_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, line = failed_after_one_value(tmp_path, IndexError("first\nsecond"))
    assert line == "application, keyed at rabbitmq failed: IndexError: first"
    assert "in failed_after_one_value" in capsys.readouterr().err


def test_a_broker_that_also_fails_to_stop_does_not_hide_the_row(tmp_path: Path) -> None:
    *_, line = failed_after_one_value(tmp_path, LoadError("not done after 900 s"), OSError("did not stop"))
    assert line == "application, keyed at rabbitmq failed: LoadError: not done after 900 s"
