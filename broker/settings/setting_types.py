"""The variables of settings, and types that are more than a number or a text: lists of host names and
origins, names of files, SAS policies.

Lists are given in one variable, separated by commas or in JSON.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import NoDecode

from broker.base.strict_json import read_json
from broker.entities.descriptions import AuthorizationRule

ENVIRONMENT_PREFIX = "PARTIBUS_"

Right = Literal["Manage", "Send", "Listen"]


def _some(rights: tuple[Right, ...]) -> tuple[Right, ...]:
    """A field's minimum counts the right ones only: it would complain about a wrong one a second time."""
    if not rights:
        raise ValueError("at least one of Manage, Send and Listen is needed")
    return rights


Rights = Annotated[tuple[Right, ...], AfterValidator(_some)]


def variable_of(setting: str) -> str:
    """The environment variable of a setting."""
    return ENVIRONMENT_PREFIX + setting.upper()


_IS_BLANK, _WHY_BLANK = "is blank", "; perhaps a shell variable is not set"


def blank_text(given: object) -> str:
    """What an error says of a blank value that is no key."""
    return f"{_IS_BLANK} (got {given!r}){_WHY_BLANK}"


def _blank(more: str = "") -> PydanticCustomError:
    """The same for pydantic. `explain` puts the value between the two parts, unless it may be a key.
    Errors in a file leave the second part out."""
    return PydanticCustomError("blank", _IS_BLANK, {"behind_value": _WHY_BLANK + more})


def refuse_blank_folders(variable: str, given: object) -> None:
    """Check that a variable which names folders, as a list or separated by `:`, has no blank name in it: an
    empty one would mean the current folder. Raises ValueError."""
    parts = given.split(os.pathsep) if isinstance(given, str) else given
    if isinstance(parts, list | tuple) and any(isinstance(each, str) and not each.strip() for each in parts):
        raise ValueError(f"a folder in {variable} {blank_text(given)}")


def _named(given: object) -> object:
    """Check that the name of a file is not blank: the path of an empty one is that of the current folder.
    Raises PydanticCustomError."""
    if isinstance(given, str) and not given.strip():
        raise _blank()
    return given


FileName = Annotated[Path, BeforeValidator(_named)]
"""The path of a file. A blank one is refused."""


def _not_blank(given: str) -> str:
    """Raises PydanticCustomError for a text of spaces alone, or none."""
    if not given.strip():
        raise _blank()
    return given


Name = Annotated[str, AfterValidator(_not_blank)]
"""A text that names or proves something, so it has more than spaces."""
SecondKey = Annotated[str, AfterValidator(lambda given: _not_blank(given) if given else given)]
"""A key, or nothing."""


def _split(given: object) -> object:
    """Read a list from its variable, separated by commas or in JSON. None, which the variable spells `none`,
    is the empty list. Raises ValueError, and PydanticCustomError for a text with nothing in it."""
    if isinstance(given, str) and given.lstrip().startswith("["):
        return _parse(given)
    if isinstance(given, str):
        parts = tuple(part.strip() for part in given.split(",") if part.strip())
        if not parts:
            raise _blank(". Give `none` for the empty list")
        return parts
    return () if given is None else given


def _parse(given: object) -> object:
    """Read what a variable gives in JSON. A key that an error repeated would come to light, so it says only
    what is wrong, and where."""
    if not isinstance(given, str):
        return given
    try:
        return read_json(given)
    except json.JSONDecodeError as error:
        raise ValueError(f"not a JSON list: {error}") from error
    except RecursionError as error:
        raise ValueError("not a JSON list: lists and objects stand too deep in one another") from error


_HOST_NAME = re.compile(r"\*|(\*\.)?[0-9A-Za-z_-][0-9A-Za-z._-]{0,250}")
_ORIGIN = re.compile(r"(?i:https?)://(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+)(:(?P<port>[0-9]{1,5}))?")


def _check_host_name(text: str) -> str:
    if not _HOST_NAME.fullmatch(text):
        raise ValueError(
            "give a name or an IPv4 address without scheme, port or path, such as bus.example.com or "
            "*.example.com"
        )
    return text


def _check_certificate_name(text: str) -> str:
    """A star stands for the leftmost label (RFC 9525 6.3), and clients want at least two more behind it."""
    if text.startswith("*") and len([label for label in text.split(".") if label]) < 3:
        raise ValueError("give at least two labels behind the star, such as *.example.com")
    return text


def _check_origin(text: str) -> str:
    match = _ORIGIN.fullmatch(text)
    if not match or len(text) > 300 or not 0 < int(match["port"] or 1) < 1 << 16:
        raise ValueError(
            "give an origin as http or https, a host and, if it is not the default, a port, "
            "such as https://app.example.com; it has no path"
        )
    return text


HostName = Annotated[str, AfterValidator(_check_host_name)]
Origin = Annotated[str, AfterValidator(_check_origin)]
CertificateName = Annotated[HostName, AfterValidator(_check_certificate_name)]
CertificateNames = Annotated[tuple[CertificateName, ...], NoDecode, BeforeValidator(_split)]
HostNames = Annotated[tuple[HostName, ...], NoDecode, BeforeValidator(_split)]
Origins = Annotated[tuple[Origin, ...], NoDecode, BeforeValidator(_split)]


class SasRule(BaseModel):
    """An additional SAS policy of the namespace: its name, its keys, and the rights they give."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key_name: Name = Field(max_length=256)
    primary_key: Name
    secondary_key: SecondKey = ""
    rights: Rights

    @model_validator(mode="after")
    def _manage_includes_the_others(self) -> Self:
        if "Manage" in self.rights and set(self.rights) != {"Manage", "Send", "Listen"}:
            raise ValueError("the right Manage requires the rights Send and Listen")
        return self

    def as_rule(self) -> AuthorizationRule:
        """Convert to plain data."""
        return AuthorizationRule(self.key_name, self.primary_key, self.secondary_key, frozenset(self.rights))


def _check_names(rules: tuple[SasRule, ...]) -> tuple[SasRule, ...]:
    if len({rule.key_name.casefold() for rule in rules}) < len(rules):
        raise ValueError("two rules have the same name")
    return rules


SasRules = Annotated[
    tuple[SasRule, ...], NoDecode, BeforeValidator(_parse), Field(max_length=11), AfterValidator(_check_names)
]
