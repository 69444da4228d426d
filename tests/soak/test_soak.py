"""Mixed clients for minutes, with restarts: nothing is lost, and memory, descriptors, disk and stalls stay
flat.

`make soak` runs for half an hour, `make test` for a minute or two (`PARTIBUS_SOAK_MINUTES`). The plot is
`build/soak/soak.png`. `make soak` also holds another client's waits against a fixed limit
(`PARTIBUS_SOAK_P99_MS`); `make test` may run on a slow, busy machine, so it only compares its end with its
beginning.
"""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

import pytest

from tests.bench.load.machine import StolenTime
from tests.crash.clients import Place
from tests.soak.gauges import MIB, Record
from tests.soak.load import QUEUES, Load
from tests.soak.verdict import Stretch, growth, slow, undisturbed
from tests.support.broker_process import BrokerProcess
from tests.support.disk_use import wait_until_small

MINUTES = float(os.environ.get("PARTIBUS_SOAK_MINUTES", "1"))
P99_MS_MAX = os.environ.get("PARTIBUS_SOAK_P99_MS")
"""The longest 99th percentile of another client's waits, in ms; None for no fixed limit."""
STRETCHES = max(4, 2 * round(MINUTES / 2))
REST_S = 15.0
"""Part of each stretch. It is about the time it takes until locks of dead clients have ended, the queues are
empty, and the broker is idle.
"""
FOLDER = Path(__file__).resolve().parents[2] / "build" / "soak"
PARTITIONS = 16 * len(QUEUES)
AT_REST_BYTES = 2 * MIB * PARTITIONS
IDLE_WITHIN_S = 60.0


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning"
)  # the official client leaves its socket open when the broker goes
def test_nothing_is_lost_and_nothing_grows(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, QUEUES, environment={"PARTIBUS_LOG_IDLE_MS": "2000"})
    try:
        record = Record(broker)
        place = Place(broker.start().amqp_port)
        place.up.set()
        thread = record.keep_looking()
        load_s = max(MINUTES * 60 / STRETCHES - REST_S, 5.0)
        try:
            for number in range(STRETCHES):
                record.stretches.append(stretch(broker, place, record, number, load_s))
                latest = record.stretches[-1]
                print(
                    f"stretch {number + 1} of {STRETCHES}: {latest.rested.memory_mib:.0f} MiB, "
                    f"{latest.rested.descriptors} descriptors, "
                    f"{latest.rested.disk_mib:.1f} MiB on disk, waits of {latest.stall_ms:.0f} ms",
                    flush=True,
                )
        finally:  # the plot is most wanted of a run that has failed
            record.stop()
            thread.join()
            record.write(FOLDER)
        broker.check_alive()
        found = growth(record.stretches)
        if P99_MS_MAX is not None:
            found += slow(record.stretches, float(P99_MS_MAX))
            count = len(undisturbed(record.stretches))
            print(f"waits are held against {P99_MS_MAX} ms in {count} of {STRETCHES} undisturbed stretches")
        assert found == []
    except BaseException:
        print(broker.log_tail())
        raise
    finally:
        broker.kill()
        gc.collect()


def stretch(broker: BrokerProcess, place: Place, record: Record, number: int, load_s: float) -> Stretch:
    """Run load and then a rest. Every second stretch restarts the broker midway, alternating between `kill
    -9` and an orderly stop.
    """
    began_s, restarts, stolen = record.now_s(), 0, StolenTime()
    with Load(place, str(number), lambda: broker.addresses) as load:
        load.measure_stalls(broker.pid)
        go_on(load, load_s / 2)
        if number % 2:
            restart(broker, place, record, kill=number % 4 == 1)
            load.measure_stalls(broker.pid)
            restarts = 1
        go_on(load, load_s / 2)
    stolen_percent = stolen.percent()
    load.settle(restarts)
    wait_until_small(broker.data_dir / "logs", AT_REST_BYTES, IDLE_WITHIN_S)
    ends = time.monotonic() + IDLE_WITHIN_S
    while (rested := record.look()).open_log_files and time.monotonic() < ends:  # idle logs close their files
        time.sleep(0.1)
    return Stretch(began_s, rested, load.stalls_ms, stolen_percent)


def go_on(load: Load, seconds: float) -> None:
    """Let the clients work for `seconds`."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        load.check()
        time.sleep(0.1)


def restart(broker: BrokerProcess, place: Place, record: Record, *, kill: bool) -> None:
    """End the broker's life and begin the next."""
    broker.check_alive()
    place.up.clear()
    if kill:
        broker.kill()
    else:
        assert broker.terminate() == 0
    place.life += 1
    record.restarts_s.append(record.now_s())
    broker.start()
    place.up.set()
