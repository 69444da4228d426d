"""The contents of `version-2/`: the same as in `version-1/`, and never written again.

Since version 1, each document has two files and a number, and each log has an extent. Segments and
checkpoints are unchanged.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "version-2"
