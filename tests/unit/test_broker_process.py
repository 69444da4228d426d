"""The broker process of the tests: if the broker ends while it starts, the test learns its status and log at
once. Nothing else takes its ports while it is down."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.broker_process import READY_WITHIN_S, REPOSITORY, BrokerDied, BrokerProcess, queue
from tests.support.ports import BLOCK, FIRST, take_ports


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


def test_neither_a_client_nor_another_process_of_tests_gets_the_ports_of_a_broker_that_is_down() -> None:
    own = take_ports(3)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        assert max(own) < client.getsockname()[1], "the system chooses from a range that begins higher"
    program = "from tests.support.ports import take_ports; print(*take_ports(3))"
    other = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    blocks = [{(int(port) - FIRST) // BLOCK for port in ports} for ports in (own, other.stdout.split())]
    assert not set.intersection(*blocks)


def test_a_port_is_passed_over_while_something_listens_on_it() -> None:
    (port,) = take_ports(1)
    with socket.create_server(("127.0.0.1", port)):
        assert port not in {taken for _ in range(BLOCK - 1) for taken in take_ports(1)}
