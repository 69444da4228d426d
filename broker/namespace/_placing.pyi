from collections.abc import Sequence
from typing import Any

def divide(
    keys: Sequence[str | None], partitions: int, lists: Sequence[Sequence[Any]], /
) -> list[tuple[Any, ...]]: ...
