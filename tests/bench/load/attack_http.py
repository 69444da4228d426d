"""Incomplete headers on the HTTP port: how long other clients wait meanwhile, and how much the broker's
memory grows.

Responsible for one round on a fresh broker. The attack (`tests/support/half_headers.py`) runs in a separate
process. This process asks for health and for a list of queues, in turn and on a new connection each time; on
an AMQP connection opened before the attack it begins and ends a session (§2.5), which needs only the event
loop.
"""

from __future__ import annotations

import contextlib
import http.client
import time
from dataclasses import dataclass
from pathlib import Path

from tests.bench.load.footprint import fresh_broker
from tests.bench.load.machine import resident_mib
from tests.support import raw_amqp as raw
from tests.support.half_headers import HalfHeaders
from tests.support.raw_amqp import RawConnection
from tests.support.sas import sas_token

CONNECTIONS = 1_000
"""As many connections as the port accepts by default."""
ATTACK_S = 12.0
"""Long enough for every connection to time out twice."""
ASK_EVERY_S = 0.005
ANSWERED_WITHIN_S = 100.0
"""Longer than the attack locked out the port before it had bounds, so that a regression gives a figure
instead of an error.
"""


@dataclass(slots=True, frozen=True)
class HalfHeaderHarm:
    """One round: the longest wait for health, for administration and of an AMQP client, and the largest
    memory growth.
    """

    health_ms: float
    administration_ms: float
    stall_ms: float
    memory_mib: float


def half_headers(folder: Path) -> HalfHeaderHarm:
    """Keep CONNECTIONS connections with an incomplete header open for ATTACK_S, and measure meanwhile."""
    health_s, administration_s, stall_s, memory_mib = 0.0, 0.0, 0.0, 0.0
    with fresh_broker(folder) as broker, RawConnection(broker.addresses.amqp_port) as bystander:
        bystander.open()
        port, before_mib = broker.addresses.http_port, resident_mib(broker.pid)
        token = sas_token("https://127.0.0.1")
        end = time.perf_counter() + ATTACK_S
        with HalfHeaders(port, CONNECTIONS):
            while time.perf_counter() < end:
                health_s = max(health_s, ask_s(port, "/health", {}))
                administration_s = max(
                    administration_s, ask_s(port, "/$Resources/queues", {"Authorization": token})
                )
                stall_s = max(stall_s, turn_s(bystander))
                memory_mib = max(memory_mib, resident_mib(broker.pid) - before_mib)
                time.sleep(ASK_EVERY_S)
    return HalfHeaderHarm(health_s * 1000, administration_s * 1000, stall_s * 1000, memory_mib)


def ask_s(port: int, path: str, headers: dict[str, str]) -> float:
    """Seconds from connecting to the complete answer; ANSWERED_WITHIN_S if there is none or its status is not
    200.
    """
    begin = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWERED_WITHIN_S)
    with contextlib.closing(connection):
        try:
            connection.request("GET", path, headers={"Connection": "close", **headers})
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            return ANSWERED_WITHIN_S
        return time.perf_counter() - begin if answer.status == 200 else ANSWERED_WITHIN_S


def turn_s(connection: RawConnection) -> float:
    """Seconds to begin and end a session."""
    begin = time.perf_counter()
    connection.begin(1)
    connection.send_frame(raw.END, [], channel=1)
    connection.read_until(raw.END, within_s=ANSWERED_WITHIN_S)
    return time.perf_counter() - begin
