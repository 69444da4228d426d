"""A hard limit on the memory of processes: the kernel ends whoever needs more."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_FILES = {"memory": ("memory.limit_in_bytes", "memory.oom_control"), ".": ("memory.max", "memory.events")}
"""For both versions of control groups: where a group is made, the file of its limit, and the file that counts
the processes that the kernel has ended."""


class MemoryGroup:
    """A control group with a limit."""

    def __init__(self, folder: Path, limit: str, ended: str, size: int) -> None:
        self._ended = folder / ended
        self.members = folder / "cgroup.procs"
        """The file to which a process writes its id to join."""
        (folder / limit).write_text(str(size), encoding="ascii")

    @property
    def killed(self) -> int:
        """How many processes the kernel has ended for lack of memory."""
        counts = dict(line.split() for line in self._ended.read_text(encoding="ascii").splitlines())
        return int(counts["oom_kill"])


@contextmanager
def memory_group(size: int) -> Iterator[MemoryGroup]:
    """A group of processes that together may take `size` bytes. PermissionError where none can be made."""
    for place, (limit, ended) in _FILES.items():
        folder = _GROUPS / place / f"partibus-{uuid.uuid4().hex}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            if (folder / limit).exists():
                yield MemoryGroup(folder, limit, ended, size)
                return
        finally:
            folder.rmdir()
    raise PermissionError(
        f"no control group for memory can be made under {_GROUPS}: "
        "run the tests as root, in a container with --privileged --cgroupns=host"
    )
