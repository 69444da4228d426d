"""Plain reads and writes, each in one call: the Python side of `native/exchange.c`.

Frames are *plain* if nothing in them is for Python to look at before proton gets them: they are whole, and
none of them is large, a batch, or out of order. `frames.py`, `large_input.py` and `lenience.py` say what that
means, and decide it for all other frames. The caller (`plain_reads.py`) makes sure that no earlier bytes are
kept anywhere.

`Engine` works without `read`, too: then all bytes take the way of the others. The tests compare the two.
"""

from __future__ import annotations

from protocol import _exchange, runs
from protocol._runs import ffi, lib
from protocol.events import Outcome
from protocol.limits import SMALL_FRAME_BYTES

_exchange.bind(
    tuple(
        runs.address_of(ffi.addressof(lib, name))
        for name in (
            "delivery_ids_walk",
            "frames_pass",
            "large_skip",
            "runs_push",
            "runs_take",
            "runs_settle",
            "runs_output",
            "runs_is_empty",
        )
    ),
    *runs.buffers(),
    runs.MESSAGES_MAX,
    runs.BYTES_MAX,
    SMALL_FRAME_BYTES,
    int(Outcome.ACCEPTED),
)
read = _exchange.read
"""`read(transport, collector, ids, data, begin, most, transfers_only)`: push the whole frames in the `most`
bytes from `begin` on to a transport, and take the run of deliveries that they make, if all of them are plain,
and nothing but transfers if `transfers_only`.

Gives None if they are not plain, or there are none; then nothing has changed. Else a tuple: the address of
the run's link, 0 if there is no run; its deliveries, none for messages that were sent settled; the messages,
None for outcomes `accepted` of sent ones; whether the peer has settled the deliveries; whether that is all
that the bytes have caused; and where the last frame ends. `ids` is `Lenience.ids_address`.
"""
write = _exchange.write
"""`write(transport, collector, accepted)`: settle incoming deliveries as accepted, and take what is to be
written.

Gives the bytes; what is left (the size of a frame that exceeds the buffer, 0 for nothing now, below 0 if
nothing will ever follow); and whether the collector has events.
"""
