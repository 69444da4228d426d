"""What the figures of a process say when it has ended."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.bench.load.machine import peak_mib, resident_mib


def test_a_process_that_nobody_has_waited_for_has_no_memory() -> None:
    """Whoever samples a broker while it restarts sees an OSError, as for a process that is gone."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    try:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        for figure in (resident_mib, peak_mib):
            with pytest.raises(ProcessLookupError):
                figure(ended.pid)
    finally:
        ended.wait(timeout=10)
    with pytest.raises(OSError):
        resident_mib(ended.pid)
