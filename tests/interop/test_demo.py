"""What a newcomer runs first: `make demo`, with and without a running broker."""

from __future__ import annotations

import socket
import subprocess
import sys

from tests.interop.scenarios import DEMO
from tests.support.broker_process import REPOSITORY, Addresses, BrokerProcess

RUNS_WITHIN_S = 120


def demo(addresses: Addresses) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "tools/demo.py",
        "--connection-string",
        addresses.connection_string(),
        "--queue",
        DEMO,
        "--count",
        "4",
    ]
    return subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=RUNS_WITHIN_S, check=False
    )


def test_the_demo_receives_what_it_sent(broker: BrokerProcess) -> None:
    """Each message is received, and the table shows its partition."""
    ran = demo(broker.addresses)
    assert ran.returncode == 0, ran.stderr
    assert "4 messages in " in ran.stdout and "message 3" in ran.stdout


def test_without_a_broker_the_demo_says_how_to_start_one() -> None:
    """If the connection is refused, the demo ends with advice instead of a traceback."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # not listening, so connections are refused
        ran = demo(Addresses(bound.getsockname()[1], 0, 0))
    assert ran.returncode == 1
    assert "make run" in ran.stderr and "Traceback" not in ran.stderr
