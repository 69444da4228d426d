"""One file of a document: its name, its bytes, and two damaged files put together."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.document_file import (
    COPY_SUFFIX,
    DOCUMENT_SUFFIX,
    LIVE,
    MERGED_PLACES_MAX,
    PLAIN_NAME_MAX,
    decode_document,
    deleted_stems,
    document_of,
    encode_document,
    file_name_of,
    merge_files,
    stems,
    why_copy,
    why_stray,
)
from storage.errors import CorruptRecord, UnknownFormat
from storage.record import crc32c

NAME, DOCUMENT = "sbemulatorns_0123", b'{"name": "orders", "more": "' + b"x" * 200 + b'"}'
PATH = Path("/catalogue") / file_name_of(NAME)
WHOLE = b"".join(encode_document(NAME, 7, DOCUMENT))


def damaged(*places: int) -> bytes:
    data = bytearray(WHOLE)
    for place in places:
        data[place] ^= 0xFF
    return bytes(data)


@pytest.mark.parametrize("suffix", [DOCUMENT_SUFFIX, COPY_SUFFIX])
def test_a_document_comes_back_from_either_of_its_files(suffix: str) -> None:
    found = decode_document(WHOLE, PATH.with_suffix(suffix))
    assert (found.version, found.number, found.name, found.document) == (2, 7, NAME, DOCUMENT)


@pytest.mark.parametrize("place", [0, 9, 12, 20, 30, len(WHOLE) - 1])
def test_a_file_with_a_flipped_bit_or_cut_off_is_damaged(place: int) -> None:
    for data in (damaged(place), WHOLE[:place]):
        with pytest.raises(CorruptRecord):
            decode_document(data, PATH)


def test_a_document_under_another_ones_name_is_not_taken_for_it() -> None:
    with pytest.raises(CorruptRecord, match="is not the document"):
        decode_document(WHOLE, PATH.with_name(file_name_of("another")))


def test_names_of_any_characters_have_different_files_that_any_disk_takes() -> None:
    names = ["a/b", "a_b", "a\\b", "ä", "x" * 200, "x" * 201]
    files = [file_name_of(name) for name in names]
    assert len(set(files)) == len(names)
    assert all(file.isascii() and "/" not in file and len(file) <= PLAIN_NAME_MAX + 50 for file in files)
    assert document_of(file_name_of(NAME).removesuffix(DOCUMENT_SUFFIX)) == NAME
    assert document_of(file_name_of("a/b").removesuffix(DOCUMENT_SUFFIX)) is None, "not all of it is in there"


def test_each_document_is_listed_once_whichever_of_its_files_are_there() -> None:
    names = ["one.document", "one.copy", "two.copy", "three.deleted", "four.document.tmp"]
    assert stems(names, LIVE) == ["one", "two"]


def test_two_files_with_different_damage_are_put_together() -> None:
    assert merge_files([damaged(3, 40), damaged(90, 150)], PATH) == WHOLE
    assert merge_files([damaged(40), WHOLE[:100]], PATH) == WHOLE
    assert merge_files([damaged(150), WHOLE[:100]], PATH) is None, "neither has that byte"
    assert merge_files([damaged(40), damaged(40)], PATH) is None


def test_damage_in_too_many_places_is_not_tried() -> None:
    places = range(30, 30 + MERGED_PLACES_MAX)
    assert merge_files([damaged(*places), WHOLE], PATH) == WHOLE
    assert merge_files([damaged(*places, 100), WHOLE], PATH) is None


def test_a_later_format_is_refused_as_such() -> None:
    data = bytearray(WHOLE)
    data[12:14] = (3).to_bytes(2, "little")
    data[8:12] = crc32c(bytes(data[12:])).to_bytes(4, "little")
    with pytest.raises(UnknownFormat, match="version 3"):
        decode_document(bytes(data), PATH)


def test_files_belong_to_no_document_if_their_name_is_none_and_they_hold_none_that_is_lost() -> None:
    stem = Path(file_name_of("namespace_01")).stem
    swapped = f"namespace_01{Path(file_name_of('other')).stem[-33:]}"
    assert why_stray(stem, [None, None], ()) is None
    assert why_stray(stem, ["other"], {"other"}) is None, "what this name stood for is lost"
    for each in ("junk", swapped, "a" * 300):
        assert "belongs to no queue" in str(why_stray(each, [None], ()))
        assert "a copy of the document 'other'" in str(why_stray(each, [None, "other"], {"other"}))
        assert why_stray(each, [None, "other"], {"namespace_01"}) is None, "nothing else is left of it"


def test_files_under_other_names_are_copies_if_the_deletion_is_on_record_or_nothing_else_is_left() -> None:
    for is_deleted in (False, True):
        for has_logs in (False, True):
            assert why_copy("a", has_files=True, is_deleted=is_deleted, has_logs=has_logs) is None
    assert why_copy("a", has_files=False, is_deleted=False, has_logs=True) is None
    for has_logs in (False, True):
        why = why_copy("a", has_files=False, is_deleted=True, has_logs=has_logs)
        assert why == "it is a copy of the document 'a', which was deleted"
    assert "and no log" in str(why_copy("a", has_files=False, is_deleted=False, has_logs=False))


def test_a_deletion_is_on_record_once_no_live_file_is_left() -> None:
    assert deleted_stems(["a.document", "a.copy-deleted", "b.copy", "b.deleted", "c.deleted", "d.copy"]) == [
        "c"
    ]
    assert deleted_stems(["c.copy-deleted", "c.deleted", "e.copy-deleted"]) == ["c", "e"]
