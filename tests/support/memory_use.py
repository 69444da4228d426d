"""Memory use of a process."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def resident_kib(pid: int | None = None) -> int:
    """Resident memory of a process in KiB, including mapped file pages; of this process by default."""
    pages = int(Path(f"/proc/{'self' if pid is None else pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() // 1024


@contextmanager
def grows_by_less_than(kib: int, why: str = "") -> Iterator[None]:
    """Assert that this process grows by less than `kib` during the block."""
    before = resident_kib()
    yield
    assert resident_kib() - before < kib, why
