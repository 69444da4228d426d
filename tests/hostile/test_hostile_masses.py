"""Clients that send as much as is permitted, and more: the broker's memory stays bounded, and it serves
another client meanwhile.

The attacks are those of the benchmarks (`tests/bench/load/attacks.py`), each for a short time. The benchmarks
report how long other clients wait; these tests only bound it.
"""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from protocol.codec import UInt
from tests.bench.load import attacks
from tests.hostile.bystander import Bystander, ending, resident_mib
from tests.support import raw_amqp as raw
from tests.support.broker_process import BrokerProcess
from tests.support.raw_amqp import RawConnection

ATTACK_S = 2.0
ENDS_WITHIN_S = 60.0
MEMORY_MIB_MAX = 64
"""40 attackers may use 64 KiB each, and 300 a connection each; without bounds each of these attacks took
hundreds of MiB.
"""
SERVED_WITHIN_S = 5.0
"""Generous: a round trip takes milliseconds, and took up to 12 s without bounds."""
WITHOUT_KEY = ("unfinished_transfers", "nested_lists", "short_idle_timeouts", "many_attaches", "large_opens")
WITH_KEY = ("authorized_attaches",)


@pytest.mark.parametrize("name", [*WITHOUT_KEY, *WITH_KEY])
def test_an_attack_takes_little_memory_and_others_are_served_meanwhile(
    broker: BrokerProcess, old_friend: Bystander, name: str
) -> None:
    before = most = resident_mib(broker.pid)
    command = [sys.executable, "-m", attacks.__name__, name, str(broker.addresses.amqp_port), str(ATTACK_S)]
    attacker, deadline = (
        subprocess.Popen(command, stdout=subprocess.DEVNULL),
        time.monotonic() + ENDS_WITHIN_S,
    )
    try:
        while attacker.poll() is None and time.monotonic() < deadline:
            old_friend.round_trip(SERVED_WITHIN_S)
            most = max(most, resident_mib(broker.pid))
    finally:
        attacker.kill()
        attacker.wait()
    assert attacker.returncode == 0
    assert most - before < MEMORY_MIB_MAX


@pytest.mark.parametrize("idle_timeout_ms", [1, 999])
def test_an_idle_timeout_that_is_too_short_is_refused_with_a_reason(
    broker: BrokerProcess, idle_timeout_ms: int
) -> None:
    fields = raw.open_fields()
    fields[4] = UInt(idle_timeout_ms)
    with RawConnection(broker.addresses.amqp_port) as connection:
        connection.log_in()
        connection.send(raw.AMQP_HEADER, raw.frame(raw.OPEN, fields))
        assert connection.read_bytes(8) == raw.AMQP_HEADER
        closed = ending(connection)
        assert closed is not None and raw.condition_of(closed) == "amqp:not-allowed"


def test_more_than_a_token_needs_is_refused_with_a_reason(broker: BrokerProcess) -> None:
    with attacks.anonymous(broker.addresses.amqp_port) as connection:
        connection.attach_sender(0, "$cbs")
        for _ in range(5):
            attacks.say(
                connection, raw.frame(raw.TRANSFER, raw.transfer_fields(0, 0, more=True), bytes(16_000))
            )
        closed = ending(connection)
        assert closed is not None and raw.condition_of(closed) == "amqp:resource-limit-exceeded"


def test_sessions_begun_and_ended_without_pause_end_the_connection_and_hold_up_nobody(
    broker: BrokerProcess, old_friend: Bystander
) -> None:
    before = resident_mib(broker.pid)
    frames = (raw.frame(raw.BEGIN, raw.begin_fields(), channel=1) + raw.frame(raw.END, [], channel=1)) * 500
    with RawConnection(broker.addresses.amqp_port) as connection:
        connection.open()
        for _ in range(60):
            if not attacks.say(connection, frames):
                break
        old_friend.round_trip(SERVED_WITHIN_S)
    for _ in range(20):  # freeing at once what the connection held used to take minutes
        old_friend.round_trip(SERVED_WITHIN_S)
    assert resident_mib(broker.pid) - before < MEMORY_MIB_MAX
