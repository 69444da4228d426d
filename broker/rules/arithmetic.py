"""Arithmetic of expressions (AMQP contract 11.3), as C# does it: integers have 64 bits (results
beyond those of a long need an operand that is one, an unsigned long), their division truncates towards zero,
and a remainder has the sign of the dividend. Dates and time spans can be added and
subtracted, and texts joined with `+` if the result can be a property. What has no result fails.
"""

from __future__ import annotations

import math
from decimal import Decimal, DecimalException

from broker.message.property_sizes import PROPERTY_BYTES_MAX
from broker.rules.values import NUMBERS, Duration, EvaluationFailed, Instant, Value

_LONG_MIN, _LONG_MAX, _UNSIGNED_LONG_MAX = -(2**63), 2**63 - 1, 2**64 - 1

Number = int | float | Decimal


def calculate(operator: str, left: Value, right: Value) -> Value:
    """The result of + - * / or %; None if one of the operands is null. Raises EvaluationFailed."""
    if left is None or right is None:
        return None
    if type(left) in NUMBERS and type(right) in NUMBERS:
        return _numbers(operator, left, right)  # type: ignore[arg-type]
    if operator == "+" and isinstance(left, str) and isinstance(right, str):
        size = len(left) + len(right)
        if size > PROPERTY_BYTES_MAX:  # before it is made: a chain of SET could double it again and again
            raise EvaluationFailed(
                f"The joined text would have {size} characters; the limit is {PROPERTY_BYTES_MAX}."
            )
        return left + right
    if operator in "+-":
        result = _times(operator, left, right)
        if result is not None:
            return result
    raise EvaluationFailed(
        f"The operator '{operator}' has no result for {kind_of(left)} and {kind_of(right)}."
    )


def negated(operand: Value) -> Value:
    """The number or time span with its sign changed; None for null. Raises EvaluationFailed."""
    if operand is None:
        return None
    if isinstance(operand, Duration):
        return Duration(-operand.ticks)
    return calculate("-", 0, operand) if type(operand) is int else _float_negated(operand)


def unchanged(operand: Value) -> Value:
    """What a number or time span is with a `+` before it. Raises EvaluationFailed."""
    if operand is None or type(operand) in NUMBERS or isinstance(operand, Duration):
        return operand
    raise EvaluationFailed(f"The sign '+' has no result for {kind_of(operand)}.")


def _float_negated(operand: Value) -> Value:
    if isinstance(operand, (float, Decimal)):
        return -operand
    raise EvaluationFailed(f"The sign '-' has no result for {kind_of(operand)}.")


def _numbers(operator: str, left: Number, right: Number) -> Value:
    try:
        if isinstance(left, int) and isinstance(right, int):
            return _integers(operator, left, right)
        if isinstance(left, float) or isinstance(right, float):
            return _floats(operator, float(left), float(right))
        return _decimals(operator, Decimal(left), Decimal(right))
    except (OverflowError, DecimalException) as error:
        raise EvaluationFailed(f"{left} {operator} {right} has no result.") from error


def _integers(operator: str, left: int, right: int) -> int:
    if operator in "/%":
        if right == 0:
            raise EvaluationFailed(f"{left} {operator} 0 has no result.")
        quotient = abs(left) // abs(right)
        if (left < 0) != (right < 0):
            quotient = -quotient
        result = quotient if operator == "/" else left - quotient * right
    else:
        result = left + right if operator == "+" else left - right if operator == "-" else left * right
    highest = _LONG_MAX if max(left, right) <= _LONG_MAX else _UNSIGNED_LONG_MAX
    if not _LONG_MIN <= result <= highest:
        raise EvaluationFailed(f"The result of {left} {operator} {right} does not fit 64 bits.")
    return result


def _floats(operator: str, left: float, right: float) -> float:
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    if operator == "%":
        return math.nan if right == 0 or math.isinf(left) else math.fmod(left, right)
    if right == 0:
        return math.nan if left == 0 or math.isnan(left) else math.copysign(math.inf, left) * _sign(right)
    return left / right


def _sign(zero: float) -> float:
    return math.copysign(1.0, zero)


def _decimals(operator: str, left: Decimal, right: Decimal) -> Decimal:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left / right
        case _:
            return left % right


def _times(operator: str, left: Value, right: Value) -> Value:
    """The sum or difference of dates and time spans; None if there is none."""
    sign = 1 if operator == "+" else -1
    if isinstance(right, Duration):
        if isinstance(left, Instant):
            return Instant(left.ticks + sign * right.ticks)
        if isinstance(left, Duration):
            return Duration(left.ticks + sign * right.ticks)
    elif isinstance(right, Instant):
        if isinstance(left, Instant) and operator == "-":
            return Duration(left.ticks - right.ticks)
        if isinstance(left, Duration) and operator == "+":
            return Instant(left.ticks + right.ticks)
    return None


def kind_of(value: Value) -> str:
    """What a value is, in words for a refusal."""
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float, Decimal)):
        return "a number"
    words = {str: "a text", bytes: "a binary", Instant: "a date", Duration: "a time span"}
    return words.get(type(value), "null" if value is None else "a guid")
