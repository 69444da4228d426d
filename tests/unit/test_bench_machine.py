"""What is said about the machine, and about a process that has ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.load.machine import describe_machine, peak_mib, resident_mib


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


def test_the_description_tells_the_pace_of_the_interpreter(tmp_path: Path) -> None:
    """By a loop that takes some ten to a few hundred nanoseconds, on any machine of this century."""
    pace = describe_machine(tmp_path)["python_ns_per_loop"]
    assert isinstance(pace, int)
    assert 1 < pace < 10_000
