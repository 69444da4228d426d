"""What a newcomer runs first: `make spark-demo`."""

from __future__ import annotations

import subprocess
import sys

from tests.support.broker_process import REPOSITORY

RUNS_WITHIN_S = 400


def test_the_demonstration_gets_out_what_it_put_in() -> None:
    ran = subprocess.run(
        [sys.executable, "tools/spark_demo.py", "--orders", "3000"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=RUNS_WITHIN_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "3000 orders in, 3000 orders in the totals that came out"
