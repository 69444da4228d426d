"""Delays that a busy machine adds to a wait, so that a test can judge the broker alone."""

from __future__ import annotations

import os
from pathlib import Path

_PROCESSORS = os.cpu_count() or 1
_TICKS_PER_MS = os.sysconf("SC_CLK_TCK") / 1000


def elsewhere_ms(*threads: int) -> float:
    """Total time in ms so far that these threads were ready without a processor, or the host had taken one of
    ours.

    threads: the system's thread numbers. The event loop's thread has the number of the broker's process. See
    run_delay in the kernel's documentation of schedstat, and steal in proc(5).
    """
    ready_ns = sum(int(Path(f"/proc/{each}/schedstat").read_text().split()[1]) for each in threads)
    stolen_ticks = int(Path("/proc/stat").read_text().split(maxsplit=9)[8]) / _PROCESSORS
    return ready_ns / 1e6 + stolen_ticks / _TICKS_PER_MS
