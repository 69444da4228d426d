"""Packed bodies: what is unpacked, and what is refused (HTTP contract 4.2)."""

from __future__ import annotations

import gzip
import zlib

import pytest

from broker.http.content_encoding import PIECE_BYTES_MAX, Unpacker, unpacker_of
from broker.http.refusals import HttpRefusal
from tests.support.rest_client import RestClient

TEXT = b"".join(b"%d," % number for number in range(20_000))
LARGE = bytes(5 * PIECE_BYTES_MAX)
PACKED = {
    "gzip": (gzip.compress(TEXT), TEXT),
    "x-gzip": (gzip.compress(TEXT), TEXT),
    " GZIP ": (gzip.compress(b"two") + gzip.compress(b" parts"), b"two parts"),
    "deflate": (zlib.compress(TEXT), TEXT),
    "Deflate": (zlib.compress(TEXT, wbits=-15), TEXT),
    "identity": (TEXT, TEXT),
    "": (b"", b""),
}


def unpacked(unpacker: Unpacker, packed: bytes, step: int) -> bytes:
    chunks = (packed[at : at + step] for at in range(0, len(packed), step))
    found = b"".join(piece for chunk in chunks for piece in unpacker.pieces(chunk))
    unpacker.finish()
    return found


@pytest.mark.parametrize("step", [1, 1_000, 1 << 30])
@pytest.mark.parametrize("name", ["gzip", "deflate"])
def test_what_was_packed_comes_out_whatever_the_chunks(name: str, step: int) -> None:
    for body in (b"", b"x", TEXT, LARGE):
        packed = gzip.compress(body) if name == "gzip" else zlib.compress(body)
        assert unpacked(Unpacker(name), packed, step) == body


def test_a_small_body_that_holds_much_comes_in_bounded_pieces() -> None:
    sizes = [len(piece) for piece in Unpacker("gzip").pieces(gzip.compress(LARGE))]
    assert (sum(sizes), max(sizes)) == (len(LARGE), PIECE_BYTES_MAX)


def test_what_has_not_come_out_when_all_is_taken_in_comes_with_the_last_piece() -> None:
    """Of bodies of these sizes, one is packed to bytes of which the last piece needs nothing more."""
    for size in range(PIECE_BYTES_MAX, PIECE_BYTES_MAX + 100):
        packed = zlib.compress(bytes(size), level=9, wbits=-15)
        assert len(unpacked(Unpacker("deflate"), packed, len(packed))) == size


@pytest.mark.parametrize("name", PACKED)
def test_a_packed_body_is_stored_unpacked(rest: RestClient, name: str) -> None:
    packed, body = PACKED[name]
    rest.send("/plain", packed, Content_Encoding=name)
    assert rest.receive("/plain", method="DELETE").body == body


@pytest.mark.parametrize("name", ["gzip, gzip", "zstd", "br", "foo", "x-deflate", "gzip,"])
def test_an_encoding_that_is_not_known_is_refused(rest: RestClient, name: str) -> None:
    refused = rest.ask("POST", "/plain/messages", gzip.compress(b"x"), {"Content-Encoding": name})
    assert (refused.status, refused.headers["accept-encoding"]) == (415, "gzip, deflate")
    assert rest.receive("/plain").status == 204


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("gzip", gzip.compress(TEXT)[:-1]),
        ("gzip", gzip.compress(TEXT)[:1_000]),
        ("gzip", b""),
        ("gzip", b"no gzip"),
        ("gzip", gzip.compress(TEXT) + b"more"),
        ("gzip", gzip.compress(TEXT) + gzip.compress(TEXT)[:50]),
        ("deflate", zlib.compress(TEXT)[:-1]),
        ("deflate", zlib.compress(TEXT, wbits=-15)[:-10]),
        ("deflate", b""),
    ],
)
def test_a_body_that_is_cut_short_or_packed_otherwise_is_refused(
    rest: RestClient, name: str, packed: bytes
) -> None:
    refused = rest.ask("POST", "/plain/messages", packed, {"Content-Encoding": name})
    assert (refused.status, b"SubCode=40000" in refused.body) == (400, True)
    assert rest.receive("/plain").status == 204


def test_the_limit_is_that_of_the_unpacked_body(rest: RestClient) -> None:
    refused = rest.ask(
        "POST", "/plain/messages", gzip.compress(bytes(20 << 20)), {"Content-Encoding": "gzip"}
    )
    assert refused.status == 403


def test_several_headers_count_as_one() -> None:
    assert unpacker_of([]) is None
    with pytest.raises(HttpRefusal, match="'gzip,deflate' is not known"):
        unpacker_of(["gzip", "deflate"])
