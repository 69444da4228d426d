"""How long the event loop may keep the interpreter while another thread waits for it."""

from __future__ import annotations

import sys

INTERVAL_S = 0.002
"""A thread releases the interpreter for each system call, and waits for it again afterwards. With Python's
default of 5 ms, a job of a dozen short calls, such as beginning a segment, took up to 60 ms beside a busy
event loop. With 0.5 ms, the loop itself became slower."""


def shorten_switch_interval() -> None:
    """Set the interval at which threads of this process take turns to `INTERVAL_S`."""
    sys.setswitchinterval(INTERVAL_S)
