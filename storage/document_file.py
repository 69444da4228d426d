"""One file of a document in the catalogue: its bytes, and its name. Encodes and decodes; pure.

All numbers are little endian.

    offset  size  field
         0     8  magic "PbDocmnt"
         8     4  CRC-32C of everything behind
        12     2  format version, 2
        14     2  length of the name in bytes
        16     4  length of the document in bytes
        20     8  number: rises with each change of the document; of two whole files, the one with the higher
                  number is valid
        28     …  name, UTF-8
         …     …  document

Files of version 1 have no number, which counts as 0, and the name begins at 20.

A file's name consists of the document's name in plain characters and a digest of it. So the name of a damaged
file says whether it belongs to a document, if the document's name is plain and short enough
(`PLAIN_NAME_MAX`). Names of the broker's documents are.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from storage.errors import CorruptRecord, UnknownFormat
from storage.record import crc32c

FORMAT_VERSION = 2
DOCUMENT_SUFFIX = ".document"
COPY_SUFFIX = ".copy"
DELETED_SUFFIX = ".deleted"
COPY_DELETED_SUFFIX = ".copy-deleted"
LIVE = (DOCUMENT_SUFFIX, COPY_SUFFIX)
"""The two files of a document."""
DELETED = (DELETED_SUFFIX, COPY_DELETED_SUFFIX)
"""The same two files after the document's deletion."""
NAME_BYTES_MAX = 65_535
PLAIN_NAME_MAX = 96
"""How many characters of a document's name appear in its file name. Enough for a namespace (50) and an
identifier (32)."""
MERGED_PLACES_MAX = 12
"""The number of bytes in which two damaged files of a document may differ. All combinations are tried."""

_MAGIC = b"PbDocmnt"
_HEAD = struct.Struct("<8sI")
_TAIL = struct.Struct("<HHI")
_NUMBER = struct.Struct("<Q")
_NUMBER_AT = _HEAD.size + _TAIL.size
_DIGEST_BYTES = 16
_PLAIN = re.compile(r"[^A-Za-z0-9_-]")


class Misnamed(CorruptRecord):
    """A whole file that has not the name of its document."""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(str(path), 0, f"the file is not the document {name!r} that it says it is")
        self.name = name


@dataclass(slots=True, frozen=True)
class DocumentFile:
    """The content of a whole file of a document."""

    path: Path
    version: int
    number: int
    name: str
    document: bytes


def file_name_of(name: str) -> str:
    """The name of the file that holds the document with this name."""
    digest = blake2b(name.encode(), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{_PLAIN.sub('_', name)[:PLAIN_NAME_MAX]}-{digest}{DOCUMENT_SUFFIX}"


def stems(names: Iterable[str], suffixes: tuple[str, str]) -> list[str]:
    """The names, without suffix, of the files that have one of these suffixes; each once."""
    return sorted(
        {name.removesuffix(suffix) for name in names for suffix in suffixes if name.endswith(suffix)}
    )


def document_of(stem: str) -> str | None:
    """The document's name, if the name of its files (without suffix) contains all of it; else None."""
    name = stem[: -(2 * _DIGEST_BYTES + 1)]
    return name if file_name_of(name) == f"{stem}{DOCUMENT_SUFFIX}" else None


def why_stray(stem: str, held: Sequence[str | None], whole: Container[str]) -> str | None:
    """Why files with this name (without suffix), of which none can be used, belong to no document; None if
    they may be what is left of one.

    `held`: for each file, the document that it holds whole under the wrong name (`Misnamed`), or None.
    `whole`: the documents that can be read.
    """
    if document_of(stem) is not None or any(name is not None and name not in whole for name in held):
        return None
    copied = next((name for name in held if name is not None), None)
    if copied is not None:
        return f"it is a copy of the document {copied!r}, which is whole"
    return "it belongs to no queue, for no file of the catalogue has such a name"


def deleted_stems(names: Collection[str]) -> list[str]:
    """Of all files in a catalogue: the names, without suffix, of the files whose documents were deleted."""
    return [stem for stem in stems(names, DELETED) if not any(f"{stem}{suffix}" in names for suffix in LIVE)]


def why_copy(name: str, *, has_files: bool, is_deleted: bool, has_logs: bool) -> str | None:
    """Why files under other names, which hold this document whole, are copies of one that was deleted; None
    if they may be what is left of it.

    `has_files`: whether there are files of the document's own name, none of them whole. `is_deleted`: whether
    its deletion is on record (`deleted_stems`): its logs may not be removed yet. `has_logs`: whether its
    queue has logs, or may have some.
    """
    if has_files:
        return None
    if is_deleted:
        return f"it is a copy of the document {name!r}, which was deleted"
    if has_logs:
        return None
    return (
        f"it is a copy of the document {name!r}: no other file and no log of it is left, so the queue was "
        "deleted, or never used"
    )


def encode_document(name: str, number: int, document: bytes) -> list[bytes]:
    """The content of a file, in parts."""
    encoded = name.encode()
    assert len(encoded) <= NAME_BYTES_MAX
    rest = _TAIL.pack(FORMAT_VERSION, len(encoded), len(document)) + _NUMBER.pack(number) + encoded + document
    return [_HEAD.pack(_MAGIC, crc32c(rest)), rest]


def merge_files(contents: Sequence[bytes], path: Path) -> bytes | None:
    """Make one whole file from two damaged ones of the same document; None if that is impossible.

    `path` is one of the two. Both were written with the same bytes, so where they differ, one of them is
    damaged, and the checksum tells which.
    """
    longer, shorter = sorted(contents, key=len, reverse=True)
    places = [place for place, (one, other) in enumerate(zip(longer, shorter, strict=False)) if one != other]
    if len(places) > MERGED_PLACES_MAX:
        return None
    for choice in range(1 << len(places)):
        merged = bytearray(longer)
        for number, place in enumerate(places):
            if choice >> number & 1:
                merged[place] = shorter[place]
        try:
            decode_document(bytes(merged), path)
        except (CorruptRecord, UnknownFormat):
            continue
        return bytes(merged)
    return None


def decode_document(data: bytes, path: Path) -> DocumentFile:
    """Decode the content of the file `path`. Raises CorruptRecord, Misnamed among them, UnknownFormat."""
    if len(data) < _NUMBER_AT:
        raise CorruptRecord(str(path), len(data), "the document is cut off")
    magic, crc = _HEAD.unpack_from(data)
    if magic != _MAGIC or crc != crc32c(data[_HEAD.size :]):
        raise CorruptRecord(str(path), 0, "the document's checksum does not match")
    version, name_length, length = _TAIL.unpack_from(data, _HEAD.size)
    if version not in (1, FORMAT_VERSION):
        raise UnknownFormat(
            f"{path}: document format version {version} is not known, only 1 and {FORMAT_VERSION}"
        )
    number, name_at = (
        (0, _NUMBER_AT)
        if version == 1
        else (_NUMBER.unpack_from(data, _NUMBER_AT)[0], _NUMBER_AT + _NUMBER.size)
    )
    name = data[name_at : name_at + name_length].decode()
    document = data[name_at + name_length :]
    if len(document) != length or path.with_suffix(DOCUMENT_SUFFIX).name != file_name_of(name):
        raise Misnamed(path, name)
    return DocumentFile(path, version, number, name, document)
