"""Storage errors between two processes: an error arrives as its own class, or as one that says as much."""

from __future__ import annotations

import pytest

from broker.hosting.errors import error_of
from storage.errors import CommitFailed, CorruptRecord, DiskFull, RecordsMissing, StorageError
from storage.file_store import FolderInUse


@pytest.mark.parametrize("kind", [StorageError, CommitFailed, DiskFull, FolderInUse])
def test_an_error_that_takes_only_a_text_keeps_its_class(kind: type[StorageError]) -> None:
    error = error_of(kind.__name__, "why")
    assert type(error) is kind and str(error) == "why"


@pytest.mark.parametrize(
    "sent",
    [CorruptRecord("log", 7, "flipped"), RecordsMissing("log", 7, "cut off", expected=9, found=7)],
)
def test_an_error_with_more_than_a_text_arrives_as_its_base_class_with_all_of_its_text(
    sent: CorruptRecord,
) -> None:
    error = error_of(type(sent).__name__, str(sent))
    assert type(error) is StorageError and str(error) == str(sent)


def test_an_unknown_error_is_still_an_error_of_the_storage() -> None:
    assert type(error_of("OSError", "why")) is StorageError
