"""Where a broker spends its time under load: py-spy samples it from outside while a figure is measured.

Responsible for running py-spy beside a load and for the table of functions from its samples. A figure
measured under a profile is not comparable: the sampler uses part of the machine.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SAMPLES_PER_S = 200
TOP = 40
STOPS_WITHIN_S = 30.0
_LINE = re.compile(r":\d+\)$")
"""The line of a sample within its function; removed, so that samples of a function add up."""


@dataclass(slots=True, frozen=True)
class Profiler:
    """Writes `profile-<figure>.txt` (top functions) and `.raw` (stacks with their samples, for a flame graph)
    into folder."""

    folder: Path

    def __post_init__(self) -> None:
        if shutil.which("py-spy") is None:
            raise FileNotFoundError("py-spy is not installed: pip install py-spy")
        self.folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def around(self, name: str, pid: int) -> Iterator[None]:
        """Sample the process while the body runs."""
        raw = self.folder / f"profile-{name}.raw"
        command = [
            "py-spy",
            "record",
            "--pid",
            str(pid),
            "--format",
            "raw",
            "--output",
            str(raw),
            "--rate",
            str(SAMPLES_PER_S),
        ]
        # py-spy leaves out waiting threads; --native shows proton's C functions under the Python functions
        # that call them.
        sampler = subprocess.Popen(
            [*command, "--native", "--function", "--threads"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield
        finally:
            sampler.send_signal(signal.SIGINT)
            _, complaint = sampler.communicate(timeout=STOPS_WITHIN_S)
        if not raw.exists():
            raise RuntimeError(f"py-spy wrote no profile: {complaint.strip()}")
        raw.with_suffix(".txt").write_text(top_functions(raw.read_text(encoding="utf-8")), encoding="utf-8")


def top_functions(raw: str) -> str:
    """A table of the functions with the most samples of their own, and of those with the most including their
    callees.
    """
    own: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, _, samples = line.rpartition(" ")
        frames = [_LINE.sub(")", frame) for frame in stack.split(";")]
        own[frames[-1]] += int(samples)
        for frame in set(frames):
            whole[frame] += int(samples)
    total = sum(own.values()) or 1
    sections = (("own time", own), ("with what it called", whole))
    return "\n".join(
        f"{title}, % of {total} samples\n"
        + "".join(f"{count / total:8.1%}  {frame}\n" for frame, count in counts.most_common(TOP))
        for title, counts in sections
    )
