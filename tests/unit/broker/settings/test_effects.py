"""broker/settings/effects.py: settings without effect beside others are refused."""

from __future__ import annotations

import pytest

from broker.settings.settings import WrongSettings, load_settings


def test_the_memory_mark_is_given_once() -> None:
    assert load_settings(memory_bytes_max=1 << 30).memory_percent_max == 60
    with pytest.raises(WrongSettings, match=r"PARTIBUS_MEMORY_PERCENT_MAX is 60, .* no effect .* leave one"):
        load_settings(memory_bytes_max=1 << 30, memory_percent_max=60)
