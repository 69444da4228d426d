"""The machine and its processes, as /proc and git describe them: where a figure was measured, and what a
broker costs there.
"""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import time
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
OPEN_FILES_SPARE = 256
"""Descriptors a process needs besides the counted sockets: logs, libraries, pipes."""
LOOP_ROUNDS = 200_000
LOOP_RUNS = 9


def describe_machine(data_dir: Path) -> dict[str, object]:
    """Cores, processor, memory, kernel, Python and its pace, and the file system under data_dir."""
    models = (
        line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")
    )
    memory_kb = next(
        (int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0
    )
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": next(models, platform.machine()),
        "memory_gib": round(memory_kb / 1024**2, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "python_ns_per_loop": round(python_loop_ns()),
        "file_system": file_system(data_dir),
    }


def python_loop_ns() -> float:
    """Processor time that this interpreter takes for one round of a loop that adds numbers, in nanoseconds:
    the least of several runs.

    Figures of two runs can be compared only beside it: it tells how fast machine and interpreter were.
    """
    return min(_loop_s() for _ in range(LOOP_RUNS)) * 1e9 / LOOP_ROUNDS


def _loop_s() -> float:
    begun = time.process_time()
    total = 0
    for number in range(LOOP_ROUNDS):
        total += number
    return time.process_time() - begun


def file_system(path: Path) -> str:
    """The type of the file system that holds path: the mount with the longest matching folder."""
    real = path.resolve()
    mounts = [line.split()[1:3] for line in _lines("/proc/mounts")]
    holding = [(folder, kind) for folder, kind in mounts if real.is_relative_to(folder)]
    return max(holding, key=lambda mount: len(mount[0]))[1] if holding else "unknown"


def commit(repository: Path) -> str:
    """The checkout's commit, with `-dirty` if files differ from it."""
    command = ["git", "-C", str(repository), "describe", "--always", "--dirty", "--abbrev=10", "--match", ""]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


class StolenTime:
    """Share of processor time that the host gave to other guests: steal in proc(5), 0 on dedicated
    hardware.
    """

    def __init__(self) -> None:
        self._since = _stolen_and_all_ticks()
        self._percent = 0.0

    def percent(self) -> float:
        """Percent since the last call. A call right after another gives the same value again, so that several
        figures of one measurement agree.
        """
        now = _stolen_and_all_ticks()
        stolen, passed = (new - old for new, old in zip(now, self._since, strict=True))
        if passed > _TICKS_PER_S:
            self._percent, self._since = 100 * stolen / passed, now
        return self._percent


def resident_mib(pid: int) -> float:
    """Resident memory of a process and its children, in MiB, including mapped file pages. Raises OSError if
    one of them has ended.
    """
    return sum(_resident_kb(each) for each in _family(pid)) / 1024


def peak_mib(pid: int) -> float:
    """The largest resident memory that a process has had, in MiB, without its children. Raises OSError if it
    has ended.
    """
    return _kb(pid, "VmHWM") / 1024


def cpu_s(pid: int) -> float:
    """CPU time that a process and its children have used so far, in seconds."""
    return sum(_cpu_ticks(each) for each in _family(pid)) / _TICKS_PER_S


def allow_open_files(count: int) -> None:
    """Raise the limit on open files for this process and its children. Raises OSError with a remedy if that
    is not permitted.
    """
    wanted = count + OPEN_FILES_SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
    except (OSError, ValueError) as error:
        raise OSError(
            f"{wanted} open files are needed and {hard} allowed: raise the limit (ulimit -Hn {wanted})"
        ) from error


def _family(pid: int) -> list[int]:
    family = [pid]
    for each in family:  # grows during the walk: children of children
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            family += [int(child) for child in task.read_text().split()]
    return family


def _resident_kb(pid: int) -> int:
    return _kb(pid, "VmRSS")


def _kb(pid: int, name: str) -> int:
    for line in _lines(f"/proc/{pid}/status"):
        if line.startswith(name):
            return int(line.split()[1])
    raise ProcessLookupError(f"process {pid} has ended and has no {name}")  # nobody has waited for it yet


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])  # utime, stime: proc(5)


def _stolen_and_all_ticks() -> tuple[int, int]:
    ticks = [int(field) for field in _lines("/proc/stat")[0].split()[1:9]]
    return ticks[7], sum(ticks)


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()
