"""Resource use of a broker, measured from outside: memory, descriptors, disk, and how long it made another
client wait; with plots.

Responsible for samples over time and the plot. `verdict.py` judges them. Knows nothing of clients.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from matplotlib.figure import Figure

from tests.bench.load.machine import resident_mib
from tests.soak.verdict import Sample, Stretch
from tests.support.broker_process import BrokerProcess
from tests.support.disk_use import allocated_bytes

SAMPLE_EVERY_S = 1.0
MIB = 1 << 20


@dataclass
class Record:
    """All observations of one broker over time, restarts included."""

    broker: BrokerProcess
    samples: list[Sample] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    restarts_s: list[float] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    _stop: threading.Event = field(default_factory=threading.Event)

    def now_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began

    def look(self) -> Sample:
        """Sample the broker's resource use now. Raises OSError while it is down."""
        pid, logs = self.broker.pid, str(self.broker.data_dir / "logs")
        open_files = list(_open_files(pid))
        open_log_files = sum(name.startswith(logs) for name in open_files)
        disk_mib = allocated_bytes(self.broker.data_dir) / MIB
        return Sample(self.now_s(), resident_mib(pid), len(open_files), open_log_files, disk_mib)

    def keep_looking(self) -> threading.Thread:
        """Take samples in a thread until `stop`."""
        thread = threading.Thread(target=self._look_on, name="samples", daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """Stop taking samples."""
        self._stop.set()

    def _look_on(self) -> None:
        while not self._stop.wait(SAMPLE_EVERY_S):
            try:
                self.samples.append(self.look())
            except (OSError, AssertionError):
                continue  # the broker is restarting

    # --- the picture ---

    def write(self, folder: Path) -> None:
        """Write `soak.png` and `soak.json` to the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "soak.json").write_text(
            json.dumps(
                {
                    "samples": [asdict(sample) for sample in self.samples],
                    "stretches": [
                        {
                            "at_s": each.began_s,
                            "stall_ms": each.stall_ms,
                            "stolen_percent": each.stolen_percent,
                            **asdict(each.rested),
                        }
                        for each in self.stretches
                    ],
                    "restarts_s": self.restarts_s,
                },
                indent=1,
            )
        )
        figure = Figure(figsize=(11, 12), layout="constrained")
        at_s = [sample.at_s for sample in self.samples]
        rest_s = [each.rested.at_s for each in self.stretches]
        memory, descriptors, disk, stalls = figure.subplots(4, 1, sharex=True)
        shown: Sequence[tuple[str, Sequence[float], Sequence[float]]] = (
            (
                "memory (MiB)",
                [each.memory_mib for each in self.samples],
                [each.rested.memory_mib for each in self.stretches],
            ),
            (
                "descriptors",
                [each.descriptors for each in self.samples],
                [each.rested.descriptors for each in self.stretches],
            ),
            (
                "disk (MiB)",
                [each.disk_mib for each in self.samples],
                [each.rested.disk_mib for each in self.stretches],
            ),
        )
        for axes, (name, values, rests) in zip((memory, descriptors, disk), shown, strict=True):
            axes.plot(at_s, values, linewidth=1)
            axes.plot(rest_s, rests, "o", label="at rest")
            axes.set_ylabel(name)
            axes.set_ylim(bottom=0)
            axes.legend(loc="lower right")
        began_s = [each.began_s for each in self.stretches]
        for name, percentile in (("median", 49), ("99 %", 98)):
            stalls.plot(
                began_s,
                [statistics.quantiles(each.stalls_ms, n=100)[percentile] for each in self.stretches],
                "o-",
                label=name,
            )
        stalls.set_ylabel("another client's wait (ms)")
        stalls.set_xlabel("seconds")
        stalls.set_ylim(bottom=0)
        stalls.legend(loc="lower right")
        for axes in (memory, descriptors, disk, stalls):
            for restart_s in self.restarts_s:
                axes.axvline(restart_s, color="grey", linestyle=":", linewidth=1)
        figure.suptitle("What the broker takes under mixed load (dotted: restarts)")
        figure.savefig(folder / "soak.png", dpi=100)


def _open_files(pid: int) -> Iterator[str]:
    """Target of each open descriptor of a process, except those closed meanwhile. Raises OSError when the
    process is gone.
    """
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            yield os.readlink(f"/proc/{pid}/fd/{name}")
