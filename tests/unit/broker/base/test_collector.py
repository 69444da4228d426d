"""The garbage collector of a process that holds messages: it is set in one place."""

from __future__ import annotations

import ast
import gc
from pathlib import Path

from broker.base.collector import THRESHOLDS, collect_rarely

ROOT = Path(__file__).parents[4]


def test_collections_are_rarer_than_by_default() -> None:
    before = gc.get_threshold()
    try:
        collect_rarely()
        assert gc.get_threshold() == THRESHOLDS
    finally:
        gc.set_threshold(*before)


def test_no_other_module_sets_the_thresholds() -> None:
    """Symptom: the broker and a process with partitions each had thresholds of their own."""
    setting = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "broker").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "set_threshold"
    ]
    assert setting == ["broker/base/collector.py"]
