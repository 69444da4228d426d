"""The round trip with an earlier release of the official Python client. A separate program, because it needs
its own package path.

Reads its environment and prints its results as `programs.py` describes. Start it with the earlier release's
folder first in PYTHONPATH.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from typing import Any

import azure.servicebus

from tests.interop.azure_clients import Client, connect
from tests.interop.azure_scenarios import SCENARIOS, Bench

WITHIN_S = 40
AT_ONCE = 8


def connect_with(**options: Any) -> Client:
    return connect("python-sync", os.environ["PARTIBUS_CONNECTION_STRING"], **options)


async def run(name: str, turn: asyncio.Semaphore) -> None:
    """Run one scenario and print its result."""
    detail = ""
    async with turn:
        try:
            async with asyncio.timeout(WITHIN_S), connect_with() as client:
                await SCENARIOS[name](Bench(client, os.environ["PARTIBUS_QUEUE_PREFIX"] + name, connect_with))
        except Exception:
            detail = traceback.format_exc(limit=-4)
    print(json.dumps({"scenario": name, "ok": not detail, "detail": detail}), flush=True)


async def main() -> None:
    """Run all scenarios, a few at a time, after checking that this is the requested release."""
    version = azure.servicebus.__version__
    if version != sys.argv[1]:
        raise SystemExit(f"this is azure-servicebus {version}, not {sys.argv[1]}")
    turn = asyncio.Semaphore(AT_ONCE)
    await asyncio.gather(*(run(name, turn) for name in os.environ["PARTIBUS_SCENARIOS"].split(",")))


if __name__ == "__main__":
    asyncio.run(main())
