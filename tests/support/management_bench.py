"""A `$management` node on a real connection; the test answers for its partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from broker.access.addresses import parse_address
from broker.frontend.nodes.management import ManagementNode
from broker.frontend.nodes.request_node import Request, Response
from broker.operations.general import Failed
from broker.operations.interface import Answer
from broker.operations.needed_locks import refusal_while_down
from protocol.codec import Symbol
from tests.support.amqp_messages import ANNOTATIONS, sections
from tests.support.link_stack import Client, LinkStack

Answers = Mapping[type[Any], Callable[[int, Any], Answer]]
"""Operation type → function that gives the answer of a partition, from its number and the operation."""


class Bench:
    """A node on a connection with all rights, and the partitions behind it."""

    def __init__(self, stack: LinkStack, client: Client, address: str) -> None:
        self.stack, self.client = stack, client
        self.node = ManagementNode(client.connection, stack.queue, parse_address(address))

    async def ask(
        self, operation: str, body: Any, answers: Answers | None = None, *, txn_id: bytes | None = None
    ) -> Response:
        """Make a request, and answer for the partitions until there is a response."""
        request = Request(
            None, None, {"operation": operation if ":" in operation else f"com.microsoft:{operation}"}, body
        )
        request.txn_id = txn_id
        work = asyncio.ensure_future(self.node.respond(request))
        for _ in range(10_000):
            if work.done():
                return work.result()
            await asyncio.sleep(0)
            for part in self.stack.parts:
                for kind, answer in (answers or {}).items():
                    while part.has(kind):
                        part.answer(kind, partial(answer, part.number))
        work.cancel()
        raise TimeoutError(f"no response to {operation}: {[part.posted for part in self.stack.parts]}")

    def metric(self, name: str) -> int:
        """A counter of the queue."""
        return int(getattr(self.stack.metrics.entities["queue"], name))


async def bench(partitions: int = 4, address: str = "queue/$management", **given: Any) -> Bench:
    stack = LinkStack(partitions, **given)
    return Bench(stack, await stack.connect(), address)


def status(response: Response) -> tuple[int, str | None]:
    condition = response.properties.get("errorCondition")
    assert condition is None or isinstance(condition, Symbol)
    return int(response.properties["statusCode"]), condition and str(condition)


def down(number: int, operation: Any) -> Failed:
    reason, advice = refusal_while_down(operation)
    return Failed(reason, f"Partition {number} is down. {advice}", operation.cookie)


def shown(response: Response) -> list[int]:
    """Sequence numbers of a page; a page is never empty."""
    if response.properties["statusCode"] == 204:
        assert response.body is None
        return []
    assert response.properties["statusCode"] == 200, response
    messages = [sections(each["message"]) for each in response.body["messages"]]
    assert messages
    return [int(each[ANNOTATIONS]["x-opt-sequence-number"]) for each in messages]
