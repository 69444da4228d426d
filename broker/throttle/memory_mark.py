"""The broker's memory mark: above it sends are refused while receivers drain, so that the kernel never ends
the process for its memory.

What counts is resident memory, for that is what the kernel looks at, with two corrections. Messages that were
admitted and are not stored yet will take more, so each of them is added. And Python hardly ever returns the
memory of small objects to the system: a broker that has delivered a million messages stays as large as it
was, and uses that memory again before it grows. So what waiting messages and connections gave back is
subtracted, until others have taken it or the process has become smaller. This estimate is too high if
something else has taken that memory. It is therefore limited to half of the mark: with the default mark, the
process stays below nine tenths of the memory there is.

Everything that frees memory works above the mark: receiving, settling, browsing, deleting, administration.
But until the client settles a delivery, it takes several times as much as the waiting message. So while
resident memory is a tenth above the mark (`exceeded`), a link is given more only if it holds few unsettled.
Sends are accepted again when a twentieth of the mark is free. Until then, the C library is told now and then
to return free pages to the system. It keeps those between blocks in use otherwise, and a broker without any
messages could stay above its mark.

`memory_of_the_machine` and `resident_bytes` ask the system; `Memory` is pure, apart from its log lines.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import MESSAGE_OVERHEAD_BYTES

SAFE_SHARE = 2 / 3
"""Of all memory: with a higher mark the process may outgrow what there is, see above."""
LOOK_S = 0.25
"""How often resident memory is read: some 20 microseconds each time. Near the mark it is read for each
admission, too."""
TRAFFIC_PARTS = 8
"""What is on its way in, and what is on its way out, may each take this part of the mark."""
TRAFFIC_BYTES_MIN = 16 * 1024 * 1024
"""But so much in any case: less would make single large messages wait for each other."""
CONNECTION_BYTES = 24 * 1024
"""What a connection that does nothing takes at least; one with a receiver takes some 40 KiB."""
UNSETTLED_ABOVE_MARK_MAX = 100
"""Deliveries that a link may hold unsettled while the mark is exceeded: 300 receivers take about 40 MiB."""
DELIVERY_BYTES = 1536
"""What a delivery takes at most until it is settled, beside its message's bytes; 1.1 KiB at least."""
DELIVERED_BYTES_MIN = 256 * 1024
"""Between two looks, receivers may be given so much in any case."""
RETURN_S = 2.0
"""How often free pages are returned to the system while sends are refused."""
MIB = 1024 * 1024

_PAGE_BYTES = resource.getpagesize()
_STATM = Path("/proc/self/statm")
_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""glibc's own; other C libraries have none."""

log = structlog.get_logger("server")


class Memory:
    """What the broker uses, the mark, and whether sends are refused. Used in the event loop."""

    __slots__ = (
        "_changed",
        "_counted",
        "_counted_before",
        "_delivery_room",
        "_freed",
        "_resident",
        "_resident_before",
        "_room",
        "connections",
        "exceeded",
        "limited",
        "mark",
        "under_way",
        "used",
    )

    def __init__(
        self,
        mark: int,
        resident: Callable[[], int],
        counted: Callable[[], int],
        changed: Callable[[bool], None] = lambda limited: None,
    ) -> None:
        """`mark` in bytes; `resident` gives the process's memory, `counted` what waiting messages take of it
        by the broker's own count.

        `changed` is told whether memory is limited, at each change.
        """
        self.mark = mark
        self.limited = False
        """Sends are refused."""
        self.exceeded = False
        """They were refused, and the process has outgrown the mark by a tenth all the same. True until it is
        less than a twentieth above the mark, or sends are accepted again."""
        self.used = 0
        """Bytes in use, as of the last look."""
        self.under_way = 0
        """Messages that were admitted and have no outcome yet. Kept by the connections."""
        self.connections = 0
        """Connections that are open. Kept by the connections' owner."""
        self._resident, self._counted, self._changed = resident, counted, changed
        self._resident_before = self._counted_before = 0
        self._freed = 0
        """What messages and connections have given back and the process still has, as far as one can tell."""
        self._room = self._delivery_room = 0

    def admit(self, messages: int) -> None:
        """That many messages are to be stored. Raises Refused(SERVER_BUSY) above the mark."""
        self._room -= messages * MESSAGE_OVERHEAD_BYTES
        if self._room < 0:
            if not self.limited:
                self.look()
                self._room -= messages * MESSAGE_OVERHEAD_BYTES
            if self.limited:
                raise Refused(
                    Reason.SERVER_BUSY,
                    f"The broker has reached its memory mark of {self.mark // MIB} MiB, and accepts no "
                    "messages until some were received or deleted. Please wait 2 seconds and try again.",
                )

    def expect(self, size: int) -> None:
        """So many bytes come in and may stay, beside messages: is there room for them? `limited` tells."""
        self._room -= size
        if self._room < 0 and not self.limited:
            self.look()

    def deliver(self, messages: int) -> None:
        """So many messages were delivered, to be settled: do they exceed the mark? `exceeded` tells."""
        self._delivery_room -= messages * DELIVERY_BYTES
        if self._delivery_room < 0:
            self.look()

    def look(self) -> None:
        """Measure, and decide whether sends are refused from now on, and whether the mark is exceeded."""
        resident, waiting = self._resident(), self._counted()
        counted = waiting + CONNECTION_BYTES * self.connections
        returned = max(0, self._resident_before - resident)
        self._freed = min(max(0, self._freed + self._counted_before - counted - returned), self.mark)
        self._resident_before, self._counted_before = resident, counted
        self.used = resident - min(self._freed, resident, self.mark // 2)
        self._room = self.mark - self.used - self.under_way * MESSAGE_OVERHEAD_BYTES
        if not self.limited and self._room < 0:
            self.limited = True
            self._changed(True)
            log.warning(
                "memory.limited",
                used_mib=self.used // MIB,
                mark_mib=self.mark // MIB,
                waiting_messages_mib=waiting // MIB,
            )
        elif self.limited and self._room >= self.mark // 20:
            self.limited = False
            self._changed(False)
            log.info(
                "memory.accepting",
                used_mib=self.used // MIB,
                mark_mib=self.mark // MIB,
                waiting_messages_mib=waiting // MIB,
            )
        self.exceeded = self.limited and resident * 20 > self.mark * (21 if self.exceeded else 22)
        self._delivery_room = max(self.mark * 11 // 10 - resident, DELIVERED_BYTES_MIN)
        if self.limited:
            self._room = -1  # so that `admit` needs no other comparison


def traffic_bytes(setting: int, mark: int) -> int:
    """How many bytes may be on their way in one direction: what the setting permits, but no more than suits
    the mark. The mark stops neither direction, for both have to go on for messages to be received."""
    return min(setting, max(mark // TRAFFIC_PARTS, TRAFFIC_BYTES_MIN))


def resident_bytes() -> int:
    """The process's resident memory now. Where the system does not tell, the most that it ever was."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:
        largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return largest if sys.platform == "darwin" else largest * 1024


def return_free_pages() -> None:
    """Have the C library return to the system what it holds free between blocks in use. For a thread: it may
    take a few milliseconds."""
    if _malloc_trim is not None:
        _malloc_trim(0)


def memory_of_the_machine(root: Path = Path("/")) -> int:
    """Bytes of memory that the process may use: the container's limit if there is one, else all of the
    machine.

    `root` is where `/proc` and `/sys` are found.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _limit_files(root):
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if (
            text.isdecimal() and int(text) > 0
        ):  # version 2 writes `max` for no limit, version 1 a number beyond any machine's memory
            limits.append(int(text))
    return min(limits)


def _limit_files(root: Path) -> Iterator[Path]:
    """Where the limits of the process's control group and of all above it may stand, for both versions of
    control groups.

    A container sees its own group as the root of all, or finds no folder of the name that the kernel gives:
    then its limit stands in the root folder.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    mounts = root / "sys/fs/cgroup"
    for line in ["0::/", "1:memory:/", *lines]:
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if not controllers:
            folders, limit = [mounts, mounts / "unified"], "memory.max"
        elif "memory" in controllers.split(","):
            folders, limit = [mounts / "memory"], "memory.limit_in_bytes"
        else:
            continue
        for folder in folders:
            group = folder
            yield group / limit
            for part in Path(name).parts[1:]:
                group /= part
                yield group / limit
