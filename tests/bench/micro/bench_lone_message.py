"""Where the time of a message goes that is sent alone: the medians of the steps between a client's write and
its acknowledgement, one JSON line each. Run by hand: `python -m tests.bench.micro.bench_lone_message
[folder]`.

The broker is a process of its own, in which the functions that begin and end the steps note the time.
Noting it makes a message some 20 µs slower. Both processes read the same clock (Linux).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.bench.load.client import Sender, drive, encode_message
from tests.bench.load.endpoint import Endpoint
from tests.bench.load.traffic import BODY_BYTES, READY_WITHIN_S, Target
from tests.support.broker_process import KEY, KEY_NAME, configuration, queue

MESSAGES, WARM_UP = 2_000, 300
QUEUE = "bench"
Noted = tuple[str, float]
"""What has ended, and when."""


def note_steps(noted: list[Noted]) -> None:
    """Wrap the functions of the broker between the steps."""
    from broker.frontend.connection import Connection
    from broker.frontend.listener import StreamProtocol
    from broker.messaging.sending import Sending
    from broker.partition.mailbox import Mailbox
    from broker.partition.task import PartitionTask
    from storage.commit_jobs import Append
    from storage.committer import Committer

    def wrap(owner: type, name: str, *, before: str = "", after: str = "") -> None:
        function: Callable[..., Any] = getattr(owner, name)

        def noting(*arguments: Any, **named: Any) -> Any:
            if before:
                noted.append((before, time.perf_counter()))
            result = function(*arguments, **named)
            if after:
                noted.append((after, time.perf_counter()))
            return result

        setattr(owner, name, noting)

    wrap(StreamProtocol, "get_buffer", before="the event loop runs")
    wrap(Sending, "_send_admitted", before="read and parsed")
    wrap(PartitionTask, "post", before="checked and placed")
    wrap(PartitionTask, "_do_cycle", before="the partition's cycle begins")
    wrap(PartitionTask, "_append", before="carried out")
    wrap(Append, "begin", before="framed")
    wrap(Committer, "_submit", after="the write is submitted")
    wrap(
        Committer,
        "_queue_answers",
        before="written and synced, and the event loop runs",
        after="the log's end moved",
    )
    wrap(Mailbox, "deliver", before="the partition's cycle goes on")
    wrap(Connection, "_write", before="the answer is encoded")


def serve(noted_in: Path, arguments: list[str]) -> None:
    """Run the broker, and write what was noted when it has stopped."""
    from broker.cli.main import main as broker

    noted: list[Noted] = []
    note_steps(noted)
    sys.argv = ["partibus", "serve", *arguments]
    try:
        broker()
    finally:
        noted_in.write_text(json.dumps(noted), encoding="utf-8")


def send_alone(port: int) -> list[tuple[float, float]]:
    """Send messages one at a time; gives when each was written, and when its outcome was read."""
    endpoint = Endpoint.parse(f"amqp://{KEY_NAME}:{KEY}@127.0.0.1:{port}/{QUEUE}")
    times = []
    with Target("broker", endpoint, settles_first=False).connect() as connection:
        sender = Sender(connection, encode_message(BODY_BYTES), window=1)
        drive([connection], lambda: sender.is_ready, READY_WITHIN_S)
        for _ in range(WARM_UP + MESSAGES):
            sender.send(1)
            connection.prepare()
            began = time.perf_counter()
            while not sender.is_done:
                connection.exchange()
            times.append((began, time.perf_counter()))
    return times[WARM_UP:]


def steps_of(times: list[tuple[float, float]], noted: list[Noted]) -> Iterator[list[Noted]]:
    """What was noted for each message, from its write to its outcome."""
    following = iter(noted)
    name, at = next(following)
    for began, ended in times:
        steps = [("", began)]
        while at < ended:
            if at > began:
                steps.append((name, at))
            name, at = next(following, ("", float("inf")))
        yield [*steps, ("the client has read the outcome", ended)]


def main(folder: Path) -> None:
    config, noted_in = folder / "config.json", folder / "noted.json"
    config.write_text(json.dumps(configuration([queue(QUEUE)])), encoding="utf-8")
    ports = ["--amqp-port", "0", "--http-port", "0", "--amqps-port", "none"]
    command = ["--config", str(config), "--data-dir", str(folder / "data"), *ports]
    with subprocess.Popen(
        [sys.executable, "-m", __spec__.name, "--serve", str(noted_in), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as broker:
        assert broker.stdout is not None
        ready = next(line for line in broker.stdout if '"server.ready"' in line)
        times = send_alone(int(json.loads(ready)["amqp"].rpartition(":")[2]))
        broker.terminate()
        broker.communicate()
    noted = [(name, at) for name, at in json.loads(noted_in.read_text(encoding="utf-8"))]
    messages = list(steps_of(times, noted))
    # Now and then, another partition has something to do meanwhile.
    [(usual, count)] = Counter(tuple(name for name, _ in steps) for steps in messages).most_common(1)
    alike = [steps for steps in messages if tuple(name for name, _ in steps) == usual]
    for place in range(1, len(usual)):
        took = statistics.median((steps[place][1] - steps[place - 1][1]) * 1e6 for steps in alike)
        print(json.dumps({"until": usual[place], "us": round(took, 1)}))
    total = statistics.median((steps[-1][1] - steps[0][1]) * 1e6 for steps in alike)
    print(json.dumps({"until": "all", "us": round(total, 1), "messages": f"{count} of {len(messages)}"}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(Path(sys.argv[2]), sys.argv[3:])
    else:
        with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as made:
            main(Path(made))
