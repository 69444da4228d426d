"""The document that says what the first namespace was called at the last start."""

from __future__ import annotations

import pytest

from broker.entities.first_namespace import decode_first_namespace, encode_first_namespace


def test_a_name_comes_back_as_it_was() -> None:
    for name in ("orders", "Größe two", '"'):
        assert decode_first_namespace(encode_first_namespace(name)) == name


@pytest.mark.parametrize("document", [b"", b"{", b"{}", b"[]", b'"orders"', b'{"name": 1}', b"\xff"])
def test_a_document_that_cannot_be_read_says_no_name(document: bytes) -> None:
    assert decode_first_namespace(document) == ""
