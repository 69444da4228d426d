"""The C sources of the protocol package pass the compiler's strict checks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[3] / "protocol" / "native"
FLAGS = [
    "-std=c99",
    "-fsyntax-only",
    "-Wall",
    "-Wextra",
    "-Wconversion",
    "-Wshadow",
    "-Wstrict-prototypes",
    "-Werror",
]


@pytest.mark.parametrize("source", ["delivery_ids.c", "sessions.c", "runs.c", "large_payloads.c"])
def test_the_compiler_has_nothing_to_say(source: str) -> None:
    checked = subprocess.run(
        ["gcc", *FLAGS, str(NATIVE / source)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
