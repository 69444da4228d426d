"""broker/partition/state_kinds.py: kinds of durable state are listed once, and each record has one owner."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from broker.partition import durable_state, state_kinds
from broker.partition.state_kinds import DurableStates
from broker.partition.tables import UnreadableRecord
from storage.log import Position
from tests.support.keyed_state import KeyedState, put


def test_a_module_of_a_listed_kind_may_import_what_it_implements() -> None:
    """The list imports every kind, and every kind imports the interface. So the interface must not lead to
    the list."""
    tree = ast.parse(Path(durable_state.__file__).read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert "broker.partition.state_kinds" not in imported and not hasattr(durable_state, "KINDS")


def test_a_record_goes_to_the_state_that_owns_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_kinds, "KINDS", (KeyedState,))
    states = DurableStates()
    states.apply(durable_state.read_back(put(b"key", b"value")), Position(0))
    assert states.of(KeyedState).entries == {b"key": (b"value", 0)} and states.bytes > 0
    monkeypatch.setattr(state_kinds, "KINDS", ())
    with pytest.raises(UnreadableRecord, match="record kind 200"):
        DurableStates().apply(durable_state.read_back(put(b"key", b"value")), Position(0))


def test_no_two_states_own_the_same_kind_of_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_kinds, "KINDS", (KeyedState, KeyedState))
    with pytest.raises(AssertionError, match="one owner"):
        DurableStates()
