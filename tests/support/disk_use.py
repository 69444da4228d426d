"""Disk space used by a broker's data folder."""

from __future__ import annotations

import os
import time
from pathlib import Path

BLOCK_BYTES = 512
"""Unit of `st_blocks`, whatever block size the file system uses."""


def allocated_bytes(folder: Path) -> int:
    """Bytes allocated to the files below the folder, without the folders themselves. Files removed meanwhile
    are not counted.
    """
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(path, name)).st_blocks * BLOCK_BYTES
            except FileNotFoundError:
                continue
    return total


def wait_until_small(folder: Path, bytes_max: int, within_s: float) -> float:
    """Wait until the folder uses at most `bytes_max`; gives the seconds it took. Raises AssertionError."""
    began = time.monotonic()
    while (found := allocated_bytes(folder)) > bytes_max:
        waited = time.monotonic() - began
        assert waited < within_s, (
            f"{folder} takes {found / 1e6:.1f} MB after {waited:.0f} s, not {bytes_max / 1e6:.1f}"
        )
        time.sleep(0.05)
    return time.monotonic() - began
