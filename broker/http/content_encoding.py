"""Unpacks bodies that came packed (Content-Encoding; RFC 9110 8.4). Pure.

aiohttp could do this, but it takes a gzip stream that ends too early for a whole one, and says nothing of
encodings that it does not know.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Final

from broker.http.refusals import HttpRefusal

PIECE_BYTES_MAX: Final = 256 * 1024
"""What is unpacked at a time."""
_GZIP: Final = 16 + zlib.MAX_WBITS
_DEFLATED: Final = 8
"""The low half of a zlib stream's first byte."""


class Unpacker:
    """Unpacks one body."""

    __slots__ = ("_name", "_part")

    def __init__(self, name: str) -> None:
        """`name` is "gzip" or "deflate"."""
        self._name = name
        self._part: zlib._Decompress | None = None

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Unpack the next bytes of the body. Raises HttpRefusal (400) if they are not packed in this way."""
        try:
            while data:
                part = self._part = self._part_for(data)
                piece = part.decompress(data, PIECE_BYTES_MAX)
                yield piece
                while part.unconsumed_tail or (len(piece) == PIECE_BYTES_MAX and not part.eof):
                    piece = part.decompress(part.unconsumed_tail, PIECE_BYTES_MAX)
                    yield piece
                data = part.unused_data
        except zlib.error as error:
            text = f"The body is not packed with {self._name}: {error}."
            raise HttpRefusal(400, 40000, text) from error

    def finish(self) -> None:
        """The body has come. Raises HttpRefusal (400) if its end is missing."""
        if self._part is None or not self._part.eof:
            raise HttpRefusal(400, 40000, f"The body, packed with {self._name}, ends too early.")

    def _part_for(self, data: bytes) -> zlib._Decompress:
        """What unpacks these bytes. A body may consist of several parts, as gzip allows."""
        if self._part is not None and not self._part.eof:
            return self._part
        if self._name == "gzip":
            return zlib.decompressobj(_GZIP)
        is_bare = data[0] & 0x0F != _DEFLATED  # some clients leave out the header of the zlib stream
        return zlib.decompressobj(-zlib.MAX_WBITS if is_bare else zlib.MAX_WBITS)


def unpacker_of(headers: Iterable[str]) -> Unpacker | None:
    """What unpacks a body with these Content-Encoding headers; None if it is not packed. Raises HttpRefusal
    (415) for encodings that are not known, and for several."""
    named = ",".join(headers).strip().casefold()
    match named:
        case "" | "identity":
            return None
        case "gzip" | "x-gzip":
            return Unpacker("gzip")
        case "deflate":
            return Unpacker("deflate")
    raise HttpRefusal(
        415,
        0,
        f"The Content-Encoding '{named:.80}' is not known; it may be gzip or deflate.",
        {"Accept-Encoding": "gzip, deflate"},
    )
