"""The memory mark that the settings mean on this machine, and the limits in bytes that it bounds. Pure.

A limit that is given and exceeds its part of the mark would never be reached, so it is refused. A default may
exceed it: then the part of the mark counts (`traffic_bytes`), and the broker also runs on small machines.
"""

from __future__ import annotations

from broker.partition.duplicates import MEMORY_BYTES
from broker.settings.setting_types import variable_of
from broker.settings.settings import Settings, WrongSettings
from broker.throttle.memory_mark import TRAFFIC_BYTES_MIN, TRAFFIC_PARTS

PAYLOAD_PARTS = 2
"""Message bodies kept in memory may take this part of the mark: the broker and the state of the messages need
the rest. With more, bodies alone would reach the mark, and sends would be refused until messages leave."""

PAYLOAD_PARTS_BY_DEFAULT = 8
"""Without a setting, they take this part at most."""

_OF_EACH_CONNECTION = {
    "total_inflight_bytes_max": ("connection_inflight_bytes_max",),
    "total_output_bytes_max": ("output_buffer_bytes_max", "receive_cache_bytes"),
    "total_transaction_bytes_max": ("connection_transaction_bytes_max",),
}
"""The settings that take a part of the mark for all connections, and those for each of the connections."""


def mark_of(settings: Settings, available: int) -> int:
    """The memory mark in bytes. `available` is the memory that the process may use, in bytes."""
    return settings.memory_bytes_max or available * settings.memory_percent_max // 100


def payload_bytes(settings: Settings, mark: int) -> int:
    """How many bytes of message bodies are kept in memory: as many as were given, or the default, which is
    lower on a small machine."""
    size = settings.payload_memory_bytes
    is_given = "payload_memory_bytes" in settings.model_fields_set
    return size if is_given else min(size, mark // PAYLOAD_PARTS_BY_DEFAULT)


def check_limits(settings: Settings, mark: int) -> None:
    """Raise WrongSettings with a line for each limit that was given and is larger than what can be reached
    with this mark."""
    share = max(mark // TRAFFIC_PARTS, TRAFFIC_BYTES_MIN)
    eighth = f"an eighth of the memory mark of {mark} bytes, or {TRAFFIC_BYTES_MIN} if that is more"
    raise_mark = (
        f"raise the mark with {variable_of('memory_bytes_max')} or {variable_of('memory_percent_max')}"
    )
    wrong = []
    for total, parts in _OF_EACH_CONNECTION.items():
        wrong += _above(settings, total, share, eighth, raise_mark)
        bound = share, eighth, raise_mark
        if (whole := getattr(settings, total)) <= share:
            bound = whole, f"{variable_of(total)}, for all connections", "raise the other one as well"
        for each in parts:
            wrong += _above(settings, each, *bound)
    half = f"half of the memory mark of {mark} bytes"
    wrong += _above(settings, "payload_memory_bytes", mark // PAYLOAD_PARTS, half, raise_mark)
    ids = f"with more, those of one partition would take more than the memory mark of {mark} bytes"
    wrong += _above(settings, "message_ids_max", mark // MEMORY_BYTES, ids, raise_mark)
    if wrong:
        raise WrongSettings("\n".join(wrong))


def _above(settings: Settings, name: str, largest: int, why: str, advice: str) -> list[str]:
    """The line for this setting if it was given and is larger than `largest`; otherwise none."""
    given = getattr(settings, name)
    if name not in settings.model_fields_set or given <= largest:
        return []
    return [
        f"{variable_of(name)} is {given}, but can be at most {largest}: {why}. Lower it, leave it out, or "
        f"{advice}"
    ]
