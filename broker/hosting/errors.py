"""Carry storage errors between two processes, as a name and a text."""

from __future__ import annotations

import inspect

from storage import errors, file_store
from storage.errors import StorageError

_KINDS: dict[str, type[StorageError]] = {
    name: kind
    for module in (errors, file_store)
    for name, kind in inspect.getmembers(module, inspect.isclass)
    if issubclass(kind, StorageError)
}


def error_of(name: str, message: str) -> StorageError:
    """An error of this class, or of its nearest base class that takes only a text."""
    kind = _KINDS.get(name, StorageError)
    while kind.__init__ is not Exception.__init__ and kind is not StorageError:
        parent = kind.__bases__[0]
        assert issubclass(parent, StorageError), f"{kind} descends from {parent}"
        kind = parent
    return kind(message)
