"""Abandoning on a full disk frees nothing and writes a record each time, and yet none is refused, no reserve
is used, and everything can be drained (durability rule 6)."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from cproton_ffi import lib

from storage.disk import LocalDisk
from tests.bench.load.client import Receiver, drive
from tests.bench.load.endpoint import LoadError
from tests.crash.test_full_disk import FILE_SYSTEM, MIB, WITHIN_S, connected, drain, reserve_untouched
from tests.crash.test_full_disk_restart import fill_up
from tests.support.broker_process import queue
from tests.support.broker_thread import BrokerThread

ABANDONS = 40_000
CASES = [(10, 20), (60_000, 20)]
"""Message size in bytes, and how many messages are received at a time."""
if "PARTIBUS_CRASH_ROUNDS" in os.environ:
    CASES += [(1_000, 1), (100, 100)]


class Abandoner(Receiver):
    """Receives messages and abandons each."""

    def on_delivery(self, delivery: Any) -> None:
        if lib.pn_delivery_settled(delivery):
            if lib.pn_delivery_remote_state(delivery) != lib.PN_MODIFIED:
                raise LoadError("an abandon was refused")
            lib.pn_delivery_settle(delivery)
            self.completed += 1
        elif lib.pn_delivery_readable(delivery) and not lib.pn_delivery_partial(delivery):
            lib.pn_link_advance(self._link)
            lib.pn_disposition_set_failed(lib.pn_delivery_local(delivery), True)
            lib.pn_delivery_update(delivery, lib.PN_MODIFIED)
            self.received += 1


def abandon(broker: BrokerThread, count: int, window: int) -> None:
    """Abandon so often; raises if any is refused."""
    with connected(broker) as connection:
        receiver = Abandoner(connection, window, 0)
        drive([connection], lambda: receiver.is_ready, WITHIN_S)
        receiver.receive(count)
        drive([connection], lambda: receiver.is_done, 5 * WITHIN_S)


@pytest.mark.parametrize("file_system", [FILE_SYSTEM])
@pytest.mark.parametrize(("body_bytes", "window"), CASES)
def test_whatever_is_abandoned_on_a_full_disk_is_taken_and_can_be_drained(
    body_bytes: int,
    window: int,
    file_system: Callable[[Path, int], AbstractContextManager[LocalDisk]],
    tmp_path: Path,
) -> None:
    """Symptom: of 180,000 abandons, 100 were refused, and the reserve was released 41 times."""
    folder = tmp_path / "small"
    with (
        file_system(folder, 2 * MIB) as disk,
        BrokerThread(folder, [queue("orders", MaxDeliveryCount=1_000_000)], disk) as broker,
        reserve_untouched(folder),
    ):
        count = fill_up(broker, body_bytes)
        abandon(broker, ABANDONS if body_bytes == 10 else ABANDONS // 10, window)
        drain(broker, count, body_bytes, window)
