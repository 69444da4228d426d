from __future__ import annotations

import pytest

from pyspark_partibus import worker_memory


def test_the_garbage_collector_is_tuned_once_for_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[None] = []
    monkeypatch.setattr(worker_memory, "_tuned", False)
    monkeypatch.setattr("gc.freeze", lambda: frozen.append(None))
    for _ in range(3):
        worker_memory.tune_garbage_collector()
    assert len(frozen) == 1
