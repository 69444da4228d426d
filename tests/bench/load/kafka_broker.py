"""A Kafka broker of one node (KRaft), from the artifacts that Maven Central has, as a process of its own.

Spark's source and sink for Kafka are the natural rivals of the connector. The settings are Kafka's own
defaults; with one node there is one replica.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.broker_process import REPOSITORY

FOLDER = REPOSITORY / "tests" / "bench" / "kafka"
POM, TOPICS = FOLDER / "pom.xml", FOLDER / "CreateTopics.java"
JARS = REPOSITORY / "build" / "bench-kafka"
OF_SPARK = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
"""Beginnings of the names of the jars that Spark needs."""
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
FETCHES_WITHIN_S, READY_WITHIN_S, STOPS_WITHIN_S = 600.0, 60.0, 30.0
SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.message.timestamp.type=LogAppendTime
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.dirs={folder}/log
"""


def jars() -> Path:
    """The folder with the jars, fetched by Maven the first time. Raises CalledProcessError."""
    if not JARS.is_dir():
        fetched = JARS.with_name("bench-kafka.part")
        shutil.rmtree(fetched, ignore_errors=True)
        command = [
            "mvn",
            "-q",
            "-B",
            "-f",
            str(POM),
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
        ]
        command.append(f"-DoutputDirectory={fetched}")
        subprocess.run(command, check=True, timeout=FETCHES_WITHIN_S)
        fetched.rename(JARS)
    return JARS


def jars_of_spark() -> str:
    """What Spark's setting `spark.jars` takes."""
    return ",".join(str(jar) for jar in sorted(jars().glob("*.jar")) if jar.name.startswith(OF_SPARK))


class KafkaBroker:
    """One broker with its own folder. It keeps its ports when it is started again."""

    def __init__(self, folder: Path, partitions: int) -> None:
        folder.mkdir(parents=True)
        self._partitions = partitions
        self._settings = folder / "server.properties"
        self._log = folder / "output.log"
        self.port = _free_port()
        text = SETTINGS.format(port=self.port, controller=_free_port(), partitions=partitions, folder=folder)
        self._settings.write_text(text)
        self._process: subprocess.Popen[bytes] | None = None
        format_log = ["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(self._settings)]
        subprocess.run(self._java(*format_log), check=True, stdout=subprocess.DEVNULL, timeout=READY_WITHIN_S)

    def create(self, topics: Sequence[str]) -> None:
        """Create topics. A producer that writes to one that does not exist may wait for two minutes."""
        command = self._java(str(TOPICS), self.address, str(self._partitions), *topics)
        subprocess.run(command, check=True, timeout=READY_WITHIN_S)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the broker, and wait until it takes connections."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._java("-Xmx1g", "kafka.Kafka", str(self._settings)), stdout=log, stderr=log
            )
        gives_up = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < gives_up and self._process.poll() is None:
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        self.kill()
        raise RuntimeError(f"Kafka did not start: {self._log.read_text()[-2000:]}")

    def restart(self) -> None:
        """Kill the broker and start it again on its data."""
        self.kill()
        self.start()

    def kill(self) -> None:
        """End the broker as `kill -9` does."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait(STOPS_WITHIN_S)

    def _java(self, *arguments: str) -> list[str]:
        return ["java", "-cp", f"{jars()}{os.sep}*", *arguments]


@contextmanager
def running_kafka(folder: Path, partitions: int) -> Iterator[KafkaBroker]:
    """A broker until the end of the `with` statement."""
    broker = KafkaBroker(folder, partitions)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
