"""Operations on changes of rules that a partition has noted with a transaction, and their answers (AMQP
contract 8.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class FindRuleChanges:
    """Say which changes of rules are noted, oldest first. Answered with `RuleChangesFound`."""

    cookie: object = None


@dataclass(slots=True)
class ForgetRuleChanges:
    """The topic has these changes, so they need not be noted any more. Answered with `Settled`."""

    ids: Sequence[bytes]
    cookie: object = None


RuleOperation = FindRuleChanges | ForgetRuleChanges


@dataclass(slots=True)
class RuleChangesFound:
    """Changes that transactions have made and the topic may lack. Answers `FindRuleChanges`."""

    ids: list[bytes]
    """The ids of their transactions (`Transact.change_id`)."""
    changes: list[bytes]
    """What each of these has changed (`Transact.rule_changes`)."""
    cookie: object = None
