"""Starts the broker again at once with huge pages for its memory, if the system gives them to those who ask.

The bodies of messages that wait in memory come and go by hundreds of MiB. In pages of 4 KiB, each page costs
a page fault when it is first used, and an entry of the processor's address cache whenever it is read. The C
library asks the kernel for pages of 2 MiB only if a variable of the environment said so when the process
began (`glibc.malloc.hugetlb`, glibc 2.35). So the process replaces itself once, before it has done anything:
its process id, name, descriptors and arguments remain. Where memory has huge pages anyway, or nobody gets
them, and with another C library, nothing happens.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "GLIBC_TUNABLES"
"""Tunables of the C library, divided by colons, as in "name=value:name=value"."""
TUNABLE = "glibc.malloc.hugetlb"
"""1: ask for transparent huge pages; 0: do not. Whoever sets it decides."""
SINCE_GLIBC = (2, 35)
"""The first version that knows it."""
HAS_BEGUN_AGAIN = "_PARTIBUS_HAS_BEGUN_AGAIN"
"""Set for the process that takes over, to the name that it had. The C library may take the tunables out of
the environment (that of a program with capabilities of its own), so they do not tell."""
OWN_NAME = Path("/proc/self/comm")
"""What `ps` and `pgrep` know the process by: at first, the name of the file that was executed."""
RUNNING = Path("/proc/self/exe")
"""The program that this process executes."""
POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")
"""Who gets transparent huge pages: the word in brackets (Linux)."""


def asking(environment: Mapping[str, str], policy: str, c_library: str) -> dict[str, str] | None:
    """The environment in which the C library asks for huge pages; None if this one is to be kept.

    `policy` is what is in POLICY, and `c_library` its name and version, as in "glibc 2.36".
    """
    name, _, version = c_library.partition(" ")
    knows = name == "glibc" and tuple(map(int, version.split(".")[:2])) >= SINCE_GLIBC
    tunables = environment.get(VARIABLE, "")
    if TUNABLE in tunables or "[madvise]" not in policy or not knows:
        return None
    return {**environment, VARIABLE: ":".join(filter(None, (f"{TUNABLE}=1", tunables)))}


def c_library() -> str:
    """Name and version of the C library; empty if it does not tell."""
    return os.confstr("CS_GNU_LIBC_VERSION") or ""


def start_again_asking() -> None:
    """Replace the process by one that asks for huge pages, unless there is no need to. If that is impossible,
    it goes on without them."""
    name = os.environ.pop(HAS_BEGUN_AGAIN, None)
    # OSError: no such file, or it may not be executed. ValueError: a C library without a version.
    with contextlib.suppress(OSError, ValueError):
        if name is not None:
            OWN_NAME.write_text(name)
            return
        environment = asking(os.environ, POLICY.read_text(), c_library())
        # `sys.executable` is what Python finds on the path under its own name, which may be another program.
        if environment is not None and os.path.samefile(sys.executable or "", RUNNING):
            environment[HAS_BEGUN_AGAIN] = OWN_NAME.read_text().rstrip("\n")
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
