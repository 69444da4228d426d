"""Log lines, and the warning about the public key."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from broker.settings.logs import configure_logging, is_loopback, warn_development_key
from broker.settings.settings import load_settings
from tests.support.logging_kept import logging_kept


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    with logging_kept():
        yield


def test_json_lines_have_a_fixed_event_name_and_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("json", "info")
    structlog.get_logger("storage").info("segment.rolled", position=17)
    logging.getLogger("aiohttp").warning("from a library")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (first["event"], first["position"], first["level"], first["logger"]) == (
        "segment.rolled",
        17,
        "info",
        "storage",
    )
    assert first["timestamp"].endswith("Z")
    assert (second["event"], second["logger"]) == ("from a library", "aiohttp")


def test_a_failure_is_one_json_line_with_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("json", "info")
    try:
        raise ValueError("oops")
    except ValueError:
        structlog.get_logger("broker").exception("it.failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert "ValueError: oops" in json.loads(line)["exception"]


def test_console_lines_are_made_for_reading(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("console", "info")
    structlog.get_logger("broker").info("broker.ready", port=5672)
    written = capsys.readouterr()
    assert "broker.ready" in written.err and "port=5672" in written.err and written.out == ""


def test_less_severe_lines_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("json", "warning")
    structlog.get_logger("broker").info("broker.ready")
    logging.getLogger("aiohttp").info("hello")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("host", "key", "warned"),
    [
        ("0.0.0.0", "SAS_KEY_VALUE", True),
        ("::", "SAS_KEY_VALUE", True),
        ("broker.example", "SAS_KEY_VALUE", True),
        ("127.0.0.1", "SAS_KEY_VALUE", False),
        ("localhost", "SAS_KEY_VALUE", False),
        ("0.0.0.0", "another", False),
    ],
)
def test_the_public_key_beyond_loopback_is_warned_of(host: str, key: str, warned: bool) -> None:
    with capture_logs() as lines:
        assert warn_development_key(load_settings(host=host, sas_key=key)) is warned
    assert [line["event"] for line in lines] == (["development_key.exposed"] if warned else [])


def test_loopback_is_every_127_address_and_localhost() -> None:
    assert [is_loopback(host) for host in ("127.3.2.1", "::1", "LOCALHOST", "10.0.0.1", "")] == [
        True,
        True,
        True,
        False,
        False,
    ]
