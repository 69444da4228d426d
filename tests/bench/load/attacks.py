"""What hostile clients can do: how much memory the broker uses, and how long an unrelated client waits.

Responsible for the attacks and for measuring their effect. Each attack runs in a separate process on a fresh
broker. Meanwhile this process reads the broker's resident memory and, over its own connection, begins and
ends a session (§2.5): that needs only the event loop, and no log or disk delays it. `python -m
tests.bench.load.attacks NAME PORT` is the attacker.
"""

from __future__ import annotations

import contextlib
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from protocol.codec import Described, Symbol, UInt, ULong, encode
from tests.bench.load.footprint import fresh_broker
from tests.bench.load.machine import allow_open_files, resident_mib
from tests.support import raw_amqp as raw
from tests.support.raw_amqp import ConnectionEnded, RawConnection
from tests.support.sas import sas_token

MIB = 1024 * 1024
ASK_EVERY_S = 0.005
ANSWERED_WITHIN_S = 60.0
SEND_KEY_NAME, SEND_KEY = "sender", "SEND_KEY_VALUE"


@dataclass(slots=True, frozen=True)
class Harm:
    """Effect of an attack: the largest memory growth, and the longest wait of another client."""

    memory_mib: float
    stall_ms: float


# --- the attacker -------------------------------------------------------------------------------------------


def say(connection: RawConnection, *pieces: bytes) -> bool:
    """Write; False once the broker has closed the connection or stopped reading."""
    connection.socket.settimeout(2.0)
    try:
        connection.socket.sendall(b"".join(pieces))
    except OSError:
        return False
    return True


def anonymous(port: int) -> RawConnection:
    """A connection without credentials, after its open and with a session."""
    connection = RawConnection(port)
    connection.open(raw.sasl_anonymous())
    connection.begin()
    return connection


def nothing(port: int, deadline: float) -> None:
    """No attack: how long the machine itself makes others wait."""
    _stay(deadline)


def unfinished_transfers(port: int, deadline: float) -> None:
    """Without credentials: 40 connections with 15 links to `$cbs` each, and on each link a transfer of 4 MB
    that never ends.
    """
    part = bytes(64_000)
    connections = [anonymous(port) for _ in range(40)]
    alive = {connection for connection in connections if _attached(connection, 15)}
    for _ in range(4_000_000 // len(part)):
        for link in range(15):
            for connection in list(alive):
                frame = raw.frame(raw.TRANSFER, raw.transfer_fields(link, link, more=True), part)
                if not say(connection, frame):
                    alive.discard(connection)
    _stay(deadline)


def _attached(connection: RawConnection, count: int) -> bool:
    with contextlib.suppress(ConnectionEnded, TimeoutError):
        for link in range(count):
            connection.send_frame(raw.ATTACH, raw.sender_attach(link, "$cbs"))
            connection.read_until(raw.FLOW, within_s=ANSWERED_WITHIN_S)
        return True
    return False


def large_audiences(port: int, deadline: float) -> None:
    """With a key that may only send: 200 tokens for audiences of 3.9 MB."""
    with anonymous(port) as connection:
        connection.put_token(
            sas_token("sb://127.0.0.1/bench", key_name=SEND_KEY_NAME, key=SEND_KEY), "sb://127.0.0.1/bench", 1
        )
        connection.send_frame(raw.ATTACH, raw.sender_attach(0, "$cbs"))
        connection.send_frame(raw.ATTACH, raw.receiver_attach(1, "$cbs"))
        connection.send_frame(raw.FLOW, raw.flow_fields(1, 0, 1_000))
        token = sas_token("sb://127.0.0.1/bench", key_name=SEND_KEY_NAME, key=SEND_KEY)
        for number in range(200):
            audience = f"sb://127.0.0.1/bench/{number:03}".ljust(3_900_000, "x")
            request = _request({"operation": "put-token", "type": "jwt", "name": audience}, token)
            if not _say_message(connection, 0, number, request):
                break
        _stay(deadline)


def _request(properties: dict[str, str], body: str) -> bytes:
    sections = ((0x73, ["id"]), (0x74, properties), (0x77, body))
    return b"".join(encode(Described(ULong(code), value)) for code, value in sections)


def _say_message(connection: RawConnection, handle: int, number: int, payload: bytes) -> bool:
    for begin in range(0, len(payload), 200_000):
        more = begin + 200_000 < len(payload)
        frame = raw.frame(
            raw.TRANSFER,
            raw.transfer_fields(handle, number, settled=True, more=more),
            payload[begin : begin + 200_000],
        )
        if not say(connection, frame):
            return False
    return True


def nested_lists(port: int, deadline: float) -> None:
    """Without credentials: repeated requests of 4 MB to `$cbs`, each a list of empty lists."""
    count = 4 * MIB - 1_000
    payload = b"\x00\x53\x77\xd0" + struct.pack(">II", 4 + count, count) + b"\x45" * count
    while time.monotonic() < deadline:
        with contextlib.suppress(ConnectionEnded, TimeoutError), anonymous(port) as connection:
            connection.send_frame(raw.ATTACH, raw.sender_attach(0, "$cbs"))
            _say_message(connection, 0, 0, payload)
            connection.frames_until_end(0.2)


def short_idle_timeouts(port: int, deadline: float) -> None:
    """300 connections that ask for a heartbeat every millisecond."""
    fields = raw.open_fields()
    fields[4] = UInt(1)
    connections = []
    for _ in range(300):
        connection = RawConnection(port)
        connection.log_in(raw.sasl_anonymous())
        connection.send(raw.AMQP_HEADER, raw.frame(raw.OPEN, fields))
        connections.append(connection)
    _stay(deadline)


def many_attaches(port: int, deadline: float) -> None:
    """Without credentials: 6,000 attaches in one write, on one connection after another."""
    frames = b"".join(
        raw.frame(raw.ATTACH, raw.sender_attach(handle, f"queue-{handle}")) for handle in range(6_000)
    )
    while time.monotonic() < deadline:
        with contextlib.suppress(ConnectionEnded, TimeoutError), anonymous(port) as connection:
            say(connection, frames)
            connection.frames_until_end(0.5)


def large_opens(port: int, deadline: float) -> None:
    """Without credentials: 300 connections whose opens and attaches are filled with nulls up to the largest
    permitted size.
    """
    properties = {Symbol("a"): [None] * 3_000}
    opening = [*raw.open_fields(), None, None, None, None, properties]
    attaches = [raw.frame(raw.ATTACH, raw.sender_attach(handle, "$cbs")) for handle in range(30)]
    connections = []
    for _ in range(300):
        connection = RawConnection(port)
        connection.log_in(raw.sasl_anonymous())
        say(
            connection,
            raw.AMQP_HEADER,
            raw.frame(raw.OPEN, opening),
            raw.frame(raw.BEGIN, raw.begin_fields()),
            *attaches,
        )
        say(connection, raw.frame(raw.TRANSFER, raw.transfer_fields(0, 0, more=True), bytes(48_000)))
        connections.append(connection)
    _stay(deadline)


def authorized_attaches(port: int, deadline: float) -> None:
    """With a key: repeatedly attach and detach 5,000 links in one write."""
    frames = b"".join(
        raw.frame(raw.ATTACH, raw.sender_attach(handle, f"queue-{handle}")) for handle in range(5_000)
    )
    begin = [*raw.begin_fields()[:-1], UInt(5_000)]
    while time.monotonic() < deadline:
        with contextlib.suppress(ConnectionEnded, TimeoutError), RawConnection(port) as connection:
            connection.open()
            connection.send_frame(raw.BEGIN, begin)
            say(connection, frames, raw.frame(raw.END, []))
            connection.read_until(raw.END, within_s=ANSWERED_WITHIN_S)


def authorized_lists(port: int, deadline: float) -> None:
    """With a key: repeated requests to `$management` with as many values as permitted."""
    count = 32_000
    payload = b"\x00\x53\x77\xd0" + struct.pack(">II", 4 + count, count) + b"\x45" * count
    with contextlib.suppress(ConnectionEnded, TimeoutError), RawConnection(port) as connection:
        connection.open()
        connection.begin()
        connection.attach_sender(0, "bench/$management")
        number = 0
        while time.monotonic() < deadline and _say_message(connection, 0, number, payload):
            number += 1


def _stay(deadline: float) -> None:
    time.sleep(max(deadline - time.monotonic(), 0))


ATTACKS: Mapping[str, Callable[[int, float], None]] = {
    attack.__name__: attack
    for attack in (
        nothing,
        unfinished_transfers,
        large_audiences,
        nested_lists,
        short_idle_timeouts,
        many_attaches,
        large_opens,
        authorized_attaches,
        authorized_lists,
    )
}


# --- the other clients --------------------------------------------------------------------------------------


class Asker:
    """An unrelated client that makes one small request at a time, and keeps the longest wait."""

    def __init__(self, port: int) -> None:
        self._connection = RawConnection(port)
        self._connection.open()
        self._connection.begin()
        self._question = raw.frame(raw.BEGIN, raw.begin_fields(), channel=1) + raw.frame(
            raw.END, [], channel=1
        )
        self.longest_s = 0.0

    def ask(self) -> None:
        """Make one request. Raises TimeoutError, ConnectionEnded."""
        began = time.perf_counter()
        self._connection.send(self._question)
        self._connection.read_until(raw.END, within_s=ANSWERED_WITHIN_S)
        self.longest_s = max(self.longest_s, time.perf_counter() - began)

    def close(self) -> None:
        self._connection.socket.close()


def suffer(folder: Path, name: str, attack_s: float) -> Harm:
    """Run an attack on a fresh broker for `attack_s` seconds, and measure its effect."""
    allow_open_files(600)
    with fresh_broker(folder, environment={"PARTIBUS_SAS_RULES": _SEND_RULE}) as broker:
        port = broker.addresses.amqp_port
        asker = Asker(port)
        asker.ask()
        asker.longest_s = 0.0
        before = most = resident_mib(broker.pid)
        attacker = subprocess.Popen(
            [sys.executable, "-m", __name__, name, str(port), str(attack_s)], stdout=subprocess.DEVNULL
        )
        try:
            while attacker.poll() is None:
                asker.ask()
                most = max(most, resident_mib(broker.pid))
                time.sleep(ASK_EVERY_S)
        finally:
            attacker.kill()
            attacker.wait()
            asker.close()
        broker.check_alive()
        if attacker.returncode:
            raise RuntimeError(f"the attack {name} failed with status {attacker.returncode}")
        return Harm(most - before, asker.longest_s * 1000)


_SEND_RULE = f'[{{"key_name": "{SEND_KEY_NAME}", "primary_key": "{SEND_KEY}", "rights": ["Send"]}}]'

if __name__ == "__main__":
    ATTACKS[sys.argv[1]](int(sys.argv[2]), time.monotonic() + float(sys.argv[3]))
