"""The broker's memory mark: above it sends are refused while receivers drain, so that the kernel never kills
the process for lack of memory.

Memory in use is resident memory, because that is what the kernel looks at, with two corrections. Each
admitted message that is not stored yet will take more, so it is added, and so is what partitions will take
that are being opened. And Python hardly ever returns the memory of small objects to the system: a broker that
has delivered a million messages stays as large as it was, and reuses that memory before it grows. So the
memory that waiting messages, open partitions, settled deliveries and connections have freed is subtracted,
until others take it or the process shrinks. This estimate is too high if something else has taken that
memory, so it is limited to half of the mark: with the default mark, the process stays below nine tenths of
all memory.

A partition that is open takes 30 KiB. Above the mark, those that nobody uses and that hold nothing, or
nothing new since they were opened, are closed within seconds, and clients that want messages do not open
empty ones (`Entity.spares`).

Connections, sessions and links take memory that no refused send bounds. `frontend/crowds.py` ends some of
them above the mark, and more of them while the process is far above it (`crowded`). Clients can take 180 MiB
a second with sessions and links, too fast for four looks a second. So each one is admitted (`admit_parts`),
and memory is looked at whenever those since the last look may have taken half of what was left until the
process is crowded.

Everything that frees memory works above the mark: receiving, settling, browsing, deleting, administration.
But until its client settles it, a delivery takes several times as much memory as the waiting message. So
while resident memory is a tenth above the mark (`exceeded`), a link gets more deliveries only if it holds few
unsettled ones, and all links together hold only as many as fit into an eighth of the mark. Beyond that, each
gets one at a time, so that every receiver goes on. Sends are accepted again once a twentieth of the mark is
free. Until then, the C library is told now and then to return free pages to the system. Otherwise it keeps
free pages that lie between blocks in use, and a broker without any messages could stay above its mark. The
same is done after a crowd of connections has closed, whose buffers leave many such pages.

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
"""A share of all memory. With a higher mark the process may outgrow the memory there is, see above."""
LOOK_S = 0.25
"""How often resident memory is read, which takes about 20 microseconds. Near the mark it is also read for
each admission."""
TRAFFIC_PARTS = 8
"""Incoming traffic and outgoing traffic may each take this part of the mark."""
TRAFFIC_BYTES_MIN = 16 * 1024 * 1024
"""The least that each direction may take: with less, single large messages would wait for each other."""
CONNECTION_BYTES = 24 * 1024
"""The least that an idle connection takes; one with a receiver takes about 40 KiB."""
PART_BYTES, PART_BYTES_LEAST = 4 * 1024, 2_560
"""What a session or a link takes, with what serves it, and the least that it takes. A receiver of an entity
with 16 partitions that has granted credit takes 7 KiB."""
PARTS_UNSEEN = 32
"""Memory is looked at after so many new sessions and links at the earliest. They take some milliseconds."""
PARTS_SHARE = 1 / 32
"""The part of the mark that new sessions and links may take while the process is crowded, at 4 KiB each."""
PARTS_SPARE_MIN = 1_024
"""The least number that may be new, however small the mark."""
UNSETTLED_ABOVE_MARK_MAX = 100
"""Deliveries that a link may hold unsettled while the mark is exceeded: 300 receivers take about 40 MiB."""
DELIVERY_BYTES = 1536
"""The most that a delivery takes until it is settled, beside its message's bytes."""
DELIVERY_BYTES_LEAST = 1126
"""The least that a delivery takes, and so the least that its settlement frees."""
EXPECTED_PARTS = 4
"""Partitions that are being opened may take this part of the room up to the mark with their messages."""
DELIVERED_BYTES_MIN = 256 * 1024
"""The least that receivers may take between two looks."""
RETURN_S = 2.0
"""How often free pages are returned to the system while sends are refused."""
CROWD = 1_000
"""After this many connections have closed, free pages are returned: an idle one takes 16 KiB of the C
library's memory for each direction."""
CROWDED_SHARE = 4 / 3
"""How large the process is, compared with the mark, if clients themselves take too much memory. Messages and
deliveries hardly get so far: they are bounded sooner."""
MIB = 1024 * 1024

_PAGE_BYTES = resource.getpagesize()
_STATM = Path("/proc/self/statm")
_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""Only glibc has it."""

log = structlog.get_logger("server")


class Memory:
    """The memory in use, the mark, and whether sends are refused. Used in the event loop."""

    __slots__ = (
        "_changed",
        "_connections_most",
        "_counted",
        "_counted_before",
        "_delivery_room",
        "_expected",
        "_freed",
        "_parts_max",
        "_parts_unseen",
        "_resident",
        "_resident_before",
        "_returned_s",
        "_room",
        "_unsettled_max",
        "connections",
        "crowded",
        "exceeded",
        "limited",
        "mark",
        "parts",
        "room",
        "sessions_and_links",
        "under_way",
        "unsettled",
        "used",
    )

    def __init__(
        self,
        mark: int,
        resident: Callable[[], int],
        counted: Callable[[], int],
        changed: Callable[[bool], None] = lambda limited: None,
        expected: Callable[[], int] = lambda: 0,
    ) -> None:
        """`mark` is in bytes. `resident` gives the process's memory, `counted` the part of it that waiting
        messages and open partitions take by the broker's own count, and `expected` what it will take soon,
        because partitions are being opened.

        `changed` is called with whether memory is limited, at each change.
        """
        self.mark = mark
        self.limited = False
        """Whether sends are refused."""
        self.exceeded = False
        """Whether the process has grown to a tenth above the mark although sends are refused. Stays true
        until it is less than a twentieth above the mark, or sends are accepted again."""
        self.crowded = False
        """Whether sends are refused and resident memory is CROWDED_SHARE of the mark or more."""
        self.used = 0
        """Bytes in use, as of the last look."""
        self.room = 0
        """How far it was to the mark then, without what has been admitted."""
        self.under_way = 0
        """Messages that were admitted and have no outcome yet. The connections keep this number."""
        self.connections = 0
        """Open connections. Their owner keeps this number."""
        self.parts = self.sessions_and_links = 0
        """Those of all connections. Parts also stand for values (`protocol/parts.py`), many of which proton
        never decodes, so only sessions and links count as memory that is freed."""
        self._parts_max = 0
        """How many there may be while the process is crowded."""
        self._parts_unseen = 0
        """How many more may come before the next look."""
        self.unsettled = 0
        """Deliveries that wait for their settlement, over all links."""
        self._unsettled_max = max(mark // TRAFFIC_PARTS // DELIVERY_BYTES, UNSETTLED_ABOVE_MARK_MAX)
        """How many of them there may be while the mark is exceeded, if each link holds more than one."""
        self._resident, self._counted, self._changed = resident, counted, changed
        self._expected = expected
        self._resident_before = self._counted_before = 0
        self._freed = 0
        """Bytes that messages, deliveries and connections have freed but the process probably still holds."""
        self._room = self._delivery_room = 0
        self._connections_most = 0
        self._returned_s = -RETURN_S

    def admit(self, messages: int) -> None:
        """Admit this many messages to be stored. Raises Refused(SERVER_BUSY) above the mark."""
        self._room -= messages * MESSAGE_OVERHEAD_BYTES
        if self._room < 0:
            if not self.limited:
                self.look()
                self._room -= messages * MESSAGE_OVERHEAD_BYTES
            if self.limited:
                raise Refused(
                    Reason.SERVER_BUSY,
                    f"The broker has reached its memory mark of {self.mark // MIB} MiB, and accepts no "
                    "messages until some have been received or deleted. Please wait 2 seconds and try again.",
                )

    def admit_description(self) -> None:
        """Admit another entity, subscription or rule: an entity takes 6 KiB, each partition of a topic keeps
        all rules, and one of them may take half a MiB in all partitions. Raises Refused(SERVER_BUSY) above
        the mark."""
        if not self.limited:
            self.look()
        if self.limited:
            raise Refused(
                Reason.SERVER_BUSY,
                f"The broker has reached its memory mark of {self.mark // MIB} MiB, and takes no "
                "entities, subscriptions and rules until messages have been received, or some of them "
                "deleted. Please wait 2 seconds and try again.",
            )

    def expect(self, size: int) -> None:
        """Account for incoming bytes, beside messages, that may stay. `limited` then says whether there is
        room for them."""
        self._room -= size
        if self._room < 0 and not self.limited:
            self.look()

    def take_room(self, size: int) -> bool:
        """Whether there is room for `size` more bytes, which are then accounted for. If not, sends are not
        refused for that: whoever asks goes without. All that is expected may take a part of the room up to
        the mark, because it may turn out to be more."""
        if self._room - size < self._room_kept:
            self.look()
        if self._room - size < self._room_kept:
            return False
        self._room -= size
        return True

    @property
    def _room_kept(self) -> int:
        """What `take_room` leaves."""
        return max(self.mark - self.used, 0) * (EXPECTED_PARTS - 1) // EXPECTED_PARTS

    def admit_parts(self, parts: int, objects: int, *, few: bool) -> bool:
        """Whether a client may have so many more parts, which then count. `objects` of them are sessions and
        links. If both are negative, so many have gone. While the process is crowded, only clients that have
        `few` may, and all of them together only as many as fit into a small part of the mark: if each could
        have a few, thousands of them would take all memory."""
        if parts > 0:
            self._parts_unseen -= parts
            if self._parts_unseen < 0:
                self.look()
            if self.crowded and not (few and self.parts + parts <= self._parts_max):
                return False
        self.parts += parts
        self.sessions_and_links += objects
        return True

    def deliver(self, messages: int) -> None:
        """Account for deliveries that wait for their settlement. `exceeded` then says whether the mark is
        exceeded."""
        self.unsettled += messages
        self._delivery_room -= messages * DELIVERY_BYTES
        if self._delivery_room < 0:
            self.look()

    def settled(self, messages: int) -> None:
        """Account for deliveries that do not wait for their settlement any more."""
        self.unsettled -= messages

    def may_return_pages(self, now_s: float) -> bool:
        """Whether to call `return_free_pages` at this time: now and then while sends are refused, and after a
        crowd of connections has closed."""
        self._connections_most = max(self._connections_most, self.connections)
        crowd_left = self._connections_most - self.connections >= CROWD
        if not (self.limited or crowd_left) or now_s - self._returned_s < RETURN_S:
            return False
        self._connections_most, self._returned_s = self.connections, now_s
        return True

    def unsettled_room(self, unsettled: int) -> int:
        """How many more deliveries a link that holds this many unsettled may get while the mark is exceeded.

        Zero or less if none. A link that holds none may always get one.
        """
        return min(UNSETTLED_ABOVE_MARK_MAX - unsettled, max(self.unsettled_left, 1 - unsettled))

    @property
    def unsettled_left(self) -> int:
        """How many more deliveries all links together may hold unsettled while the mark is exceeded."""
        return self._unsettled_max - self.unsettled

    def look(self) -> None:
        """Measure memory. Decide whether sends are refused from now on, and whether the mark is exceeded."""
        resident, waiting = self._resident(), self._counted()
        counted = waiting + CONNECTION_BYTES * self.connections + DELIVERY_BYTES_LEAST * self.unsettled
        counted += PART_BYTES_LEAST * self.sessions_and_links
        returned = max(0, self._resident_before - resident)
        self._freed = min(max(0, self._freed + self._counted_before - counted - returned), self.mark)
        self._resident_before, self._counted_before = resident, counted
        self.used = resident - min(self._freed, resident, self.mark // 2)
        expected = self.under_way * MESSAGE_OVERHEAD_BYTES + self._expected()
        self._room = self.mark - self.used - expected
        if not self.limited and self._room < 0:
            self.limited = True
            self._changed(True)
            log.warning(
                "memory.limited",
                used_mib=self.used // MIB,
                expected_mib=expected // MIB,
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
        self._look_at_parts(int(self.mark * CROWDED_SHARE) - resident)
        self._delivery_room = max(self.mark * 11 // 10 - resident, DELIVERED_BYTES_MIN)
        self.room = max(self._room, 0)
        if self.limited:
            self._room = -1  # so that `admit` needs only one comparison

    def _look_at_parts(self, room: int) -> None:
        """`room`: how many bytes the process may grow before it is crowded."""
        was_crowded, self.crowded = self.crowded, self.limited and room <= 0
        most = self.parts + max(int(self.mark * PARTS_SHARE) // PART_BYTES, PARTS_SPARE_MIN)
        self._parts_max = min(self._parts_max, most) if was_crowded else most
        self._parts_unseen = max(room // PART_BYTES // 2, PARTS_UNSEEN)


def traffic_bytes(setting: int, mark: int) -> int:
    """The number of bytes that may be on their way in one direction: the setting, but limited to what suits
    the mark.

    Traffic in both directions goes on above the mark, because receiving messages needs both.
    """
    return min(setting, max(mark // TRAFFIC_PARTS, TRAFFIC_BYTES_MIN))


def resident_bytes() -> int:
    """The process's resident memory now. If the system does not tell, its highest value so far."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:
        largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return largest if sys.platform == "darwin" else largest * 1024


def file_backed_bytes() -> int:
    """The part of `resident_bytes` that the kernel has read from files and can give to several processes at
    once: programs and libraries. 0 if the system does not tell."""
    try:
        return int(_STATM.read_bytes().split()[2]) * _PAGE_BYTES
    except OSError:
        return 0


def return_free_pages() -> None:
    """Make the C library return the memory that it holds free between blocks in use. Call it in a thread: it
    may take a few milliseconds."""
    if _malloc_trim is not None:
        _malloc_trim(0)


def memory_of_the_machine(root: Path = Path("/")) -> int:
    """Bytes of memory that the process may use: the container's limit if there is one, otherwise the
    machine's memory.

    `root` is the folder that contains `/proc` and `/sys`.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _limit_files(root):
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if (
            text.isdecimal() and int(text) > 0
        ):  # for no limit, version 2 writes `max`, and version 1 a number beyond any machine's memory
            limits.append(int(text))
    return min(limits)


def _limit_files(root: Path) -> Iterator[Path]:
    """The files that may hold the limits of the process's control group and of its parents, for both versions
    of control groups.

    A container sees its own group as the root, or finds no folder with the name that the kernel gives. In
    both cases its limit is in the root folder.
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
