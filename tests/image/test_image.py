"""The image as users run it: its own user, a read-only root, a volume; the official Python client uses it,
and it is killed and restarted.
"""

from __future__ import annotations

import gc
import itertools
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tests.image.builders import Builder, ImageConfig, Running, find_builder

KEY = (
    "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
HEALTHY_WITHIN_S = 60
HEALTH_CPU_PERCENT_MAX = 0.5
ACKNOWLEDGED_BEFORE_THE_KILL = 100


@dataclass(slots=True)
class Image:
    builder: Builder
    config: ImageConfig


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    builder = find_builder(tmp_path_factory.mktemp("image"))
    try:
        yield Image(builder, builder.build())
    finally:
        builder.clean()


def started(image: Image, volume: str) -> Running:
    """Start a container and wait until its own health check passes."""
    container = image.builder.start(volume)
    until = time.monotonic() + HEALTHY_WITHIN_S
    while (check := container.run(image.config.health_test)).returncode != 0:
        assert time.monotonic() < until, (
            f"not healthy after {HEALTHY_WITHIN_S} s: {check.stderr}\n{container.log()[-4000:]}"
        )
        time.sleep(0.2)
    return container


def client_of(container: Running) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(
        f"Endpoint=sb://127.0.0.1:{container.ports['amqp']};{KEY}", retry_total=0
    )


def test_the_image_runs_as_its_own_user_on_a_read_only_root_and_stops_in_order(image: Image) -> None:
    container = started(image, "plain")
    assert image.config.user not in ("", "root", "0")
    assert container.run(["id", "-u"]).stdout.strip() == "10001"
    assert container.run(["touch", "/etc/partibus/new"]).returncode != 0
    assert container.run(["sh", "-c", "touch /data/new && rm /data/new"]).returncode == 0
    with urllib.request.urlopen(f"http://127.0.0.1:{container.ports['http']}/metrics", timeout=10) as answer:
        assert b"# TYPE" in answer.read()
    assert container.stop() == 0
    assert "server.stopped" in container.log()


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # about the socket that the client leaves to the garbage collector
def test_every_acknowledged_message_is_there_after_a_kill_and_a_restart_on_the_same_volume(
    image: Image,
) -> None:
    container = started(image, "killed")
    acknowledged: list[str] = []
    enough = threading.Event()

    def send() -> None:
        with client_of(container) as client, client.get_queue_sender("queue.1") as sender:
            for number in itertools.count():
                body = f"message {number}"
                try:
                    sender.send_messages(
                        ServiceBusMessage(body, partition_key=str(number % 7) if number % 2 else None)
                    )
                except ServiceBusError:
                    return  # the broker was killed: the outcome of this message is unknown
                acknowledged.append(body)
                if number >= ACKNOWLEDGED_BEFORE_THE_KILL:
                    enough.set()

    sender = threading.Thread(target=send, name="sender", daemon=True)
    sender.start()
    assert enough.wait(60), f"only {len(acknowledged)} messages were acknowledged in 60 s"
    container.kill()
    sender.join(60)
    assert not sender.is_alive()
    # Collect now, while the warning about that socket is ignored, rather than in another test or after the
    # last.
    gc.collect()

    container = started(image, "killed")
    received: set[str] = set()
    with client_of(container) as client, client.get_queue_receiver("queue.1", max_wait_time=5) as receiver:
        for message in receiver:
            received.add(str(message))
            receiver.complete_message(message)
            if received.issuperset(acknowledged):
                break
    assert set(acknowledged) - received == set()
    container.kill()


def test_the_health_check_costs_next_to_nothing_and_fails_where_nobody_answers(image: Image) -> None:
    container = started(image, "health")
    checks = 20
    probe = " ".join(image.config.health_test)
    done = container.run(
        ["sh", "-c", f"for each in $(seq {checks}); do {probe} >/dev/null || exit 1; done; times"]
    )
    assert done.returncode == 0, done.stderr
    user, system = done.stdout.splitlines()[1].split()  # of child processes
    percent = 100 * (_seconds(user) + _seconds(system)) / checks / image.config.health_interval_s
    print(
        f"a health check takes {1000 * (_seconds(user) + _seconds(system)) / checks:.1f} ms of CPU: "
        f"{percent:.2f} % of a core"
    )
    assert percent < HEALTH_CPU_PERCENT_MAX
    assert container.run(["env", "PARTIBUS_HTTP_PORT=1", *image.config.health_test]).returncode == 1
    container.kill()


def _seconds(text: str) -> float:
    """Parse a time such as `0m1.25s`, as the shell's `times` prints it; gives seconds."""
    minutes, _, seconds = text.rstrip("s").partition("m")
    return 60 * int(minutes) + float(seconds)
