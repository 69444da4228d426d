"""The round trip with an earlier release of the official Python client: a program, for it needs a package
path of its own.

Reads its environment and prints its results as `programs.py` says. Started with the folder of the earlier
release first in PYTHONPATH.
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
    """Run one scenario and print how it went."""
    detail = ""
    async with turn:
        try:
            async with asyncio.timeout(WITHIN_S), connect_with() as client:
                await SCENARIOS[name](Bench(client, os.environ["PARTIBUS_QUEUE_PREFIX"] + name, connect_with))
        except Exception:
            detail = traceback.format_exc(limit=-4)
    print(json.dumps({"scenario": name, "ok": not detail, "detail": detail}), flush=True)


async def main() -> None:
    """All scenarios, a few at a time, after making sure that this is the release that was asked for."""
    version = azure.servicebus.__version__
    if version != sys.argv[1]:
        raise SystemExit(f"this is azure-servicebus {version}, not {sys.argv[1]}")
    turn = asyncio.Semaphore(AT_ONCE)
    await asyncio.gather(*(run(name, turn) for name in os.environ["PARTIBUS_SCENARIOS"].split(",")))


if __name__ == "__main__":
    asyncio.run(main())
