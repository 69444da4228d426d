"""broker/base/plurals.py: counts in sentences."""

from __future__ import annotations

from broker.base.plurals import counted


def test_one_of_something_is_not_several() -> None:
    assert [counted(count, "file") for count in (0, 1, 2)] == ["0 files", "1 file", "2 files"]
    assert [counted(count, "entity", "entities") for count in (1, 3)] == ["1 entity", "3 entities"]
