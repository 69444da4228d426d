"""storage/store_defaults.py: the settings and the store have the same defaults."""

from __future__ import annotations

import inspect

import pytest

from broker.descriptors import READ_MAX
from broker.settings.settings import Settings
from storage import store_defaults
from storage.file_store import FileLogStore


@pytest.mark.parametrize(
    ("setting", "argument", "default"),
    [
        ("fsync", "fsync", store_defaults.FSYNC),
        ("fsync_interval_ms", "fsync_interval_ms", store_defaults.FSYNC_INTERVAL_MS),
        ("segment_bytes", "segment_bytes_max", store_defaults.SEGMENT_BYTES_MAX),
        ("committer_threads", "committer_threads", store_defaults.COMMITTER_THREADS),
        ("log_idle_ms", "segment_idle_ms", store_defaults.SEGMENT_IDLE_MS),
    ],
)
def test_a_store_does_by_default_what_the_broker_does(setting: str, argument: str, default: object) -> None:
    """Symptom: the settings synced every 100 ms, and a store of its own every 50 ms."""
    assert Settings.model_fields[setting].default == default
    assert inspect.signature(FileLogStore).parameters[argument].default == default


def test_as_many_files_are_open_for_reading() -> None:
    assert inspect.signature(FileLogStore).parameters["open_files_max"].default == READ_MAX
