"""Mutants: small mistakes put into the product for a moment, to see whether a test notices them."""

from __future__ import annotations
import __future__

import inspect
import os
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any, NamedTuple


class Mutant(NamedTuple):
    """A mistake: `old` becomes `new` in a function."""

    mistake: str
    function: Callable[..., Any]
    old: str
    new: str


def function_of(mutant: Mutant) -> FunctionType:
    """The function itself, without a cache around it."""
    function = inspect.unwrap(mutant.function)
    assert isinstance(function, FunctionType)
    return function


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Run the mutant instead of the function, for everyone who calls it."""
    function = function_of(mutant)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(mutant.old) == 1, f"{function.__qualname__} has changed: choose another mutant"
    names = dict(function.__globals__)
    flags = __future__.annotations.compiler_flag
    exec(compile(source.replace(mutant.old, mutant.new), "mutant", "exec", flags), names)
    before, function.__code__ = function.__code__, inspect.unwrap(names[function.__name__]).__code__
    try:
        yield
    finally:
        function.__code__ = before


def tried(mutants: Sequence[Mutant], count: int) -> Sequence[Mutant]:
    """`count` of the mutants, evenly chosen; all of them in a long run."""
    if os.environ.get("HYPOTHESIS_PROFILE") == "random":
        return mutants
    return mutants[:: -(-len(mutants) // count)]


def check_that_each_fits(mutants: Sequence[Mutant]) -> None:
    """Assert that each mutant can be applied, and leaves nothing behind."""
    for mutant in mutants:
        before = function_of(mutant).__code__
        with applied(mutant):
            assert function_of(mutant).__code__ is not before
        assert function_of(mutant).__code__ is before
