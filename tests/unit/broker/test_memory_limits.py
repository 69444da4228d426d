"""broker/memory_limits.py: limits in bytes that the memory mark would cut silently are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.memory_limits import check_limits, mark_of, payload_bytes
from broker.server import Broker
from broker.settings.settings import WrongSettings, load_settings

MIB = 1024 * 1024
TOTALS = ("total_inflight_bytes_max", "total_output_bytes_max", "total_transaction_bytes_max")
CONNECTIONS = ("connection_inflight_bytes_max", "output_buffer_bytes_max", "connection_transaction_bytes_max")
PARTS = [*zip(TOTALS, CONNECTIONS, strict=True), ("total_output_bytes_max", "receive_cache_bytes")]


def test_the_mark_is_a_share_of_the_memory_or_a_number_of_bytes() -> None:
    assert mark_of(load_settings(), 1000 * MIB) == 600 * MIB
    assert mark_of(load_settings(memory_percent_max=10), 1000 * MIB) == 100 * MIB
    assert mark_of(load_settings(memory_bytes_max=7 * MIB), 1000 * MIB) == 7 * MIB


@pytest.mark.parametrize("mark", [MIB, 100 * MIB, 10_000 * MIB])
def test_defaults_suit_every_machine(mark: int) -> None:
    check_limits(load_settings(), mark)


@pytest.mark.parametrize("name", TOTALS)
def test_a_total_above_its_part_of_the_mark_is_refused_with_both_values(name: str) -> None:
    check_limits(load_settings(**{name: 100 * MIB}), mark=800 * MIB)
    with pytest.raises(WrongSettings) as caught:
        check_limits(load_settings(**{name: 100 * MIB + 1}), mark=800 * MIB)
    assert str(caught.value) == (
        f"PARTIBUS_{name.upper()} is 104857601, but can be at most 104857600: an eighth of the memory mark "
        "of 838860800 bytes, or 16777216 if that is more. Lower it, leave it out, or raise the mark with "
        "PARTIBUS_MEMORY_BYTES_MAX or PARTIBUS_MEMORY_PERCENT_MAX"
    )


@pytest.mark.parametrize("name", TOTALS)
def test_with_a_low_mark_a_total_may_have_16_mib(name: str) -> None:
    check_limits(load_settings(**{name: 16 * MIB}), mark=MIB)
    with pytest.raises(WrongSettings, match="at most 16777216"):
        check_limits(load_settings(**{name: 17 * MIB}), mark=MIB)


@pytest.mark.parametrize(("total", "each"), PARTS)
def test_one_connection_has_no_more_than_all_of_them(total: str, each: str) -> None:
    check_limits(load_settings(**{total: 2 * MIB, each: 2 * MIB}), mark=800 * MIB)
    check_limits(load_settings(**{total: 2 * MIB}), mark=800 * MIB)  # a default need not fit
    with pytest.raises(
        WrongSettings, match=f"_{each.upper()} is 2097153, .* at most 2097152: PARTIBUS_{total.upper()}, "
    ) as caught:
        check_limits(load_settings(**{total: 2 * MIB, each: 2 * MIB + 1}), mark=800 * MIB)
    assert "raise the other one" in str(caught.value)
    with pytest.raises(
        WrongSettings, match=r"at most 104857600: .*an eighth of the memory mark .* raise the mark"
    ):
        check_limits(load_settings(**{each: 101 * MIB}), mark=800 * MIB)


def test_the_message_ids_of_one_partition_fit_below_the_mark() -> None:
    check_limits(load_settings(message_ids_max=MIB), mark=100 * MIB)
    with pytest.raises(WrongSettings, match=r"MESSAGE_IDS_MAX is 1048577, .* most 1048576: .* one partition"):
        check_limits(load_settings(message_ids_max=MIB + 1), mark=100 * MIB)


def test_bodies_in_memory_take_at_most_half_of_the_mark() -> None:
    check_limits(load_settings(payload_memory_bytes=50 * MIB), mark=100 * MIB)
    with pytest.raises(
        WrongSettings, match=r"PAYLOAD_MEMORY_BYTES is 52428801, .* at most 52428800: half of"
    ):
        check_limits(load_settings(payload_memory_bytes=50 * MIB + 1), mark=100 * MIB)


def test_bodies_in_memory_take_an_eighth_of_the_mark_without_a_setting() -> None:
    assert payload_bytes(load_settings(), mark=8 << 30) == 256 * MIB
    assert payload_bytes(load_settings(), mark=800 * MIB) == 100 * MIB
    assert payload_bytes(load_settings(payload_memory_bytes=200 * MIB), mark=800 * MIB) == 200 * MIB
    assert payload_bytes(load_settings(payload_memory_bytes=0), mark=800 * MIB) == 0


def test_each_wrong_limit_has_its_line() -> None:
    given = {"total_inflight_bytes_max": 1 << 40, "payload_memory_bytes": 1 << 40}
    with pytest.raises(WrongSettings) as caught:
        check_limits(load_settings(**given), mark=100 * MIB)
    assert [line.split(" ")[0] for line in str(caught.value).splitlines()] == [
        "PARTIBUS_TOTAL_INFLIGHT_BYTES_MAX",
        "PARTIBUS_PAYLOAD_MEMORY_BYTES",
    ]


def test_a_broker_that_is_asked_for_too_much_does_not_touch_its_data_folder(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    settings = load_settings(data_dir=folder, memory_bytes_max=200 * MIB, total_output_bytes_max=100 * MIB)
    with pytest.raises(WrongSettings, match="PARTIBUS_TOTAL_OUTPUT_BYTES_MAX is 104857600"):
        Broker(settings)
    assert not folder.exists()
