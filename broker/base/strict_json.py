"""JSON in which no object names a field twice: of two values, one would be dropped without a word. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any


class RepeatedField(ValueError):
    """An object names a field twice. The text says which one, and never its values."""


def read_json(text: str) -> Any:
    """What the text means. Raises RepeatedField, JSONDecodeError, ValueError, RecursionError."""
    return json.loads(text, object_pairs_hook=without_repetition)


def without_repetition(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object of these fields, for decoders of JSON. Raises RepeatedField."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = Counter(name for name, _ in pairs)
        repeated = next(name for name in fields if names[name] > 1)
        raise RepeatedField(f"the field {repeated:.80} stands twice in the same object")
    return fields
