"""Run the real broker as a separate process: start it, find its ports, kill it, restart it on the same data.

Responsible for the life of the process and its log; does not know what a test does with it. Every wait is
bounded, and every failure includes the broker's log.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.ports import take_ports

REPOSITORY = Path(__file__).resolve().parents[2]
KEY_NAME, KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"
"""The emulator's key. Its documentation publishes it, so it protects nothing."""
LOG_LINES_KEPT = 20_000
PATIENT = {"PARTIBUS_DISK_TIMEOUT_MS": "30000"}
"""On a machine busy with tests a sync may exceed the default of 5 s; no disk hangs in these tests."""
READY_WITHIN_S = 30.0
LOOKS_EVERY_S = 0.05
"""Interval at which a start checks that the broker is still alive."""
STOPS_WITHIN_S = 15.0
LOG_ENDS_WITHIN_S = 2.0
"""Time to wait for the end of the log. A broker that has exited has written everything; only a surviving
child process can keep its log open.
"""


@dataclass(slots=True, frozen=True)
class Program:
    """The folder with a broker's code, and the Python that runs it."""

    tree: Path = REPOSITORY
    python: str = sys.executable


THIS = Program()


class BrokerDied(Exception):
    """The broker did not start, or exited on its own. The text ends with its log."""


@dataclass(slots=True, frozen=True)
class Addresses:
    """Ports the broker listens on, on 127.0.0.1 unless it was given another host."""

    amqp_port: int
    amqps_port: int
    http_port: int

    def connection_string(self, host: str = "127.0.0.1", key_name: str = KEY_NAME, key: str = KEY) -> str:
        """The emulator's connection string (AMQP contract 1.4). The Go client requires the host
        `localhost`.
        """
        return f"Endpoint=sb://{host}:{self.amqp_port};SharedAccessKeyName={key_name};SharedAccessKey={key};UseDevelopmentEmulator=true;"

    @property
    def amqp_url(self) -> str:
        """The URL for plain AMQP clients."""
        return f"amqp://127.0.0.1:{self.amqp_port}"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"


def queue(name: str, **properties: object) -> dict[str, object]:
    """One entry of the configuration's `Queues`, with the service's default max delivery count instead of the
    emulator's three.
    """
    return {"Name": name, "Properties": {"MaxDeliveryCount": 10, **properties}}


def topic(name: str, subscriptions: Iterable[str], **properties: object) -> dict[str, object]:
    """One entry of the configuration's `Topics`; `properties` are those of each subscription."""
    described = [{"Name": each, "Properties": properties} for each in subscriptions]
    return {"Name": name, "Properties": {}, "Subscriptions": described}


def configuration(
    queues: Sequence[Mapping[str, object]],
    topics: Sequence[Mapping[str, object]] = (),
    others: Sequence[Mapping[str, object]] = (),
) -> dict[str, object]:
    """A complete configuration in the emulator's format (HTTP contract 5.4). `others` are further
    namespaces."""
    namespace = {"Name": "sbemulatorns", "Queues": list(queues), "Topics": list(topics)}
    return {"UserConfig": {"Namespaces": [namespace, *others], "Logging": {"Type": "Console"}}}


class BrokerProcess:
    """`python -m broker serve` with its own folder.

    `folder` receives the configuration and the data. All starts use the same ports, so that clients find a
    restarted broker at the same address (`ports.py`); with `keeps_ports` false, the system chooses new ones
    at each start. `addresses` are the ports for the first start.
    """

    def __init__(
        self,
        folder: Path,
        queues: Sequence[Mapping[str, object]],
        *,
        topics: Sequence[Mapping[str, object]] = (),
        others: Sequence[Mapping[str, object]] = (),
        environment: Mapping[str, str] | None = None,
        keeps_ports: bool = True,
        files_max: int | None = None,
        group: Path | None = None,
        host: str = "127.0.0.1",
        addresses: Addresses | None = None,
        program: Program = THIS,
    ) -> None:
        """files_max: limit on the process's open file descriptors. group: the file with the members of a
        control group that the process joins. others: further namespaces. program: another version.
        """
        self._folder = folder
        self._environment = dict(environment or {})
        self._keeps_ports = keeps_ports
        self._files_max, self._group, self._program = files_max, group, program
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._ready = threading.Event()
        """Set once the broker listens."""
        self._log: deque[str] = deque(maxlen=LOG_LINES_KEPT)
        self._host = host
        self._addresses = addresses
        self.data_dir = folder / "data"
        self.config_path = folder / "config.json"
        folder.mkdir(parents=True, exist_ok=True)
        self.config_path.write_text(
            json.dumps(configuration(queues, topics, others), indent=1), encoding="utf-8"
        )

    @property
    def addresses(self) -> Addresses:
        """Where the broker listens, or last listened."""
        assert self._addresses is not None, "the broker was never started"
        return self._addresses

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def log(self) -> str:
        """The last lines of the broker's log, across all starts."""
        return "\n".join(self._log)

    @property
    def errors(self) -> list[str]:
        """The lines of the log at level error: nothing that an ordinary client does causes one."""
        return [line for line in list(self._log) if '"level": "error"' in line]

    def log_tail(self, lines: int = 40) -> str:
        """The last `lines` lines of the log."""
        return "\n".join(list(self._log)[-lines:])

    def start(self) -> Addresses:
        """Start the broker and wait until it is ready. Raises `BrokerDied`."""
        assert self._process is None, "the broker is running already"
        ports = Addresses(0, 0, 0)
        if self._keeps_ports:
            ports = self._addresses or Addresses(*take_ports(3))
        command = [
            self._program.python,
            "-m",
            "broker",
            "serve",
            "--config",
            str(self.config_path),
            "--data-dir",
            str(self.data_dir),
        ]
        command += [
            "--host",
            self._host,
            "--amqp-port",
            str(ports.amqp_port),
            "--amqps-port",
            str(ports.amqps_port),
        ]
        command += ["--http-port", str(ports.http_port), "--log-format", "json"]
        if self._files_max is not None:
            command = ["sh", "-c", f'ulimit -n {self._files_max}; exec "$@"', "sh", *command]
        if self._group is not None:
            command = ["sh", "-c", f'echo $$ > {self._group} && exec "$@"', "sh", *command]
        self._ready.clear()
        self._process = subprocess.Popen(
            command,
            cwd=self._program.tree,  # where Python looks for modules first
            env={**os.environ, **PATIENT, **self._environment, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(
            target=self._read_log, args=(self._process,), name="broker-log", daemon=True
        )
        self._reader.start()
        status = self._wait_until_ready(self._process)
        if self._ready.is_set():
            return self.addresses
        self.kill()
        why = (
            f"was not ready within {READY_WITHIN_S} s"
            if status is None
            else f"ended with status {status} before it was ready"
        )
        raise BrokerDied(f"the broker {why}:\n{self.log_tail()}")

    def _wait_until_ready(self, process: subprocess.Popen[str]) -> int | None:
        """Wait until the broker listens or has exited, at most `READY_WITHIN_S`. Gives the exit status if it
        has exited.
        """
        gives_up = time.monotonic() + READY_WITHIN_S
        while not self._ready.wait(LOOKS_EVERY_S) and time.monotonic() < gives_up:
            if (status := process.poll()) is not None:
                return status
        return None

    def restart(self) -> Addresses:
        """Kill the broker if it still runs, and start it on the same data and ports."""
        self.kill()
        return self.start()

    def kill(self) -> None:
        """Kill the broker as `kill -9` does. Does nothing if it is not running."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int | None:
        """Ask the broker to stop, wait until it has, and give its exit status; None if it was not running."""
        return self._end(signal.SIGTERM)

    def check_alive(self) -> None:
        """Raise `BrokerDied` if the broker has exited on its own."""
        if self._process is not None and self._process.poll() is not None:
            raise BrokerDied(
                f"the broker ended by itself with status {self._process.poll()}:\n{self.log_tail()}"
            )

    def _end(self, how: signal.Signals) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        if process.poll() is None:
            process.send_signal(how)
        try:
            status = process.wait(STOPS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOPS_WITHIN_S)
            raise BrokerDied(
                f"the broker did not stop within {STOPS_WITHIN_S} s:\n{self.log_tail()}"
            ) from None
        finally:
            if self._reader is not None:
                self._reader.join(LOG_ENDS_WITHIN_S)
        return status

    def _read_log(self, process: subprocess.Popen[str]) -> None:
        """Keep the log and look for the line that gives the ports."""
        assert process.stdout is not None
        with process.stdout as log:
            for line in log:
                self._log.append(line.rstrip())
                if "server.ready" in line:
                    self._note_addresses(line)

    def _note_addresses(self, line: str) -> None:
        try:
            entry: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            return
        if entry.get("event") == "server.ready":
            self._addresses = Addresses(
                *(port_of(str(entry.get(name, ""))) for name in ("amqp", "amqps", "http"))
            )
            self._ready.set()

    def __enter__(self) -> BrokerProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.terminate()


def port_of(address: str) -> int:
    """The port in "host:port"; 0 if there is none."""
    _, _, port = address.rpartition(":")
    return int(port) if port.isdigit() else 0
