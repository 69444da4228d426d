"""How much memory a process takes."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def resident_kib(pid: int | None = None) -> int:
    """The memory of a process that is in use now, pages of files that it maps included; of this process
    unless another one is named."""
    pages = int(Path(f"/proc/{'self' if pid is None else pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() // 1024


@contextmanager
def grows_by_less_than(kib: int, why: str = "") -> Iterator[None]:
    """This process takes hardly more memory after the block than before."""
    before = resident_kib()
    yield
    assert resident_kib() - before < kib, why
