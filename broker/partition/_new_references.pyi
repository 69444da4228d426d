from collections.abc import Sequence
from typing import Any, TypeVar

_Class = TypeVar("_Class", bound=type)
_Reference = TypeVar("_Reference")

def learn(type: _Class, /) -> _Class: ...
def make(
    type: type[_Reference],
    first: int,
    frame: Any,
    offset: int,
    sizes: Sequence[int],
    enqueued_at_ms: int,
    expiries: Sequence[int] | None,
    lives: Sequence[int | None] | None,
    payloads: Sequence[bytes] | None,
    state: Any,
    /,
) -> tuple[list[_Reference], list[int]]: ...
