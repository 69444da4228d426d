"""Sends and receives through the official Azure SDK, and shows which partition each message went to.

Run it while a broker is running (`make run`, then `make demo`). The top 16 bits of a message's sequence
number give its partition. Messages with the same partition key share a partition and keep their order;
messages without a key go to the partitions in turn.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.exceptions import ServiceBusConnectionError
from rich.console import Console
from rich.table import Table

CONNECTION_STRING = "Endpoint=sb://localhost;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
PARTITION_SHIFT = 48
NOT_REACHED = """\
The broker cannot be reached. {error}
Start it with `make run`. If it listens on other ports, pass the connection string that it printed:
    make demo ARGS='--connection-string "Endpoint=sb://localhost:..."'"""
KEYS = ("red", "green", "blue", None)


def main() -> int:
    """Send, receive and complete messages, and print a table. Returns 1 if no broker can be reached."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--connection-string",
        default=CONNECTION_STRING,
        help="as the broker prints it (default: the standard port)",
    )
    parser.add_argument("--queue", default="queue.1", help="default: %(default)s")
    parser.add_argument("--count", type=int, default=24, help="how many messages (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        with ServiceBusClient.from_connection_string(arguments.connection_string, retry_total=0) as client:
            run_id = f"demo-{time.time_ns()}"
            sent_in = send(client, arguments.queue, run_id, arguments.count)
            received, received_in = receive(client, arguments.queue, run_id, arguments.count)
    except ServiceBusConnectionError as error:
        print(NOT_REACHED.format(error=error), file=sys.stderr)
        return 1
    show(received, arguments.queue, sent_in, received_in)
    return 0


def send(client: ServiceBusClient, queue: str, run_id: str, count: int) -> float:
    """Send each message separately, as applications do. Returns the time it took, in seconds."""
    began = time.perf_counter()
    with client.get_queue_sender(queue) as sender:
        for number in range(count):
            key = KEYS[number % len(KEYS)]
            sender.send_messages(
                ServiceBusMessage(f"message {number}", partition_key=key, correlation_id=run_id)
            )
    return time.perf_counter() - began


def receive(
    client: ServiceBusClient, queue: str, run_id: str, count: int
) -> tuple[list[ServiceBusReceivedMessage], float]:
    """Receive and complete messages until all of this run's have arrived, or no more come."""
    found: list[ServiceBusReceivedMessage] = []
    began = time.perf_counter()
    with client.get_queue_receiver(queue, max_wait_time=5) as receiver:
        for message in receiver:
            receiver.complete_message(message)
            if message.correlation_id == run_id:
                found.append(message)
            if len(found) == count:
                break
    return found, time.perf_counter() - began


def show(messages: list[ServiceBusReceivedMessage], queue: str, sent_in: float, received_in: float) -> None:
    """Print one row per message, and the number of partitions that got some."""
    table = Table("Message", "Partition key", "Partition", "Number in it", title=f"{queue}: what went where")
    for message in sorted(messages, key=lambda each: int(str(each).split()[-1])):
        number = message.sequence_number or 0
        table.add_row(
            str(message),
            message.partition_key or "-",
            str(number >> PARTITION_SHIFT),
            str(number & (1 << PARTITION_SHIFT) - 1),
        )
    console = Console()
    console.print(table)
    partitions = Counter((message.sequence_number or 0) >> PARTITION_SHIFT for message in messages)
    console.print(
        f"{len(messages)} messages in {len(partitions)} partitions; sent in {sent_in:.2f} s, received "
        f"and completed in {received_in:.2f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
