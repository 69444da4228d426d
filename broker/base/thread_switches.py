"""How soon a thread that waits for the interpreter gets it from the event loop."""

from __future__ import annotations

import sys

INTERVAL_S = 0.002
"""A thread gives up the interpreter for each call of the system, and asks for it again after that. With
Python's own 5 ms, a job of the disk with a dozen short calls, such as beginning a segment, took up to 60 ms
beside a busy event loop. With 0.5 ms, the loop itself was slower."""


def switch_soon() -> None:
    """Set the interval of this process."""
    sys.setswitchinterval(INTERVAL_S)
