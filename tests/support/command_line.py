"""The command `partibus`, and a small data folder for it to work on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner, Result

from broker.cli.main import app
from broker.entities.descriptions import QueueDescription
from broker.entities.documents import encode_description
from storage.catalogue import Catalogue
from storage.disk import LocalDisk
from tests.support.logging_kept import logging_kept
from tests.support.logs import acquired, append

GENERATION = "0123456789abcdef" * 2


async def data_folder(root: Path) -> Path:
    """A queue with two commits in partition 3; returns the path of the segment."""
    async with acquired(root, entity=GENERATION, partition=3) as log:
        await append(log, b"one" * 20)
        await append(log, b"two" * 20)
    await Catalogue(root / "catalogue", LocalDisk()).put(
        GENERATION, encode_description(QueueDescription("orders", GENERATION, 16))
    )
    return segment_in(root)


def check(*arguments: str, **environment: str) -> Result:
    """Run the command in this process: starting a new one takes a second."""
    with logging_kept():
        return CliRunner().invoke(
            app, arguments, env={"COLUMNS": "200", "NO_COLOR": "1", "PARTIBUS_DATA_DIR": None, **environment}
        )


def segment_in(root: Path) -> Path:
    """The only segment in a data folder."""
    [segment] = root.rglob("*.segment")
    return segment


def partibus(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a process of its own; `environment` holds its only `PARTIBUS_…` variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PARTIBUS_")}
    return subprocess.run(
        [sys.executable, "-m", "broker", *arguments],
        env={**kept, "COLUMNS": "200", "NO_COLOR": "1", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
