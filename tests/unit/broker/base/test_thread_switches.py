"""Threads beside the event loop get the interpreter soon, in every process that has one."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from broker.base.thread_switches import INTERVAL_S, shorten_switch_interval

ROOT = Path(__file__).parents[4]


def test_a_thread_waits_less_than_python_lets_it() -> None:
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.005)
        shorten_switch_interval()
        assert sys.getswitchinterval() == pytest.approx(INTERVAL_S) and INTERVAL_S < 0.005
    finally:
        sys.setswitchinterval(before)


def test_each_process_with_an_event_loop_of_the_broker_does_it() -> None:
    calling = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "broker").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "shorten_switch_interval"
    ]
    assert sorted(calling) == ["broker/hosting/process.py", "broker/server.py"]
