"""What can go wrong, as exceptions.

`Unavailable` and its kinds pass by themselves, so callers try again; everything else is final. No text holds
a secret.
"""

from __future__ import annotations


class PartibusError(Exception):
    """Whatever the connector raises."""


class OptionError(PartibusError):
    """An option is missing, unknown or malformed; the text names it."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(f"option '{option}': {problem}")
        self.option, self.problem = option, problem

    def __reduce__(self) -> tuple[type[OptionError], tuple[str, str]]:
        """Spark pickles the errors of its workers."""
        return type(self), (self.option, self.problem)


class SchemaError(PartibusError):
    """The schema has a column that the connector does not know, or one of another type."""


class Refused(PartibusError):
    """The broker refused something; it would refuse it again."""

    def __init__(self, what: str, condition: str, description: str) -> None:
        super().__init__(f"{what}: {condition}: {description}")
        self.what, self.condition, self.description = what, condition, description

    def __reduce__(self) -> tuple[type[Refused], tuple[str, str, str]]:
        """Spark pickles the errors of its workers."""
        return type(self), (self.what, self.condition, self.description)


class Unavailable(PartibusError):
    """The broker cannot be reached or is busy for now; trying again may help."""


class Busy(Unavailable):
    """The broker asks to try again."""


class TimedOut(Unavailable):
    """No answer came in time. Whether the broker did what it was asked is unknown."""


class DataLoss(PartibusError):
    """Messages that the query has not read yet are gone."""


class BadMessage(PartibusError):
    """A message cannot be decoded."""


class BadRow(PartibusError):
    """A row cannot become a message."""
