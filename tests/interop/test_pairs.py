"""The benchmark of pairs, as a command: two brokers of this version, one beside the other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.broker_process import REPOSITORY

WITHIN_S = 120.0
PAIRS = 2


def test_two_versions_are_compared_in_pairs(tmp_path: Path) -> None:
    options = ["--before", str(REPOSITORY), "--after", f"{REPOSITORY}@{sys.executable}", "--quick"]
    options += ["--shape", "plain", "--shape", "keyed", "--pairs", str(PAIRS), "--folder", str(tmp_path)]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.bench.pairs", *options],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    measures = ("in, messages/s", "out, messages/s", "CPU in, µs", "CPU out, µs")
    assert [(each["shape"], each["measure"]) for each in found] == [
        (shape, measure) for shape in ("plain", "keyed") for measure in measures
    ]
    for each in found:
        sides = each["before"], each["after"]
        assert [len(side["rounds"]) for side in sides] == [PAIRS, PAIRS]
        assert {side["tree"] for side in sides} == {str(REPOSITORY)}
        if "messages/s" in each["measure"]:
            assert len(each["ratios"]) == PAIRS and min(each["ratios"]) > 0
    assert f"pair {PAIRS} of {PAIRS} done" in ran.stderr and "quartiles" in ran.stderr
    assert list(tmp_path.iterdir()) == [], "no data is left"
