"""Ticks agree with Python's dates."""

from __future__ import annotations

import datetime

from broker.base.ticks import EPOCH_TICKS, TICKS_PER_MS


def test_the_unix_epoch_is_so_many_ticks_after_the_beginning_of_the_year_1() -> None:
    since = datetime.datetime(1970, 1, 1) - datetime.datetime(1, 1, 1)
    assert since // datetime.timedelta(milliseconds=1) * TICKS_PER_MS == EPOCH_TICKS
