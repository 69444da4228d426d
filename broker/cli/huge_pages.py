"""Starts the broker again at once with huge pages for its memory, if the system gives them to those who ask.

Messages that wait in memory come and go by hundreds of MiB. In pages of 4 KiB, each page costs a page fault
when it is first used, and an entry of the processor's address cache whenever it is read. The C library asks
the kernel for pages of 2 MiB only if a variable of the environment said so when the process began
(`glibc.malloc.hugetlb`, glibc 2.35). So the process replaces itself once, before it has done anything: its
process id, descriptors and arguments remain. Where memory has huge pages anyway, or nobody gets them, and
with another C library, nothing happens.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "GLIBC_TUNABLES"
TUNABLE = "glibc.malloc.hugetlb"
"""1: ask for transparent huge pages; 0: do not. Whoever sets it decides."""
HAS_BEGUN_AGAIN = "_PARTIBUS_HAS_BEGUN_AGAIN"
"""Set for the process that takes over. The C library may take the tunables out of the environment (that of a
program with capabilities of its own), so they do not tell."""
POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")
"""Who gets transparent huge pages: the word in brackets (Linux)."""


def asking(environment: Mapping[str, str], policy: str, c_library: str) -> dict[str, str] | None:
    """The environment in which the C library asks for huge pages; None if this one is to be kept.

    `policy` is what is in POLICY, and `c_library` its name and version.
    """
    tunables = environment.get(VARIABLE, "")
    if TUNABLE in tunables or "[madvise]" not in policy or not c_library.startswith("glibc"):
        return None
    return {**environment, VARIABLE: ":".join(filter(None, (f"{TUNABLE}=1", tunables))), HAS_BEGUN_AGAIN: "1"}


def start_again_asking() -> None:
    """Replace the process by one that asks for huge pages, unless there is no need to. If that fails, it goes
    on without them."""
    if os.environ.pop(HAS_BEGUN_AGAIN, None):
        return
    with contextlib.suppress(OSError, ValueError):  # ValueError: a C library without a version
        environment = asking(os.environ, POLICY.read_text(), os.confstr("CS_GNU_LIBC_VERSION") or "")
        if environment is not None and sys.executable:
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
