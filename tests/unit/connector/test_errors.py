"""Errors cross process borders: Spark pickles those of its workers."""

from __future__ import annotations

import pickle

import pytest

from pyspark_partibus.errors import BadRow, OptionError, PartibusError, Refused


@pytest.mark.parametrize(
    "error",
    [Refused("sending", "amqp:not-found", "no queue"), OptionError("entity", "is missing"), BadRow("null")],
)
def test_an_error_survives_pickling(error: PartibusError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
