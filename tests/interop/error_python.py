"""Provoke the refusals of `error_table` with the official Python client.

The client tries once more, at once, so that the result tells whether it tries again.
"""

from __future__ import annotations

import logging
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSender,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import ServiceBusError

from tests.interop.error_table import LOCK_S
from tests.interop.programs import Report, Result
from tests.support.azure_client import azure_client

WITHIN_S = 20.0
AT_ONCE = 6
Provoke = Callable[["Bench"], Any]
SCENARIOS: dict[str, Provoke] = {}


def scenario(provoke: Provoke) -> Provoke:
    """Register the scenario under its own name."""
    SCENARIOS[provoke.__name__.replace("_", "-")] = provoke
    return provoke


@dataclass(slots=True)
class Bench:
    """A client, its queue, and what it has opened."""

    client: ServiceBusClient
    queue: str
    stage_url: str
    opened: ExitStack

    def sender(self, queue: str | None = None) -> ServiceBusSender:
        return self.opened.enter_context(self.client.get_queue_sender(queue or self.queue))

    def receiver(self, **options: Any) -> ServiceBusReceiver:
        return self.opened.enter_context(self.client.get_queue_receiver(self.queue, **options))

    def send(self, *messages: ServiceBusMessage) -> None:
        sender = self.sender()
        for message in messages:
            sender.send_messages(message)

    def one(self, receiver: ServiceBusReceiver) -> ServiceBusReceivedMessage:
        (message,) = receiver.receive_messages(1, max_wait_time=WITHIN_S)
        return message

    def ask_stage(self, path: str) -> None:
        """Have the test change the queue."""
        with urllib.request.urlopen(f"{self.stage_url}/{path}/{self.queue}", timeout=WITHIN_S) as answer:
            answer.read()


def run(names: list[str], connection_strings: dict[str, str], queue_prefix: str, stage_url: str) -> Report:
    """Provoke these refusals; `connection_strings` has one for each scenario that needs its own, and "" for
    the others."""
    retried = _Retried()
    logger = logging.getLogger("azure.servicebus._base_handler")
    level = logger.level
    logger.addHandler(retried)
    logger.setLevel(logging.INFO)
    try:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            results = threads.map(
                lambda name: _run_one(
                    name,
                    connection_strings.get(name, connection_strings[""]),
                    queue_prefix + name,
                    stage_url,
                    retried,
                ),
                names,
            )
            return Report(dict(zip(names, results, strict=True)))
    finally:
        logger.removeHandler(retried)
        logger.setLevel(level)


def _run_one(name: str, connection_string: str, queue: str, stage_url: str, retried: _Retried) -> Result:
    with ExitStack() as opened:
        client = opened.enter_context(
            azure_client(connection_string, retry_total=1, retry_backoff_factor=0.01, retry_mode="fixed")
        )
        retried.forget()
        try:
            outcome = SCENARIOS[name](Bench(client, queue, stage_url, opened))
        except ServiceBusError as refused:
            return Result(
                True,
                f"{type(refused).__name__}|{str(retried.here()).lower()}|{refused}",
            )
        except Exception as failed:
            return Result(False, f"{type(failed).__name__}: {failed}")
        return Result(False, f"no error, but {outcome}")


class _Retried(logging.Handler):
    """Notes in which threads the client says that it tries again."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._threads: set[int] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if "Retrying" in record.msg and record.thread is not None:
            self._threads.add(record.thread)

    def forget(self) -> None:
        self._threads.discard(threading.get_ident())

    def here(self) -> bool:
        return threading.get_ident() in self._threads


def keyed(body: str, key: str) -> ServiceBusMessage:
    return ServiceBusMessage(body, partition_key=key)


def send_one(bench: Bench) -> Any:
    bench.send(ServiceBusMessage("x"))


def receive_one(bench: Bench) -> Any:
    return bench.receiver().receive_messages(1, max_wait_time=2)


REFUSED_SENDS = (
    "send-to-no-entity",
    "wrong-key",
    "expired-token",
    "missing-claim",
    "send-to-disabled",
    "send-disabled",
    "message-without-session",
)
REFUSED_RECEIVERS = (
    "receive-from-no-entity",
    "receive-from-disabled",
    "receive-disabled",
    "receiver-without-session",
    "receiver-beside-forwarding",
    "receive-from-topic",
)
SCENARIOS |= dict.fromkeys(REFUSED_SENDS, send_one) | dict.fromkeys(REFUSED_RECEIVERS, receive_one)


@scenario
def message_too_large(bench: Bench) -> Any:
    bench.send(ServiceBusMessage(b"x" * 2_000_000))


@scenario
def disabled_beside_sender(bench: Bench) -> Any:
    sender = bench.sender()
    sender.send_messages(ServiceBusMessage("x"))
    bench.ask_stage("SendDisabled")
    sender.send_messages(ServiceBusMessage("x"))


@scenario
def disabled_beside_receiver(bench: Bench) -> Any:
    return _receiving_while(bench, "ReceiveDisabled")


@scenario
def deleted_beside_sender(bench: Bench) -> Any:
    sender = bench.sender()
    sender.send_messages(ServiceBusMessage("x"))
    bench.ask_stage("delete")
    sender.send_messages(ServiceBusMessage("x"))


@scenario
def deleted_beside_receiver(bench: Bench) -> Any:
    return _receiving_while(bench, "delete")


def _receiving_while(bench: Bench, change: str) -> Any:
    receiver = bench.receiver()
    bench.ask_stage(change)
    return receiver.receive_messages(1, max_wait_time=WITHIN_S)


@scenario
def quota_exceeded(bench: Bench) -> Any:
    bench.send(ServiceBusMessage(b"x" * 500_000))


@scenario
def session_state_too_large(bench: Bench) -> Any:
    session: Any = bench.receiver(session_id="s").session
    session.set_state(b"x" * 1025)


@scenario
def too_many_session_states(bench: Bench) -> Any:
    for session_id in ("one", "two"):
        session: Any = bench.receiver(session_id=session_id).session
        session.set_state(b"x")


@scenario
def message_lock_lost(bench: Bench) -> Any:
    bench.send(ServiceBusMessage("x"))
    receiver = bench.receiver()
    message = bench.one(receiver)
    again = bench.receiver().receive_messages(1, max_wait_time=WITHIN_S)  # once the lock is lost
    assert len(again) == 1
    assert message.locked_until_utc is not None
    # With its clock behind the broker's, the client does not see by itself that the lock has expired.
    message._expiry = message.locked_until_utc + timedelta(hours=1)
    receiver.complete_message(message)


@scenario
def session_lock_lost(bench: Bench) -> Any:
    session: Any = bench.receiver(session_id="s").session
    time.sleep(LOCK_S + 0.5)
    session._locked_until_utc += timedelta(hours=1)  # as above
    session.set_state(b"x")


@scenario
def session_held(bench: Bench) -> Any:
    bench.receiver(session_id="s")
    bench.receiver(session_id="s")


@scenario
def no_session_free(bench: Bench) -> Any:
    bench.receiver(session_id=NEXT_AVAILABLE_SESSION, max_wait_time=0.5)


@scenario
def deferred_message_unknown(bench: Bench) -> Any:
    return bench.receiver().receive_deferred_messages([12_345])


@scenario
def scheduled_message_unknown(bench: Bench) -> Any:
    bench.sender().cancel_scheduled_messages([12_345])


@scenario
def batch_with_two_keys(bench: Bench) -> Any:
    bench.sender().send_messages([keyed("x", "one"), keyed("x", "two")])


@scenario
def session_of_none(bench: Bench) -> Any:
    bench.receiver(session_id="s")


@scenario
def session_id_too_long(bench: Bench) -> Any:
    bench.receiver(session_id="s" * 129)


@scenario
def send_to_dead_letters(bench: Bench) -> Any:
    bench.sender(f"{bench.queue}/$deadletterqueue").send_messages(ServiceBusMessage("x"))


@scenario
def dead_letter_a_dead_letter(bench: Bench) -> Any:
    bench.send(ServiceBusMessage("x"))
    receiver = bench.receiver()
    receiver.dead_letter_message(bench.one(receiver))
    letters = bench.receiver(sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    letters.dead_letter_message(bench.one(letters))


@scenario
def unknown_operation(bench: Bench) -> Any:
    from azure.servicebus._common import mgmt_handlers

    receiver: Any = bench.receiver()
    return receiver._mgmt_request_response_with_retry(
        b"com.microsoft:unheard-of", {"a": 1}, mgmt_handlers.default
    )


@scenario
def partition_unavailable(bench: Bench) -> Any:
    bench.send(keyed("x", "k"))
