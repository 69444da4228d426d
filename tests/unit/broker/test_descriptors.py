"""broker/descriptors.py: the shares of a small, a usual and a large limit."""

from __future__ import annotations

import resource

import pytest
from structlog.testing import capture_logs

from broker.descriptors import OTHERS, Shares, limit_for
from broker.frontend.room import BEING_REFUSED_MAX
from broker.http.server import SPARE_CONNECTIONS
from broker.settings.settings import Settings

SPARE = OTHERS + BEING_REFUSED_MAX + SPARE_CONNECTIONS


@pytest.mark.parametrize(
    ("limit", "amqp"), [(256, 60), (1_024, 450), (4_096, 1_600), (20_000, 10_000), (65_536, 10_000)]
)
def test_the_shares_fit_into_the_limit_and_clients_have_what_the_documentation_says(
    limit: int, amqp: int
) -> None:
    shares = Shares.of(Settings(), limit)
    assert sum(shares) + SPARE <= limit and min(shares) >= 16
    assert shares.amqp >= amqp


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"connections_max": 70_000},
        {"connections_max": 10, "http_connections_max": 40_000},
        {"log_files_max": 40_000},
        {"connections_max": 60_000, "http_connections_max": 60_000, "log_files_max": 9_000},
    ],
)
def test_the_limit_that_is_asked_for_suits_the_settings(given: dict[str, int]) -> None:
    """Those of many namespaces, too: their connections are added up."""
    settings = Settings(**given)  # type: ignore[arg-type]
    with capture_logs() as lines:
        shares = Shares.of(settings, limit_for(settings))
    assert not lines
    assert (shares.amqp, shares.http) == (settings.connections_max, settings.http_connections_max)


def test_with_room_enough_the_settings_count() -> None:
    settings = Settings(connections_max=100, http_connections_max=50, log_files_max=40)
    for limit in (4_096, resource.RLIM_INFINITY):
        assert Shares.of(settings, limit) == (30, 10, 100, 50)


def test_log_files_leave_half_of_the_limit_to_clients_whatever_was_asked_for() -> None:
    settings = Settings(connections_max=1_000, http_connections_max=100, log_files_max=2_000)
    with capture_logs() as lines:
        shares = Shares.of(settings, 1_024)
    assert shares.written + shares.read == 512 and shares.amqp > 250 and shares.http > 50
    line = next(line for line in lines if line["event"] == "descriptors.log_files_reduced")
    assert line["log_level"] == "warning" and line["wanted"] == 2_000 and line["log_files_max"] == 512


def test_even_under_a_limit_that_is_too_small_there_is_something_of_everything() -> None:
    assert min(Shares.of(Settings(), 64)) >= 1


def test_fewer_connections_than_set_are_warned_of_with_advice() -> None:
    with capture_logs() as lines:
        Shares.of(Settings(), 1_024)
    [line] = [line for line in lines if line["event"] == "descriptors.few"]
    assert line["log_level"] == "warning" and "ulimit -n" in line["advice"]
    with capture_logs() as lines:
        Shares.of(Settings(), 65_536)
    assert not lines
