"""What a store of logs does unless its caller says otherwise. The settings have the same defaults, and take
them from here."""

from __future__ import annotations

from typing import Final

FSYNC: Final = "always"
FSYNC_INTERVAL_MS = 100
SEGMENT_BYTES_MAX = 64 << 20
COMMITTER_THREADS = 4
OPEN_FILES_MAX = 256
"""The most files open for reading. More would hardly be read again before they are closed."""
OPEN_SEGMENTS_MAX = 4_096
"""For a store of its own; a broker divides the descriptors that it has (`broker/descriptors.py`)."""
SEGMENT_IDLE_MS = 60_000
