"""The broker process of the tests: if the broker ends while it starts, the test learns its status and log at
once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.broker_process import READY_WITHIN_S, BrokerDied, BrokerProcess, queue


def test_a_broker_that_refuses_its_settings_is_reported_with_what_it_wrote(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, [queue("orders")], environment={"PARTIBUS_MEMORY_BYTES_MAX": "plenty"})
    with pytest.raises(
        BrokerDied, match=r"(?s)ended with status 2 before it was ready.*PARTIBUS_MEMORY_BYTES_MAX"
    ):
        broker.start()


def test_a_broker_that_dies_at_its_start_is_reported_at_once_though_a_child_of_it_keeps_the_log_open(
    tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, subprocess\n"
        f"child = subprocess.Popen(['sleep', '{2 * READY_WITHIN_S}'])\n"
        "print('child', child.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    broker = BrokerProcess(tmp_path / "broker", [queue("orders")], environment={"PYTHONPATH": str(tmp_path)})
    began = time.monotonic()
    try:
        with pytest.raises(BrokerDied, match="ended with status -9 before it was ready"):
            broker.start()
        assert time.monotonic() - began < READY_WITHIN_S / 2
    finally:
        os.kill(int(broker.log.removeprefix("child")), signal.SIGKILL)
