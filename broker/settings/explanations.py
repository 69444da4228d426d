"""Words for settings that are refused: the variable, what is wrong with it, and its value unless that may be
a key. Pure, except that values that are not JSON are looked up in the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError
from pydantic_settings.exceptions import SettingsError

from broker.settings.setting_types import variable_of


def explain(error: ValidationError) -> str:
    """One line for each problem: the variable, what is wrong, and the value."""
    lines = []
    for problem in error.errors(include_url=False):
        path = [str(part) for part in problem["loc"]]
        name = variable_of(path[0]) + "".join(f".{part}" for part in path[1:]) if path else "settings"
        reason = problem["msg"].removeprefix("Value error, ")
        met = problem["input"]
        # Variables spell None like this, and no other value is shown for it.
        text = " (got 'none')" if met is None and len(path) == 1 else value_text(path, met)
        behind_value = problem.get("ctx", {}).get("behind_value", "")
        lines.append(f"{name}: {reason}{text}{behind_value}")
    return "\n".join(lines)


def value_text(path: Sequence[str], value: object) -> str:
    """What an error says of a setting's value. `path` is the setting's name, and where in it the value is.

    Empty for keys, for lists and maps, which may hold keys, and if there is no path because the error is
    about several settings.
    """
    if not path or _is_secret(path) or not isinstance(value, str | int | float | Path):
        return ""
    return f" (got {str(value) if isinstance(value, Path) else value!r})"


def _is_secret(path: Sequence[str]) -> bool:
    """Whether a value may be a key: an unknown field of a policy may be one whose name is misspelt."""
    if path[0] == "sas_rules":
        return not {"rights", "key_name"} & set(path)
    return path[0] in ("sas_key", "sas_secondary_key")


def explain_json(error: SettingsError) -> str:
    """The same for a variable that does not hold JSON although it should."""
    field = re.search(r'field "(\w+)"', str(error))
    if not field:
        return str(error)
    variable = variable_of(field[1])
    met = next((value for name, value in os.environ.items() if name.upper() == variable), "")
    return f"{variable}: a JSON value is expected" + ("" if _is_secret([field[1]]) else f" (got {met!r})")
