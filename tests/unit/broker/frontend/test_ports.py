"""The ports of AMQP: which of them are there, and when clients are accepted on them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from broker.frontend.ports import AmqpPorts
from tests.support.link_stack import LinkStack
from tests.support.raw_amqp import SASL_HEADER

WITHIN_S = 20.0


@asynccontextmanager
async def listening(**ports: int | None) -> AsyncIterator[tuple[AmqpPorts, dict[str, str]]]:
    stack = LinkStack(1, None, has_threads=True, host="127.0.0.1", **ports)  # to look addresses up
    made = AmqpPorts(stack.services, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    try:
        yield made, await made.listen()
    finally:
        made.stop()
        await stack.services.wait_until_alone()


async def connected(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(SASL_HEADER)
    return reader, writer


async def test_a_client_that_connects_early_is_served_once_the_broker_accepts_clients() -> None:
    async with asyncio.timeout(WITHIN_S), listening(amqp_port=0, amqps_port=None) as (ports, addresses):
        reader, writer = await connected(addresses["amqp"])
        await ports.start()
        assert await reader.readexactly(len(SASL_HEADER)) == SASL_HEADER
        writer.close()


async def test_no_client_is_accepted_any_more_after_the_stop() -> None:
    async with asyncio.timeout(WITHIN_S), listening(amqp_port=0, amqps_port=None) as (ports, addresses):
        await ports.start()
        ports.stop()
        with pytest.raises(ConnectionRefusedError):
            await connected(addresses["amqp"])


async def test_the_port_with_tls_may_be_left_out() -> None:
    async with listening(amqp_port=0, amqps_port=None) as (_, addresses):
        assert addresses.keys() == {"amqp"}
    async with listening(amqp_port=0, amqps_port=0) as (_, addresses):
        assert addresses.keys() == {"amqp", "amqps"}
